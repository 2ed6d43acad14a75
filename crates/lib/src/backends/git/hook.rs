//! Hooks for the owner of a server: a guarded branch moves only together with its fence.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::repo_url;
use super::tool::{LOCAL, without_detour};
use crate::random;

/// One script for both hooks; it reads its own name. A link to `packaging/git-hooks/leasehold-fence`.
pub const SCRIPT: &str = include_str!("leasehold-fence.sh");
/// The first can say why a push is refused; the second runs when git holds the locks.
const NAMES: [&str; 2] = ["pre-receive", "reference-transaction"];
/// The first bytes of every version of the script, by which it is recognised.
const HEADER: &[u8] = b"#!/bin/sh\n# leasehold: once this repository has been ";

/// Why a repository that updates its files on a push cannot be fenced.
pub(super) const LIVE: &str = "has receive.denyCurrentBranch set to updateInstead: git updates its files \
    before it compares the fence, so a refused push would still change them";
/// What to do about it.
pub(super) const LIVE_FIX: &str = "Set it to refuse, push to a bare repository, and update the files in a \
    post-receive hook";

/// Whether the repository at `url` is on this machine and updates its files on a push.
pub(super) fn goes_live(url: &str) -> bool {
    repo_url::local(url).is_some_and(|path| {
        // The names that git tries.
        let tries = [path.to_owned(), format!("{path}.git")];
        let dir = tries.iter().map(Path::new).find(|path| path.is_dir());
        dir.is_some_and(|dir| {
            let said = at(dir).args(["config", "receive.denyCurrentBranch"]).output();
            said.is_ok_and(|said| said.stdout.trim_ascii().eq_ignore_ascii_case(b"updateInstead"))
        })
    })
}

/// Runs git in this repository.
fn at(dir: &Path) -> Command {
    let mut command = without_detour("git");
    for name in LOCAL {
        command.env_remove(name);
    }
    command.arg("-C").arg(dir);
    command
}

/// Installs the hooks into the repository at `dir` and returns the files. Replaces no other hooks.
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
        // By a rename: a push at the same time runs the old or the new hook.
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

/// The directory of this repository's hooks, by git's settings.
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
        Ok(found) if !found.is_file() => "is there already, and is not a file",
        Ok(_) if fs::read(path)?.starts_with(HEADER) => return Ok(()),
        Ok(_) => "is there already",
    };
    let why = format!("{} {what}; call Leasehold's hook from it, or move it away", path.display());
    Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_the_header() {
        assert!(SCRIPT.as_bytes().starts_with(HEADER));
    }
}
