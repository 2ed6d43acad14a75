//! What the processes under test do: one attempt on the artefact, between two lines on stdout.

use leasehold::core::fence::FenceMode;
use std::fs;
use std::io::Write;
use std::path::Path;

use leasehold::targets::{Content, Target, TargetError};

use crate::kit::{Kind, bearer};

/// The variable that makes this binary one of the processes under test.
pub(crate) const ROLE: &str = "LEASEHOLD_FILE_TARGET_ROLE";
/// Said right before the attempt, with the process id.
pub(crate) const READY: &str = "ready";
/// Said right after it.
pub(crate) const OVER: &str = "over";

/// The exit codes of an attempt.
pub(crate) const TAKEN: i32 = 0;
pub(crate) const REFUSED: i32 = 76;
pub(crate) const FAILED: i32 = 70;

/// `ROLE path token content`
pub(crate) fn play(role: &str) -> ! {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (path, token, content) = (&args[0], args[1].parse().unwrap(), &args[2]);
    // The directory is opened beforehand, so that every system call in between is about the target.
    let path = Path::new(path);
    // Nothing that an earlier run may have left: the system calls before the attempt are counted too.
    let drafts = path.parent().unwrap().with_extension("draft");
    let kind = Kind::of(path);
    let mut target = kind.open(path);
    // A draft is made beforehand too.
    let result = kind.with(content, &drafts, |content| attempt(role, target.as_mut(), path, token, content));
    println!("{OVER}");
    let Err(error) = result else { std::process::exit(TAKEN) };
    // In one piece, because strace speaks on the same stream.
    let _ = std::io::stderr().write_all(format!("{error}\n").as_bytes());
    std::process::exit(if matches!(error, TargetError::Refused(_)) { REFUSED } else { FAILED });
}

fn attempt(
    role: &str,
    target: &mut dyn Target,
    path: &Path,
    token: u64,
    content: Content<'_>,
) -> Result<(), TargetError> {
    let me = bearer(token);
    println!("{READY} {}", std::process::id());
    match (role, content) {
        ("seal", _) => target.seal(&me, FenceMode::Enforce).map(drop),
        ("write", content) => target.write(&me, Some(1), content).map(drop),
        ("many", Content::Bytes(bytes)) => {
            (0..20).try_for_each(|_| target.write(&me, None, Content::Bytes(bytes)).map(drop))
        }
        ("naive", Content::Bytes(bytes)) => {
            let taken = naive(path, token, std::str::from_utf8(bytes).unwrap());
            println!("{OVER}");
            std::process::exit(if taken { TAKEN } else { REFUSED });
        }
        (other, _) => panic!("no role {other}"),
    }
}

/// How it is often done, and why it leaks: fence and artefact are each replaced as a whole, the
/// fence is compared first, and nothing keeps anybody from waking up in between.
pub(crate) fn naive(path: &Path, token: u64, content: &str) -> bool {
    let fence = path.with_extension("fence");
    let stored: u64 = fs::read_to_string(&fence).unwrap().parse().unwrap();
    if token < stored {
        return false;
    }
    for (file, text) in [(fence.as_path(), token.to_string()), (path, content.to_owned())] {
        let new = file.with_extension(format!("new-{token}"));
        fs::write(&new, text).unwrap();
        fs::rename(new, file).unwrap();
    }
    true
}
