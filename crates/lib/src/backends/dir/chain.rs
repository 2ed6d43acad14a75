//! The version files of one key: reading the newest, adding one, sweeping the old.
//! The module above says why this is safe.

use leasehold_core::ids::WriteId;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::root::unless_taken;
use crate::backends::local::{Stamp, trouble, unusable};
use crate::stores::{Failure, FailureKind};

/// How often a reader starts again. Each time another process has made progress.
const TRIES: usize = 1000;

/// One version file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct VersionFile {
    pub(super) seq: u64,
    pub(super) write: WriteId,
    /// The write id in the file before; None only in the first.
    pub(super) previous: Option<WriteId>,
    pub(super) stamp: Option<Stamp>,
    /// None: the key is absent.
    pub(super) body: Option<Vec<u8>>,
}

impl VersionFile {
    pub(super) fn encode(&self) -> Vec<u8> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let mut bytes = format!(
            "leasehold 1 {} {} {} {} {}\n",
            self.seq,
            self.write,
            or_dash(self.previous.map(|id| id.to_string())),
            or_dash(self.stamp.as_ref().map(Stamp::to_string)),
            or_dash(self.body.as_ref().map(|body| body.len().to_string())),
        )
        .into_bytes();
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        bytes
    }

    fn decode(seq: u64, bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|b| *b == b'\n')?;
        let (header, rest) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]);
        let words: Vec<&str> = header.split(' ').collect();
        let [magic, format, number, write, previous, stamp, length] = words[..] else {
            return None;
        };
        if (magic, format) != ("leasehold", "1") || number != seq.to_string() {
            return None;
        }
        let length: Option<usize> = match length {
            "-" => None,
            digits => Some(digits.parse().ok()?),
        };
        let previous = match previous {
            "-" => None,
            id => Some(WriteId::parse(id)?),
        };
        // Only the first file has no file before it, and each file has the length that it says.
        if previous.is_none() != (seq == 0) || rest.len() != length.unwrap_or(0) {
            return None;
        }
        Some(Self {
            seq,
            write: WriteId::parse(write)?,
            previous,
            stamp: Stamp::parse(stamp),
            body: length.map(|_| rest.to_vec()),
        })
    }
}

/// The newest version, and the listing.
#[derive(Debug)]
pub(super) struct ChainHead {
    pub(super) newest: VersionFile,
    pub(super) listing: KeyListing,
}

/// The files in a key's directory.
#[derive(Debug, Default)]
pub(super) struct KeyListing {
    versions: Vec<u64>,
    /// Prepared files, with the number for which each was prepared.
    temps: Vec<(u64, String)>,
}

/// The outcome of an attempt to add a version.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AddOutcome {
    Written,
    Conflict,
    Unsure,
}

fn temp_name(seq: u64, write: WriteId) -> String {
    format!("t{seq}-{write}")
}

fn number(text: &str) -> Option<u64> {
    let seq = text.parse().ok()?;
    (format!("{seq}") == text).then_some(seq)
}

fn list(dir: BorrowedFd<'_>) -> Result<KeyListing, Failure> {
    let mut listing = KeyListing::default();
    let failed = |e| trouble(e, "A key's directory in the store cannot be listed");
    for entry in Dir::read_from(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if let Some(seq) = number(name) {
            listing.versions.push(seq);
        } else if let Some((seq, _)) = name.strip_prefix('t').and_then(|n| n.split_once('-')) {
            listing.temps.extend(number(seq).map(|seq| (seq, name.to_owned())));
        }
    }
    listing.versions.sort_unstable();
    Ok(listing)
}

/// Reads a whole regular file, if it exists, without following a link.
pub(super) fn read_file(dir: BorrowedFd<'_>, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    let what = || format!("The file {name} in the store cannot be read");
    // NONBLOCK: a reader must not hang if somebody put a pipe there.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = rustix::fs::openat(dir, name, flags, Mode::empty());
    let (stat, fd) = match opened.and_then(|fd| Ok((rustix::fs::fstat(&fd)?, fd))) {
        Ok(found) => found,
        // STALE: on a network file system the file was removed after its name was looked up.
        Err(Errno::NOENT | Errno::STALE) => return Ok(None),
        Err(e) => return Err(trouble(e, &what())),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(unusable(format!(
            "{name} in the store is not a plain file, so Leasehold did not make it. Remove it."
        )));
    }
    let size = usize::try_from(stat.st_size).unwrap_or(0);
    let mut bytes = Vec::with_capacity(size + 1);
    let mut file = std::fs::File::from(fd);
    match std::io::Read::read_to_end(&mut file, &mut bytes) {
        Ok(_) => Ok(Some(bytes)),
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::NOENT | Errno::STALE) => Ok(None),
            errno => Err(trouble(errno.unwrap_or(Errno::IO), &what())),
        },
    }
}

pub(super) fn version(dir: BorrowedFd<'_>, seq: u64) -> Result<Option<VersionFile>, Failure> {
    let Some(bytes) = read_file(dir, &seq.to_string())? else {
        return Ok(None);
    };
    VersionFile::decode(seq, &bytes).map(Some).ok_or_else(|| {
        unusable(format!(
            "Version {seq} of a record in the store is damaged, or its format is unknown to this version. Nothing was changed. Restore the directory from a backup, or use a newer Leasehold."
        ))
    })
}

fn exists(dir: BorrowedFd<'_>, seq: u64) -> Result<bool, Failure> {
    match rustix::fs::statat(dir, seq.to_string(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::STALE) => Ok(false),
        Err(e) => Err(trouble(e, "A version in the store cannot be looked up")),
    }
}

/// The newest version: its successor did not exist after it was found.
pub(super) fn newest(dir: impl AsFd) -> Result<ChainHead, Failure> {
    let dir = dir.as_fd();
    let mut empty = 0;
    for _ in 0..TRIES {
        let listing = list(dir)?;
        let Some(mut seq) = listing.versions.last().copied() else {
            empty += 1;
            continue;
        };
        while let Some(next) = seq.checked_add(1)
            && exists(dir, next)?
        {
            seq = next;
        }
        let Some(found) = version(dir, seq)? else {
            continue;
        };
        if follows(dir, &found)? {
            return Ok(ChainHead { newest: found, listing });
        }
    }
    if empty == TRIES {
        return Err(unusable(
            "A key's directory in the store has no version in it, so somebody removed files. Restore the directory from a backup.".into(),
        ));
    }
    Err(Failure::new(
        FailureKind::Unreachable,
        format!(
            "A record in the store changed or was incomplete {TRIES} times while it was read. Try again. If that does not help, somebody removed files from the directory: restore it from a backup."
        ),
    ))
}

/// Whether the file before `entry` is still the one that `entry` names. Then neither of them was swept, and `entry` is no
/// latecomer.
fn follows(dir: BorrowedFd<'_>, entry: &VersionFile) -> Result<bool, Failure> {
    match entry.seq.checked_sub(1) {
        None => Ok(true),
        Some(before) => Ok(version(dir, before)?.map(|e| e.write) == entry.previous),
    }
}

/// Writes and syncs a new file that must not exist yet.
pub(super) fn write_file(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    let mut rest = bytes;
    let mut write = || {
        while !rest.is_empty() {
            let done = rustix::io::retry_on_intr(|| rustix::io::write(&fd, rest))?;
            rest = &rest[done..];
        }
        rustix::fs::fsync(&fd)
    };
    if let Err(e) = write() {
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        return Err(e);
    }
    Ok(fd)
}

/// Adds `entry`, which was written after `after`, the newest version as last read.
///
/// `confirm` is false only in the test that shows what happens without the look back.
pub(super) fn add(
    dir: impl AsFd,
    after: &ChainHead,
    entry: &VersionFile,
    confirm: bool,
) -> Result<AddOutcome, Failure> {
    let dir = dir.as_fd();
    let what = "A new version could not be written to the store";
    let temp = temp_name(entry.seq, entry.write);
    write_file(dir, &temp, &entry.encode()).map_err(|e| trouble(e, what))?;
    let name = entry.seq.to_string();
    let linked = rustix::fs::linkat(dir, &temp, dir, &name, AtFlags::empty());
    let linked = match unless_taken(linked, dir, &name) {
        Ok(()) => Ok(AddOutcome::Written),
        Err(Errno::EXIST) => Ok(lost_reply(rustix::fs::statat(dir, &temp, AtFlags::SYMLINK_NOFOLLOW))),
        // Swept, because the number was used: by another writer, or by a first try of ours.
        Err(Errno::NOENT | Errno::STALE) => Ok(AddOutcome::Unsure),
        Err(Errno::PERM | Errno::MLINK) => Err(trouble(Errno::NOSYS, what)),
        Err(e) => Err(trouble(e, what)),
    };
    let _ = rustix::fs::unlinkat(dir, &temp, AtFlags::empty());
    let linked = linked?;
    if linked != AddOutcome::Written {
        return Ok(linked);
    }
    // Readers can see the version, so this must not say that nothing was written.
    rustix::fs::fsync(dir).map_err(|e| {
        Failure::new(
            FailureKind::Unreachable,
            format!("A new version may not have reached the disk: {}", std::io::Error::from(e)),
        )
    })?;
    if confirm && version(dir, after.newest.seq)?.map(|e| e.write) != entry.previous {
        return Ok(AddOutcome::Unsure);
    }
    sweep(dir, &after.listing, after.newest.seq);
    Ok(AddOutcome::Written)
}

/// The outcome of a `link` whose name exists already. If the server linked our file and the answer was lost, the prepared
/// file has two names. A version is swept only after its prepared file, so with one name the file was never linked.
/// Without a name a sweeper removed it, perhaps between the kernel's two lookups, and the outcome is unknown.
fn lost_reply(prepared: Result<Stat, Errno>) -> AddOutcome {
    match prepared.map(|stat| stat.st_nlink) {
        Ok(1) => AddOutcome::Conflict,
        Ok(2) => AddOutcome::Written,
        Ok(_) | Err(_) => AddOutcome::Unsure,
    }
}

/// Removes the versions below `keep`, the lowest first. Stops at the first failure; the next writer sweeps the rest.
fn sweep(dir: BorrowedFd<'_>, listing: &KeyListing, keep: u64) {
    for (seq, temp) in &listing.temps {
        if *seq <= keep {
            let _ = rustix::fs::unlinkat(dir, temp, AtFlags::empty());
        }
    }
    for (done, seq) in listing.versions.iter().filter(|seq| **seq < keep).enumerate() {
        // So that after a crash the lower version is not there without the higher one.
        if done > 0 && rustix::fs::fsync(dir).is_err() {
            return;
        }
        if !sweep_one(dir, *seq) {
            return;
        }
    }
}

/// Removes one version, after the one below it and its own prepared file are gone.
pub(super) fn sweep_one(dir: BorrowedFd<'_>, seq: u64) -> bool {
    if let Some(below) = seq.checked_sub(1)
        && !matches!(exists(dir, below), Ok(false))
    {
        return false;
    }
    let name = seq.to_string();
    match rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_nlink > 1 => {
            let Ok(Some(entry)) = version(dir, seq) else {
                return false;
            };
            let temp = temp_name(seq, entry.write);
            match rustix::fs::unlinkat(dir, temp, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(_) => return false,
            }
        }
        Ok(_) => {}
        Err(e) => return e == Errno::NOENT,
    }
    match rustix::fs::unlinkat(dir, &name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_only_what_it_writes() {
        let entry = VersionFile {
            seq: 3,
            write: WriteId(7),
            previous: Some(WriteId(6)),
            stamp: None,
            body: Some(b"a\nb\0".to_vec()),
        };
        let good = entry.encode();
        assert_eq!(VersionFile::decode(3, &good), Some(entry));
        assert_eq!(VersionFile::decode(4, &good), None, "copied to another number");
        assert_eq!(VersionFile::decode(3, &good[..good.len() - 1]), None, "cut short");
        assert_eq!(VersionFile::decode(3, &[&good[..], b"x"].concat()), None, "too long");
        assert_eq!(VersionFile::decode(3, b""), None);
        let absent = VersionFile { seq: 0, write: WriteId(1), previous: None, stamp: None, body: None };
        assert_eq!(VersionFile::decode(0, &absent.encode()), Some(absent));
    }

    #[test]
    fn a_prepared_file_that_was_swept_while_it_was_looked_at_proves_no_write() {
        let dir = std::env::temp_dir().join(format!("leasehold-chain-{:032x}", crate::random::seed()));
        std::fs::create_dir(&dir).unwrap();
        let (prepared, version) = (dir.join("t1"), dir.join("1"));
        let file = std::fs::File::create(&prepared).unwrap();
        let looked = || lost_reply(rustix::fs::fstat(&file));
        assert_eq!(looked(), AddOutcome::Conflict, "never linked");
        std::fs::hard_link(&prepared, &version).unwrap();
        assert_eq!(looked(), AddOutcome::Written, "linked");
        std::fs::remove_file(&version).unwrap();
        std::fs::remove_file(&prepared).unwrap();
        assert_eq!(looked(), AddOutcome::Unsure, "swept");
        std::fs::remove_dir(&dir).unwrap();
    }
}
