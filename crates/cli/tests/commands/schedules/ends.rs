//! How schedulers and runs end, and what is recorded then.

use rustix::process::Signal;

use super::kit::{NOTE, RARE, Site, drained, job, lines, named, rare_slot};
use crate::world::{Running, kill, lives, until};

/// Says that it has begun, and with which wrapper; ends when it may.
const LONG: &str = "echo $PPID $LEASEHOLD_SLOT $LEASEHOLD_ATTEMPT >> begun; until test -e go; do sleep 0.02; done; \
                    echo $LEASEHOLD_SLOT >> runs";

/// A daemon whose job has begun a slot: it, and the wrapper of the run.
fn begun(site: &Site) -> (Running, u32) {
    let daemon = site.daemon("a");
    let line = until("it has begun", || lines(&site.world.path("a/begun")).pop());
    (daemon, line.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn told_to_end_it_lets_the_run_end_and_starts_no_other() {
    let site = Site::with(&(job("long", RARE, "", LONG) + &job("other", RARE, "", NOTE)));
    let slot = site.make_due("long");
    let (mut daemon, _) = begun(&site);
    daemon.signal(Signal::TERM);
    daemon.said("daemon.draining");
    site.make_due("other");
    daemon.signal(Signal::HUP);
    assert!(lives(daemon.pid()));
    site.world.write("a/go", "");
    let ended = daemon.ended();
    assert_eq!(ended.code, 0, "{ended:#?}");
    assert_eq!(site.outcome("long", &slot).unwrap()["outcome"], "ok");
    assert_eq!((site.runs("a"), site.history("other").len()), (vec![slot], 0));
    // The control: the other was due.
    site.tick("a").quiet();
    assert_eq!(site.runs("a").len(), 2);
}

#[test]
fn told_twice_it_ends_the_run() {
    let site = Site::with(&job("long", RARE, "", LONG));
    let slot = site.make_due("long");
    let (mut daemon, wrapper) = begun(&site);
    daemon.signal(Signal::TERM);
    daemon.said("daemon.draining");
    daemon.signal(Signal::TERM);
    let ended = daemon.ended();
    assert_eq!(ended.code, 0, "{ended:#?}");
    assert!(!lives(wrapper));
    let outcome = site.outcome("long", &slot).unwrap()["outcome"].clone();
    assert!(outcome == "killed" || outcome == "failed", "{outcome}");
    assert!(site.runs("a").is_empty());
}

#[test]
fn a_killed_scheduler_leaves_its_run_alone() {
    let site = Site::with(&job("long", RARE, "", LONG));
    let slot = site.make_due("long");
    let (daemon, wrapper) = begun(&site);
    daemon.signal(Signal::KILL);
    // The run has its stderr: that does not end yet.
    until("the daemon is gone", || (!lives(daemon.pid())).then_some(()));
    assert!(lives(wrapper));
    let next = site.daemon("a");
    assert_eq!(site.outcome("long", &slot).unwrap()["outcome"], "started");
    site.world.write("a/go", "");
    site.becomes("long", &slot, "ok");
    drained(next);
    site.tick("a").quiet();
    assert_eq!(site.runs("a"), [slot]);
    assert_eq!(lines(&site.world.path("a/begun")).len(), 1);
}

/// A daily job of which one slot was begun, and its wrapper killed: the daemon, and that slot.
fn killed(more: &str) -> (Site, Running, String) {
    let more = format!("{more}\nttl = \"3s\"\ngrace = \"200ms\"");
    let site = Site::with(&job("long", "every = \"1d\"", &more, LONG));
    let day = super::kit::now().div_euclid(86_400) * 86_400;
    site.rewind("long", day - 1);
    let (daemon, wrapper) = begun(&site);
    kill(wrapper, Signal::KILL);
    (site, daemon, named(day))
}

#[test]
fn a_run_that_never_reported_is_recorded_so() {
    let (site, mut daemon, slot) = killed("catch_up = 2");
    daemon.said("daemon.silent");
    daemon.said("(signal 9)");
    daemon.said("daemon.never_reported");
    let row = site.becomes("long", &slot, "unknown");
    assert_eq!(row["attempt"], 1, "{row}");
    site.world.write("a/go", "");
    // Whatever else is due is not held up by it: the day before, as if it had not been seen.
    let said = drained(daemon).err;
    assert!(said.contains(&format!("long@{slot} was started by ")), "{said}");
    site.tick("a").is(0, "");
    assert!(site.runs("a").is_empty(), "{:?}", site.runs("a"));
    let why = site.run("a", &["why", "long"]).is(0, "").out;
    assert!(why.contains(&slot), "{why}");
    // A person decides: then it is run.
    site.run("a", &["retry", &format!("long@{slot}")]).is(0, "may be run again");
    site.tick("a").is(0, "");
    assert_eq!(site.runs("a"), [slot]);
}

#[test]
fn the_slot_after_a_silent_one_is_run() {
    let more = "catch_up = 1\nttl = \"3s\"\ngrace = \"200ms\"";
    let site = Site::with(&job("long", "every = \"2s\"", more, LONG));
    let (daemon, wrapper) = begun(&site);
    let silent = lines(&site.world.path("a/begun"))[0].split(' ').nth(1).unwrap().to_owned();
    site.world.write("a/go", "");
    kill(wrapper, Signal::KILL);
    until("a later slot was run", || site.runs("a").iter().any(|slot| *slot > silent).then_some(()));
    site.becomes("long", &silent, "unknown");
    drained(daemon);
}

#[test]
fn with_retry_it_is_run_again() {
    let (site, daemon, slot) = killed("retry = true");
    until("it is begun again", || (lines(&site.world.path("a/begun")).len() == 2).then_some(()));
    assert!(lines(&site.world.path("a/begun"))[1].ends_with(&format!("{slot} 2")));
    site.world.write("a/go", "");
    let row = site.becomes("long", &slot, "ok");
    assert_eq!(row["attempt"], 2, "{row}");
    drained(daemon);
    // The first one's shell may have gone on: what it did is what a retry has to live with.
    assert!(site.runs("a").contains(&slot));
}

const FAILS: &str = "echo $LEASEHOLD_ATTEMPT $(date +%s%N) >> tries; test -e go";

#[test]
fn a_slot_that_fails_is_tried_as_often_as_it_may() {
    let site = Site::with(&job("fails", RARE, "attempts = 3", FAILS));
    let slot = site.make_due("fails");
    let mut daemon = site.daemon("a");
    let tries = || lines(&site.world.path("a/tries"));
    until("three tries", || (tries().len() == 3).then_some(()));
    site.becomes("fails", &slot, "failed");
    for _ in 0..2 {
        daemon.signal(Signal::HUP);
        daemon.said("daemon.read_again");
    }
    drained(daemon);
    site.tick("a").is(0, "");
    let tries: Vec<Vec<i64>> =
        tries().iter().map(|line| line.split(' ').map(|word| word.parse().unwrap()).collect()).collect();
    assert_eq!(tries.iter().map(|one| one[0]).collect::<Vec<_>>(), [1, 2, 3]);
    let gaps: Vec<i64> = tries.windows(2).map(|two| (two[1][1] - two[0][1]) / 1_000_000).collect();
    assert!(gaps[0] >= 900 && gaps[1] >= 1_900, "with growing distance: {gaps:?} ms");
    // Until somebody says so.
    site.world.write("a/go", "");
    site.run("a", &["retry", &format!("fails@{slot}")]).is(0, "retry.again");
    site.tick("a").quiet();
    assert_eq!(site.outcome("fails", &slot).unwrap()["outcome"], "ok");
    site.tick("a").quiet();
    assert_eq!(lines(&site.world.path("a/tries")).len(), 4);
}

/// A slot that is over for the schedule may still be asked for by a person.
#[test]
fn an_old_slot_may_be_tried_again() {
    let interval = 100 * 86_400;
    let old = (super::kit::now().div_euclid(interval) - 1) * interval;
    for settled in [old + 1, old - 1] {
        let site = Site::with(&job("fails", "every = \"100d\"", "keep = \"365d\"", FAILS));
        site.world.write("a/go", "");
        site.rewind("fails", old - 1);
        site.run("a", &["run", "fails", "--slot", &named(old), "--", "false"]).is(1, "");
        site.rewind("fails", settled);
        site.tick("a").is(0, "");
        assert_eq!(site.outcome("fails", &named(old)).unwrap()["outcome"], "failed");
        site.run("a", &["retry", &format!("fails@{}", named(old))]).is(0, "");
        site.tick("a").is(0, "");
        assert_eq!(site.outcome("fails", &named(old)).unwrap()["outcome"], "ok");
        assert!(site.agenda("fails").unwrap().open.is_empty());
    }
}

/// Whoever reads it by machine need not read sentences.
#[test]
fn events_have_fields() {
    let site = Site::with(&job("fails", RARE, "attempts = 2", "exit 3"));
    let slot = site.make_due("fails");
    let ended = site
        .run("a", &["--json", "tick"])
        .is(1, "daemon.ended_badly")
        .names(&["(exit code 3), attempt 1 of"]);
    let events: Vec<serde_json::Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fields: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "ended")
        .map(|event| {
            let number = |key: &str| event[key].as_i64().unwrap();
            assert_eq!((&event["slot"], &event["outcome"]), (&slot.as_str().into(), &"failed".into()));
            ["exit", "attempt", "failures", "attempts"].map(number)
        })
        .collect();
    assert_eq!(fields, [[3, 1, 1, 2], [3, 2, 2, 2]], "{events:#?}");
    assert!(ended.err.contains(", attempt 2 of 2; "), "{ended:#?}");
    // Slots that nobody ran, as one range.
    site.rewind("fails", rare_slot() - 2 * 366 * 86_400 - 1);
    let ended = site.run("a", &["--json", "tick"]).is(0, "daemon.dropped").names(&["2 slots of fails"]);
    let event: serde_json::Value = serde_json::from_str(ended.out.lines().next().unwrap()).unwrap();
    assert_eq!((&event["reason"], &event["count"]), (&"missed".into(), &2.into()), "{event}");
    assert_eq!(event["last"], named(rare_slot() - 366 * 86_400), "{event}");
}

#[test]
fn tick_says_how_it_went() {
    let site = Site::with(&job("fails", RARE, "", "exit 3"));
    let slot = site.make_due("fails");
    site.tick("a").is(1, "daemon.ended_badly").names(&[&format!("{slot}: failed (exit code 3)")]);
    site.tick("a").is(0, "");
    // Giving way is no failure.
    site.jobs("a", &job("gives-way", RARE, "lease = \"site\"", NOTE));
    site.tick("a").is(0, "");
    let mut holder = site.start("a", &["run", "site", "--", "sh", "-c", "echo here; read go"]);
    assert_eq!(holder.line(), "here");
    let slot = site.make_due("gives-way");
    let ended =
        site.run("a", &["--json", "tick"]).is(0, "daemon.skipped").names(&[&format!("gives-way@{slot}")]);
    let events: Vec<serde_json::Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().all(|event| event["v"] == 1 && event["job"] == "gives-way"), "{events:#?}");
    let words: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(words, ["started", "ended", "skipped"]);
    assert_eq!((&events[1]["outcome"], &events[1]["exit"]), (&"not begun".into(), &0.into()), "{events:#?}");
    assert_eq!(
        (&events[2]["reason"], &events[2]["lease"]),
        (&"overlap".into(), &"site".into()),
        "{events:#?}"
    );
    assert!(!ended.err.contains(" ago"), "it is still held: {ended:#?}");
    drop(holder);
    assert_eq!(named(rare_slot()), slot);
}
