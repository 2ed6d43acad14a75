//! For people who own the server: hooks that let a guarded branch move only together with its fence.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::repo_url;
use super::tool::{LOCAL, without_detour};
use crate::random;

/// One script that knows by its name when it is called.
pub const SCRIPT: &str = include_str!("leasehold-fence.sh");
/// The first tells whoever pushes why; the second is called when git holds the locks.
const NAMES: [&str; 2] = ["pre-receive", "reference-transaction"];
/// How each version of it begins. What merely mentions us is somebody else's.
const HEADER: &[u8] = b"#!/bin/sh\n# leasehold: once this repository has been sealed, ";

/// Why a repository that puts pushed files in place by itself cannot be fenced.
pub(super) const LIVE: &str = "has receive.denyCurrentBranch set to updateInstead: git puts the files of a push in \
    place before it compares the fence, so a push that is refused would be live all the same";
/// What to do about it.
pub(super) const LIVE_FIX: &str = "Set it to refuse, push to a bare repository, and put files in place from a \
    post-receive hook";

/// Whether the repository at `url` is on this machine and does that.
pub(super) fn goes_live(url: &str) -> bool {
    repo_url::local(url).is_some_and(|path| {
        // As git finds it by itself.
        let tries = [path.to_owned(), format!("{path}.git")];
        let dir = tries.iter().map(Path::new).find(|path| path.is_dir());
        dir.is_some_and(|dir| {
            let said = at(dir).args(["config", "receive.denyCurrentBranch"]).output();
            said.is_ok_and(|said| said.stdout.trim_ascii().eq_ignore_ascii_case(b"updateInstead"))
        })
    })
}

/// Git in this repository.
fn at(dir: &Path) -> Command {
    let mut command = without_detour("git");
    for name in LOCAL {
        command.env_remove(name);
    }
    command.arg("-C").arg(dir);
    command
}

/// Installs the hooks into the repository at `dir`; which files were written. Replaces nothing but its own.
pub fn install(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let hooks = hooks_of(dir)?;
    if dir.to_str().is_some_and(goes_live) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it {LIVE}. {LIVE_FIX}")));
    }
    let paths = NAMES.map(|name| hooks.join(name));
    for path in &paths {
        may_replace(path)?;
    }
    fs::create_dir_all(&hooks)?;
    for path in &paths {
        // As a whole: a push that comes meanwhile runs the one or the other.
        let temp = hooks.join(format!(".leasehold-{:032x}", random::seed()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&temp);
        let written = file.and_then(|mut file| file.write_all(SCRIPT.as_bytes()));
        if let Err(e) = written.and_then(|()| fs::rename(&temp, path)) {
            let _ = fs::remove_file(&temp);
            return Err(e);
        }
    }
    Ok(paths.into())
}

/// Where git looks for the hooks of this repository; settings may lead it elsewhere.
fn hooks_of(dir: &Path) -> io::Result<PathBuf> {
    let said = at(dir).args(["rev-parse", "--git-path", "hooks"]).output()?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr);
        let why = format!("it is not a git repository on this machine ({})", why.trim());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let path = String::from_utf8(said.stdout).map_err(io::Error::other)?;
    std::path::absolute(dir.join(path.trim_end_matches('\n')))
}

fn may_replace(path: &Path) -> io::Result<()> {
    let what = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
        Ok(found) if found.is_symlink() => "is a link, perhaps to a hook that others share",
        Ok(found) if !found.is_file() => "is there already, and is no file",
        Ok(_) if fs::read(path)?.starts_with(HEADER) => return Ok(()),
        Ok(_) => "is there already",
    };
    let why = format!("{} {what}; call ours from it, or move it away", path.display());
    Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_begins_as_it_is_known() {
        assert!(SCRIPT.as_bytes().starts_with(HEADER));
    }
}
