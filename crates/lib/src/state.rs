//! The state directory: files that one user on one machine keeps between runs.

pub mod messages;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use leasehold_core::name::Name;
use sha2::{Digest, Sha256};

use self::messages as say;
use crate::messages::Explanation;

/// Largest file that is read; our files are far smaller.
const FILE_MAX: u64 = 64 * 1024;

/// The directories inside it.
const INSIDE: [&str; 9] =
    ["memory", "grants", "probed", "targets", "sockets", "git", "done", "unlogged", "leases.db-locks"];

/// A private directory, created on first use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
    named: Option<Named>,
}

/// The variable that names the place, and the directory that must exist before the state directory is made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    variable: &'static str,
    root: PathBuf,
}

/// Why there is no usable state directory.
#[derive(Debug)]
pub enum StateError {
    /// No variable names a place for it.
    Nowhere,
    /// The directory in which it would be made does not exist.
    NoRoot {
        /// The variable that names the place.
        variable: &'static str,
        /// The directory.
        root: String,
    },
    /// It belongs to another user, or others may write to it.
    Unsafe {
        /// The directory.
        path: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        fix: String,
    },
    /// The system refused to read or write there.
    Io {
        /// The file or directory.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.explanation().fmt(f)
    }
}

impl std::error::Error for StateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io { source, .. } = self { Some(source) } else { None }
    }
}

impl StateError {
    /// What happened, what it means, what to do next.
    pub fn explanation(&self) -> Explanation {
        match self {
            Self::Nowhere => say::nowhere(),
            Self::NoRoot { variable, root } => say::no_root(variable, root),
            Self::Unsafe { path, problem, fix } => say::not_private(path, problem, fix),
            Self::Io { path, source } => say::unusable(path, source),
        }
    }

    /// Whether a permission is missing.
    pub fn denied(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_denial(source))
    }

    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.display().to_string(), source }
    }
}

impl StateDir {
    /// `$XDG_STATE_HOME/leasehold` or `~/.local/state/leasehold`. There is no other guess: a job whose state
    /// moved with its environment could run twice. The home, or the parent of XDG_STATE_HOME, must exist.
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

    /// The directory at `path`; for tests and programs that embed the library.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), named: None }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory (0700) if needed. Checks that only its user may write to it, and that no directory in
    /// it is a link.
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

    /// The file with the tokens of a lease that this host saw.
    pub fn memory_file(&self, lease: &Name) -> PathBuf {
        self.path.join("memory").join(format!("{}.json", flat(lease)))
    }

    /// Leases with a file of tokens that was not changed for this long; best effort, and out of at most so many files.
    pub fn remembered(&self, age: std::time::Duration, most: usize) -> Vec<Name> {
        let entries = fs::read_dir(self.path.join("memory")).into_iter().flatten().flatten().take(most);
        let old = entries.filter(|entry| {
            let changed = entry.metadata().and_then(|found| found.modified());
            changed.is_ok_and(|at| at.elapsed().is_ok_and(|since| since >= age))
        });
        let named = old.filter_map(|entry| entry.file_name().into_string().ok());
        named.filter_map(|file| Name::new(&file.strip_suffix(".json")?.replace('=', "/")).ok()).collect()
    }

    /// The notes of items that were seen started or done, by store.
    pub fn done(&self) -> PathBuf {
        self.path.join("done")
    }

    /// The records of the run log that are not in a store yet.
    pub fn unlogged(&self) -> PathBuf {
        self.path.join("unlogged")
    }

    /// The directory of the sockets at which runs answer their steps and gates; made if needed.
    pub fn sockets(&self) -> Result<PathBuf, StateError> {
        self.made("sockets")
    }

    /// The directory of the files by which git reaches its run; made if needed.
    pub fn git(&self) -> Result<PathBuf, StateError> {
        self.made("git")
    }

    fn made(&self, name: &str) -> Result<PathBuf, StateError> {
        self.ensure()?;
        let path = self.path.join(name);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map(|()| path.clone()).map_err(|e| StateError::io(&path, e))
    }

    /// The observations of runs with `--observe`, one JSON object a line.
    pub fn observed(&self) -> PathBuf {
        self.path.join("observed.jsonl")
    }

    /// The note that this target was fenced from here.
    pub fn target_file(&self, shown: &str) -> PathBuf {
        let name = Sha256::digest(shown.as_bytes());
        self.path.join("targets").join(format!("{name:x}"))
    }

    /// The targets that were fenced from here, as they are shown; best effort.
    pub fn targets(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path.join("targets")).into_iter().flatten().flatten();
        let notes = entries.filter_map(|entry| read_private(&entry.path()).ok().flatten());
        let mut shown: Vec<String> = notes.filter_map(|note| String::from_utf8(note).ok()).collect();
        shown.sort();
        shown
    }

    /// The file with the grant of a lease that was acquired by hand.
    pub fn grant_file(&self, lease: &Name) -> PathBuf {
        self.path.join("grants").join(format!("{}.json", flat(lease)))
    }
}

/// Whether there is a directory at `path`; an error if there is anything but a private directory of this user.
fn check(path: &Path) -> Result<bool, StateError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(StateError::io(path, e)),
    };
    let path = path.display().to_string();
    let (problem, fix) = if found.is_symlink() {
        (say::is_a_link(), say::replace_it())
    } else if !found.is_dir() {
        (say::is_no_directory(), say::move_it())
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        (say::belongs_to(found.uid()), say::choose_another())
    } else if found.mode() & 0o022 != 0 {
        (say::is_open(), say::close_it(&path))
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

/// A private file to be read, if it exists. Symbolic links are not followed, and a pipe is not waited for.
pub(crate) fn open_private(path: &Path) -> io::Result<Option<File>> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
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

/// [`replace_private`]; makes the directory if there is none.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match replace_private(path, bytes) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let dir = path.parent().unwrap_or(Path::new("."));
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            replace_private(path, bytes)
        }
        replaced => replaced,
    }
}

/// Replaces a private file as a whole: a reader finds the old or the new content, never half.
/// It is not synced, because no promise depends on these files.
pub(crate) fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = path.with_file_name(format!(".{:016x}.tmp", crate::random::seed() as u64));
    let mut file = create_new(&temp)?;
    let result = file.write_all(bytes).and_then(|()| fs::rename(&temp, path));
    if result.is_err() {
        let _ = fs::remove_file(&temp);
    }
    result
}

/// Whether a permission is missing.
pub fn is_denial(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Whether a file could be written there; changes nothing.
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
