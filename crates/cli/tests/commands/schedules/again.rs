//! What is run again, and when: whatever is not over is looked at, however old it is and whatever else is due.

use leasehold::core::ids::WriteId;
use leasehold::core::ledger::{Entry, Subject};
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::session::lease_key;
use leasehold::core::store::Cas;
use leasehold::ledger::key_of;
use leasehold::stores;
use pollster::block_on;

use super::kit::{NOTE, RARE, Site, drained, job, lines, named, now, rare_slot, second};
use crate::world::until;

const HOUR: i64 = 3_600;

/// A run of a slot that dies with its wrapper.
fn silent(site: &Site, name: &str, slot: &str) {
    let args = ["run", name, "--ttl", "1s", "--grace", "100ms", "--slot", slot];
    site.on("a", &args).args(["--", "sh", "-c", "kill -9 $PPID"]).output().unwrap();
    site.becomes(name, slot, "unknown");
}

/// Slots that ended well lie between it and the newest: few enough that nothing else would be written down.
#[test]
fn an_old_slot_whose_run_never_reported_is_run_again_at_once() {
    let site = Site::with(&job("hourly", "every = \"1h\"", "retry = true", NOTE));
    let newest = now().div_euclid(HOUR) * HOUR;
    let old = newest - 3 * HOUR;
    site.rewind("hourly", old - 1);
    silent(&site, "hourly", &named(old));
    for at in [newest - 2 * HOUR, newest - HOUR] {
        site.run("a", &["run", "hourly", "--slot", &named(at), "--", "true"]).is(0, "");
    }
    site.tick("a").is(0, "");
    let mut runs = site.runs("a");
    runs.sort();
    assert_eq!(runs, [named(old), named(newest)]);
    site.tick("a").quiet();
    assert_eq!(site.job_record("hourly").unwrap().open, [] as [i64; 0]);
}

/// The lease of a dead run, as it looks in a store that was restarted: its age says nothing, and whoever only looks
/// would wait for ever.
#[test]
fn where_only_a_run_can_tell_one_is_started() {
    let site = Site::with(&job("rare", RARE, "retry = true", NOTE));
    let slot = site.make_due("rare");
    let args = ["run", "rare", "--ttl", "10m", "--grace", "100ms", "--slot", &slot];
    site.on("a", &args).args(["--", "sh", "-c", "kill -9 $PPID"]).output().unwrap();
    let mut store = stores::open(&site.store).unwrap_or_else(|e| panic!("{e}"));
    let lease = Name::new("rare").unwrap();
    let stored = block_on(store.read(&lease_key(&lease))).unwrap().unwrap();
    let mut record = LeaseRecord::decode(&lease, &stored.body).unwrap();
    assert!(record.hold.is_some(), "{record:?}");
    record.instance = "before the restart".into();
    let written =
        block_on(store.cas(&lease_key(&lease), Some(&stored.version), record.write, &record.encode()));
    assert!(matches!(written, Cas::Written { .. }), "{written:?}");
    site.tick("a").is(0, "");
    assert_eq!(site.runs("a"), [slot]);
}

#[test]
fn a_slot_whose_record_makes_no_sense_is_left_alone() {
    let site = Site::with(&job("rare", RARE, "attempts = 3", NOTE));
    let slot = site.make_due("rare");
    site.run("a", &["run", "rare", "--slot", &slot, "--", "false"]).is(1, "");
    site.damage(&format!("slots/rare@{:012}", rare_slot()));
    site.tick("a").is(0, "").names(&["the record is not readable"]);
    assert!(site.runs("a").is_empty(), "{:?}", site.runs("a"));
    assert!(site.job_record("rare").unwrap().dropped.is_empty());
}

/// Nobody can tell who has it. The run of the first slot says so; the others find nothing else.
#[test]
fn a_lease_that_cannot_be_read_is_not_tried_for_each_slot() {
    let site = Site::with(&job("often", "every = \"1h\"", "catch_up = 3", NOTE));
    site.run("a", &["run", "often", "--", "true"]).is(0, "");
    site.damage("leases/often");
    site.rewind("often", now() - 3 * 3600);
    let told = site.tick("a").is(1, "store.bad_record").err;
    assert_eq!(told.matches("did not start").count(), 1, "{told}");
    assert!(site.runs("a").is_empty(), "{:?}", site.runs("a"));
}

/// Four that make up for something are at it, and one more has to wait for them; what is due now has not.
#[test]
fn what_is_due_now_does_not_wait_for_what_is_late() {
    let long = "echo $LEASEHOLD_SLOT >> begun; until test -e go; do sleep 0.02; done";
    let late = ["r1", "r2", "r3", "r4"];
    let jobs: String = late.map(|name| job(name, RARE, "catch_up = 1", long)).concat();
    let site = Site::with(&(jobs + &job("often", "every = \"1s\"", "", NOTE)));
    late.iter().for_each(|name| drop(site.make_due(name)));
    let old = named(now() - 100);
    site.rewind("often", now() - 101);
    site.run("a", &["run", "often", "--slot", &old, "--", "false"]).is(1, "");
    site.rewind("often", now() - 1);
    site.run("a", &["retry", &format!("often@{old}")]).is(0, "retry.again");
    let daemon = site.daemon("a");
    until("four are at it", || (lines(&site.world.path("a/begun")).len() == 4).then_some(()));
    let before = site.runs("a").len();
    until("others are run meanwhile", || (site.runs("a").len() >= before + 3).then_some(()));
    site.world.write("a/go", "");
    until("the late one is run in its turn", || site.runs("a").contains(&old).then_some(()));
    drained(daemon);
}

/// The store cannot be told of a changed file: it is told later.
#[test]
fn a_changed_file_is_not_forgotten_while_the_store_is_silent() {
    let site = Site::with(&job("rare", RARE, "", NOTE));
    let mut daemon = site.daemon("a");
    let locked = rusqlite::Connection::open(site.world.path("store.db")).unwrap();
    locked.execute_batch("BEGIN EXCLUSIVE").unwrap();
    site.jobs("a", &job("rare", "every = \"365d\"", "", NOTE));
    daemon.said("daemon.jobs_stay_until_answer");
    locked.execute_batch("ROLLBACK").unwrap();
    daemon.said("daemon.read_again");
    assert_eq!(site.job_record("rare").unwrap().schedule, "every 8760h");
    drained(daemon);
}

/// The slot and its key failed together, and a person lets both be tried again by naming the slot.
#[test]
fn a_slot_is_tried_again_with_its_key() {
    let more = "attempts = 2\nkey = \"pay-{slot}\"";
    let site = Site::with(&job("pay", RARE, more, "echo $LEASEHOLD_SLOT >> runs; test -e go"));
    let slot = site.make_due("pay");
    site.tick("a").is(1, "").names(&["attempt 2 of 2", "leasehold why pay"]);
    assert_eq!(site.runs("a").len(), 2);
    site.world.write("a/go", "");
    site.run("a", &["retry", &format!("pay@{slot}")]).is(0, "retry.again").names(&[&format!("pay-{slot}")]);
    site.tick("a").is(0, "");
    assert_eq!((site.runs("a").len(), &site.outcome("pay", &slot).unwrap()["outcome"]), (3, &"ok".into()));
}

/// Two old slots that fail again and again, each for longer than the other has to wait.
#[test]
fn what_is_tried_again_takes_turns_with_what_is_due() {
    let line = "echo $LEASEHOLD_SLOT >> runs; test ! -e fail-$LEASEHOLD_SLOT || { sleep 1.3; exit 1; }";
    let site = Site::with(&job("often", "every = \"1s\"", "attempts = 1000\ncatch_up = 3", line));
    let old = [named(now() - 100), named(now() - 99)];
    site.rewind("often", now() - 101);
    for slot in &old {
        site.world.write(&format!("a/fail-{slot}"), "");
        site.run("a", &["run", "often", "--slot", slot, "--", "false"]).is(1, "");
    }
    site.rewind("often", now() - 1);
    for slot in &old {
        site.run("a", &["retry", &format!("often@{slot}")]).is(0, "retry.again");
    }
    let daemon = site.daemon("a");
    until("both, and others", || {
        let runs = site.runs("a");
        let others = runs.iter().filter(|slot| !old.contains(slot)).count();
        (others >= 4 && old.iter().all(|slot| runs.contains(slot))).then_some(())
    });
    drained(daemon);
    let runs = site.runs("a");
    assert!(!runs.windows(2).any(|two| two.iter().all(|slot| old.contains(slot))), "{runs:?}");
}

/// Ten slots of a job that wants them all, and its lease is held: one run finds out for all of them.
#[test]
fn a_lease_that_is_held_is_asked_for_once() {
    let site = Site::with(&job("often", "every = \"1h\"", "catch_up = 10\nlease = \"shared\"", NOTE));
    let mut other = site.start("a", &["run", "shared", "--", "sh", "-c", "echo held; exec cat"]);
    assert_eq!(other.line(), "held");
    site.rewind("often", now() - 10 * HOUR);
    let said = site.run("a", &["-v", "tick"]).is(0, "").err;
    assert_eq!(said.matches("starting often").count(), 1, "{said}");
    other.ended().is(0, "");
    site.tick("a").is(0, "");
    assert_eq!(site.runs("a").len(), 10, "they stayed open");
}

/// These slots of a job that is due every second were begun, and failed; all as the first of them did.
fn failed(site: &Site, slots: std::ops::RangeInclusive<i64>) {
    let (first, job) = (*slots.start(), Name::new("often").unwrap());
    let subject = |at: i64| Subject::Slot { job: job.clone(), at, id: named(at) };
    site.rewind("often", first - 1);
    site.run("a", &["run", "often", "--attempts", "1000", "--slot", &named(first), "--", "false"]).is(1, "");
    let mut store = stores::open(&site.store).unwrap_or_else(|e| panic!("{e}"));
    let entry = leasehold::ledger::entry(store.as_mut(), &subject(first)).unwrap().unwrap();
    for at in slots.skip(1) {
        let entry =
            Entry { subject: subject(at), write: WriteId(leasehold::random::seed()), ..entry.clone() };
        let (key, body) = (key_of(&entry.subject), entry.encode().unwrap());
        let written = block_on(store.cas(&key, None, entry.write, &body));
        assert!(matches!(written, Cas::Written { .. }), "{written:?}");
    }
}

/// Slots are due every second, and what is tried again takes longer than that: those that are due wait for their turn.
#[test]
fn a_slot_does_not_give_way_to_one_of_its_own_job_that_is_tried_again() {
    let line = "echo $LEASEHOLD_SLOT >> runs; case $LEASEHOLD_SLOT in 197*) until test -e go; do sleep 0.02; done; exit 1;; esac";
    let site = Site::with(&job("often", "every = \"1s\"", "attempts = 1000", line));
    failed(&site, 1..=20);
    site.rewind("often", now());
    site.fill_open("often");
    let daemon = site.daemon("a");
    until("an old one is at it", || site.runs("a").last().filter(|slot| slot.starts_with("197")).cloned());
    let (ran, at) = (site.runs("a").len(), now());
    until("slots are due meanwhile", || (now() > at + 3).then_some(()));
    site.world.write("a/go", "");
    let next = until("another is run", || site.runs("a").get(ran).cloned());
    assert!(!next.starts_with("197") && second(&next) > at, "{:?}", site.runs("a"));
    drained(daemon);
    let gave_way: Vec<_> =
        site.history("often").into_iter().filter(|row| row["outcome"] == "skipped").collect();
    let early = |row: &&serde_json::Value| second(row["item"].as_str().unwrap()) <= second(&next);
    assert_eq!(gave_way.iter().filter(early).count(), 0, "{gave_way:#?}");
}

/// As many slots are open as may be: what is due goes on all the same, and a pause ends.
#[test]
fn a_full_list_keeps_nothing_from_going_on() {
    let line = "echo $LEASEHOLD_SLOT >> runs; case $LEASEHOLD_SLOT in 197*) exit 1;; esac";
    let site = Site::with(&job("often", "every = \"1s\"", "attempts = 1000", line));
    failed(&site, 1..=100);
    site.rewind("often", now());
    site.fill_open("often");
    site.run("a", &["pause", "often"]).is(0, "");
    until("slots are due in the pause", || {
        (now() > site.job_record("often").unwrap().settled + 2).then_some(())
    });
    site.run("a", &["resume", "often"]).is(0, "");
    let daemon = site.daemon("a");
    until("it goes on", || {
        (site.runs("a").iter().filter(|slot| !slot.starts_with("197")).count() >= 3).then_some(())
    });
    drained(daemon);
    let job_record = site.job_record("often").unwrap();
    assert!(
        job_record.paused.is_none()
            && job_record
                .dropped
                .iter()
                .any(|r| r.why == leasehold::core::ledger::job_record::DropReason::Paused)
    );
}
