//! What a run keeps in the state directory lies beside a lock, held for as long as the run lives: `NAME` and
//! `NAME.lock`. What lies beside a lock that is free was left behind, whoever asks, in whichever container.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The lock of what is at `path`.
pub fn lock_of(path: &Path) -> PathBuf {
    path.with_extension("lock")
}

/// The lock of what is to be at `path`, held; nothing: somebody has swept it away before it was.
pub fn own(path: &Path) -> io::Result<Option<File>> {
    let path = lock_of(path);
    let file = match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
        // The last one has gone, and the directory with it.
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

/// Removes what runs have left that ended without a chance to do it themselves: names of so many hexadecimal
/// digits. Best effort, and it waits for nobody.
pub fn sweep(dir: &Path, digits: usize, remove: impl Fn(&Path)) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let lock = path.extension().is_some_and(|extension| extension == "lock");
        let ours = path.file_stem().and_then(|stem| stem.to_str()).filter(|_| lock);
        if !ours.is_some_and(|stem| stem.len() == digits && u128::from_str_radix(stem, 16).is_ok()) {
            continue;
        }
        // Held until it is gone, so that whoever is just making it sees that it lost it.
        if let Ok(file) = OpenOptions::new().read(true).write(true).open(&path)
            && file.try_lock().is_ok()
        {
            remove(&path.with_extension(""));
        }
    }
}
