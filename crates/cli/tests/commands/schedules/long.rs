//! A run that outlives its interval.

use super::kit::{Site, drained, job, lines, second};
use crate::world::until;

/// Writes down when it begins and ends; the first waits until it may go on.
const LINE: &str = "echo begin $LEASEHOLD_SLOT >> log; until test -e go; do sleep 0.02; done; \
                    echo end $LEASEHOLD_SLOT >> log";

/// Which slots were run, if never two at once.
fn one_at_a_time(log: &[String]) -> Result<Vec<i64>, String> {
    let mut slots = Vec::new();
    for pair in log.chunks(2) {
        let slot = |line: &String, word: &str| line.strip_prefix(word).map(str::to_owned);
        match pair {
            [begin, end] if slot(begin, "begin ").is_some() && slot(begin, "begin ") == slot(end, "end ") => {
                slots.push(second(&slot(end, "end ").unwrap_or_default()));
            }
            [begin] if begin.starts_with("begin ") => {}
            other => return Err(format!("{other:?}")),
        }
    }
    Ok(slots)
}

/// A daemon with this job, whose first run has begun.
fn site(more: &str) -> Site {
    let site = Site::new();
    site.jobs("a", &job("often", "every = \"1s\"", more, LINE));
    site
}

fn log(site: &Site) -> Vec<String> {
    lines(&site.world.path("a/log"))
}

#[test]
fn what_is_due_meanwhile_gives_way() {
    let site = site("");
    let daemon = site.daemon("a");
    until("the first has begun", || (log(&site).len() == 1).then_some(()));
    let skipped = || {
        let rows = site.history("often");
        rows.into_iter().filter(|row| row["outcome"] == "skipped").collect::<Vec<_>>()
    };
    until("two gave way", || (skipped().len() >= 2).then_some(()));
    assert_eq!(log(&site).len(), 1, "{:?}", log(&site));
    site.world.write("a/go", "");
    until("later ones run", || (log(&site).len() >= 6).then_some(()));
    drained(daemon);
    let ran = one_at_a_time(&log(&site)).unwrap();
    let skipped: Vec<i64> = skipped().iter().map(|row| second(row["item"].as_str().unwrap())).collect();
    assert!(skipped.iter().all(|slot| !ran.contains(slot)), "{ran:?}, not {skipped:?}");
    assert!(skipped[0] > ran[0] && skipped[0] < ran[1], "{ran:?}, not {skipped:?}");
    assert!(ran.windows(2).all(|two| two[0] < two[1]), "{ran:?}");
}

#[test]
fn where_every_slot_counts_each_is_run_afterwards() {
    let site = site("catch_up = 1000");
    let daemon = site.daemon("a");
    until("the first has begun", || (log(&site).len() == 1).then_some(()));
    let first = second(log(&site)[0].strip_prefix("begin ").unwrap());
    until("three more are due", || (super::kit::now() > first + 3).then_some(()));
    assert_eq!(log(&site).len(), 1, "{:?}", log(&site));
    site.world.write("a/go", "");
    until("all were run", || (log(&site).len() >= 12).then_some(()));
    drained(daemon);
    let ran = one_at_a_time(&log(&site)).unwrap();
    assert!(ran.iter().zip(first..).all(|(slot, due)| *slot == due), "each, the oldest first: {ran:?}");
    assert!(site.history("often").iter().all(|row| row["outcome"] == "ok"));
}

/// The control: without a lease they do overlap, and that is seen.
#[test]
fn two_at_once_would_be_noticed() {
    let site = site("");
    let start = |slot: &str| {
        let mut command = site.world.program("sh");
        command.args(["-c", LINE]).env("LEASEHOLD_SLOT", slot).current_dir(site.world.path("a"));
        crate::world::Running::new(command)
    };
    let both = ["2026-11-16T05:45:00Z", "2026-11-16T05:46:00Z"].map(start);
    until("both have begun", || (log(&site).len() == 2).then_some(()));
    site.world.write("a/go", "");
    for run in both {
        run.ended();
    }
    one_at_a_time(&log(&site)).unwrap_err();
}
