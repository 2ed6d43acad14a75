//! `leasehold read TARGET`: what is there now, for those who only read.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use leasehold::targets::{Target, TargetError};

use super::target_args;
use crate::args::ReadArgs;
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;

/// Hands it on, to standard output or to a file.
pub fn run(args: &ReadArgs, out: &Out) -> Result<u8, Failed> {
    if out.json {
        return Err(Failed::usage(
            "what is read is handed on as it is, so there is no --json here. Leave it out",
        ));
    }
    let mut target = target_args::with_content(&args.target)?;
    match &args.to {
        None => {
            target.read(&mut io::stdout().lock()).map_err(|error| unread(&error))?;
            io::stdout().flush().map_err(|e| unwritten("standard output", &e))?;
        }
        Some(path) => to_file(target.as_mut(), path)?,
    }
    Ok(exit::OK)
}

/// Beside it first, then in its place: whoever reads the file sees all of it or what was there before.
fn to_file(target: &mut dyn Target, path: &Path) -> Result<(), Failed> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".leasehold-{}", std::process::id()));
    let beside = PathBuf::from(name);
    let shown = path.display().to_string();
    let failed = |e: io::Error| unwritten(&shown, &e);
    let done = File::create_new(&beside).map_err(failed).and_then(|mut file| {
        target.read(&mut file).map_err(|error| unread(&error))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&beside, path).map_err(failed)
    });
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}

/// Whoever only reads need not hear that nothing was written.
fn unread(error: &TargetError) -> Failed {
    target_args::failed(error).of_a_look()
}

fn unwritten(to: &str, error: &io::Error) -> Failed {
    let message =
        format!("cannot write to {to}: {error}. The target was not changed; name another place with --to");
    Failed::new(FailKind::Usage, "to", message)
}
