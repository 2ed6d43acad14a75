//! Slots that nobody ran in time.

use super::kit::{NOTE, RARE, Site, drained, job, lines, named, now, rare_slot, second};
use crate::world::until;

const YEAR: i64 = 365 * 86_400;

#[test]
fn a_job_that_was_just_installed_has_missed_nothing() {
    let site = Site::new();
    site.jobs("a", &job("rare", RARE, "", NOTE));
    assert!(site.job_record("rare").is_none());
    let before = now();
    site.tick("a").is(0, "daemon.new_job");
    assert!(site.runs("a").is_empty());
    let job_record = site.job_record("rare").expect("a record");
    assert!(
        (before..=now()).contains(&job_record.settled) && job_record.dropped.is_empty(),
        "{job_record:?}"
    );
    site.tick("a").quiet();
    assert!(site.runs("a").is_empty());
    // The control: what becomes due is run, and once.
    let slot = site.make_due("rare");
    site.tick("a").quiet();
    assert_eq!(site.runs("a"), std::slice::from_ref(&slot));
    site.tick("a").quiet();
    assert_eq!(site.runs("a"), [slot]);
}

/// The job writes down how much memory the scheduler that started it has ever needed.
const WEIGH: &str = "tick=$(awk '/^PPid/ { print $2 }' /proc/$PPID/status); awk '/^VmHWM/ { print $2 }' /proc/$tick/status >> peak; ";

/// Three slots of a minutely job after an outage: which were run, how many dropped, and what it took, in KiB.
fn outage(due: &str, seconds: i64, scheduler: &str) -> u64 {
    let site = Site::with(&job("minutely", due, "catch_up = 3", &format!("{WEIGH}{NOTE}")));
    if scheduler == "daemon" {
        // Another slot in the midst of it would be another matter.
        until("some time is left of this minute", || (now() % 60 < 45).then_some(()));
    }
    let settled = now() - seconds;
    site.rewind("minutely", settled);
    let said = match scheduler {
        "tick" => site.tick("a"),
        _ => {
            let daemon = site.daemon("a");
            until("three runs", || (site.runs("a").len() >= 3).then_some(()));
            until("the last is recorded", || {
                site.history("minutely").iter().all(|row| row["outcome"] == "ok").then_some(())
            });
            drained(daemon)
        }
    };
    let said = said.is(0, "daemon.dropped");
    let runs: Vec<i64> = site.runs("a").iter().map(|slot| second(slot)).collect();
    assert_eq!(runs[1..3].iter().map(|at| at - runs[0]).collect::<Vec<_>>(), [60, 120], "oldest first");
    assert!(runs.len() == 3 || scheduler != "tick", "{runs:?}");
    // Counted by hand: minutes are minutes, wherever the clock is.
    let missed = (runs[2] - settled.div_euclid(60) * 60) / 60 - 3;
    let job_record = site.job_record("minutely").unwrap();
    let [range] = job_record.dropped[..] else { panic!("{job_record:?}") };
    assert_eq!(range.count, missed.unsigned_abs(), "{range:?}");
    assert_eq!((range.first - settled.div_euclid(60) * 60, runs[0] - range.last), (60, 60), "{range:?}");
    assert!(said.err.contains(&format!("dropped {missed} slots of minutely, from ")), "{said:#?}");
    assert_eq!(said.err.matches("dropped").count(), 1, "{said:#?}");
    assert!(seconds < YEAR || (525_590..=525_600).contains(&missed), "{missed}");
    lines(&site.world.path("a/peak")).iter().map(|kib| kib.parse::<u64>().unwrap()).max().unwrap()
}

#[test]
fn after_a_year_the_newest_are_run_and_the_rest_are_one_range() {
    for due in ["cron = \"* * * * *\"\ntimezone = \"Europe/Berlin\"", "every = \"1m\""] {
        let [hour, year] = [3600, YEAR].map(|seconds| outage(due, seconds, "tick"));
        println!("peak memory of tick: {hour} KiB after an hour, {year} KiB after a year ({due:?})");
        assert!(year * 10 <= hour * 12, "{year} KiB after a year, {hour} KiB after an hour");
    }
}

#[test]
fn a_daemon_catches_up_alike() {
    let [hour, year] = [3600, YEAR].map(|seconds| outage("every = \"1m\"", seconds, "daemon"));
    println!("peak memory of daemon: {hour} KiB after an hour, {year} KiB after a year");
    assert!(year * 10 <= hour * 12, "{year} KiB after a year, {hour} KiB after an hour");
}

#[test]
fn without_catch_up_only_what_is_on_time_is_run() {
    let minutely = job("minutely", "every = \"1m\"", "catch_up = 0", NOTE);
    let site = Site::with(&(minutely + &job("rare", RARE, "catch_up = 0", NOTE)));
    let settled = now() - 3600;
    site.rewind("minutely", settled);
    let rare = site.make_due("rare");
    site.tick("a").is(0, "daemon.dropped_one").is(0, "daemon.dropped").names(&["rare", "minutely"]);
    let runs = site.runs("a");
    assert_eq!(runs.len(), 1, "{runs:?}");
    let newest = second(&runs[0]);
    assert!((0..120).contains(&(now() - newest)), "{runs:?}");
    let dropped = site.job_record("minutely").unwrap().dropped;
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert_eq!(dropped[0].count, ((newest - settled.div_euclid(60) * 60) / 60 - 1).unsigned_abs());
    let range = site.job_record("rare").unwrap().dropped;
    assert_eq!(range.iter().map(|r| (named(r.first), r.count)).collect::<Vec<_>>(), [(rare.clone(), 1)]);
    // The control: with catch_up it is run, however old.
    site.jobs("a", &job("rare", RARE, "", NOTE));
    site.rewind("rare", rare_slot() - 1);
    site.tick("a").is(0, "");
    assert_eq!(site.runs("a")[1], rare);
}

#[test]
fn what_is_older_than_it_may_be_is_not_caught_up() {
    let of = |more: &str| {
        let site = Site::with(&job("hourly", "every = \"1h\"", more, NOTE));
        site.rewind("hourly", now() - 86_400);
        site.tick("a").is(0, "");
        site.runs("a").len()
    };
    let few = of("catch_up = 100\ncatch_up_max_age = \"150m\"");
    assert!((2..=3).contains(&few), "{few} runs");
    // The control.
    assert!((24..=25).contains(&of("catch_up = 100")));
}
