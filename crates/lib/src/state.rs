//! The state directory: what one user on one machine keeps between runs.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use leasehold_core::name::Name;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Largest file we read back; ours are far smaller.
const FILE_MAX: u64 = 64 * 1024;

/// What is kept inside it in directories of their own.
const INSIDE: [&str; 8] =
    ["memory", "grants", "probed", "targets", "sockets", "git", "done", "leases.db-locks"];

/// A private directory, created on first use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
    /// What says so, and what must be there before anything is made.
    named: Option<Named>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    variable: &'static str,
    root: PathBuf,
}

/// Why there is no usable state directory.
#[derive(Debug, Error)]
pub enum StateError {
    /// Nothing says where it should be.
    #[error(
        "neither XDG_STATE_HOME nor HOME is set to an absolute path, so there is no place to keep state. \
         Nothing was run. Set HOME, or name a store with --store and set XDG_STATE_HOME"
    )]
    Nowhere,
    /// What it would be made in is not there.
    #[error(
        "{variable} names a place in {root}, which does not exist: a new state directory would be a second, empty store. \
         Nothing was run. Correct {variable}, or make that directory"
    )]
    NoRoot {
        /// What names the place.
        variable: &'static str,
        /// The directory.
        root: String,
    },
    /// It belongs to somebody else, or others may write to it.
    #[error("{path} {problem}, so another user could forge or remove leases. Nothing was run. {fix}")]
    Unsafe {
        /// The directory.
        path: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        fix: String,
    },
    /// The system said no.
    #[error(
        "cannot use {path}: {source}. Nothing was run. Check the permissions and the free space there, or set \
         XDG_STATE_HOME to a directory of your own"
    )]
    Io {
        /// The file or directory.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

impl StateError {
    /// Somebody has to give us a right, rather than room.
    pub fn denied(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_denial(source))
    }

    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.display().to_string(), source }
    }
}

impl StateDir {
    /// `$XDG_STATE_HOME/leasehold` or `~/.local/state/leasehold`. No other guess: a job whose
    /// state moved with its environment would be let in twice. A home, and what XDG_STATE_HOME lies in, must be there.
    pub fn locate(env: impl Fn(&str) -> Option<OsString>) -> Result<Self, StateError> {
        let absolute = |name| env(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let (variable, base, root) = match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
            (Some(base), _) => {
                ("XDG_STATE_HOME", base.clone(), base.parent().map_or(base.clone(), Into::into))
            }
            (None, Some(home)) => ("HOME", home.join(".local/state"), home),
            (None, None) => return Err(StateError::Nowhere),
        };
        Ok(Self { path: base.join("leasehold"), named: Some(Named { variable, root }) })
    }

    /// The directory at `path`; for tests and the library.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), named: None }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory (0700) if needed and checks that it is ours alone, and that nothing in it
    /// leads elsewhere.
    pub fn ensure(&self) -> Result<(), StateError> {
        if !check(&self.path)? {
            if let Some(Named { variable, root }) = self.named.as_ref().filter(|named| !named.root.is_dir()) {
                return Err(StateError::NoRoot { variable, root: root.display().to_string() });
            }
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
            made.map_err(|e| StateError::io(&self.path, e))?;
            check(&self.path)?;
        }
        INSIDE.iter().try_for_each(|name| check(&self.path.join(name)).map(|_| ()))
    }

    /// The embedded store's database.
    pub fn database(&self) -> PathBuf {
        self.path.join("leases.db")
    }

    /// What this host remembers of a lease.
    pub fn memory_file(&self, lease: &Name) -> PathBuf {
        self.path.join("memory").join(format!("{}.json", flat(lease)))
    }

    /// What was seen done from here, by store.
    pub fn done(&self) -> PathBuf {
        self.path.join("done")
    }

    /// Where the steps and gates of jobs find their runs, made if needed.
    pub fn sockets(&self) -> Result<PathBuf, StateError> {
        self.made("sockets")
    }

    /// Where runs keep what git needs to find its way to them, made if needed.
    pub fn git(&self) -> Result<PathBuf, StateError> {
        self.made("git")
    }

    fn made(&self, name: &str) -> Result<PathBuf, StateError> {
        self.ensure()?;
        let path = self.path.join(name);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map(|()| path.clone()).map_err(|e| StateError::io(&path, e))
    }

    /// What runs with `--observe` have seen, one JSON object a line.
    pub fn observed(&self) -> PathBuf {
        self.path.join("observed.jsonl")
    }

    /// Where it is noted that this target was sealed from here.
    pub fn target_file(&self, shown: &str) -> PathBuf {
        let name = Sha256::digest(shown.as_bytes());
        self.path.join("targets").join(format!("{name:x}"))
    }

    /// The targets that were sealed from here, as they are shown; best effort.
    pub fn targets(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path.join("targets")).into_iter().flatten().flatten();
        let notes = entries.filter_map(|entry| read_private(&entry.path()).ok().flatten());
        let mut shown: Vec<String> = notes.filter_map(|note| String::from_utf8(note).ok()).collect();
        shown.sort();
        shown
    }

    /// Where the grant of a lease that was acquired by hand is kept.
    pub fn grant_file(&self, lease: &Name) -> PathBuf {
        self.path.join("grants").join(format!("{}.json", flat(lease)))
    }
}

/// Whether there is a directory at `path`; an error if it is anything but a directory of our own.
fn check(path: &Path) -> Result<bool, StateError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(StateError::io(path, e)),
    };
    let path = path.display().to_string();
    let (problem, fix) = if found.is_symlink() {
        ("is a symbolic link".into(), "Move it away, or put a directory of your own in its place".into())
    } else if !found.is_dir() {
        ("is not a directory".into(), "Move it away".into())
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        (format!("belongs to user {}", found.uid()), "Set XDG_STATE_HOME to a directory of your own".into())
    } else if found.mode() & 0o022 != 0 {
        ("can be written by others".into(), format!("Close it: chmod 700 {path}"))
    } else {
        return Ok(true);
    };
    Err(StateError::Unsafe { path, problem, fix })
}

/// A lease name as one file name: `/` cannot be in one, and `=` cannot be in a lease name.
fn flat(lease: &Name) -> String {
    lease.as_str().replace('/', "=")
}

/// The content of a private file, if it exists. Symbolic links are not followed.
pub fn read_private(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open_private(path)? else { return Ok(None) };
    let mut bytes = Vec::with_capacity(1024);
    file.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// A private file to be read, if it exists. Symbolic links are not followed.
pub(crate) fn open_private(path: &Path) -> io::Result<Option<File>> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits();
    #[allow(clippy::cast_possible_wrap)]
    match OpenOptions::new().read(true).custom_flags(flags as i32).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Adds a line to a private file.
pub fn append_private(path: &Path, line: &[u8]) -> io::Result<()> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits();
    #[allow(clippy::cast_possible_wrap)]
    let opened =
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags as i32).open(path);
    opened?.write_all(line)
}

/// Replaces a private file as a whole: either the old or the new content is there, never half.
/// Not synced: what is kept here is a help, never what safety rests on.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let unique = format!(".{:016x}.tmp", crate::random::seed() as u64);
    let temp = dir.join(unique);
    let mut file = match create_new(&temp) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            create_new(&temp)?
        }
        other => other?,
    };
    let result = file.write_all(bytes).and_then(|()| fs::rename(&temp, path));
    if result.is_err() {
        let _ = fs::remove_file(&temp);
    }
    result
}

/// Whether a right is missing, rather than room.
pub fn is_denial(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Whether a file could be written there, without touching anything.
pub fn check_writable(path: &Path) -> io::Result<()> {
    use rustix::fs::{Access, access};
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(access(path, Access::WRITE_OK)?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Err(e) => Err(e),
    }
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn temp() -> PathBuf {
        let path = std::env::temp_dir().join(format!("leasehold-state-{:032x}", crate::random::seed()));
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn the_place_is_never_guessed() {
        let nowhere = StateDir::locate(|_| None).unwrap_err();
        assert!(nowhere.to_string().contains("Nothing was run"), "{nowhere}");
        let relative = StateDir::locate(|name| (name == "HOME").then(|| "tmp".into()));
        assert!(relative.is_err());
        let home = StateDir::locate(|name| (name == "HOME").then(|| "/h".into())).unwrap();
        assert_eq!(home.path(), Path::new("/h/.local/state/leasehold"));
    }

    #[test]
    fn planted_and_open_directories_are_refused() {
        let base = temp();
        let dir = StateDir::at(base.join("state"));
        dir.ensure().unwrap();
        dir.ensure().unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(dir.ensure(), Err(StateError::Unsafe { .. })));
        symlink(dir.path(), base.join("link")).unwrap();
        assert!(matches!(StateDir::at(base.join("link")).ensure(), Err(StateError::Unsafe { .. })));
        fs::write(base.join("file"), "").unwrap();
        assert!(matches!(StateDir::at(base.join("file")).ensure(), Err(StateError::Unsafe { .. })));
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn private_files_are_whole_and_links_are_not_followed() {
        let base = temp();
        let path = base.join("memory/a.json");
        assert_eq!(read_private(&path).unwrap(), None);
        write_private(&path, b"one").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(read_private(&path).unwrap().unwrap(), b"two");
        assert_eq!(fs::read_dir(base.join("memory")).unwrap().count(), 1, "no temporary file is left");
        symlink(&path, base.join("link")).unwrap();
        assert!(read_private(&base.join("link")).is_err());
        fs::remove_dir_all(base).unwrap();
    }
}
