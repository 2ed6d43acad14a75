//! A store in a directory, for a local disk or a mount that several machines share.
//!
//! ```text
//! leasehold-dir        format and identity
//! keys/<key>/41        the version before
//! keys/<key>/42        the newest version
//! keys/<key>/t43-<id>  a prepared version
//! tmp/                 key directories being prepared
//! ```
//!
//! # Compare-and-set with link(2)
//!
//! A key's directory already contains version 0, which says "absent", when it is renamed into place. So it
//! is never empty, and version 0 is written only once. A version file holds its write id, the write id of the
//! version before, a stamp, and the body or "absent". Removing a key adds a version that says absent.
//!
//! *read*: list; take the highest number `m`; step forward while `m+1` exists; read `m`, then `m-1`.
//! If one of them is gone, or `m-1` is not the version that `m` names, list again.
//!
//! *cas*: read `n`, which must be as expected. Write and sync a prepared file, `link` it as `n+1`.
//! If the name exists, it is a conflict. Else sync the directory and read `n` again. If `n` still holds the
//! expected write id, the write succeeded; otherwise its outcome is unknown, and the caller reads back.
//!
//! *sweep*, after a write of `n+1`: remove versions below `n`, each only after the number below it was
//! seen to be free and its own prepared file is gone. Prepared files for `n` and below are removed too; they
//! could not win. No clock is used, and a writer whose prepared file vanished has written nothing.
//!
//! # Why this is safe
//!
//! `link` alone is not enough. A writer that was paused before its `link` of `n+1` may continue after another
//! writer wrote `n+1` and `n+1` was superseded and swept. The name is free again, and `link` succeeds. Call
//! such a file a latecomer. Because of three facts it is not taken for a version:
//!
//! 1. *No file is linked twice under its number.* Each attempt has a write id and a prepared file of
//!    its own. Only a network client may repeat a `link` whose answer was lost, and it cannot do so
//!    after a sweep, since the prepared file is removed before the version.
//! 2. *While version `v` still holds its write id, no version above `v` was ever swept.* To sweep
//!    `v+1` the sweeper must have seen number `v` free; `v` existed before `v+1` did, so it had been
//!    swept; and by (1) what appears there later has another write id.
//! 3. *So if `n` still holds the expected write id after our `link` of `n+1`*, that number had never
//!    been used before, and ours is the one and only version `n+1`.
//!
//! Two paused writers with consecutive numbers do not help each other: the second expects the write id that
//! it read under `n`, and the first puts another one there. Readers apply the same test, because a listing
//! that overlaps two writes and a sweep may show nothing but a latecomer. When a reader's test succeeds, then
//! by (2) `m` was the newest version at the moment when `m+1` was not found, so reads are linearizable. The
//! newest two versions are never swept, so the test succeeds as soon as no write comes in between.
//!
//! All this needs a file system whose `link`, `rename` and lookups are atomic and visible to all at once.
//! Local file systems are like that. A network mount depends on its server and its caches, and
//! [`StoreFacts::caution`] says so.

#[cfg(test)]
pub(super) mod tests;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use super::chain::{self, AddOutcome, VersionFile, write_file};
use super::key;
use super::root::{KEYS, TEMP, identify, initialise, make_dir, names, open_dir, open_root, unless_taken};
use crate::backends::Holders;
use crate::backends::local::{Domain, OpenedPath, Stamp, examined, is_local, trouble, unusable};
use crate::stores::{
    Cas, Clock, Examine, Failure, FailureKind, Landed, Listed, Remark, RemarkLevel, Store, StoreFacts,
    Stored, Version,
};

/// The age at which a prepared key directory is removed, because its writer must be dead.
const ABANDONED: Duration = Duration::from_secs(600);

/// A store in one directory.
pub struct DirStore {
    path: PathBuf,
    /// Device and inode, to notice that another directory has taken the path.
    place: (u64, u64),
    keys: OwnedFd,
    temp: OwnedFd,
    instance: String,
    /// None on a shared mount, where the boot-time clocks of several machines cannot be compared.
    domain: Option<Domain>,
    #[cfg(test)]
    before_link: Option<Box<dyn FnMut() + Send>>,
    #[cfg(test)]
    naive: bool,
}

impl DirStore {
    /// Opens the store in the directory at `path`; creates the directory if it does not exist.
    pub fn open(path: &str) -> Result<Self, Failure> {
        let at = OpenedPath::find(path.trim_end_matches('/'))?;
        let shown = at.path();
        let root = open_root(&at)?;
        let stat = rustix::fs::fstat(&root)
            .map_err(|e| trouble(e, &format!("{} cannot be examined", shown.display())))?;
        let instance = match identify(root.as_fd(), &shown.display().to_string())? {
            Some(instance) => instance,
            None => initialise(root.as_fd(), &shown.display().to_string())?,
        };
        let local = is_local(&root)
            .map_err(|e| trouble(e, &format!("The file system of {} is unknown", shown.display())))?;
        let part = |name: &str| {
            open_dir(root.as_fd(), name).map_err(|e| {
                trouble(e, &format!("{name}/ in the store {} cannot be opened", shown.display()))
            })
        };
        Ok(Self {
            keys: part(KEYS)?,
            temp: part(TEMP)?,
            path: shown,
            place: (stat.st_dev, stat.st_ino),
            instance,
            domain: local.then(Domain::here),
            #[cfg(test)]
            before_link: None,
            #[cfg(test)]
            naive: false,
        })
    }

    /// The same store, for holders that may be elsewhere.
    pub(super) fn for_holders(mut self, holders: Holders) -> Self {
        if holders == Holders::Elsewhere {
            self.domain = self.domain.as_ref().map(Domain::nameless);
        }
        self
    }

    /// Fails if the path no longer leads to the directory that is open.
    fn still_there(&self) -> Result<(), Failure> {
        match rustix::fs::lstat(&self.path) {
            Ok(stat) if (stat.st_dev, stat.st_ino) == self.place => Ok(()),
            Ok(_) | Err(Errno::NOENT) => Err(unusable(format!(
                "The store {} was moved or replaced while it was in use. Start again, and do not move a store that is in use.",
                self.path.display()
            ))),
            Err(e) => Err(trouble(e, &format!("The store {} cannot be examined", self.path.display()))),
        }
    }

    /// The directory of a key, if it was ever written.
    fn key_dir(&self, parts: &[String]) -> Result<Option<OwnedFd>, Failure> {
        let mut dir: Option<OwnedFd> = None;
        for part in parts {
            let parent = dir.as_ref().map_or(self.keys.as_fd(), |d| d.as_fd());
            match open_dir(parent, part) {
                Ok(next) => dir = Some(next),
                Err(Errno::NOENT) => return Ok(None),
                Err(e) => {
                    return Err(trouble(e, &format!("The key directory {part} cannot be opened")));
                }
            }
        }
        Ok(dir)
    }

    /// Puts a directory with version 0 in place, unless another process was first.
    fn create_key(&self, parts: &[String]) -> Result<(), Failure> {
        let what = "A key could not be created in the store";
        let failed = |e| trouble(e, what);
        self.clear_abandoned();
        let (last, above) = parts.split_last().ok_or_else(|| unusable(format!("{what}.")))?;
        let mut parent = self.keys.try_clone().map_err(|_| failed(Errno::MFILE))?;
        for part in above {
            make_dir(parent.as_fd(), part).map_err(failed)?;
            parent = open_dir(parent.as_fd(), part).map_err(failed)?;
        }
        let first = VersionFile {
            seq: 0,
            write: WriteId(crate::random::seed()),
            previous: None,
            stamp: self.stamp(),
            body: None,
        };
        let temp = format!("{:032x}", crate::random::seed());
        rustix::fs::mkdirat(&self.temp, &temp, Mode::RWXU).map_err(failed)?;
        let placed = open_dir(self.temp.as_fd(), &temp).and_then(|dir| {
            write_file(dir.as_fd(), "0", &first.encode())?;
            rustix::fs::fsync(&dir)?;
            let placed = rustix::fs::renameat(&self.temp, &temp, &parent, last.as_str());
            match unless_taken(placed, parent.as_fd(), last) {
                // A network client may repeat a rename whose answer was lost, and find nothing to rename. The caller looks again.
                Ok(()) | Err(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY) => Ok(()),
                Err(e) => Err(e),
            }
        });
        // Does nothing if it was placed.
        self.discard(&temp);
        placed.map_err(failed)?;
        rustix::fs::fsync(&parent).map_err(failed)
    }

    /// Removes a prepared key directory. It is renamed first, so that it cannot be put in place without its file.
    fn discard(&self, name: &str) {
        let dead = format!("{name}.dead");
        if !name.ends_with(".dead")
            && rustix::fs::renameat(&self.temp, name, &self.temp, dead.as_str()).is_err()
        {
            return;
        }
        let dead = if name.ends_with(".dead") { name } else { &dead };
        let _ = rustix::fs::unlinkat(&self.temp, format!("{dead}/0"), AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.temp, dead, AtFlags::REMOVEDIR);
    }

    /// Removes the key directories that crashed writers prepared. Nothing depends on it.
    fn clear_abandoned(&self) {
        let Some(domain) = &self.domain else { return };
        for name in names(self.temp.as_fd()).unwrap_or_default() {
            let age = open_dir(self.temp.as_fd(), &name).ok().and_then(|dir| {
                let first = chain::version(dir.as_fd(), 0).ok()??;
                domain.age(&first.stamp?)
            });
            if age.is_some_and(|age| age > ABANDONED) {
                self.discard(&name);
            }
        }
    }

    /// Removes the directory of an absent key, and the directories above it that contain nothing else.
    fn clear_key(&self, parts: &[String]) {
        let Ok(Some(dir)) = self.key_dir(parts) else { return };
        if chain::newest(&dir).is_ok_and(|seen| seen.newest.body.is_some()) {
            return;
        }
        for name in names(dir.as_fd()).unwrap_or_default() {
            let _ = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
        }
        for depth in (0..parts.len()).rev() {
            let above = match depth {
                0 => self.keys.try_clone().ok(),
                _ => self.key_dir(&parts[..depth]).ok().flatten(),
            };
            let Some(above) = above else { return };
            // It leads to other keys, so it is not empty.
            if rustix::fs::unlinkat(&above, parts[depth].as_str(), AtFlags::REMOVEDIR).is_err() {
                return;
            }
        }
    }

    fn stamp(&self) -> Option<Stamp> {
        self.domain.as_ref().map(Domain::stamp)
    }

    fn stored(&self, entry: VersionFile) -> Option<Stored> {
        let age = entry.stamp.and_then(|stamp| self.domain.as_ref()?.age(&stamp));
        Some(Stored { version: Version(entry.write.to_string()), body: entry.body?, age })
    }

    fn read_key(&self, parts: &[String]) -> Result<Option<Stored>, Failure> {
        match self.key_dir(parts)? {
            None => Ok(None),
            Some(dir) => Ok(self.stored(chain::newest(&dir)?.newest)),
        }
    }

    /// Adds a version with `body`, or one that says absent, after the expected one.
    fn change(
        &mut self,
        key: &str,
        expected: Option<&Version>,
        write: WriteId,
        body: Option<&[u8]>,
    ) -> Result<Cas, Failure> {
        let parts = key::encode(key)?;
        let dir = match self.key_dir(&parts)? {
            Some(dir) => dir,
            None if expected.is_some() => return Ok(Cas::Conflict),
            None => {
                self.create_key(&parts)?;
                self.key_dir(&parts)?.ok_or_else(|| Failure::not_written(FailureKind::Unreachable, "A key vanished from the store right after it was created. Nothing was written; try again."))?
            }
        };
        let seen = chain::newest(&dir)?;
        let newest = &seen.newest;
        let there = newest.body.as_ref().map(|_| newest.write.to_string());
        if there.as_deref() != expected.map(|v| v.0.as_str()) {
            return Ok(Cas::Conflict);
        }
        let seq = newest.seq.checked_add(1).ok_or_else(|| {
            unusable("The version numbers of a key are used up, so somebody has changed files in the directory. Restore it from a backup.".into())
        })?;
        self.pause();
        let entry = VersionFile {
            seq,
            write,
            previous: Some(newest.write),
            stamp: self.stamp().map(|stamp| stamp.after(newest.stamp.as_ref())),
            body: body.map(<[u8]>::to_vec),
        };
        let added = chain::add(&dir, &seen, &entry, self.confirms())?;
        // The version was added by now, whatever is wrong with the path.
        self.still_there().map_err(|failure| Failure { landed: Landed::Maybe, ..failure })?;
        Ok(match added {
            AddOutcome::Written => Cas::Written {
                version: Version(write.to_string()),
                store_time: entry.stamp.map(|stamp| stamp.boot_time.0),
            },
            AddOutcome::Conflict => Cas::Conflict,
            AddOutcome::Unsure => Cas::Unknown(Failure::new(
                FailureKind::Unreachable,
                "Other processes wrote the same record at the same time, so the outcome of this write is unknown until it is read back.",
            )),
        })
    }

    #[cfg(not(test))]
    fn pause(&mut self) {}

    #[cfg(not(test))]
    fn confirms(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn pause(&mut self) {
        if let Some(hook) = &mut self.before_link {
            hook();
        }
    }

    #[cfg(test)]
    fn confirms(&self) -> bool {
        !self.naive
    }

    /// All keys that were ever written below `dir`, whose own parts are `above`.
    fn walk(
        dir: BorrowedFd<'_>,
        above: &[String],
        found: &mut Vec<(String, Vec<String>)>,
    ) -> Result<(), Failure> {
        let failed = |e| trouble(e, "The store's keys cannot be listed");
        for name in names(dir).map_err(failed)? {
            let mut parts = above.to_vec();
            parts.push(name.clone());
            if key::leads_on(&name) {
                let next = open_dir(dir, &name).map_err(failed)?;
                Self::walk(next.as_fd(), &parts, found)?;
            } else if let Some(key) = key::decode(&parts) {
                found.push((key, parts));
            }
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Store for DirStore {
    fn facts(&self) -> StoreFacts {
        let local = self.domain.is_some();
        StoreFacts {
            url: format!("dir:{}", self.path.display()),
            instance: self.instance.clone(),
            clock: if local { Clock::BootTime } else { Clock::Observed },
            resolution: Duration::ZERO,
            jump: Duration::ZERO,
            this_machine_only: local,
            lock_dir: local.then(|| self.path.join("locks")),
            spacing: Duration::ZERO,
            pushes: false,
            durability: "Every acknowledged write was synced to its file system; on a local disk it survives a crash or a power cut.",
            caution: (!local).then(|| {
                format!(
                    "{} is not on a file system known to be local. Leases, slots and keys are safe only if its server links files atomically and no client caches names. Mount it with lookupcache=none,noac (NFS), dir_cache=no,attr_timeout=0,entry_timeout=0,negative_timeout=0 (sshfs) or cache=none,actimeo=0 (SMB), and compare two mounts with: leasehold doctor dir:ONE --also dir:OTHER.",
                    self.path.display()
                )
            }),
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let stored = self.read_key(&key::encode(key)?)?;
        self.still_there()?;
        Ok(stored)
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.change(key, expected, write, Some(body)).unwrap_or_else(Cas::Unknown)
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let mut keys = Vec::new();
        Self::walk(self.keys.as_fd(), &[], &mut keys)?;
        keys.retain(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
        keys.sort_unstable();
        let mut found = Vec::new();
        for (key, parts) in keys {
            if found.len() == limit {
                break;
            }
            // The directory of a removed key stays and says absent.
            if let Some(stored) = self.read_key(&parts)? {
                let stored = Some(stored);
                found.push(Listed { key, stored });
            }
        }
        self.still_there()?;
        Ok(found)
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let write = WriteId(crate::random::seed());
        match self.change(key, Some(version), write, None) {
            Ok(Cas::Written { store_time, .. }) => Cas::Written { version: version.clone(), store_time },
            Ok(other) => other,
            Err(failure) => Cas::Unknown(failure),
        }
    }
}

#[async_trait(?Send)]
impl Examine for DirStore {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        let durability = Remark {
            about: "durability",
            verdict: RemarkLevel::Good,
            text: "every write is synced with its directory, and link(2) decides who wins a name".into(),
        };
        Ok(vec![durability, examined(&self.keys)])
    }

    /// Removes the key's directory. While it is there it stops late writers, so this is only for keys that have no
    /// writer any more.
    async fn forget(&mut self, key: &str) {
        if let Ok(parts) = key::encode(key) {
            self.clear_key(&parts);
        }
    }
}
