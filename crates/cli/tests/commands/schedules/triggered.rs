//! `trigger`: a slot now, because a person wants it; also one that was dropped, and never one that is done.

use leasehold::core::run_log::LogEvent;
use leasehold::run_log::{Scope, Window, newest};
use rustix::process::Signal;

use super::kit::{NOTE, RARE, Site, job, named, now, rare_slot};

#[test]
fn the_newest_slot_is_run_now_and_not_twice() {
    let site = Site::with(&job("site", RARE, "", NOTE));
    let slot = named(rare_slot());
    site.run("a", &["-v", "trigger", "site"]).is(0, "trigger.started").names(&[&slot]);
    assert_eq!(site.runs("a"), [slot.as_str()]);
    site.run("a", &["trigger", "site"]).is(0, "trigger.done").names(&[&slot]);
    site.run("a", &["trigger", "site", &slot]).is(0, "trigger.done");
    assert_eq!(site.runs("a"), [slot.as_str()]);
    assert_eq!(site.outcome("site", &slot).unwrap()["outcome"], "ok");
    // A person's wish is in the run log.
    let mut store = leasehold::stores::open(&site.store).unwrap_or_else(|e| panic!("{e}"));
    let window = Window::last(std::time::Duration::from_secs(3600));
    let (found, _) =
        newest(store.as_mut(), Scope::All, window, 10, |entry| entry.line.event() == Some(LogEvent::Retry))
            .unwrap();
    let wishes: Vec<_> = found.iter().filter_map(|entry| entry.line.reason.as_deref()).collect();
    assert_eq!(wishes, ["trigger"]);
}

#[test]
fn its_exit_code_is_that_of_the_command() {
    let site = Site::with(&job("site", RARE, "", "exit 3"));
    site.run("a", &["trigger", "site"]).is(3, "");
    // What failed is run once more, because somebody wants it.
    site.jobs("a", &job("site", RARE, "", NOTE));
    let ended = site.run("a", &["--json", "trigger", "site"]).is(0, "").json();
    assert_eq!((&ended["exit"], &ended["skipped"]), (&0.into(), &false.into()), "{ended}");
    assert_eq!(site.runs("a"), [named(rare_slot())]);
}

#[test]
fn a_slot_that_was_dropped_can_be_run() {
    let site = Site::with(&job("minutely", "every = \"1m\"", "catch_up = 0", NOTE));
    let due = now().div_euclid(60) * 60;
    site.rewind("minutely", due - 3_600);
    site.tick("a").is(0, "daemon.dropped");
    let dropped = named(due - 1_800);
    // Negative control: a plain run finds it over.
    site.run("a", &["run", "minutely", "--slot", &dropped, "true"]).is(0, "");
    let before = site.runs("a");
    site.run("a", &["trigger", "minutely", &dropped]).is(0, "");
    let ran: Vec<String> = site.runs("a").into_iter().filter(|slot| !before.contains(slot)).collect();
    assert_eq!(ran, [dropped.as_str()]);
    site.run("a", &["trigger", "minutely", &dropped]).is(0, "trigger.done");
}

#[test]
fn a_slot_whose_lease_is_held_is_not_run() {
    let site = Site::with(&job("site", RARE, "", NOTE));
    site.run("a", &["acquire", "site"]).token();
    site.run("a", &["trigger", "site"]).is(0, "trigger.not_run");
    assert_eq!(site.runs("a"), [""; 0]);
}

#[test]
fn a_slot_whose_outcome_nobody_knows_is_left_to_a_person() {
    let site = Site::with(&job("site", RARE, "ttl = \"6s\"", "kill -9 $PPID"));
    let slot = named(rare_slot());
    site.run("a", &["trigger", "site"]).is(137, "");
    site.becomes("site", &slot, "unknown");
    site.jobs("a", &job("site", RARE, "ttl = \"6s\"", NOTE));
    site.run("a", &["trigger", "site"]).is(79, "");
    assert_eq!(site.runs("a"), [""; 0]);
}

#[test]
fn what_is_no_slot_is_refused() {
    let site = Site::with(&job("site", RARE, "", NOTE));
    let trigger = |args: &[&str]| site.run("a", &[&["trigger"], args].concat());
    trigger(&["sight"]).is(64, "plan.unknown_job");
    trigger(&["site", "nonsense"]).is(64, "trigger.bad_slot");
    trigger(&["site", &named(rare_slot() + 60)]).is(64, "trigger.bad_slot");
    trigger(&["site", &named(rare_slot() + 366 * 86_400)]).is(64, "trigger.not_due");
    site.fill_open("site");
    trigger(&["site"]).is(79, "trigger.too_many_open");
    // It is over for long, and its record may have been removed.
    site.edit("jobs/site", |record| record["since"] = 0.into());
    trigger(&["site"]).is(79, "trigger.forgotten");
    assert_eq!(site.runs("a"), [""; 0]);
}

#[test]
fn a_signal_reaches_the_run() {
    let line = "trap 'echo stopped >> runs; exit 9' TERM; echo started >> runs; sleep 60 & wait";
    let site = Site::with(&job("site", RARE, "", line));
    let trigger = site.start("a", &["trigger", "site"]);
    crate::world::until("the job runs", || (site.runs("a") == ["started"]).then_some(()));
    trigger.signal(Signal::TERM);
    assert_ne!(trigger.ended().code, 0);
    assert_eq!(site.runs("a"), ["started", "stopped"]);
}
