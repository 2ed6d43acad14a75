//! Many records, page by page.

use pollster::block_on;

use super::{Failure, Store, Stored};

/// Records asked for in one call.
const PAGE: usize = 200;

/// Calls `each` with what is stored under the keys that begin with `prefix` and come after `after`, in order, until it
/// gives false.
pub fn each_stored(
    store: &mut dyn Store,
    prefix: &str,
    after: &str,
    mut each: impl FnMut(String, Stored) -> bool,
) -> Result<(), Failure> {
    let mut after = after.to_owned();
    loop {
        let page = block_on(store.list(prefix, &after, PAGE))?;
        let full = page.len() == PAGE;
        for listed in page {
            after.clone_from(&listed.key);
            let stored = match listed.stored {
                Some(stored) => Some(stored),
                None => block_on(store.read(&listed.key))?,
            };
            // What was removed meanwhile is gone.
            if stored.is_some_and(|stored| !each(listed.key, stored)) {
                return Ok(());
            }
        }
        if !full {
            return Ok(());
        }
    }
}
