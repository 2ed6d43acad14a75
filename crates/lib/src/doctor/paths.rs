//! A second way to the same store: whether what is written by one is seen by the other at once.
//!
//! A mount that caches names shows what was there a while ago, which nobody sees who looks through one mount alone.

use std::time::Duration;

use leasehold_core::human_duration::HumanDuration;

use super::Visit;
use super::checks::{WRITERS, text, write};
use super::scratch::{Scratch, clear};
use crate::clock::boot_time;
use crate::stores::{Failure, RemarkLevel, Store, Version};

/// The one record that is written here.
const RECORD: &str = "record";
/// How long the other path is given to see it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Compares the two paths. If they agree, both are used from now on.
pub(super) fn compare(visit: &mut Visit<'_>) -> Result<(), Failure> {
    let Some(also) = visit.also.clone() else { return Ok(()) };
    visit.begin("paths");
    let mut one = visit.corner.handle("paths");
    let mut two = visit.corner.within(also()?, "paths/");
    let unseen = unseen(&visit.corner, one.as_mut(), two.as_mut());
    let mounted = [&one, &two].iter().any(|way| way.facts().caution.is_some());
    // If they are two stores, a sweep of one leaves the other as it is.
    clear(two.as_mut());
    let Some(unseen) = unseen? else {
        visit.found(
            "paths",
            RemarkLevel::Good,
            "what is written through one path is seen through the other at once",
        );
        return (0..WRITERS / 2).try_for_each(|_| {
            visit.corner.adopt(also()?);
            Ok(())
        });
    };
    let cause = match mounted {
        true => {
            "a mount caches names (its caution has the options against that), or they are two directories"
        }
        false => "they are two stores",
    };
    visit.found("paths", RemarkLevel::Unsafe, format!("{unseen}: {cause}"));
    Ok(())
}

/// What is not seen at once, in a sentence.
fn unseen<'a>(
    corner: &Scratch,
    one: &'a mut dyn Store,
    two: &'a mut dyn Store,
) -> Result<Option<String>, Failure> {
    sees(one, None)?;
    sees(two, None)?;
    if one.facts().instance != two.facts().instance {
        return Ok(Some("the two paths have different identities".into()));
    }
    for round in 0..4 {
        let (writer, reader): (&mut dyn Store, &mut dyn Store) =
            if round % 2 == 0 { (&mut *one, &mut *two) } else { (&mut *two, &mut *one) };
        let mut there = None;
        for what in ["a new record", "a change", "a removal"] {
            // So that a cache has something to keep.
            sees(reader, there.as_ref())?;
            there = match there {
                Some(version) if what == "a removal" => {
                    pollster::block_on(writer.remove(RECORD, &version));
                    None
                }
                before => Some(write(writer, RECORD, before.as_ref())?.0),
            };
            if let Some(late) = late(corner, reader, there.as_ref())? {
                return Ok(Some(format!("{what} made through one path was {late} through the other")));
            }
        }
    }
    Ok(None)
}

/// How late this is seen, if it is not at once.
fn late(
    corner: &Scratch,
    reader: &mut dyn Store,
    there: Option<&Version>,
) -> Result<Option<String>, Failure> {
    let begun = boot_time();
    if sees(reader, there)? {
        return Ok(None);
    }
    while boot_time().since(begun) < PATIENCE {
        corner.pause(Duration::from_millis(20));
        if sees(reader, there)? {
            return Ok(Some(format!("seen only after {}", text(boot_time().since(begun)))));
        }
    }
    Ok(Some(format!("not seen within {}", HumanDuration(PATIENCE))))
}

/// Whether this version is the one that is read, and the record is listed if there is one.
fn sees(reader: &mut dyn Store, there: Option<&Version>) -> Result<bool, Failure> {
    let read = pollster::block_on(reader.read(RECORD))?.map(|stored| stored.version);
    let listed = pollster::block_on(reader.list("", "", 10))?.iter().any(|listed| listed.key == RECORD);
    Ok(read.as_ref() == there && listed == there.is_some())
}
