//! SQLite: a store in one file for all processes of this machine, and targets that are users' tables.

mod store;
mod target;

use std::path::Path;

pub use self::store::{BUSY_TIMEOUT, SqliteStore};
pub use self::target::{PATIENCE, SqliteTarget, TableFence};
use super::{
    AsStore, AsTarget, Backend, OpenError, Reach, Scheme, StandIn, StorePath, embedded, plain_path, rest,
};
use crate::text::shell_quoted;

const SCHEME: &str = "sqlite";

/// Its entry in the list of backends.
pub(super) const BACKEND: Backend = Backend {
    show: str::to_owned,
    variables: &[],
    store: Some(AsStore {
        reach: Reach::Machine,
        path: Some(StorePath { directory: false, unmade: |_| false, content: |_| None, stand_in }),
        removal: Some(|shown| {
            let files =
                ["", "-wal", "-shm", "-locks"].map(|end| shell_quoted(&format!("{}{end}", rest(shown))));
            format!("rm -rf {}", files.join(" "))
        }),
        ..AsStore::new(&[Scheme { name: SCHEME, example: "sqlite:PATH" }], |_, path, holders| {
            let store = SqliteStore::open(plain_path(SCHEME, path)?).map_err(OpenError::Store)?;
            Ok(Box::new(store.for_holders(holders)))
        })
    }),
    target: Some(AsTarget {
        guard: Some(|url, rest| Ok(Box::new(SqliteTarget::open(url, rest)?))),
        path: true,
        ..AsTarget::new(&[Scheme { name: SCHEME, example: "sqlite:PATH#TABLE" }], |url, rest| {
            Ok(Box::new(SqliteTarget::open(url, rest)?))
        })
    }),
};

/// A temporary database beside a path without one. A database at the path itself could not be removed again, because another
/// process may use it by then.
fn stand_in(path: &Path) -> Option<StandIn> {
    if path.exists() || !path.parent()?.is_dir() {
        return None;
    }
    let name = format!(".leasehold-doctor-{:016x}.db", crate::random::seed() >> 64);
    let path = path.with_file_name(name);
    let with = |more: &str| {
        let mut file = path.clone().into_os_string();
        file.push(more);
        file
    };
    Some(StandIn { url: embedded(&path), files: ["", "-wal", "-shm"].map(with).into() })
}
