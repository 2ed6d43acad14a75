//! Keeps `git add .` from committing the lock and fence files beside an artefact: they are named in the repository's own
//! exclude file. A `.gitignore` is not changed, because it belongs to the project.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// All our files except the versions of a tree, to which its link points.
pub(super) const PATTERN: &str = ".*.leasehold-[!v]*";

/// Makes git ignore our files in `dir`, if it is in a work tree. An error names the file that could not be written.
pub(super) fn exclude(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let Some(file) = fs::canonicalize(dir).ok().and_then(|dir| exclude_file(&dir)) else { return Ok(()) };
    add(&file).map_err(|e| (file, e))
}

/// The exclude file of the repository around `dir`. A linked work tree uses the one of the main work tree.
fn exclude_file(dir: &Path) -> Option<PathBuf> {
    let found = dir.ancestors().map(|above| above.join(".git")).find(|git| git.exists())?;
    let git = match fs::read_to_string(&found) {
        Ok(text) => found.parent()?.join(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => found,
    };
    let common = fs::read_to_string(git.join("commondir"));
    let common = common.map_or_else(|_| git.clone(), |path| git.join(path.trim()));
    common.join("HEAD").exists().then(|| common.join("info/exclude"))
}

fn add(file: &Path) -> io::Result<()> {
    let text = match fs::read_to_string(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    if text.lines().any(|line| line == PATTERN) {
        return Ok(());
    }
    file.parent().map_or(Ok(()), fs::create_dir_all)?;
    let line_end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let lines =
        format!("{line_end}# Locks and fences that leasehold keeps beside what it writes.\n{PATTERN}\n");
    File::options().append(true).create(true).open(file)?.write_all(lines.as_bytes())
}
