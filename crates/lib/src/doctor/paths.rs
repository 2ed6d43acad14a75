//! Whether a write through one path to a store is seen through another path at once.
//!
//! A mount that caches names shows an old state. A test through that mount alone cannot find this out.

use std::time::Duration;

use leasehold_core::human_duration::HumanDuration;

use super::checks::{Check, WRITERS, text, write};
use super::scratch::{Scratch, clear};
use super::{Visit, messages as say};
use crate::clock::boot_time;
use crate::stores::{Failure, RemarkLevel, Store, Version};

/// The key of the record that is written.
const RECORD: &str = "record";
/// How long a write may take to be seen through the other path.
const PATIENCE: Duration = Duration::from_secs(3);

/// Compares the two paths. If they agree, later checks use both.
pub(super) fn compare(visit: &mut Visit<'_>) -> Result<(), Failure> {
    let Some(also) = visit.also.clone() else { return Ok(()) };
    visit.begin(Check::Paths);
    let mut one = visit.scratch.handle("paths");
    let mut two = visit.scratch.within(also()?, "paths/");
    let unseen = unseen(&visit.scratch, one.as_mut(), two.as_mut());
    let mounted = [&one, &two].iter().any(|path| path.facts().caution.is_some());
    // If they are two stores, the sweep at the end reaches only the first.
    clear(two.as_mut());
    let Some(unseen) = unseen? else {
        visit.found(Check::Paths, RemarkLevel::Good, say::paths());
        return (0..WRITERS / 2).try_for_each(|_| {
            visit.scratch.adopt(also()?);
            Ok(())
        });
    };
    let text = if mounted { say::caching_mount(unseen) } else { say::two_stores(unseen) };
    visit.found(Check::Paths, RemarkLevel::Unsafe, text);
    Ok(())
}

/// A write to the record of this check.
#[derive(Clone, Copy)]
enum Change {
    Creation,
    Update,
    Removal,
}

impl Change {
    fn name(self) -> String {
        match self {
            Self::Creation => say::creation(),
            Self::Update => say::change(),
            Self::Removal => say::removal(),
        }
    }
}

/// The first write that is not seen at once, in a sentence.
fn unseen<'a>(
    scratch: &Scratch,
    one: &'a mut dyn Store,
    two: &'a mut dyn Store,
) -> Result<Option<String>, Failure> {
    sees(one, None)?;
    sees(two, None)?;
    if one.facts().instance != two.facts().instance {
        return Ok(Some(say::other_identity()));
    }
    for round in 0..4 {
        let (writer, reader): (&mut dyn Store, &mut dyn Store) =
            if round % 2 == 0 { (&mut *one, &mut *two) } else { (&mut *two, &mut *one) };
        let mut there = None;
        for change in [Change::Creation, Change::Update, Change::Removal] {
            // A read first, so that a cache has something to keep.
            sees(reader, there.as_ref())?;
            there = match (change, there) {
                (Change::Removal, Some(version)) => {
                    pollster::block_on(writer.remove(RECORD, &version));
                    None
                }
                (_, before) => Some(write(writer, RECORD, before.as_ref())?.0),
            };
            if let Some(late) = late(scratch, reader, there.as_ref())? {
                return Ok(Some(say::unseen(change.name(), late)));
            }
        }
    }
    Ok(None)
}

/// How late this version is seen; nothing: at once.
fn late(
    scratch: &Scratch,
    reader: &mut dyn Store,
    there: Option<&Version>,
) -> Result<Option<String>, Failure> {
    let started = boot_time();
    if sees(reader, there)? {
        return Ok(None);
    }
    while boot_time().since(started) < PATIENCE {
        scratch.pause(Duration::from_millis(20));
        if sees(reader, there)? {
            return Ok(Some(say::seen_late(text(boot_time().since(started)))));
        }
    }
    Ok(Some(say::never_seen(HumanDuration(PATIENCE))))
}

/// Whether a read gives this version, and the listing agrees.
fn sees(reader: &mut dyn Store, there: Option<&Version>) -> Result<bool, Failure> {
    let read = pollster::block_on(reader.read(RECORD))?.map(|stored| stored.version);
    let listed = pollster::block_on(reader.list("", "", 10))?.iter().any(|listed| listed.key == RECORD);
    Ok(read.as_ref() == there && listed == there.is_some())
}
