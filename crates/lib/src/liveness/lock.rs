//! The holder's lock file. It is locked while a process of the run lives that has not closed it.
//!
//! The file is named after the grant and locked before the run asks for the lease. The lock belongs to the
//! open file description (`flock`), so the job inherits it and keeps it if the wrapper dies. The file is
//! locked under a temporary name and then renamed: so a file with the final name that is not locked was
//! closed by every process of the run. Only its maker ever needs the lock, so another process that takes a
//! shared lock for a moment disturbs nobody.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use leasehold_core::ids::Grant;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::LockText;

/// How long the lock file of a dead run is kept if no run takes over its lease.
const KEPT: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// A soft limit of this or more is a mark. In microseconds of real-time CPU it is 146 000 years, so it limits
/// nothing.
const MARK: u64 = 1 << 62;

/// A lock held by this process and, once started, by its job.
#[derive(Debug)]
pub struct HolderLock {
    file: File,
    path: PathBuf,
    text: String,
}

fn final_path(dir: &Path, grant: Grant) -> PathBuf {
    dir.join(format!("{grant}.lock"))
}

fn open_flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32
}

impl HolderLock {
    /// Makes and locks `<dir>/<grant>.lock`, readable for this user only. Called before the lease is asked for.
    pub fn create(dir: &Path, grant: Grant) -> io::Result<Self> {
        // A link could lead anywhere. Without a lock the lease is as safe, but slower to take after a crash.
        if std::fs::symlink_metadata(dir).is_ok_and(|found| !found.is_dir()) {
            return Err(Errno::NOTDIR.into());
        }
        let path = final_path(dir, grant);
        let new = dir.join(format!("{grant}.new"));
        // Another process may sweep the file before it is locked.
        for attempt in 0..100 {
            let file = match create_new(&new) {
                // The file of the last attempt: another process has locked it and is about to remove it.
                Err(e) if attempt > 0 && e.kind() == io::ErrorKind::AlreadyExists => {
                    std::thread::yield_now();
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
                    create_new(&new)?
                }
                other => other?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(e)) => return Err(e),
            }
            match std::fs::rename(&new, &path) {
                Ok(()) => return Self::described(file, path, grant),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::AGAIN.into())
    }

    fn described(file: File, path: PathBuf, grant: Grant) -> io::Result<Self> {
        let meta = file.metadata()?;
        let text = LockText::here(meta.dev(), meta.ino(), new_mark(grant))?.to_string();
        Ok(Self { file, path, text })
    }

    /// The text for the lease record by which another process finds and trusts this file.
    pub fn describe(&self) -> &str {
        &self.text
    }

    /// Removes the file after the release.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

impl AsFd for HolderLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(open_flags())
        .open(path)
}

/// Opens the lock file of another run.
pub(super) fn open(dir: &Path, grant: Grant) -> io::Result<File> {
    open_at(&final_path(dir, grant))
}

fn open_at(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(open_flags()).open(path)
}

/// Removes the file of a holder whose lease was taken over, and files that other crashes left long ago. Their
/// age is by the wall clock: a file that is removed too early only makes the next run wait for the TTL.
pub fn discard(dir: &Path, grant: Grant) -> io::Result<()> {
    sweep(dir, |other| {
        let modified = std::fs::metadata(final_path(dir, other)).and_then(|meta| meta.modified());
        let age = modified.ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        other != grant && age.is_some_and(|at| crate::clock::wall() < at + KEPT)
    })?;
    match std::fs::remove_file(final_path(dir, grant)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes the files of crashed runs: those that are not locked and whose grant is not `in_use`. Returns how
/// many.
pub fn sweep(dir: &Path, mut in_use: impl FnMut(Grant) -> bool) -> io::Result<usize> {
    let mut swept = 0;
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    for entry in entries {
        let path = entry?.path();
        let known = match path.extension().and_then(|e| e.to_str()) {
            Some("lock" | "new") => path.file_stem().and_then(|s| s.to_str()).and_then(Grant::parse),
            _ => None,
        };
        let Some(grant) = known else { continue };
        if in_use(grant) {
            continue;
        }
        // Locked until after the removal, so that the maker of a `.new` file notices.
        let Ok(file) = open_at(&path) else { continue };
        if file.try_lock().is_ok() && std::fs::remove_file(&path).is_ok() {
            swept += 1;
        }
    }
    Ok(swept)
}

/// The mark for the job of this grant: a number that all its processes inherit and keep, also with closed
/// descriptors, `env -i`, a new session or another user. It is the soft limit of real-time CPU time, so high
/// that it limits nothing. There is none if a limit is set already, by the user or by an outer run.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn new_mark(grant: Grant) -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Rttime);
    // The low bits: ids counted from one seed differ in them.
    let mark = MARK | (grant.0 as u64 & (MARK / 2 - 1));
    let free = limit.current.is_none() && limit.maximum.is_none();
    free.then_some(mark)
}

/// There are no marks on this system.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn new_mark(_: Grant) -> Option<u64> {
    let _ = MARK;
    None
}

/// Puts the mark on the calling process, between fork and exec. If that fails the job runs without one.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn put_mark(mark: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(mark), maximum: None };
    let _ = setrlimit(Resource::Rttime, limit);
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn put_mark(_: u64) {}
