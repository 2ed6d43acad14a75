//! The demo's job: fences its file, reports that, waits for a line, writes.

use std::io;
use std::path::Path;

use leasehold::backends::file::FileTarget;
use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::host::Enclosing;
use leasehold::targets::{Content, Target, TargetError};

use crate::args::DemoActorArgs;
use crate::cmd::target_args::failed;
use crate::exit::{self, Failed};
use crate::messages::demo as say;
use crate::out;

/// Printed when it could write; with its process group and its token.
pub const READY: &str = "ready";
/// Read: write now.
pub const GO: &str = "go";
/// Printed when it has written.
pub const WRITTEN: &str = "written";
/// Printed when the target refused; with its own token, the newer one, and the reason.
pub const REFUSED: &str = "refused";
/// The token of an actor that has none.
const NO_TOKEN: u64 = 0;

/// Runs it; the exit code is that of `leasehold write`.
pub fn run(args: &DemoActorArgs) -> Result<u8, Failed> {
    if args.unprotected { plain(&args.file, &args.content) } else { fenced(&args.file, &args.content) }
}

/// Waits as a job that has done its work and is about to publish it. Whether to go on: no, at the end of input,
/// when the demo is over.
fn about_to_write(token: u64) -> bool {
    let group = rustix::process::getpgrp().as_raw_nonzero();
    out::line(&format!("{READY} {group} {token}"));
    let mut line = String::new();
    io::stdin().read_line(&mut line).is_ok() && line.trim() == GO
}

fn plain(file: &Path, content: &str) -> Result<u8, Failed> {
    if about_to_write(NO_TOKEN) {
        std::fs::write(file, content).map_err(say::actor_unwritten)?;
        out::line(WRITTEN);
    }
    Ok(exit::OK)
}

fn fenced(file: &Path, content: &str) -> Result<u8, Failed> {
    let run = Enclosing::from_env(|name| std::env::var(name).ok());
    let run = run.ok_or_else(say::actor_alone)?;
    let bearer = Bearer::from(run);
    let mut target = FileTarget::open(file).map_err(|e| failed(&e))?;
    // Before it reads or computes anything: from now on every earlier run is refused.
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
                let newer = refused.sealed().map_or(NO_TOKEN, |token| token.get());
                out::line(&format!("{REFUSED} {} {newer} {}", refused.token, refused.reason.word()));
            }
            Err(failed(&error))
        }
    }
}
