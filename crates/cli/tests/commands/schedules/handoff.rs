//! What a scheduler hands to the process that runs a slot, and what that hands back.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use leasehold::core::ledger::ItemState;
use leasehold::core::name::Name;
use leasehold_run::handoff::{
    COMMAND, Description, Handed, LeaseAndTargets, NotBegun, RunOutcome, SlotOutcome, SlotRecord, VERSION,
};

use super::kit::lines;
use crate::world::{Ended, World};

const SLOT: &str = "2026-01-01T05:00:00Z";

/// The run of a slot of `site` on the store of this machine.
pub fn described(world: &World, command: &[&str]) -> Description {
    let job = Name::new("site").unwrap();
    Description {
        version: VERSION,
        run_id: "scheduler-1-0123456789abcdef".into(),
        at: SLOT.parse::<jiff::Timestamp>().unwrap().as_second(),
        slot: SLOT.into(),
        leases: vec![LeaseAndTargets { lease: job.clone(), targets: Vec::new() }],
        job,
        key: None,
        store: format!("sqlite:{}", world.at("store.db")),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        env: BTreeMap::new(),
        ttl: None,
        heartbeat: None,
        grace: None,
        wait: Duration::ZERO,
        max_run: None,
        retry: false,
        attempts: 1,
        new_here: false,
        verbose: false,
        notify: leasehold_run::notify::Notify::default(),
    }
}

/// Hands it to a process, as a scheduler does.
pub fn run(world: &World, dir: &Path, description: &Description) -> (Ended, Option<RunOutcome>) {
    let (handed, its) = Handed::pair().unwrap();
    let mut command = world.command(&[COMMAND, description.job.as_str(), &description.slot]);
    let child =
        command.current_dir(dir).stdin(its).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    handed.describe(description).unwrap();
    let ended = child.wait_with_output().unwrap().into();
    (ended, handed.outcome())
}

fn here(world: &World, description: &Description) -> (Ended, Option<RunOutcome>) {
    run(world, &world.path(""), description)
}

#[test]
fn what_came_of_it_is_handed_back() {
    let world = World::new();
    let of =
        |slot| Some(RunOutcome { version: VERSION, run_id: "scheduler-1-0123456789abcdef".into(), slot });
    let failing = described(&world, &["sh", "-c", "exit 3"]);
    let (ended, outcome) = here(&world, &failing);
    ended.is(3, "");
    let failed = SlotRecord { state: ItemState::Failed, attempt: 1, failures: 1 };
    assert_eq!(outcome, of(SlotOutcome::Begun(Some(failed))));
    // It may not be tried again, may be, is done, and cannot be opened.
    let (ended, outcome) = here(&world, &failing);
    ended.is(79, "");
    assert_eq!(outcome, of(SlotOutcome::NotBegun(NotBegun::NeedsYou)));
    let good = Description { attempts: 2, ..described(&world, &["true"]) };
    let (ended, outcome) = here(&world, &good);
    ended.is(0, "");
    let done = SlotRecord { state: ItemState::Ok, attempt: 2, failures: 1 };
    assert_eq!(outcome, of(SlotOutcome::Begun(Some(done))));
    let (ended, outcome) = here(&world, &good);
    ended.is(0, "");
    assert_eq!(outcome, of(SlotOutcome::NotBegun(NotBegun::Skipped)));
    let (ended, outcome) = here(&world, &Description { store: "sqlit:x".into(), ..good });
    ended.is(78, "").names(&["Did you mean sqlite:?"]);
    assert_eq!(outcome, of(SlotOutcome::NotBegun(NotBegun::InVain)));
}

/// A job may say more than a socket holds.
#[test]
fn an_enormous_description_arrives() {
    let world = World::new();
    let mut large = described(&world, &["sh", "-c", "test ${#V7} = 100000"]);
    large.env = (0..8).map(|n| (format!("V{n}"), "x".repeat(100_000))).collect();
    let (ended, outcome) = here(&world, &large);
    ended.is(0, "");
    assert!(matches!(outcome.unwrap().slot, SlotOutcome::Begun(Some(_))));
}

/// The description has the secrets of all of them.
#[test]
fn the_job_inherits_nothing_of_it() {
    let world = World::new();
    let open = "for fd in /proc/$$/fd/*; do readlink \"$fd\"; done > open; readlink /proc/$$/fd/0 > stdin";
    let (ended, _) = here(&world, &described(&world, &["sh", "-c", open]));
    ended.is(0, "");
    assert_eq!(lines(&world.path("stdin")), ["/dev/null"]);
    let open = lines(&world.path("open"));
    assert!(!open.iter().any(|what| what.starts_with("socket:")), "{open:?}");
    // The control: the wrapper itself has it.
    let hand_down = "readlink /proc/$PPID/fd/* > open; true";
    let slot = "2026-01-01T06:00:00Z";
    let at = slot.parse::<jiff::Timestamp>().unwrap().as_second();
    let command = ["sh", "-c", hand_down];
    let (ended, _) = here(&world, &Description { at, slot: slot.into(), ..described(&world, &command) });
    ended.is(0, "");
    let open = lines(&world.path("open"));
    assert!(open.iter().any(|what| what.starts_with("socket:")), "{open:?}");
}

#[test]
fn nothing_is_run_that_no_scheduler_has_described() {
    let world = World::new();
    world.unchanged(|| world.run(&[COMMAND, "site", SLOT])).is(64, "").names(&["`leasehold daemon`"]);
    let whole = serde_json::to_string(&described(&world, &["touch", "never"])).unwrap();
    let newer = whole.replacen("\"version\":1", "\"version\":2", 1);
    assert_ne!(newer, whole);
    for (text, said) in [("", "EOF"), (&whole[..whole.len() / 2], "EOF"), (&newer, "Restart the daemon")] {
        let (mut ours, its) = UnixStream::pair().unwrap();
        let mut command = world.command(&[COMMAND, "site", SLOT]);
        ours.write_all(text.as_bytes()).unwrap();
        ours.shutdown(Shutdown::Write).unwrap();
        command.stdin(OwnedFd::from(its));
        world.unchanged(|| command.output().unwrap().into()).is(78, said);
    }
}
