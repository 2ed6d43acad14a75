//! The critical section beside an artefact: its lock, and the changes that are made only under it.
//!
//! Everybody who may write the directory can remove the lock file, and `git clean -fdx` does. Then the next process makes
//! another lock file, and two processes are in the critical section. So a process checks right before each change that the
//! lock file is still the one it locked, and that the fence is still the one it read. A change that another process makes
//! between that check and the next system call is not noticed.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::time::Duration;

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::dir_fence::{DirFence, PLAIN, plain};
use crate::clock;
use crate::poll::{self, Timer};
use crate::targets::LOOKS;

const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MOST: Duration = Duration::from_millis(25);

/// The critical section. It ends when this is dropped, or when the process dies.
#[derive(Debug)]
pub struct CriticalSection {
    lock: File,
    /// The fence as it was last read or written here.
    fence: Option<Vec<u8>>,
}

impl CriticalSection {
    /// From now on child processes inherit the lock: the critical section lasts until the last of them has ended.
    pub fn inherited(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.lock, rustix::io::FdFlags::empty())?)
    }
}

/// Why the critical section was not entered.
pub(super) enum NotInside {
    /// Another process did not leave in time; its process id, if it can be found.
    Busy(Option<u32>),
    /// A system call failed.
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for NotInside {
    fn from(e: E) -> Self {
        Self::Io(e.into())
    }
}

impl DirFence {
    /// Enters the critical section, and waits for it at most `patience`. The lock file is never removed: otherwise
    /// two processes could each lock a file of that name.
    pub(super) fn enter(&self, patience: Duration) -> Result<CriticalSection, NotInside> {
        let until = clock::boot_time().plus(patience);
        let mut pause = PAUSE_FIRST;
        let mut timer = None;
        loop {
            let lock = self.open_lock()?;
            match lock.try_lock() {
                Ok(()) if self.is_lock(&lock)? => return Ok(CriticalSection { lock, fence: None }),
                // Either another process has the lock, or the lock file was replaced while we waited.
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(e.into()),
            }
            let now = clock::boot_time();
            if now >= until {
                return Err(NotInside::Busy((0..LOOKS).find_map(|_| holder(&lock))));
            }
            let timer = match &mut timer {
                Some(timer) => timer,
                none => none.insert(Timer::new()?),
            };
            timer.arm(now.plus(pause).min(until))?;
            poll::wait(&[timer.as_fd()])?;
            timer.take();
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    fn open_lock(&self) -> io::Result<File> {
        let name = self.side("lock");
        let file = match self.open_at(&name, OFlags::RDWR | OFlags::CREATE, PLAIN) {
            // Made by another user. Read access is enough for a lock.
            Err(denied @ (Errno::ACCESS | Errno::PERM)) => {
                self.open_at(&name, OFlags::RDONLY, 0).map_err(|e| {
                    let what = if e == Errno::NOENT { "create" } else { "open" };
                    let why = format!("this user may not {what} {name} in {}", self.path("").display());
                    io::Error::new(io::Error::from(denied).kind(), why)
                })?
            }
            other => other?,
        };
        let found = rustix::fs::fstat(&file)?;
        plain(&name, &found)?;
        self.only_for_writers(&file, &found)?;
        Ok(file)
    }

    /// Lets only those open the lock who may write the directory, because an open lock can block everybody. If the directory
    /// has an access control list, its mode does not say who that is, and the lock stays as it is.
    fn only_for_writers(&self, lock: &File, found: &Stat) -> io::Result<()> {
        let (dir, me) = (rustix::fs::fstat(&self.dir)?, rustix::process::geteuid());
        let may = |bit: u32| dir.st_mode & bit != 0;
        // In a sticky directory other users cannot replace our files.
        let (all, group) = (may(0o002) && !may(0o1000), may(0o020) && !may(0o1000));
        let mode = if all {
            0o666
        } else if group {
            0o660
        } else {
            0o600
        };
        let ours = me.is_root() || found.st_uid == me.as_raw();
        let listed = rustix::fs::fgetxattr_query(&self.dir, "system.posix_acl_access").is_ok();
        if found.st_mode & 0o777 == mode || !ours || listed {
            return Ok(());
        }
        // A lock made by root goes to the directory's owner. Its group is always the one of the directory.
        let _ = fchown(lock, me.is_root().then_some(dir.st_uid), Some(dir.st_gid));
        let now = rustix::fs::fstat(lock)?;
        let theirs = if group { now.st_gid == dir.st_gid } else { now.st_uid == dir.st_uid };
        if all || theirs || may(0o1000) {
            rustix::fs::fchmod(lock, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }

    fn is_lock(&self, file: &File) -> io::Result<bool> {
        let mine = rustix::fs::fstat(file)?;
        match rustix::fs::statat(&self.dir, self.side("lock"), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// The fence's bytes, remembered for [`DirFence::alone`].
    pub(super) fn read_fence_inside(&self, inside: &mut CriticalSection) -> io::Result<Option<Vec<u8>>> {
        inside.fence = self.read_fence()?;
        Ok(inside.fence.clone())
    }

    /// Fails if the lock file or the fence shows that another process has entered the critical section.
    fn alone(&self, inside: &CriticalSection) -> io::Result<()> {
        match self.read_fence()? == inside.fence && self.is_lock(&inside.lock)? {
            true => Ok(()),
            false => Err(io::Error::other(
                "somebody removed or replaced its lock or fence file meanwhile (git clean -x does that)",
            )),
        }
    }

    /// Renames a file of this directory, and replaces the file that had the name.
    pub(super) fn rename(&self, inside: &CriticalSection, from: &str, to: &str) -> io::Result<()> {
        self.alone(inside)?;
        Ok(rustix::fs::renameat(&self.dir, from, &self.dir, to)?)
    }

    /// Exchanges the names of two files or directories, in one step.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn exchange(&self, inside: &CriticalSection, one: &str, other: &str) -> io::Result<()> {
        use rustix::fs::RenameFlags;
        self.alone(inside)?;
        Ok(rustix::fs::renameat_with(&self.dir, one, &self.dir, other, RenameFlags::EXCHANGE)?)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn exchange(&self, _: &CriticalSection, _: &str, other: &str) -> io::Result<()> {
        let why =
            format!("{other} is a plain directory; move it away once, so that a link can take its place");
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// Replaces the fence as a whole, durably.
    pub(super) fn replace_fence(&self, inside: &mut CriticalSection, bytes: &[u8]) -> io::Result<()> {
        // A new name. If we die here, the file is swept like a payload.
        let new = self.fresh_name();
        let written = (|| {
            let mut file = self.open_at(&new, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, PLAIN)?;
            file.write_all(bytes)?;
            rustix::fs::fsync(&file)?;
            self.rename(inside, &new, &self.fence_name())
        })();
        if written.is_err() {
            let _ = self.unlink(&new);
        }
        written?;
        inside.fence = Some(bytes.to_vec());
        self.sync()
    }

    /// Removes the fence, durably.
    pub(super) fn remove_fence(&self, inside: &CriticalSection) -> io::Result<()> {
        self.alone(inside)?;
        self.unlink(&self.fence_name())?;
        self.sync()
    }
}

/// The process that has the lock, for the person who must decide whether to end it. See [`LOOKS`].
#[cfg(any(target_os = "linux", target_os = "android"))]
fn holder(lock: &File) -> Option<u32> {
    let stat = rustix::fs::fstat(lock).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1835 0 EOF; a waiting process has an arrow after the number.
    let held = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, place, ..] = words[..] else { return None };
        let (device, inode) = place.rsplit_once(':')?;
        (inode.parse() == Ok(stat.st_ino)).then_some((device, pid.parse().ok()?))
    });
    let held: Vec<(&str, u32)> = held.collect();
    let here = format!("{major:02x}:{minor:02x}");
    let taker = match (held.iter().find(|(device, _)| *device == here), &held[..]) {
        (Some((_, pid)), _) => Some(*pid),
        // On some file systems the list shows another device number than the file has.
        (None, [(_, only)]) => Some(*only),
        // Inode numbers repeat between file systems, so the right process is unknown.
        (None, _) => None,
    };
    // The process that took the lock may be gone and a child may have inherited it, so the process must still have it.
    // Waiting processes have the file open too, but without a lock.
    let has_it = |pid: &u32| {
        let mut open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.any(|entry| {
            let found = std::fs::metadata(entry.path());
            let same = found.is_ok_and(|f| (f.dev(), f.ino()) == (stat.st_dev, stat.st_ino));
            let about = format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_string_lossy());
            same && std::fs::read_to_string(about).is_ok_and(|text| text.contains("lock:"))
        })
    };
    let others = || {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    };
    taker.filter(has_it).or_else(|| taker.and_then(|_| others().find(has_it)))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn holder(_: &File) -> Option<u32> {
    None
}
