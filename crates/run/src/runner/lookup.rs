//! Finds the command as a shell would, before a lease is spent on it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FileType, Stat};
use rustix::io::Errno;

/// A command that exists and may be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// As the user wrote it. The job sees this as its own name.
    pub name: OsString,
    /// Where it was found.
    pub path: PathBuf,
}

/// Why a command cannot be run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LookupError {
    /// There is no such command: 127.
    #[error("{0}")]
    NotFound(String),
    /// A file of that name exists, but cannot be executed: 126.
    #[error("{0}")]
    NotExecutable(String),
}

impl LookupError {
    /// The exit code as in a shell.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
        }
    }
}

/// Where `execvp` looks when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Finds `name`: itself if it contains a slash, else along `path` (the value of PATH).
///
/// A file with no `#!` line is fine here: like `sh` and `env`, exec hands it to `/bin/sh`.
pub fn lookup(name: &OsStr, path: Option<&OsStr>) -> Result<Program, LookupError> {
    let shown = name.display();
    if name.is_empty() {
        return Err(LookupError::NotFound("the command is empty".into()));
    }
    if name.as_bytes().contains(&b'/') {
        return match examine(Path::new(name)) {
            Ok(()) => Ok(Program { name: name.into(), path: name.into() }),
            Err(Unexecutable::Absent(why)) => Err(LookupError::NotFound(format!("{shown}: {why}"))),
            Err(Unexecutable::Unfit(why)) => Err(LookupError::NotExecutable(format!("{shown}: {why}"))),
        };
    }
    // A file that cannot be executed does not end the search, but explains a failure.
    let mut unfit = None;
    let dirs = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    for dir in dirs.as_bytes().split(|b| *b == b':') {
        // An empty entry is the current directory; the slash keeps exec from searching again.
        let dir = if dir.is_empty() { b"." } else { dir };
        let found = Path::new(OsStr::from_bytes(dir)).join(name);
        match examine(&found) {
            Ok(()) => {
                return Ok(Program { name: name.into(), path: found });
            }
            Err(Unexecutable::Unfit(why)) if unfit.is_none() => {
                unfit = Some(format!("{}: {why}", found.display()));
            }
            Err(_) => {}
        }
    }
    Err(match unfit {
        Some(why) => LookupError::NotExecutable(why),
        None => LookupError::NotFound(match path {
            Some(_) => format!("{shown}: command not found in PATH"),
            None => {
                format!("{shown}: command not found (PATH is not set; looked in {DEFAULT_PATH})")
            }
        }),
    })
}

enum Unexecutable {
    Absent(String),
    Unfit(String),
}

fn examine(path: &Path) -> Result<(), Unexecutable> {
    match rustix::fs::access(path, Access::EXEC_OK) {
        // A directory passes this check.
        Ok(()) => match rustix::fs::stat(path) {
            Ok(stat) => regular(&stat),
            Err(e) => Err(Unexecutable::Absent(sentence(e))),
        },
        Err(Errno::ACCESS | Errno::PERM) => match rustix::fs::stat(path) {
            Ok(stat) => {
                regular(&stat)?;
                Err(Unexecutable::Unfit(if stat.st_mode & 0o111 == 0 {
                    format!("not executable (chmod +x {} would make it so)", path.display())
                } else {
                    "not executable by this user, or on a file system mounted noexec".into()
                }))
            }
            Err(e) => Err(Unexecutable::Unfit(sentence(e))),
        },
        Err(Errno::LOOP) => Err(Unexecutable::Unfit(sentence(Errno::LOOP))),
        Err(e) => Err(Unexecutable::Absent(sentence(e))),
    }
}

fn regular(stat: &Stat) -> Result<(), Unexecutable> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Unexecutable::Unfit("is a directory".into())),
        _ => Err(Unexecutable::Unfit("not a program".into())),
    }
}

fn sentence(e: Errno) -> String {
    match e {
        Errno::NOENT => "no such file".into(),
        Errno::NOTDIR => "no such file: a part of the path is not a directory".into(),
        Errno::ACCESS => "permission denied: a directory of the path may not be entered".into(),
        Errno::LOOP => "too many symbolic links".into(),
        Errno::NAMETOOLONG => "the name is too long".into(),
        other => std::io::Error::from(other).to_string(),
    }
}
