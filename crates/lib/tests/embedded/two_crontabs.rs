//! Two machines with the same crontab line, a third of a second apart, and late re-fires: a lease alone lets the
//! second run start when the first has ended. A slot or a cooldown does not.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use leasehold::backends::memory::MemoryStore;
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::ledger::{
    Amended, Amending, Ending, Entry, IfUnknown, ItemClaim, ItemRequest, ItemState, Opened, Subject, finish,
};
use leasehold::core::name::Name;
use leasehold::core::record::Holder;
use leasehold::core::store::Version;
use leasehold::core::time::BootTime;
use leasehold::ledger::{amend, open};

const SLOTS: u64 = 10_000;
const EVERY: u64 = 45 * 60 * 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    LeaseAlone,
    Slot,
    Cooldown,
}

/// Milliseconds, in order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End,
    Fire { slot: u64 },
}

struct Dice(u64);

impl Dice {
    fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        least + self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % (most - least)
    }
}

fn ask(way: Way, slot: u64, token: u64) -> ItemRequest {
    let job = Name::new("site").unwrap();
    let holder = Holder {
        host: "h".into(),
        pid: 1,
        run: "r".into(),
        job: "site".into(),
        since: String::new(),
        slot: None,
    };
    let at = i64::try_from(slot * EVERY / 1_000).unwrap();
    let (subject, keep) = match way {
        Way::Cooldown => (Subject::Latest(job.clone()), Some(Duration::from_secs(30 * 60))),
        _ => (Subject::Slot { job: job.clone(), at, id: slot.to_string() }, None),
    };
    let claim = ItemClaim {
        lease: job.clone(),
        epoch: Epoch::first(1),
        token: Token::new(token).unwrap(),
        grant: Grant(token.into()),
        holder,
    };
    ItemRequest { subject, job, claim, if_unknown: IfUnknown::Refuse, attempts: 3, keep }
}

/// How many slots ran, and how many ran twice.
fn weeks(way: Way) -> (usize, usize) {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut events = BinaryHeap::new();
    for slot in 0..SLOTS {
        let due = slot * EVERY;
        for machine in 0..2 {
            events.push(Reverse((due + machine * 300 + dice.between(0, 50), Event::Fire { slot })));
        }
        if dice.between(0, 100) < 5 {
            events.push(Reverse((due + dice.between(60_000, 600_000), Event::Fire { slot })));
        }
    }
    let mut store = MemoryStore::with_manual_clock().unwrap();
    // The lease: one at a time, and nothing more.
    let mut holding: Option<Option<(Entry, Version)>> = None;
    let (mut ran, mut tokens) = (BTreeMap::<u64, usize>::new(), 0);
    while let Some(Reverse((now, event))) = events.pop() {
        store.set_time(BootTime(Duration::from_millis(now)));
        match event {
            Event::End => {
                if let Some((entry, version)) = holding.take().flatten() {
                    let ending = Ending {
                        exit: Some(0),
                        took_ms: 1,
                        at: String::new(),
                        reason: None,
                        said: String::new(),
                    };
                    let amending =
                        Amending::new(version, finish(&entry, ItemState::Ok, ending), u128::from(now) << 64);
                    assert!(matches!(amend(&mut store, amending), Amended::Done(..)));
                }
            }
            Event::Fire { .. } if holding.is_some() => {}
            Event::Fire { slot } => {
                tokens += 1;
                let item = match way {
                    Way::LeaseAlone => Some(None),
                    _ => match open(&mut store, ask(way, slot, tokens)).0 {
                        Opened::Begun(entry, version) => Some(Some((entry, version))),
                        Opened::Done(_) => None,
                        other => panic!("{other:?}"),
                    },
                };
                if let Some(item) = item {
                    holding = Some(item);
                    *ran.entry(slot).or_default() += 1;
                    events.push(Reverse((now + dice.between(50, 2_000), Event::End)));
                }
            }
        }
    }
    (ran.len(), ran.values().filter(|runs| **runs > 1).count())
}

#[test]
fn a_slot_or_a_cooldown_runs_it_once() {
    for way in [Way::Slot, Way::Cooldown] {
        let (slots, twice) = weeks(way);
        println!("two crontabs, {way:?}: {slots} slots, {twice} run twice");
        assert_eq!((slots, twice), (SLOTS as usize, 0));
    }
    let (slots, twice) = weeks(Way::LeaseAlone);
    println!("two crontabs, with a lease alone: {slots} slots, {twice} run twice");
    assert!(twice > 500, "the control finds nothing: {twice}");
}
