//! For people who own the server: hooks that let a guarded branch move only together with its fence.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What is installed: its name, and the script.
const HOOKS: [(&str, &str); 2] = [
    ("reference-transaction", include_str!("../../../../../packaging/git-hooks/reference-transaction")),
    ("pre-receive", include_str!("../../../../../packaging/git-hooks/pre-receive")),
];

/// Installs the hooks into the bare repository at `dir`; which files were written.
pub fn install(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let (bare, inside) = (dir.join("hooks"), dir.join(".git/hooks"));
    let hooks = if inside.parent().is_some_and(Path::is_dir) { inside } else { bare };
    if !hooks.parent().is_some_and(|git| git.join("objects").is_dir()) {
        let why = format!("{} is not a git repository on this machine", dir.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    fs::create_dir_all(&hooks)?;
    let paths = HOOKS.map(|(name, _)| hooks.join(name));
    for ((_, script), path) in HOOKS.iter().zip(&paths) {
        let other =
            fs::read_to_string(path).is_ok_and(|found| found != *script && !found.contains("leasehold"));
        if other {
            let why = format!("{} is there already; call ours from it, or move it away", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
    }
    for ((_, script), path) in HOOKS.iter().zip(&paths) {
        fs::write(path, script)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(paths.into())
}
