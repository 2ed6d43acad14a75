//! Our files beside an artefact in a git work tree: `git add .` must not commit them, so the repository's own exclude file
//! names them. No `.gitignore` is touched: that belongs to the project.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// All but the versions of a tree, which are what its link points to.
pub(super) const PATTERN: &str = ".*.leasehold-[!v]*";

/// Has git ignore our files in `dir`, if that is in a work tree; where it could not be written, and why.
pub(super) fn exclude(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let Some(file) = fs::canonicalize(dir).ok().and_then(|dir| exclude_file(&dir)) else { return Ok(()) };
    add(&file).map_err(|e| (file, e))
}

/// The exclude file of the repository whose work tree this is in: that of a linked work tree is the main one's.
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
