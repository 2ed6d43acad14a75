//! A private directory: a bare repository for fences, notes of the pushes, and links to our helper for git.
//!
//! ```text
//! git-remote-leasehold    this program, under the name that git looks for
//! config                  settings that hold a secret; all others are in the environment
//! targets.json            the guarded URLs
//! fence.git               fences, as objects
//! known-N                 the last known fence of target N
//! pushed-N                the refs that fenced pushes of this run moved in target N
//! ```
//!
//! Each process that seals has one, in the user's state directory, because jobs clean up temporary directories.
//! The job's processes find it through [`VARIABLE`]. If it is gone, nothing is pushed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use leasehold_core::fence_record::FenceRecord;
use serde::{Deserialize, Serialize};

use super::remote::FenceCommit;
use super::repo_url::{self, SECRET_PREFIX, SECRET_SCHEMES};
use crate::run_files;
use crate::state::{self, StateDir, StateError};

/// The variable with its path, for the job and its processes.
pub const VARIABLE: &str = "LEASEHOLD_GIT";
/// The name of git's helper for `leasehold::URL`.
pub const HELPER: &str = "git-remote-leasehold";
/// The prefix of a URL that goes through the helper.
pub(super) const PREFIX: &str = "leasehold::";

/// The schemes of the helpers for URLs with a secret.
pub(super) fn secret_schemes() -> impl Iterator<Item = String> {
    SECRET_SCHEMES.iter().map(|scheme| format!("{SECRET_PREFIX}{scheme}"))
}

/// Whether git starts a program of this name as a helper of ours.
pub fn is_helper(name: &OsStr) -> bool {
    name == HELPER || secret_schemes().any(|scheme| name == OsStr::new(&format!("git-remote-{scheme}")))
}

/// The prefix of a note of a push with an unknown outcome. No ref begins like this.
pub(super) const DOUBT: &str = "?";

/// The length of a directory's name.
const DIGITS: usize = 32;

/// A repository whose pushes are fenced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Guarded {
    pub(super) url: String,
    /// Its other URLs in the clone where the run was started.
    pub(super) also: Vec<String>,
}

/// The directory. Dropping its owner removes it.
#[derive(Debug)]
pub(super) struct RunDir {
    path: PathBuf,
    /// The lock, held while the owner lives. A directory whose lock is free belongs to a dead run.
    owner: Option<File>,
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if self.owner.is_some() {
            remove(&self.path);
            // Fails while other runs have directories there.
            let _ = self.path.parent().map(fs::remove_dir);
        }
    }
}

impl RunDir {
    /// The one of this process in this state directory; created if there is none.
    pub(super) fn shared(state: &StateDir) -> io::Result<Arc<Self>> {
        static SHARED: Mutex<BTreeMap<PathBuf, Weak<RunDir>>> = Mutex::new(BTreeMap::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run_dir) = shared.get(state.path()).and_then(Weak::upgrade) {
            return Ok(run_dir);
        }
        let run_dir = Arc::new(Self::new(state)?);
        shared.insert(state.path().into(), Arc::downgrade(&run_dir));
        Ok(run_dir)
    }

    pub(super) fn new(state: &StateDir) -> io::Result<Self> {
        let (path, owner) = run_files::own_fresh(DIGITS, || {
            let dir = state.git().map_err(as_io)?;
            run_files::sweep(&dir, DIGITS, remove);
            Ok(dir)
        })?;
        let run_dir = Self { path, owner: Some(owner) };
        run_dir.create()?;
        Ok(run_dir)
    }

    fn create(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.path)?;
        // As `git init --bare`, without templates and without starting a process.
        let bare = self.fences();
        for dir in ["objects", "refs"] {
            fs::create_dir_all(bare.join(dir))?;
        }
        fs::write(bare.join("HEAD"), "ref: refs/heads/none\n")?;
        fs::write(bare.join("config"), "[core]\n\trepositoryformatversion = 0\n\tbare = true\n")?;
        self.save("targets.json", b"[]")
    }

    /// The directory of the run around us; an error if it is gone or damaged.
    pub(super) fn around() -> io::Result<Option<Self>> {
        let Some(path) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let run_dir = Self { path: path.into(), owner: None };
        run_dir.targets()?;
        Ok(Some(run_dir))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fences(&self) -> PathBuf {
        self.path.join("fence.git")
    }

    /// Replaces a file as a whole, so that a reader sees one version.
    pub(super) fn save(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        state::replace_private(&self.path.join(name), bytes)
    }

    /// The guarded repositories. A list that cannot be read is an error, not an empty list.
    pub(super) fn targets(&self) -> io::Result<Vec<Guarded>> {
        // A relative path would mean another directory in each process.
        let read = match self.path.is_absolute() {
            true => fs::read(self.path.join("targets.json")),
            false => Err(io::ErrorKind::NotFound.into()),
        };
        let read = read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        read.map_err(|e| {
            let place = self.path.display();
            let why = format!(
                "the directory {place}, which a run keeps for git, is gone or damaged ({e}; if that run has ended, \
                 unset {VARIABLE})"
            );
            io::Error::new(e.kind(), why)
        })
    }

    /// The number of this repository among the guarded ones.
    pub(super) fn find(&self, url: &str) -> io::Result<Option<usize>> {
        let wanted = repo_url::identity(url);
        // A relative name meant another repository where the run was started.
        let named = |name: &&String| !repo_url::is_relative(name) && repo_url::identity(name) == wanted;
        let is = |target: &Guarded| std::iter::once(&target.url).chain(&target.also).any(|name| named(&name));
        Ok(self.targets()?.iter().position(is))
    }

    /// Guards it, and returns its number.
    pub(super) fn guard(&self, url: &str, also: &[String]) -> io::Result<usize> {
        let mut targets = self.targets()?;
        let number = self.find(url)?.unwrap_or(targets.len());
        if number == targets.len() {
            targets.push(Guarded { url: url.into(), also: Vec::new() });
        }
        let known = &mut targets[number].also;
        for spelling in also {
            if !known.contains(spelling) {
                known.push(spelling.clone());
            }
        }
        self.save("targets.json", &serde_json::to_vec(&targets)?)?;
        Ok(number)
    }

    /// The last fence that a process of this run saw.
    pub(super) fn known(&self, number: usize) -> Option<(FenceRecord, FenceCommit)> {
        let bytes = fs::read(self.path.join(format!("known-{number}"))).ok()?;
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let at = FenceCommit::parse(std::str::from_utf8(&bytes[..end]).ok()?)?;
        Some((FenceRecord::decode(&bytes[end + 1..]).ok()?, at))
    }

    /// Writes a fence down. Errors are ignored: without it, or with an old one, a process asks the repository.
    pub(super) fn remember(&self, number: usize, record: &FenceRecord, at: &FenceCommit) {
        let mut bytes = format!("{at}\n").into_bytes();
        bytes.extend(record.encode());
        let _ = self.save(&format!("known-{number}"), &bytes);
    }

    /// Notes the refs of a fenced push: lines of a name and its commit.
    pub(super) fn note(&self, number: usize, lines: &str) {
        let path = self.path.join(format!("pushed-{number}"));
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let _ = file.and_then(|mut file| file.write_all(lines.as_bytes()));
    }

    pub(super) fn noted(&self, number: usize) -> String {
        fs::read_to_string(self.path.join(format!("pushed-{number}"))).unwrap_or_default()
    }

    /// Links the helper, under all its names.
    pub(super) fn link(&self, program: &Path) -> io::Result<PathBuf> {
        for name in secret_schemes().map(|scheme| format!("git-remote-{scheme}")).chain([HELPER.into()]) {
            let helper = self.path.join(name);
            match std::os::unix::fs::symlink(program, &helper) {
                // The link of another target of this run.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && fs::read_link(&helper)? == program => {}
                made => made?,
            }
        }
        Ok(self.path.join(HELPER))
    }
}

/// A failure of the state directory, in which this one lies.
pub(super) fn as_io(error: StateError) -> io::Error {
    match error {
        StateError::Io { path, source } => io::Error::new(source.kind(), format!("{path}: {source}")),
        other => io::Error::other(other.to_string()),
    }
}

/// Removes a directory and then its lock: a directory without a lock would never be swept.
fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {}
        _ => drop(fs::remove_file(run_files::lock_of(path))),
    }
}
