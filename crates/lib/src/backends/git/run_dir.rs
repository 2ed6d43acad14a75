//! A private directory: a bare repository for fences, what was pushed, and git's way to our helper.
//!
//! ```text
//! git-remote-leasehold    this program, under the name by which git looks for it
//! config                  settings that hold a secret; all others are in the environment
//! targets.json            which URLs are guarded
//! fence.git               fences, as objects
//! known-N                 the fence of target N as it was last seen
//! pushed-N                what fenced pushes of this run did to target N
//! ```
//!
//! One for each process that seals, in the user's state directory: jobs clean up temporary ones.
//! Whatever the job starts finds it by [`VARIABLE`]. Where that leads to nothing, nothing is pushed.

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
use super::repo_url::{self, VEIL, VEILED};
use crate::state::{StateDir, StateError};
use crate::{random, run_files};

/// Where it is, for the job and all it starts.
pub const VARIABLE: &str = "LEASEHOLD_GIT";
/// What git calls a helper for `leasehold::URL`.
pub const HELPER: &str = "git-remote-leasehold";
/// What stands before a URL that goes through the helper.
pub(super) const PREFIX: &str = "leasehold::";

/// What git calls them for URLs that hold a secret.
pub(super) fn veils() -> impl Iterator<Item = String> {
    VEILED.iter().map(|scheme| format!("{VEIL}{scheme}"))
}

/// Whether git has started a program of this name as its helper.
pub fn is_helper(name: &OsStr) -> bool {
    name == HELPER || veils().any(|veil| name == OsStr::new(&format!("git-remote-{veil}")))
}

/// What stands before a note of a push whose outcome nobody knows. No ref begins like this.
pub(super) const DOUBT: &str = "?";

/// How often a place is looked for beside others who sweep there.
const TRIES: u32 = 100;

/// A repository whose pushes are fenced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Guarded {
    pub(super) url: String,
    /// What else it is called where the run was started.
    pub(super) also: Vec<String>,
}

/// The directory; removed with its owner.
#[derive(Debug)]
pub(super) struct RunDir {
    path: PathBuf,
    /// Locked as long as the owner lives: a directory whose lock is free is a dead run's.
    owner: Option<File>,
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if self.owner.is_some() {
            remove(&self.path);
            // Fails while there are others.
            let _ = self.path.parent().map(fs::remove_dir);
        }
    }
}

impl RunDir {
    /// The one of this process in this state directory; made if there is none.
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
        for _ in 0..TRIES {
            let dir = state.git().map_err(as_io)?;
            run_files::sweep(&dir, 32, remove);
            let path = dir.join(format!("{:032x}", random::seed()));
            if let Some(owner) = run_files::own(&path)? {
                let run_dir = Self { path, owner: Some(owner) };
                run_dir.furnish()?;
                return Ok(run_dir);
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "others sweep the state directory all the time"))
    }

    fn furnish(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.path)?;
        // What `git init --bare` makes, without its templates and without a process.
        let bare = self.fences();
        for dir in ["objects", "refs"] {
            fs::create_dir_all(bare.join(dir))?;
        }
        fs::write(bare.join("HEAD"), "ref: refs/heads/none\n")?;
        fs::write(bare.join("config"), "[core]\n\trepositoryformatversion = 0\n\tbare = true\n")?;
        self.save("targets.json", b"[]")
    }

    /// The one that the run around us has made; an error if it is not what it was.
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

    /// Replaced as a whole: a process that reads it meanwhile sees one version.
    pub(super) fn save(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temp = self.path.join(format!(".{name}-{:016x}", random::seed() as u64));
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp)?.write_all(bytes)?;
        fs::rename(&temp, self.path.join(name))
    }

    /// What is guarded. A list that cannot be read is no empty one.
    pub(super) fn targets(&self) -> io::Result<Vec<Guarded>> {
        // A relative path would lead somewhere else from everywhere.
        let read = match self.path.is_absolute() {
            true => fs::read(self.path.join("targets.json")),
            false => Err(io::ErrorKind::NotFound.into()),
        };
        let read = read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        read.map_err(|e| {
            let place = self.path.display();
            let why = format!(
                "the directory {place}, which a run keeps for git, is gone or damaged ({e}; if that run is over, \
                 unset {VARIABLE})"
            );
            io::Error::new(e.kind(), why)
        })
    }

    /// The number of this repository among the guarded ones.
    pub(super) fn find(&self, url: &str) -> io::Result<Option<usize>> {
        let wanted = repo_url::identity(url);
        // A relative name was another place where the run was started.
        let named = |name: &&String| !repo_url::is_relative(name) && repo_url::identity(name) == wanted;
        let is = |target: &Guarded| std::iter::once(&target.url).chain(&target.also).any(|name| named(&name));
        Ok(self.targets()?.iter().position(is))
    }

    /// Its number, from now on.
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

    /// The fence as it was last seen by anybody of this run.
    pub(super) fn known(&self, number: usize) -> Option<(FenceRecord, FenceCommit)> {
        let bytes = fs::read(self.path.join(format!("known-{number}"))).ok()?;
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let at = FenceCommit::parse(std::str::from_utf8(&bytes[..end]).ok()?)?;
        Some((FenceRecord::decode(&bytes[end + 1..]).ok()?, at))
    }

    /// Best effort: whoever finds nothing here, or something old, asks the repository.
    pub(super) fn remember(&self, number: usize, record: &FenceRecord, at: &FenceCommit) {
        let mut bytes = format!("{at}\n").into_bytes();
        bytes.extend(record.encode());
        let _ = self.save(&format!("known-{number}"), &bytes);
    }

    /// Notes what a fenced push did: lines of a name and what it is now.
    pub(super) fn note(&self, number: usize, lines: &str) {
        let path = self.path.join(format!("pushed-{number}"));
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let _ = file.and_then(|mut file| file.write_all(lines.as_bytes()));
    }

    pub(super) fn noted(&self, number: usize) -> String {
        fs::read_to_string(self.path.join(format!("pushed-{number}"))).unwrap_or_default()
    }

    /// Puts the helper in its place, under its names.
    pub(super) fn link(&self, program: &Path) -> io::Result<PathBuf> {
        for name in veils().map(|veil| format!("git-remote-{veil}")).chain([HELPER.into()]) {
            let helper = self.path.join(name);
            match std::os::unix::fs::symlink(program, &helper) {
                // From the target before this one.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && fs::read_link(&helper)? == program => {}
                made => made?,
            }
        }
        Ok(self.path.join(HELPER))
    }
}

/// Who cannot have a state directory cannot have this one either.
pub(super) fn as_io(error: StateError) -> io::Error {
    match error {
        StateError::Io { path, source } => io::Error::new(source.kind(), format!("{path}: {source}")),
        other => io::Error::other(other.to_string()),
    }
}

/// A directory and its lock, in this order: one without a lock would stay for ever.
fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {}
        _ => drop(fs::remove_file(run_files::lock_of(path))),
    }
}
