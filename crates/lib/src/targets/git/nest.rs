//! A private directory: a bare repository for fences, what was pushed, and git's way to our helper.
//!
//! ```text
//! git-remote-leasehold    this program, under the name by which git looks for it
//! config                  sends the guarded URLs to it
//! targets.json            which URLs those are
//! fence.git               fences, as objects
//! known-N                 the fence of target N as it was last seen
//! pushed-N                what fenced pushes of this run did to target N
//! ```
//!
//! One for each process that seals; whatever its job starts finds it by [`VARIABLE`].

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use leasehold_core::fence_record::FenceRecord;
use serde::{Deserialize, Serialize};

use super::cell::At;
use super::place;
use crate::random;

/// Where it is, for the job and all it starts.
pub const VARIABLE: &str = "LEASEHOLD_GIT";
/// What git calls a helper for `leasehold::URL`.
pub const HELPER: &str = "git-remote-leasehold";
/// What stands before a URL that goes through the helper.
pub(super) const PREFIX: &str = "leasehold::";

/// A repository whose pushes are fenced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Guarded {
    pub(super) url: String,
}

/// The directory; removed with its owner.
#[derive(Debug)]
pub(super) struct Nest {
    path: PathBuf,
    owned: bool,
}

impl Drop for Nest {
    fn drop(&mut self) {
        if self.owned {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Nest {
    /// The one of this process; made if there is none.
    pub(super) fn shared() -> io::Result<Arc<Self>> {
        static SHARED: Mutex<Weak<Nest>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nest) = shared.upgrade() {
            return Ok(nest);
        }
        let nest = Arc::new(Self::new()?);
        *shared = Arc::downgrade(&nest);
        Ok(nest)
    }

    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("leasehold-git-{:032x}", random::seed()));
        DirBuilder::new().mode(0o700).create(&path)?;
        let nest = Self { path, owned: true };
        // What `git init --bare` makes, without its templates and without a process.
        let bare = nest.fences();
        for dir in ["objects", "refs"] {
            fs::create_dir_all(bare.join(dir))?;
        }
        fs::write(bare.join("HEAD"), "ref: refs/heads/none\n")?;
        fs::write(bare.join("config"), "[core]\n\trepositoryformatversion = 0\n\tbare = true\n")?;
        nest.save("targets.json", b"[]")?;
        Ok(nest)
    }

    /// The one that the run around us has made.
    pub(super) fn around() -> Option<Self> {
        let path = PathBuf::from(std::env::var_os(VARIABLE)?);
        path.join("targets.json").is_file().then_some(Self { path, owned: false })
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

    pub(super) fn targets(&self) -> Vec<Guarded> {
        let bytes = fs::read(self.path.join("targets.json")).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// The number of this repository among the guarded ones.
    pub(super) fn find(&self, url: &str) -> Option<usize> {
        let wanted = place::identity(url);
        self.targets().iter().position(|target| place::identity(&target.url) == wanted)
    }

    /// Its number, from now on.
    pub(super) fn guard(&self, url: &str) -> io::Result<usize> {
        if let Some(found) = self.find(url) {
            return Ok(found);
        }
        let mut targets = self.targets();
        targets.push(Guarded { url: url.into() });
        self.save("targets.json", &serde_json::to_vec(&targets)?)?;
        Ok(targets.len() - 1)
    }

    /// The fence as it was last seen by anybody of this run.
    pub(super) fn known(&self, number: usize) -> Option<(FenceRecord, At)> {
        let bytes = fs::read(self.path.join(format!("known-{number}"))).ok()?;
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let at = At::parse(std::str::from_utf8(&bytes[..end]).ok()?)?;
        Some((FenceRecord::decode(&bytes[end + 1..]).ok()?, at))
    }

    /// Best effort: whoever finds nothing here, or something old, asks the repository.
    pub(super) fn remember(&self, number: usize, record: &FenceRecord, at: &At) {
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

    /// Git's way to us: the helper under its name, and settings that send these URLs there.
    pub(super) fn detour<'a>(
        &self,
        program: &Path,
        urls: impl Iterator<Item = &'a str>,
    ) -> io::Result<PathBuf> {
        let helper = self.path.join(HELPER);
        if fs::symlink_metadata(&helper).is_err() {
            std::os::unix::fs::symlink(program, &helper)?;
        }
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        // Where the job has set a path of its own git does not find us there, and tries its aliases.
        let alias = format!("!exec '{}'", helper.display());
        // Housekeeping that git leaves running would outlive the job and be ended with it.
        let mut text = format!(
            "[protocol \"leasehold\"]\n\tallow = always\n[alias]\n\tremote-leasehold = \"{}\"\n\
             [gc]\n\tautoDetach = false\n[maintenance]\n\tautoDetach = false\n",
            quoted(&alias)
        );
        for spelling in urls.flat_map(place::spellings) {
            let key = quoted(&spelling);
            text.push_str(&format!(
                "[url \"{PREFIX}{key}\"]\n\tinsteadOf = \"{key}\"\n\tpushInsteadOf = \"{key}\"\n"
            ));
        }
        self.save("config", text.as_bytes())?;
        Ok(self.path.join("config"))
    }
}
