//! A job on two machines for three weeks, with real runs: what `stats` says is what happened.
//!
//! A seed decides what happens to each slot: runs that overlap, are fired again, freeze and wake up too late, or are
//! killed with all that they started.

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{Running, World, binary, kill, long, until};

/// What happens to one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Alone,
    /// A second run starts while the first is at work.
    Overlap,
    /// A second run starts when the first has ended.
    Refire,
    /// The first run freezes. A second one takes over, and the first wakes up and writes.
    Frozen,
    /// The first run is killed, and never reports. A second one takes over.
    Killed,
}

fn fate(slot: u64) -> Fate {
    match slot.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59 {
        0..12 => Fate::Alone,
        12..20 => Fate::Overlap,
        20..26 => Fate::Refire,
        26..29 => Fate::Frozen,
        _ => Fate::Killed,
    }
}

/// What happened, as the replay counts it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    runs: u64,
    ok: u64,
    lost: u64,
    unknown: u64,
    skipped: u64,
    refused: u64,
}

impl Count {
    /// As `stats` counts it.
    fn of(stats: &Value) -> Self {
        let count = |word: &str| stats[word].as_u64().unwrap();
        Self {
            runs: count("runs"),
            ok: count("ok"),
            lost: count("lost"),
            unknown: count("unknown"),
            skipped: count("skipped"),
            refused: count("refused"),
        }
    }
}

const RUN: [&str; 6] = ["run", "site", "--ttl", "2s", "--fence", "file:today"];

fn whole(world: &World) {
    let write = format!("echo new | {} -q write file:today", binary().display());
    world.run(&[&RUN[..], &["--wait", "50s", "sh", "-c", &write]].concat()).is(0, "");
}

/// A run that waits for a word, and then writes. Its shell, too.
fn waiting(world: &World) -> (Running, u32) {
    let script = format!("echo $$; read go; echo old | {} -q write file:today", binary().display());
    let mut run = world.start(&[&RUN[..], &["sh", "-c", &script]].concat());
    let pid = run.line().parse().unwrap();
    (run, pid)
}

fn slot(world: &World, slot: u64, count: &mut Count) {
    match fate(slot) {
        Fate::Alone => {
            whole(world);
            (count.runs, count.ok) = (count.runs + 1, count.ok + 1);
        }
        Fate::Refire => {
            whole(world);
            whole(world);
            (count.runs, count.ok) = (count.runs + 2, count.ok + 2);
        }
        Fate::Overlap => {
            let (mut first, _) = waiting(world);
            world.run(&[&RUN[..], &["true"]].concat()).is(0, "run.skipped");
            first.type_in("go\n");
            first.ended().is(0, "");
            (count.runs, count.ok, count.skipped) = (count.runs + 1, count.ok + 1, count.skipped + 1);
        }
        Fate::Frozen => {
            let (mut first, shell) = waiting(world);
            first.signal(Signal::STOP);
            kill(shell, Signal::STOP);
            whole(world);
            // The shell wakes up before its wrapper, which would end it: the fence must do this alone.
            kill(shell, Signal::CONT);
            first.type_in("go\n");
            until("the shell has ended", || {
                matches!(crate::world::state(shell), None | Some('Z')).then_some(())
            });
            first.signal(Signal::CONT);
            first.ended().is(75, "run.lost");
            (count.runs, count.ok) = (count.runs + 2, count.ok + 1);
            (count.lost, count.refused) = (count.lost + 1, count.refused + 1);
        }
        Fate::Killed => {
            let (first, shell) = waiting(world);
            first.signal(Signal::KILL);
            kill(shell, Signal::KILL);
            first.ended();
            whole(world);
            (count.runs, count.ok, count.unknown) = (count.runs + 2, count.ok + 1, count.unknown + 1);
        }
    }
}

#[test]
fn what_stats_counts_is_what_happened() {
    let (world, mut count) = (World::new(), Count::default());
    // Ten a day for three weeks.
    for number in 1..=if long() { 210 } else { 24 } {
        slot(&world, number, &mut count);
    }
    assert!(
        [count.lost, count.unknown, count.skipped, count.refused].iter().all(|met| *met > 0),
        "{count:?}"
    );
    let stats = world.run(&["--json", "stats", "site"]).is(0, "").json();
    assert_eq!(Count::of(&stats), count);
    // The control: a record that is missing is missed.
    let store = rusqlite::Connection::open(world.state().join("leases.db")).unwrap();
    let removed = store.execute("DELETE FROM records WHERE key LIKE 'log/%.skipped%'", []).unwrap();
    assert_eq!(u64::try_from(removed).unwrap(), count.skipped);
    let stats = world.run(&["--json", "stats", "site"]).is(0, "").json();
    assert_ne!(Count::of(&stats), count);
}
