//! `leasehold read TARGET`: prints the content of a target, without a lease.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use leasehold::targets::{Target, TargetError};

use super::target_args;
use crate::args::ReadArgs;
use crate::exit::{self, Failed};
use crate::messages::read as say;
use crate::out::Out;

/// Copies it to standard output or to a file.
pub fn run(args: &ReadArgs, out: &Out) -> Result<u8, Failed> {
    if out.json {
        return Err(say::no_json());
    }
    let mut target = target_args::with_content(&args.target)?;
    match &args.to {
        None => {
            target.read(&mut io::stdout().lock()).map_err(|error| not_read(&error))?;
            io::stdout().flush().map_err(|e| say::not_copied(say::standard_output(), e))?;
        }
        Some(path) => to_file(target.as_mut(), path)?,
    }
    Ok(exit::OK)
}

/// Writes a new file and renames it: a reader sees the whole new content or the old one.
fn to_file(target: &mut dyn Target, path: &Path) -> Result<(), Failed> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".leasehold-{}", std::process::id()));
    let beside = PathBuf::from(name);
    let shown = path.display().to_string();
    let failed = |e: io::Error| say::not_copied(&shown, e);
    let done = File::create_new(&beside).map_err(failed).and_then(|mut file| {
        target.read(&mut file).map_err(|error| not_read(&error))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&beside, path).map_err(failed)
    });
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}

/// Does not say that nothing was written: nobody asked for that here.
fn not_read(error: &TargetError) -> Failed {
    target_args::failed(error).of_a_look()
}
