//! The artefact's directory and what is kept in it beside the artefact.
//!
//! Everything here goes through one open directory, so nothing ever crosses a file system, and no
//! symbolic link is followed. Only trees are walked by their paths ([`Beside::path`]): a directory that is
//! moved away meanwhile is not found again, and what was left half-way is swept by whoever comes next.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::LOOKS;
use crate::runner::poll::{self, Timer};
use crate::{clock, random};

const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MOST: Duration = Duration::from_millis(25);
/// A new file, before the user's mask.
const PLAIN: u32 = 0o644;
const PRIVATE: u32 = 0o600;
const DIRECTORY: u32 = 0o755;

/// What our own files are called; the artefact's name stands before it.
pub(super) const MARK: &str = ".leasehold-";

/// One artefact's place.
#[derive(Debug)]
pub struct Beside {
    dir: OwnedFd,
    path: PathBuf,
    name: String,
}

/// The critical section; left when dropped, or when the process dies.
#[derive(Debug)]
pub struct Inside {
    lock: File,
}

impl Inside {
    /// Whatever is started from now on is inside too, until the last of it has ended.
    pub fn inherited(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.lock, rustix::io::FdFlags::empty())?)
    }
}

/// Why the critical section was not entered.
pub(super) enum NotInside {
    /// Somebody else was there to the end; its process id, if it can be told.
    Busy(Option<u32>),
    /// The system said no.
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for NotInside {
    fn from(e: E) -> Self {
        Self::Io(e.into())
    }
}

/// A payload on disk under a name of its own; removed when dropped, unless it was put in place.
///
/// Locked while its writer lives, so that a sweep tells it from what a dead one left.
#[derive(Debug)]
pub struct Payload<'a> {
    beside: &'a Beside,
    file: File,
    pub(super) name: String,
    pub(super) digest: String,
    keep: bool,
}

impl<'a> Payload<'a> {
    /// Somebody else's business from now on.
    pub(super) fn keep(&mut self) {
        self.keep = true;
    }

    /// Under its name and locked; nothing if a sweep took it for a dead one's before it was.
    fn locked(beside: &'a Beside, file: File, name: String) -> io::Result<Option<Self>> {
        let payload = Self { beside, file, name, digest: String::new(), keep: false };
        let gone = payload.file.try_lock().is_err() || rustix::fs::fstat(&payload.file)?.st_nlink == 0;
        Ok((!gone).then_some(payload))
    }

    /// Takes over owner and permissions of the file it will replace.
    pub(super) fn take_over(&self, beside: &Beside) -> io::Result<()> {
        let Some(found) = beside.look()? else { return Ok(()) };
        let mine = rustix::fs::fstat(&self.file)?;
        let plain = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !plain(&found) || !plain(&mine) {
            return Ok(());
        }
        let mut mode = found.st_mode & 0o7777;
        if (mine.st_uid, mine.st_gid) != (found.st_uid, found.st_gid)
            && fchown(&self.file, Some(found.st_uid), Some(found.st_gid)).is_err()
        {
            // Somebody else's file: its special bits would now mean us.
            mode &= 0o777;
            // Only its owner changes; the group goes with the file, for whoever is in it. If not even that,
            // the group's rights would be given to another one.
            if mine.st_gid != found.st_gid && fchown(&self.file, None, Some(found.st_gid)).is_err() {
                mode &= !0o070;
            }
        }
        if mine.st_mode & 0o7777 != mode {
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
            rustix::fs::fsync(&self.file)?;
        }
        Ok(())
    }
}

impl Drop for Payload<'_> {
    fn drop(&mut self) {
        if !self.keep {
            self.beside.discard(&self.name);
        }
    }
}

/// The digest of a content, as fences keep it.
pub fn digest(bytes: &[u8]) -> String {
    named(Sha256::new_with_prefix(bytes))
}

pub(super) fn named(hash: Sha256) -> String {
    format!("sha256:{:x}", hash.finalize())
}

/// Hands on all that comes out of `source`, piece by piece.
pub(super) fn blocks(source: &mut dyn Read, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut block = vec![0; 64 * 1024];
    loop {
        match source.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(n) => each(&block[..n])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

impl Beside {
    pub(super) fn open(dir: &Path, name: &str) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = rustix::fs::open(dir, flags, Mode::empty())?;
        Ok(Self { dir: fd, path: dir.into(), name: name.into() })
    }

    /// What the artefact is called.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Where something beside the artefact is, for people and for walks through trees.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn is_local(&self) -> bool {
        crate::stores::local::is_local(&self.dir).unwrap_or(false)
    }

    pub(super) fn side(&self, what: &str) -> String {
        format!(".{}{MARK}{what}", self.name)
    }

    pub(super) fn fence_name(&self) -> String {
        self.side("fence")
    }

    /// What every payload's name starts with.
    pub(super) fn payload_prefix(&self) -> String {
        self.side("new-")
    }

    /// The artefact as it is, whatever it is.
    pub(super) fn look(&self) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The artefact as it is, in a word that is another once it was changed or replaced.
    pub(super) fn identity(&self) -> io::Result<String> {
        Ok(self.look()?.map_or_else(
            || "nothing".into(),
            |s| {
                let (ino, size) = (s.st_ino, s.st_size);
                format!("{ino}.{size}.{}.{}.{}.{}", s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec)
            },
        ))
    }

    /// Nothing can be renamed to where something is mounted.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn is_mount_point(&self) -> bool {
        use rustix::fs::{StatxAttributes, StatxFlags, statx};
        let found = statx(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
        found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn is_mount_point(&self) -> bool {
        false
    }

    fn open_at(&self, name: &str, flags: OFlags, mode: u32) -> Result<File, Errno> {
        // Without NONBLOCK a planted pipe would hold us up for ever.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(rustix::fs::openat(&self.dir, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Enters the critical section, waiting at most so long. The lock file stays for ever: if it
    /// were removed, two processes could each lock one of that name.
    pub(super) fn enter(&self, patience: Duration) -> Result<Inside, NotInside> {
        let until = clock::boot_time().plus(patience);
        let mut pause = PAUSE_FIRST;
        let mut timer = None;
        loop {
            let lock = self.open_lock()?;
            match lock.try_lock() {
                Ok(()) if self.is_lock(&lock)? => return Ok(Inside { lock }),
                // Removed by somebody while we waited: the one there now counts.
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
            // Made by another user: to lock it, reading is enough.
            Err(denied @ (Errno::ACCESS | Errno::PERM)) => match self.open_at(&name, OFlags::RDONLY, 0) {
                Err(Errno::NOENT) => {
                    let why = format!("this user may not create {name} in {}", self.path.display());
                    return Err(io::Error::new(io::Error::from(denied).kind(), why));
                }
                other => other?,
            },
            other => other?,
        };
        plain(&name, &rustix::fs::fstat(&file)?)?;
        Ok(file)
    }

    fn is_lock(&self, file: &File) -> io::Result<bool> {
        let mine = rustix::fs::fstat(file)?;
        match rustix::fs::statat(&self.dir, self.side("lock"), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Writes a payload to the disk under a name nobody else has.
    pub(super) fn payload(&self, content: &mut dyn Read) -> io::Result<Payload<'_>> {
        // Until it is known what it replaces, nobody else need see it.
        let mode = if self.look()?.is_some() { PRIVATE } else { PLAIN };
        for _ in 0..5 {
            let name = self.fresh_name();
            let file = self.open_at(&name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?;
            let Some(mut payload) = Payload::locked(self, file, name)? else { continue };
            let mut hash = Sha256::new();
            blocks(content, |block| {
                hash.update(block);
                payload.file.write_all(block)
            })?;
            payload.digest = named(hash);
            rustix::fs::fsync(&payload.file)?;
            payload.take_over(self)?;
            return Ok(payload);
        }
        Err(Errno::AGAIN.into())
    }

    /// A new directory for a payload, which the caller fills and whose digest it sets.
    pub(super) fn payload_directory(&self) -> io::Result<Payload<'_>> {
        for _ in 0..5 {
            let name = self.fresh_name();
            rustix::fs::mkdirat(&self.dir, &name, Mode::from_raw_mode(DIRECTORY))?;
            let file = match self.open_at(&name, OFlags::RDONLY | OFlags::DIRECTORY, 0) {
                // Swept before it could be locked.
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            if let Some(payload) = Payload::locked(self, file, name)? {
                return Ok(payload);
            }
        }
        Err(Errno::AGAIN.into())
    }

    fn fresh_name(&self) -> String {
        format!("{}{:032x}", self.payload_prefix(), random::seed())
    }

    /// Gives something here another name, in place of whatever had it.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, from, &self.dir, to)?)
    }

    /// Gives each of two things the other's name, in one step.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        use rustix::fs::RenameFlags;
        Ok(rustix::fs::renameat_with(&self.dir, one, &self.dir, other, RenameFlags::EXCHANGE)?)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn exchange(&self, _: &str, other: &str) -> io::Result<()> {
        let why = format!("{other} is a plain directory; move it away once, so that it can become a link");
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// Makes names durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    /// The fence's bytes; nothing if there is none. One byte too many is enough to be refused.
    pub(super) fn read_fence(&self, most: usize) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open_at(&self.fence_name(), OFlags::RDONLY, 0) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.take(most as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Replaces the fence as a whole, durably. Only inside the critical section.
    pub(super) fn replace_fence(&self, bytes: &[u8]) -> io::Result<()> {
        let new = self.side("fence-new");
        // Left by somebody who died here; made anew rather than opened, so that it is ours.
        self.unlink(&new)?;
        let written = (|| {
            let mut file = self.open_at(&new, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, PLAIN)?;
            file.write_all(bytes)?;
            rustix::fs::fsync(&file)?;
            io::Result::Ok(rustix::fs::renameat(&self.dir, &new, &self.dir, self.fence_name())?)
        })();
        if written.is_err() {
            let _ = self.unlink(&new);
        }
        written?;
        self.sync()
    }

    /// As if nobody had ever sealed. Only inside the critical section.
    pub(super) fn remove_fence(&self) -> io::Result<()> {
        self.unlink(&self.fence_name())?;
        self.sync()
    }

    /// Opens a file here to read it; nothing if there is none. What is no plain file is not touched.
    fn open_plain(&self, name: &str) -> io::Result<Option<File>> {
        match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => plain(name, &found)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let file = match self.open_at(name, OFlags::RDONLY, 0) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        // Another may have come in between.
        plain(name, &rustix::fs::fstat(&file)?)?;
        Ok(Some(file))
    }

    /// The digest of a file here, by its name; nothing if there is none.
    pub(super) fn digest_of(&self, name: &str) -> io::Result<Option<String>> {
        let Some(mut file) = self.open_plain(name)? else { return Ok(None) };
        let mut hash = Sha256::new();
        blocks(&mut file, |block| {
            hash.update(block);
            Ok(())
        })?;
        Ok(Some(named(hash)))
    }

    /// Hands on a file here, by its name; false if there is none.
    pub(super) fn copy(&self, name: &str, to: &mut dyn Write) -> io::Result<bool> {
        let Some(mut file) = self.open_plain(name)? else { return Ok(false) };
        blocks(&mut file, |block| to.write_all(block))?;
        Ok(true)
    }

    /// Removes a payload that will not be put in place.
    pub(super) fn discard(&self, payload: &str) {
        let gone = rustix::fs::unlinkat(&self.dir, payload, AtFlags::empty());
        if let Err(Errno::ISDIR | Errno::PERM) = gone {
            let _ = std::fs::remove_dir_all(self.path(payload));
        }
    }

    /// What else is here whose name begins with this.
    pub(super) fn names(&self, prefix: &str) -> Vec<String> {
        let Ok(entries) = Dir::read_from(&self.dir) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_owned()));
        names.filter(|name| name.starts_with(prefix)).collect()
    }

    /// Removes payloads whose writers are dead. Best effort: nothing depends on it.
    pub(super) fn sweep(&self) {
        for name in self.names(&self.payload_prefix()) {
            let Ok(file) = self.open_at(&name, OFlags::RDONLY, 0) else { continue };
            if file.try_lock().is_ok() {
                self.discard(&name);
            }
        }
    }
}

fn plain(name: &str, found: &Stat) -> io::Result<()> {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(io::Error::other(format!("{name} is not a plain file"))),
    }
}

/// Who has the lock, for the person who must decide whether to end it. See [`LOOKS`].
#[cfg(any(target_os = "linux", target_os = "android"))]
fn holder(lock: &File) -> Option<u32> {
    let stat = rustix::fs::fstat(lock).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1835 0 EOF; those who wait have an arrow after the number.
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
        // Some file systems show another device than their files have.
        (None, [(_, only)]) => Some(*only),
        // Numbers of files repeat between file systems: better nobody than a stranger.
        (None, _) => None,
    };
    // Whoever took it may be gone, and have left it to a child: only who still has it is named. Others who
    // wait as we do have the file open too, and no lock on it.
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
