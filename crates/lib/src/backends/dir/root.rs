//! The store's directory: its format file, its identity, and how it is created.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use leasehold_core::ids::WriteId;

use super::chain::{read_file, write_file};
use crate::backends::local::{OpenedPath, trouble, unusable};
use crate::stores::Failure;

const FORMAT_FILE: &str = "leasehold-dir";
const FORMAT: u64 = 1;
pub(super) const KEYS: &str = "keys";
pub(super) const TEMP: &str = "tmp";
/// Starts the name of a format file that is being prepared.
const NEW: &str = ".leasehold-new-";

/// Opens a directory without following a link; `ELOOP` if it is one.
pub(super) fn open_dir(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|e| {
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        match stat {
            Ok(s) if FileType::from_raw_mode(s.st_mode) == FileType::Symlink => Errno::LOOP,
            _ => e,
        }
    })
}

/// The result of a call that creates `name`. sshfs answers `EPERM` if the name exists, because SFTP has no code for that; so a
/// lookup tells the two apart.
pub(super) fn unless_taken(made: Result<(), Errno>, dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    #[cfg(test)]
    let made = super::store::tests::as_sshfs_says(made);
    match made {
        Err(Errno::PERM) if rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() => {
            Err(Errno::EXIST)
        }
        other => other,
    }
}

/// Makes a directory that may exist already, durably.
pub(super) fn make_dir(parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    match unless_taken(rustix::fs::mkdirat(parent, name, Mode::RWXU), parent, name) {
        Ok(()) => rustix::fs::fsync(parent),
        Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e),
    }
}

pub(super) fn names(dir: BorrowedFd<'_>) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if name != "." && name != ".." {
            names.push(name.into_owned());
        }
    }
    Ok(names)
}

pub(super) fn open_root(at: &OpenedPath) -> Result<OwnedFd, Failure> {
    let what = || format!("The store {} cannot be opened", at.path().display());
    let parent = at.parent.as_fd();
    match open_dir(parent, &at.name) {
        Err(Errno::NOENT) => {
            make_dir(parent, &at.name).map_err(|e| {
                trouble(e, &format!("The directory {} cannot be created", at.path().display()))
            })?;
            open_dir(parent, &at.name).map_err(|e| trouble(e, &what()))
        }
        opened => opened.map_err(|e| trouble(e, &what())),
    }
}

/// The identity in the format file, if there is one.
pub(super) fn identify(root: BorrowedFd<'_>, path: &str) -> Result<Option<String>, Failure> {
    let Some(bytes) = read_file(root, FORMAT_FILE)? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        [FORMAT_FILE, "1", instance] if WriteId::parse(instance).is_some() => Ok(Some(instance.to_owned())),
        [FORMAT_FILE, number, ..] if number.parse::<u64>().is_ok_and(|n| n > FORMAT) => {
            Err(unusable(format!(
                "The store {path} has format {number}, and this version of Leasehold knows only {FORMAT}. Nothing was changed. Use the version that wrote it, or a newer one."
            )))
        }
        _ => Err(unusable(format!(
            "{path}/{FORMAT_FILE} is damaged. Nothing was changed. Restore it from a backup."
        ))),
    }
}

/// A failure while a store is created. On a full disk it does not say that nothing was written.
fn creation_failure(errno: Errno, what: &str) -> Failure {
    let failure = trouble(errno, what);
    match errno {
        Errno::NOSPC | Errno::DQUOT => {
            let message =
                format!("{what}: the disk is full or the quota is used up. Make room and try again.");
            Failure { message, ..failure }
        }
        _ => failure,
    }
}

/// Makes an empty directory a store. The first process that links the format file gives the identity.
pub(super) fn initialise(root: BorrowedFd<'_>, path: &str) -> Result<String, Failure> {
    let what = format!("The directory {path} cannot be made a store");
    let failed = |e| creation_failure(e, &what);
    if !looks_fresh(root).map_err(failed)? {
        // Another process may have made it a store in between.
        return identify(root, path)?.ok_or_else(|| {
            unusable(format!(
                "{path} is not empty and not a store. Nothing was changed. Name an empty directory, or one that does not exist yet."
            ))
        });
    }
    make_dir(root, KEYS).map_err(failed)?;
    make_dir(root, TEMP).map_err(failed)?;
    let temp = format!("{NEW}{:032x}", crate::random::seed());
    let text = format!("{FORMAT_FILE} {FORMAT} {:032x}\n", crate::random::seed());
    write_file(root, &temp, text.as_bytes()).map_err(failed)?;
    let linked = rustix::fs::linkat(root, &temp, root, FORMAT_FILE, AtFlags::empty());
    let linked = unless_taken(linked, root, FORMAT_FILE);
    let _ = rustix::fs::unlinkat(root, &temp, AtFlags::empty());
    match linked {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(Errno::PERM) => return Err(failed(Errno::NOSYS)),
        Err(e) => return Err(failed(e)),
    }
    rustix::fs::fsync(root).map_err(failed)?;
    identify(root, path)?.ok_or_else(|| failed(Errno::IO))
}

/// Whether a directory with this name in it can still become a store: an unfinished start leaves it, or the file system.
pub(super) fn is_left_by_start(name: &str) -> bool {
    [KEYS, TEMP, "lost+found"].contains(&name) || name.starts_with(NEW)
}

/// Whether the directory is empty, apart from what an unfinished start leaves.
fn looks_fresh(root: BorrowedFd<'_>) -> Result<bool, Errno> {
    for name in names(root)? {
        let fresh = match name.as_str() {
            KEYS | TEMP => names(open_dir(root, &name)?.as_fd())?.is_empty(),
            other => is_left_by_start(other),
        };
        if !fresh {
            return Ok(false);
        }
    }
    Ok(true)
}
