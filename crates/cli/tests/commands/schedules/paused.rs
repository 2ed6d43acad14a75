//! Jobs that are paused, and jobs whose schedule is changed.

use leasehold::core::ledger::job_record::DropReason;
use rustix::process::Signal;

use super::kit::{NOTE, RARE, Site, drained, job, named, now, rare_slot, second};
use crate::world::until;

#[test]
fn what_is_due_during_a_pause_is_one_range() {
    let site = Site::with(&job("often", "every = \"1s\"", "", NOTE));
    let daemon = site.daemon("a");
    until("it runs", || (!site.runs("a").is_empty()).then_some(()));
    site.run("a", &["pause", "often"]).is(0, "pause.paused");
    let dropped = || site.job_record("often").unwrap().dropped;
    until("three were dropped", || dropped().iter().any(|range| range.count >= 3).then_some(()));
    let ran = site.runs("a");
    site.run("a", &["resume", "often"]).is(0, "pause.resumed");
    until("it goes on", || (site.runs("a").len() >= ran.len() + 2).then_some(()));
    drained(daemon);
    let ranges: Vec<_> = dropped().into_iter().filter(|range| range.why == DropReason::Paused).collect();
    let [range] = ranges[..] else { panic!("{:?}", dropped()) };
    // Those that ran before have records of their own.
    let within = |slot: &&String| (range.first..=range.last).contains(&second(slot));
    let (runs, all) = (site.runs("a"), (range.last - range.first).unsigned_abs() + 1);
    let own = runs.iter().filter(within).count();
    assert_eq!(range.count + own as u64, all, "{range:?} and {runs:?}");
    assert!(runs[ran.len()..].iter().filter(within).count() == 0, "{range:?} and {runs:?}");
}

/// Nobody looked at the job before it went on: what was due meanwhile is dropped all the same.
#[test]
fn a_pause_counts_although_nobody_looked() {
    let site = Site::with(&job("rare", RARE, "", NOTE));
    site.run("a", &["pause", "rare"]).is(0, "pause.paused");
    let slot = site.make_due("rare");
    site.run("a", &["resume", "rare"]).is(0, "pause.resumed");
    site.tick("a").is(0, "");
    assert!(site.runs("a").is_empty(), "{:?}", site.runs("a"));
    let dropped = site.job_record("rare").unwrap().dropped;
    let said: Vec<_> = dropped.iter().map(|r| (named(r.first), r.count, r.why)).collect();
    assert_eq!(said, [(slot.clone(), 1, DropReason::Paused)]);
    // The control: without the pause it is run.
    site.make_due("rare");
    site.tick("a").quiet();
    assert_eq!(site.runs("a"), [slot]);
}

#[test]
fn only_jobs_that_are_there_can_be_paused() {
    let site = Site::with(&job("rare", RARE, "", NOTE));
    for command in ["pause", "resume"] {
        site.run("a", &[command, "rear"]).is(64, "pause.not_loaded");
    }
    assert!(site.job_record("rear").is_none());
    site.run("a", &["pause", "rare"]).is(0, "");
    let standing = site.run("a", &["--json", "plan", "rare"]).json()["standing"].to_string();
    assert!(standing.contains("paused by "), "{standing}");
}

#[test]
fn a_changed_schedule_has_no_past() {
    let site = Site::with(&job("rare", RARE, "catch_up = 5", NOTE));
    site.rewind("rare", rare_slot() - 1);
    site.jobs("a", &job("rare", "every = \"1h\"", "catch_up = 5", NOTE));
    let before = now();
    site.run("a", &["-v", "tick"]).is(0, "daemon.rescheduled").names(&["8784h"]);
    assert!(site.runs("a").is_empty(), "{:?}", site.runs("a"));
    assert!(site.job_record("rare").unwrap().settled >= before);
    // The control: what becomes due by the new one is run.
    site.rewind("rare", now() - 7200);
    site.tick("a").is(0, "");
    assert_eq!(site.runs("a").len(), 2, "{:?}", site.runs("a"));
}

#[test]
fn a_machine_with_another_file_leaves_the_job_alone() {
    let site = Site::new();
    site.jobs("a", &job("often", "every = \"1s\"", "", NOTE));
    site.jobs("b", &job("often", RARE, "", NOTE));
    let mut daemon = site.daemon("a");
    until("it runs", || (!site.runs("a").is_empty()).then_some(()));
    site.tick("b").is(0, "");
    daemon.said("daemon.elsewhere");
    daemon.said("(every 8784h)");
    let (ran, at) = (site.runs("a"), now());
    // Slots come and go by the old file.
    until("three more would be due", || (now() > at + 3).then_some(()));
    let said = drained(daemon).err;
    assert_eq!(site.runs("a"), ran);
    assert_eq!(said.matches("is not run here").count(), 1, "{said}");
    assert_eq!(site.job_record("often").unwrap().schedule, "every 8784h");
}

#[test]
fn a_changed_file_is_read_without_a_restart() {
    let site = Site::with(&job("old", RARE, "", NOTE));
    let mut daemon = site.daemon("a");
    let both = job("old", RARE, "", NOTE) + &job("new", "every = \"1s\"", "", NOTE);
    site.jobs("a", &both);
    daemon.said("daemon.read_again");
    until("the new job runs", || (!site.runs("a").is_empty()).then_some(()));
    // A mistake leaves things as they were, and says where it is.
    site.jobs("a", &both.replace("every = \"1s\"", "evry = \"1s\""));
    daemon.said("leasehold.toml:8: ");
    daemon.said("daemon.jobs_stay");
    let ran = site.runs("a").len();
    until("it still runs", || (site.runs("a").len() > ran + 1).then_some(()));
    // A file that is gone, likewise; and one without the job stops it.
    std::fs::remove_file(site.world.path("a/leasehold.toml")).unwrap();
    daemon.signal(Signal::HUP);
    daemon.said("leasehold.toml");
    let ran = site.runs("a").len();
    until("it still runs", || (site.runs("a").len() > ran + 1).then_some(()));
    site.jobs("a", &job("old", RARE, "", NOTE));
    until("it is not looked at any more", || {
        let before = site.runs("a").len();
        let at = now();
        until("two seconds", || (now() > at + 2).then_some(()));
        (site.runs("a").len() == before).then_some(())
    });
    drained(daemon);
}

/// As Kubernetes mounts a ConfigMap: a link to a link, which is put in place of the old one.
#[test]
fn a_file_behind_links_is_read_when_they_lead_elsewhere() {
    use std::os::unix::fs::symlink;
    let site = Site::new();
    let path = |name: &str| site.world.path(name);
    let text = |name: &str| job(name, RARE, "", NOTE);
    site.world.write("a/..v1/leasehold.toml", &text("old"));
    symlink("..v1", path("a/..data")).unwrap();
    symlink("..data/leasehold.toml", path("a/leasehold.toml")).unwrap();
    let mut daemon = site.daemon("a");
    site.world.write("a/..v2/leasehold.toml", &text("new"));
    symlink("..v2", path("a/..data_tmp")).unwrap();
    std::fs::rename(path("a/..data_tmp"), path("a/..data")).unwrap();
    daemon.said("new is new on");
    // The directory that it leads to now.
    site.world.write("a/..v2/leasehold.toml", &text("newer"));
    daemon.said("newer is new on");
    // The control: what is written beside it is nothing to it.
    let said = drained(daemon).err;
    assert_eq!(said.matches("read leasehold.toml again").count(), 2, "{said}");
}
