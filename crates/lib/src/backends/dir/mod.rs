//! A store in a directory, which machines may share.

mod chain;
mod key;
mod root;
mod store;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

pub use self::store::DirStore;
use super::{AsStore, Backend, OpenError, Scheme, StorePath, home, plain_path, rest};
use crate::text::{is_word, shell_quoted};

const SCHEME: &str = "dir";

/// Its entry in the list of backends.
pub(super) const BACKEND: Backend = Backend {
    show: str::to_owned,
    variables: &[],
    store: Some(AsStore {
        removal: Some(|shown| format!("rm -r {}", shell_quoted(rest(shown)))),
        path: Some(StorePath { directory: true, unmade, content, stand_in: |_| None }),
        meant_by: Some(|text| {
            let is_path = text.starts_with(['/', '.', '~']) && is_word(text);
            is_path.then(|| format!("Did you mean {SCHEME}:{}?", home(text)))
        }),
        ..AsStore::new(&[Scheme { name: SCHEME, example: "dir:/PATH" }], |_, path, holders| {
            let store = DirStore::open(plain_path(SCHEME, path)?).map_err(OpenError::Store)?;
            Ok(Box::new(store.for_holders(holders)))
        })
    }),
    target: None,
};

/// A mistyped path, or a share that is not mounted, must not become a second store.
fn unmade(path: &Path) -> bool {
    match content(path) {
        // A directory with other files in it is refused by the store itself.
        Some(names) => names.iter().all(|name| name.to_str().is_some_and(root::is_left_by_start)),
        // A share that is not mounted leaves its mount point. Without a parent directory the path is wrong.
        None => path.try_exists().is_ok_and(|there| !there) && path.parent().is_some_and(Path::is_dir),
    }
}

fn content(path: &Path) -> Option<BTreeSet<OsString>> {
    let entries = std::fs::read_dir(path).ok()?;
    Some(entries.flatten().map(|entry| entry.file_name()).collect())
}
