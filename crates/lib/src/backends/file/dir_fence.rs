//! The artefact's directory and the files that Leasehold keeps beside the artefact.
//!
//! Everything here goes through one open directory, so nothing crosses a file system, and no symbolic link is
//! followed. Only trees are walked by their paths ([`DirFence::path`]): a directory that is moved away meanwhile
//! is not found again, and the next seal sweeps the unfinished copy.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

use leasehold_core::fence_record::BODY_MAX;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::random;

/// The mode of a new file, before the umask.
pub(super) const PLAIN: u32 = 0o644;
const PRIVATE: u32 = 0o600;
const DIRECTORY: u32 = 0o755;

/// The part of our files' names that follows the artefact's name.
pub(super) const MARK: &str = ".leasehold-";

/// The directory of one artefact.
#[derive(Debug)]
pub struct DirFence {
    pub(super) dir: OwnedFd,
    path: PathBuf,
    name: String,
}

/// A payload on disk under its own name. It is removed when dropped, unless it was put in place.
///
/// It is locked while its writer lives, so that a sweep removes only the payloads of dead writers.
#[derive(Debug)]
pub struct StagedPayload<'a> {
    beside: &'a DirFence,
    file: File,
    pub(super) name: String,
    pub(super) digest: String,
    keep: bool,
}

impl<'a> StagedPayload<'a> {
    /// Does not remove it when it is dropped.
    pub(super) fn keep(&mut self) {
        self.keep = true;
    }

    /// Locks it. None if a sweep removed it before that.
    fn locked(beside: &'a DirFence, file: File, name: String) -> io::Result<Option<Self>> {
        let payload = Self { beside, file, name, digest: String::new(), keep: false };
        let gone = payload.file.try_lock().is_err() || rustix::fs::fstat(&payload.file)?.st_nlink == 0;
        Ok((!gone).then_some(payload))
    }

    /// Gives it the owner and permissions of the file that it will replace.
    pub(super) fn take_over(&self, beside: &DirFence) -> io::Result<()> {
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
            // The file belongs to another user: with our user its setuid bits would mean us.
            mode &= 0o777;
            // Keep at least the group. If that fails too, drop the rights of the group, which would go to
            // another one.
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

impl Drop for StagedPayload<'_> {
    fn drop(&mut self) {
        if !self.keep {
            self.beside.discard(&self.name);
        }
    }
}

/// The digest of a content, as it is written in fences.
pub fn digest(bytes: &[u8]) -> String {
    named(Sha256::new_with_prefix(bytes))
}

pub(super) fn named(hash: Sha256) -> String {
    format!("sha256:{:x}", hash.finalize())
}

/// Reads `source` to its end, block by block.
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

impl DirFence {
    pub(super) fn open(dir: &Path, name: &str) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = rustix::fs::open(dir, flags, Mode::empty())?;
        Ok(Self { dir: fd, path: dir.into(), name: name.into() })
    }

    /// The artefact's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The path of a file beside the artefact, for people and for walks through trees.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn is_local(&self) -> bool {
        crate::backends::local::is_local(&self.dir).unwrap_or(false)
    }

    pub(super) fn side(&self, what: &str) -> String {
        format!(".{}{MARK}{what}", self.name)
    }

    pub(super) fn fence_name(&self) -> String {
        self.side("fence")
    }

    /// The first part of every payload's name.
    pub(super) fn payload_prefix(&self) -> String {
        self.side("new-")
    }

    /// The artefact, of any kind.
    pub(super) fn look(&self) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// A word that changes whenever the artefact is changed or replaced.
    pub(super) fn identity(&self) -> io::Result<String> {
        Ok(self.look()?.map_or_else(
            || "nothing".into(),
            |s| {
                let (ino, size) = (s.st_ino, s.st_size);
                format!("{ino}.{size}.{}.{}.{}.{}", s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec)
            },
        ))
    }

    /// Whether the artefact is a mount point, which a rename cannot replace.
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

    pub(super) fn open_at(&self, name: &str, flags: OFlags, mode: u32) -> Result<File, Errno> {
        // Without NONBLOCK we would hang if somebody put a pipe there.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(rustix::fs::openat(&self.dir, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    pub(super) fn unlink(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Writes a payload to the disk under a new name.
    pub(super) fn payload(&self, content: &mut dyn Read) -> io::Result<StagedPayload<'_>> {
        // Private until it gets the permissions of the file that it replaces.
        let mode = if self.look()?.is_some() { PRIVATE } else { PLAIN };
        for _ in 0..5 {
            let name = self.fresh_name();
            let file = self.open_at(&name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?;
            let Some(mut payload) = StagedPayload::locked(self, file, name)? else { continue };
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
    pub(super) fn payload_directory(&self) -> io::Result<StagedPayload<'_>> {
        for _ in 0..5 {
            let name = self.fresh_name();
            rustix::fs::mkdirat(&self.dir, &name, Mode::from_raw_mode(DIRECTORY))?;
            let file = match self.open_at(&name, OFlags::RDONLY | OFlags::DIRECTORY, 0) {
                // A sweep removed it before it was locked.
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            if let Some(payload) = StagedPayload::locked(self, file, name)? {
                return Ok(payload);
            }
        }
        Err(Errno::AGAIN.into())
    }

    pub(super) fn fresh_name(&self) -> String {
        format!("{}{:032x}", self.payload_prefix(), random::seed())
    }

    /// Makes names durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    /// The fence's bytes, if there is a fence. At most one byte too many is read, which is enough to refuse it.
    pub(super) fn read_fence(&self) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open_at(&self.fence_name(), OFlags::RDONLY, 0) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.take(BODY_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Opens a plain file here to read it, if there is one. Fails for anything else.
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
        // It may have been replaced in between.
        plain(name, &rustix::fs::fstat(&file)?)?;
        Ok(Some(file))
    }

    /// The digest of a file here, if it exists.
    pub(super) fn digest_of(&self, name: &str) -> io::Result<Option<String>> {
        let Some(mut file) = self.open_plain(name)? else { return Ok(None) };
        let mut hash = Sha256::new();
        blocks(&mut file, |block| {
            hash.update(block);
            Ok(())
        })?;
        Ok(Some(named(hash)))
    }

    /// Copies a file here to `to`; false if it does not exist.
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

    /// The names here that begin with `prefix`.
    pub(super) fn names(&self, prefix: &str) -> Vec<String> {
        let Ok(entries) = Dir::read_from(&self.dir) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_owned()));
        names.filter(|name| name.starts_with(prefix)).collect()
    }

    /// Removes payloads whose writers are dead. Nothing depends on it.
    pub(super) fn sweep(&self) {
        for name in self.names(&self.payload_prefix()) {
            let Ok(file) = self.open_at(&name, OFlags::RDONLY, 0) else { continue };
            if file.try_lock().is_ok() {
                self.discard(&name);
            }
        }
    }
}

pub(super) fn plain(name: &str, found: &Stat) -> io::Result<()> {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(io::Error::other(format!("{name} is not a plain file"))),
    }
}
