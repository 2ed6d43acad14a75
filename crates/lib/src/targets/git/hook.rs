//! For people who own the server: hooks that let a guarded branch move only together with its fence.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// One script that knows by its name when it is called.
const SCRIPT: &str = include_str!("leasehold-fence.sh");
/// The first tells whoever pushes why; the second is called when git holds the locks.
const NAMES: [&str; 2] = ["pre-receive", "reference-transaction"];

/// Installs the hooks into the repository at `dir`; which files were written.
pub fn install(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let inside = dir.join(".git");
    let git = if inside.is_dir() { inside } else { dir.to_owned() };
    if !git.join("objects").is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a git repository on this machine",
        ));
    }
    let paths = NAMES.map(|name| git.join("hooks").join(name));
    for path in &paths {
        if fs::read_to_string(path).is_ok_and(|found| !found.contains("leasehold")) {
            let why = format!("{} is there already; call ours from it, or move it away", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
    }
    fs::create_dir_all(git.join("hooks"))?;
    for path in &paths {
        fs::write(path, SCRIPT)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(paths.into())
}
