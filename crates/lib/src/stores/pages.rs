//! Many records, page by page.

use pollster::block_on;

use super::{Failure, Store, Stored};

/// Records in one page.
const PAGE: usize = 200;

/// Calls `each` with every record whose key begins with `prefix` and comes after `after`, in order, until it gives false.
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
            // Nothing if it was removed meanwhile.
            if stored.is_some_and(|stored| !each(listed.key, stored)) {
                return Ok(());
            }
        }
        if !full {
            return Ok(());
        }
    }
}
