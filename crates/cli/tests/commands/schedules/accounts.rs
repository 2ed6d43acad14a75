//! What becomes of slots that are not simply run: none is given up too early, none is told wrongly, and one that
//! cannot be begun keeps no other from it.

use leasehold::core::ledger::job_record::{DropReason, DroppedRange};

use super::kit::{NOTE, RARE, Site, drained, job, named, now, rare_slot};
use crate::world::{Running, until};

fn ranges(site: &Site, job: &str) -> Vec<(i64, i64, u64)> {
    let dropped = site.agenda(job).unwrap().dropped;
    assert!(
        dropped.iter().all(|range: &DroppedRange| range.why == DropReason::Missed && !range.counting),
        "{dropped:?}"
    );
    dropped.iter().map(|range| (range.first, range.last, range.count)).collect()
}

/// Other work that holds a lease until it is told to end.
fn other_work(site: &Site, lease: &str) -> Running {
    let mut other = site.start("a", &["run", lease, "--", "sh", "-c", "echo held; exec cat"]);
    assert_eq!(other.line(), "held");
    other
}

/// Looks come more often than that: they must not take the lease's holder for a reason to give up.
#[test]
fn a_slot_that_waits_for_its_lease_is_left_alone() {
    let more = "lease = \"shared\"\non_busy = \"wait\"\nwait = \"50s\"\nttl = \"3s\"\ngrace = \"200ms\"";
    let site = Site::with(&job("rare", RARE, more, NOTE));
    let other = other_work(&site, "shared");
    let slot = site.make_due("rare");
    let mut daemon = site.daemon("a");
    daemon.said("starting rare");
    // A reload has it looked at again while it waits.
    site.jobs("a", &job("rare", RARE, more, NOTE));
    daemon.said("daemon.read_again");
    assert_eq!(site.outcome("rare", &slot), None);
    drop(other);
    site.becomes("rare", &slot, "ok");
    drained(daemon);
    assert_eq!(site.runs("a"), [slot]);
}

#[test]
fn ranges_have_nothing_in_them_that_ran() {
    let hour = 3_600;
    let site = Site::with(&job("hourly", "every = \"1h\"", "", NOTE));
    let newest = now().div_euclid(hour) * hour;
    // One that ran, and two that are no slots of the schedule at all.
    for at in [newest - 4 * hour, newest - 4 * hour + 7, newest - 2 * hour + 7] {
        let by_hand = ["run", "hourly", "--slot", &named(at), "--", "true"];
        site.rewind("hourly", newest - 7 * hour);
        site.run("a", &by_hand).is(0, "");
    }
    site.rewind("hourly", newest - 7 * hour);
    site.tick("a").is(0, "daemon.dropped").names(&["2 slots"]);
    let expected = [(newest - 6 * hour, newest - 5 * hour, 2), (newest - 3 * hour, newest - hour, 3)];
    // What is no slot parts a range all the same: there is a record in between.
    let found = ranges(&site, "hourly");
    assert_eq!(found.iter().map(|range| range.2).sum::<u64>(), 5, "{found:?}");
    assert_eq!(found[0], expected[0]);
    let ran = newest - 4 * hour;
    assert!(found.iter().all(|(first, last, _)| !(*first..=*last).contains(&ran)), "{found:?}");
    assert_eq!(site.runs("a"), [named(newest)]);
    // The next time, only what is new is told.
    site.tick("a").quiet();
    assert_eq!(ranges(&site, "hourly"), found);
}

/// A slot that is retried and fails again and again, beside slots that are due.
#[test]
fn one_that_fails_keeps_no_other_from_it() {
    let line = "echo $LEASEHOLD_SLOT >> runs; test ! -e fail-$LEASEHOLD_SLOT";
    let site = Site::with(&job("often", "every = \"1s\"", "attempts = 1000", line));
    let old = named(now() - 100);
    site.world.write(&format!("a/fail-{old}"), "");
    site.rewind("often", now() - 101);
    site.run("a", &["run", "often", "--slot", &old, "--", "false"]).is(1, "");
    site.rewind("often", now() - 1);
    site.run("a", &["retry", &format!("often@{old}")]).is(0, "retry.again");
    let daemon = site.daemon("a");
    let others = || site.runs("a").iter().filter(|slot| **slot != old).count();
    until("others run beside it", || (others() >= 4).then_some(()));
    drained(daemon);
    let tries = site.runs("a").len() - others();
    assert!((1..=4).contains(&tries), "{tries} tries in a few seconds: {:?}", site.runs("a"));
}

#[test]
fn a_record_that_makes_no_sense_is_the_trouble_of_one_job() {
    let jobs = [job("one", RARE, "", NOTE), job("two", RARE, "", NOTE)].concat();
    let site = Site::with(&jobs);
    let slot = site.make_due("two");
    site.damage("jobs/one");
    site.tick("a").is(1, "daemon.not_run").names(&["one"]);
    assert_eq!(site.runs("a"), [slot]);
}

#[test]
fn none_is_caught_up_that_is_too_old() {
    let site =
        Site::with(&job("often", "every = \"1s\"", "catch_up = 1000\ncatch_up_max_age = \"10s\"", NOTE));
    site.rewind("often", now() - 60);
    let before = now();
    site.tick("a").is(0, "daemon.dropped");
    let oldest = site.runs("a").first().cloned().unwrap();
    assert!(super::kit::second(&oldest) >= before - 10, "{oldest} at {before}");
    // The control: without it, the whole minute is.
    let control = Site::with(&job("often", "every = \"1s\"", "catch_up = 1000", NOTE));
    control.rewind("often", now() - 30);
    control.tick("a").is(0, "");
    assert!(control.runs("a").len() >= 29, "{:?}", control.runs("a"));
}

#[test]
fn what_is_due_while_it_is_paused_during_a_run_is_accounted_for() {
    let line = "echo $LEASEHOLD_SLOT >> runs; until test -e go; do sleep 0.02; done";
    let site = Site::with(&job("often", "every = \"1s\"", "", line));
    let daemon = site.daemon("a");
    let begun = until("it runs", || site.runs("a").first().cloned());
    let begun = super::kit::second(&begun);
    site.run("a", &["pause", "often"]).is(0, "pause.paused");
    let paused = now();
    until("slots are due meanwhile", || (now() >= paused + 3).then_some(()));
    site.run("a", &["resume", "often"]).is(0, "pause.resumed");
    let resumed = now();
    site.world.write("a/go", "");
    until("it goes on", || (site.runs("a").len() >= 3).then_some(()));
    drained(daemon);
    site.tick("a").is(0, "");
    let agenda = site.agenda("often").unwrap();
    let own: Vec<String> =
        site.history("often").iter().map(|row| row["item"].as_str().unwrap().to_owned()).collect();
    for at in begun..=resumed {
        let told = own.contains(&named(at)) || agenda.range_of(at).is_some();
        assert!(told, "{} has neither: {own:?}, {agenda:?}", named(at));
    }
    assert!(agenda.dropped.iter().any(|range| range.why == DropReason::Paused), "{agenda:?}");
}

/// As many as can be listed wait to be tried again; one more is told so.
#[test]
fn no_retry_is_promised_that_nobody_will_look_at() {
    let site = Site::with(&job("rare", RARE, "", NOTE));
    let slot = site.make_due("rare");
    site.run("a", &["run", "rare", "--slot", &slot, "--", "false"]).is(1, "");
    site.rewind("rare", rare_slot());
    site.fill_open("rare");
    site.run("a", &["retry", &format!("rare@{slot}")]).is(0, "retry.again").names(&["100 slots of rare"]);
}
