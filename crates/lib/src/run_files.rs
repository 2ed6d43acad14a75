//! Files of a run in the state directory: `NAME`, and the lock `NAME.lock` that is held while the run lives. If the lock is
//! free, the run left its file behind. That holds for processes in other containers too.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::random;

/// The lock of the file at `path`.
pub fn lock_of(path: &Path) -> PathBuf {
    path.with_extension("lock")
}

/// How often a new name is tried while other processes sweep.
const TRIES: u32 = 100;

/// A name of this many hexadecimal digits, at most 32.
pub fn fresh_name(digits: usize) -> String {
    let mut name = format!("{:032x}", random::seed());
    name.truncate(digits);
    name
}

/// A path for a new file in the directory that `dir` makes or names, and its lock.
pub fn own_fresh(digits: usize, mut dir: impl FnMut() -> io::Result<PathBuf>) -> io::Result<(PathBuf, File)> {
    for _ in 0..TRIES {
        let path = dir()?.join(fresh_name(digits));
        let owned = own(&path).inspect_err(|_| drop(fs::remove_file(lock_of(&path))))?;
        if let Some(lock) = owned {
            return Ok((path, lock));
        }
    }
    let why = format!("other processes swept the state directory {TRIES} times in between");
    Err(io::Error::new(io::ErrorKind::WouldBlock, why))
}

/// Makes and takes the lock for a file at `path`; nothing: another process removed the lock before it was taken.
fn own(path: &Path) -> io::Result<Option<File>> {
    let path = lock_of(path);
    let file = match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
        // The directory is gone.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(e),
    }
    let number = file.metadata()?.ino();
    let still = fs::symlink_metadata(path).is_ok_and(|found| found.ino() == number);
    Ok(still.then_some(file))
}

/// Removes the files of killed runs. Their names have this many hexadecimal digits. Best effort; it never waits.
pub fn sweep(dir: &Path, digits: usize, remove: impl Fn(&Path)) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let lock = path.extension().is_some_and(|extension| extension == "lock");
        let ours = path.file_stem().and_then(|stem| stem.to_str()).filter(|_| lock);
        if !ours.is_some_and(|stem| stem.len() == digits && u128::from_str_radix(stem, 16).is_ok()) {
            continue;
        }
        // Held until the file is gone, so that a run that is just making it notices.
        if let Ok(file) = OpenOptions::new().read(true).write(true).open(&path)
            && file.try_lock().is_ok()
        {
            remove(&path.with_extension(""));
        }
    }
}
