//! A command that has ended has ended: what its run says of it is what was recorded.

use std::time::Duration;

use crate::world::{World, until};
use leasehold::clock::boot_time;
use rusqlite::Connection;

const TTL: Duration = Duration::from_secs(2);
const JOB: [&str; 4] = ["--", "sh", "-c", "echo here; read go; exit $go"];

/// Runs the job with a key while, until its lease has run out, the store can be read and not written. It ends at once with
/// this code, or has to be stopped. What the run says of it, and the record.
fn recorded_late(world: &World, code: Option<i32>) -> (serde_json::Value, serde_json::Value) {
    let store = format!("sqlite:{}", world.at("store.db"));
    world.run(&["--store", &store, "run", "warm", "true"]).is(0, "");
    let locked = Connection::open(world.path("store.db")).unwrap();
    let args = ["--store", &store, "run", "site", "--ttl", "2s", "--key", "k", "--report", "report"];
    let mut run = world.start(&[&args[..], &JOB].concat());
    assert_eq!(run.line(), "here");
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let end = boot_time().plus(TTL);
    if let Some(code) = code {
        run.type_in(&format!("{code}\n"));
    }
    until("a whole TTL", || (boot_time() >= end).then_some(()));
    locked.execute_batch("ROLLBACK").unwrap();
    let ended = run.ended();
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(world.path("report")).unwrap()).unwrap();
    assert_eq!(report["exit"], ended.code, "{ended:#?}");
    assert_eq!(ended.err.contains("lost site"), code.is_none(), "{ended:#?}");
    (report, world.run(&["--store", &store, "--json", "history", "k"]).is(0, "").json())
}

#[test]
fn a_record_that_takes_longer_than_the_lease_changes_nothing_of_what_it_records() {
    for (code, word) in [(0, "ok"), (3, "failed")] {
        let (told, kept) = recorded_late(&World::new(), Some(code));
        assert_eq!((&kept["outcome"], &kept["exit"]), (&word.into(), &code.into()), "{kept}");
        assert_eq!((&told["outcome"], &told["exit"]), (&word.into(), &code.into()), "{told}");
    }
}

/// The control: what still runs when its lease cannot be kept is stopped, and that is lost.
#[test]
fn what_is_stopped_for_its_lease_is_recorded_and_told_as_lost() {
    let (told, kept) = recorded_late(&World::new(), None);
    assert_eq!(
        (&kept["outcome"], &told["outcome"], &told["exit"]),
        (&"lost".into(), &"lost".into(), &75.into())
    );
}
