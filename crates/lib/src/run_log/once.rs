//! A finished key is one record, not two: the leases that were made for keys are swept once their keys are done.
//!
//! It happens after a run of a key, a little at a time, and never while a run waits. One forgotten-record stands for all of
//! these leases. The notes of this machine about them go too.

use leasehold_core::forgotten::{LEAST_AGE, Names, ONCE, may_sweep_lease_of};
use leasehold_core::ledger::Subject;
use leasehold_core::name::Name;
use leasehold_core::session::{LEASE_PREFIX, lease_key};
use leasehold_core::time::BootTime;
use pollster::block_on;

use crate::clock;
use crate::forget::{ForgetError, announce, judge_lease, records, remove};
use crate::ledger;
use crate::seen_tokens::SeenTokens;
use crate::stores::{Clock, Failure, FailureKind, Listed, Store};

/// How many leases are looked at, and how many of this machine's notes.
const PAGE: usize = 100;
const NOTES: usize = 8;

/// Where to begin: the name of a lease that was just used, cut off somewhere, with a letter more. So names that begin alike
/// are all looked at, whether there are ten or a million.
fn beginning(near: &Name, random: u64) -> String {
    const LETTERS: &[u8] = b"-./0123456789_abcdefghijklmnopqrstuvwxyz";
    let text = near.as_str().strip_suffix(ONCE).unwrap_or(near.as_str());
    let room = u64::try_from(text.len() + 1).unwrap_or(1);
    let cut = usize::try_from(random % room).unwrap_or(0);
    let letter = usize::try_from(random / room).unwrap_or(0) % LETTERS.len();
    format!("{LEASE_PREFIX}{}{}", &text[..cut], char::from(LETTERS[letter]))
}

/// Removes leases of keys that are done, from a random place on. Gives how many.
pub fn sweep(
    store: &mut dyn Store,
    notes: Option<&SeenTokens>,
    near: &Name,
    random: u64,
    end: BootTime,
) -> Result<usize, Failure> {
    if store.facts().clock == Clock::Observed {
        return Ok(0);
    }
    let mut removed = 0;
    for Listed { key, stored } in block_on(store.list(LEASE_PREFIX, &beginning(near, random), PAGE))? {
        let name = &key[LEASE_PREFIX.len()..];
        // No key, no hurry: a lease by another name is somebody's own.
        let Some(of) = name.strip_suffix(ONCE).filter(|_| clock::boot_time() < end) else { continue };
        let stored = match stored {
            Some(stored) => Some(stored),
            None => block_on(store.read(&key))?,
        };
        let Some(stored) = stored else { continue };
        let Ok((lease, _)) = judge_lease(store, notes, name, &stored, LEAST_AGE) else { continue };
        let entry = if of.is_empty() { None } else { ledger::entry(store, &Subject::Key(of.into()))? };
        if !entry.is_some_and(|entry| may_sweep_lease_of(&entry)) {
            continue;
        }
        if removed == 0 {
            match announce(store, &Names::Once, None, "leasehold") {
                Ok(()) => {}
                Err(ForgetError::Store(failure)) => return Err(failure),
                Err(ForgetError::Bad(_, bad)) => {
                    return Err(Failure::new(FailureKind::Unusable, bad.to_string()));
                }
            }
        }
        if remove(store, &key, &stored)? {
            removed += 1;
            if let Some(notes) = notes {
                notes.drop_notes(&lease);
            }
        }
    }
    Ok(removed)
}

/// Drops some of this machine's old notes about leases that are gone and were forgotten on purpose, perhaps by another
/// machine. Gives how many.
pub fn sweep_notes(
    store: &mut dyn Store,
    notes: &SeenTokens,
    random: u64,
    end: BootTime,
) -> Result<usize, Failure> {
    let mut dropped = 0;
    for (lease, seen) in notes.some_old(LEAST_AGE, NOTES, random) {
        if clock::boot_time() >= end {
            break;
        }
        if block_on(store.read(&lease_key(&lease)))?.is_some() {
            continue;
        }
        let said = records(store, &lease)?;
        let said = said.iter().filter_map(|body| leasehold_core::forgotten::Forgotten::decode(body).ok());
        if said.into_iter().any(|record| record.covers(&lease, seen)) {
            notes.drop_notes(&lease);
            dropped += 1;
        }
    }
    Ok(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::ids::{Epoch, Token, WriteId};
    use leasehold_core::rules::SeenToken;
    use std::time::{Duration, SystemTime};

    use crate::backends::memory::MemoryStore;
    use crate::state::StateDir;

    /// Notes of a lease that is gone stay until somebody says that it was forgotten, and so do those of a lease that is there.
    #[test]
    fn stale_notes_go_where_their_names_were_forgotten() {
        let place = std::env::temp_dir().join(format!("leasehold-notes-{:032x}", crate::random::seed()));
        let state = StateDir::at(place.clone());
        state.ensure().unwrap();
        let notes = SeenTokens::new(state.clone(), "memory:");
        let name = |text: &str| Name::new(text).unwrap();
        for lease in ["pr/1", "pr/new", "pr/there", "site"] {
            let seen = SeenToken { epoch: Epoch::first(1), token: Token::FIRST };
            notes.remember(&name(lease), Some(seen), None);
            let file = std::fs::File::open(state.memory_file(&name(lease))).unwrap();
            if lease != "pr/new" {
                file.set_modified(SystemTime::UNIX_EPOCH + clock::wall() - Duration::from_secs(7_200))
                    .unwrap();
            }
        }
        let mut store = MemoryStore::new().unwrap();
        block_on(store.cas("leases/pr/there", None, WriteId(1), b"x"));
        let end = clock::boot_time().plus(Duration::from_secs(60));
        assert_eq!(sweep_notes(&mut store, &notes, 0, end), Ok(0), "nobody has said so");
        announce(&mut store, &Names::Under("pr/".into()), None, "me").unwrap();
        assert_eq!(sweep_notes(&mut store, &notes, 1, end), Ok(1));
        let left =
            ["pr/1", "pr/new", "pr/there", "site"].map(|lease| notes.recall(&name(lease)).seen.is_some());
        assert_eq!(left, [false, true, true, true], "young notes and other names stay");
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn it_begins_anywhere_among_names_that_begin_alike() {
        let near = Name::new("invoice-4711.once").unwrap();
        let all: std::collections::BTreeSet<String> = (0..5000).map(|n| beginning(&near, n)).collect();
        assert!(all.contains("leases/-") && all.contains("leases/invoice-4711z"));
        assert!(all.contains("leases/invoice-47b"), "{}", all.len());
        assert_eq!(all.len(), 13 * 40, "every cut with every letter");
    }
}
