//! The demo's job: seals its file, says so, waits to be told, writes.

use std::io;
use std::path::Path;

use leasehold::backends::file::FileTarget;
use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::host::Enclosing;
use leasehold::targets::{Content, Target, TargetError};

use crate::args::DemoActorArgs;
use crate::cmd::target_args::failed;
use crate::exit::{self, FailKind, Failed};
use crate::out;

/// Said once it could write: its process group and its token.
pub const READY: &str = "ready";
/// Said to it: write now.
pub const GO: &str = "go";
/// Said when the target took it.
pub const WRITTEN: &str = "written";
/// Said when the target did not: its own token, the one that was sealed, and the reason.
pub const REFUSED: &str = "refused";
/// The token of an actor that has none.
const NO_TOKEN: u64 = 0;

/// Plays its part; the exit code is what `leasehold write` would give.
pub fn run(args: &DemoActorArgs) -> Result<u8, Failed> {
    if args.unprotected { plain(&args.file, &args.content) } else { fenced(&args.file, &args.content) }
}

/// Stands where a job stands that has done its work and is about to publish it. Whether to go on:
/// at the end of input the demo is over.
fn about_to_write(token: u64) -> bool {
    let group = rustix::process::getpgrp().as_raw_nonzero();
    out::line(&format!("{READY} {group} {token}"));
    let mut line = String::new();
    io::stdin().read_line(&mut line).is_ok() && line.trim() == GO
}

fn plain(file: &Path, content: &str) -> Result<u8, Failed> {
    if about_to_write(NO_TOKEN) {
        std::fs::write(file, content)
            .map_err(|e| Failed::new(FailKind::Unreachable, "write", format!("cannot write: {e}")))?;
        out::line(WRITTEN);
    }
    Ok(exit::OK)
}

fn fenced(file: &Path, content: &str) -> Result<u8, Failed> {
    let run = Enclosing::from_env(|name| std::env::var(name).ok());
    let run = run.ok_or_else(|| Failed::usage("demo-actor is a part of `leasehold demo`"))?;
    let bearer = Bearer::from(run);
    let mut target = FileTarget::open(file).map_err(|e| failed(&e))?;
    // Before anything is read or computed: from here on every earlier run is refused.
    target.seal(&bearer, FenceMode::Enforce).map_err(|e| failed(&e))?;
    if !about_to_write(bearer.token.get()) {
        return Ok(exit::OK);
    }
    match target.write(&bearer, None, Content::Bytes(content.as_bytes())) {
        Ok(_) => {
            out::line(WRITTEN);
            Ok(exit::OK)
        }
        Err(error) => {
            if let TargetError::Refused(refused) = &error {
                let sealed = refused.sealed().map_or(NO_TOKEN, |token| token.get());
                out::line(&format!("{REFUSED} {} {sealed} {}", refused.token, refused.reason.word()));
            }
            Err(failed(&error))
        }
    }
}
