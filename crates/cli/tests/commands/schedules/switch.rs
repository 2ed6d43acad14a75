//! A job with several resources, on two machines: whichever is free, and once.

use super::kit::{RARE, Site, drained, job, tells};
use crate::world::{Running, until};

const SITES: [&str; 4] = ["north", "east", "south", "west"];
const RESOURCES: &str = "resources = [\"north\", \"east\", \"south\", \"west\"]\non_busy = \"switch\"";
const NOTE: &str = "echo $LEASEHOLD_LEASE $LEASEHOLD_SLOT >> ../runs";

/// Two machines that have seen the job.
fn two_machines() -> Site {
    let site = Site::new();
    for machine in ["a", "b"] {
        site.jobs(machine, &job("letter", RARE, RESOURCES, NOTE));
        site.tick(machine).is(0, "");
    }
    site
}

/// Other work, which holds these until its stdin is closed.
fn held(site: &Site, leases: &[&str]) -> Vec<Running> {
    let hold = |lease: &&str| {
        let mut run =
            site.start("a", &["run", lease, "--job", "build", "--", "sh", "-c", "echo here; read go"]);
        assert_eq!(run.line(), "here");
        run
    };
    leases.iter().map(hold).collect()
}

fn runs(site: &Site) -> Vec<String> {
    super::kit::lines(&site.world.path("runs"))
}

#[test]
fn it_is_run_once_where_there_is_room() {
    let site = two_machines();
    let others = held(&site, &["north", "east", "west"]);
    let slot = site.make_due("letter");
    let daemons = ["a", "b"].map(|machine| site.daemon(machine));
    site.becomes("letter", &slot, "ok");
    // Both have looked again since, and found it done.
    for daemon in &daemons {
        daemon.signal(rustix::process::Signal::HUP);
    }
    daemons.into_iter().for_each(|mut daemon| {
        daemon.said("daemon.read_again");
        drained(daemon);
    });
    assert_eq!(runs(&site), [format!("south {slot}")]);
    drop(others);
}

#[test]
fn it_gives_way_once_if_all_are_busy() {
    let site = two_machines();
    let others = held(&site, &SITES);
    let slot = site.make_due("letter");
    let daemons = ["a", "b"].map(|machine| site.daemon(machine));
    let row = site.becomes("letter", &slot, "skipped");
    assert_eq!(row["reason"], "overlap", "{row}");
    assert!(row["held_by"].is_string(), "{row}");
    let said: Vec<String> = daemons.into_iter().map(|daemon| drained(daemon).err).collect();
    let gave_way = |line: &&str| tells(line, "daemon.skipped") && line.contains("letter@");
    let skipped = said.iter().flat_map(|said| said.lines()).filter(gave_way).count();
    assert_eq!(skipped, 1, "said once, by one of them: {said:#?}");
    for other in others {
        other.ended();
    }
    // That was that.
    for machine in ["a", "b"] {
        site.tick(machine).quiet();
    }
    assert!(runs(&site).is_empty(), "{:?}", runs(&site));
    // Each machine may have started a run that was skipped.
    assert!(site.history("letter").iter().all(|row| row["outcome"] == "skipped"));
}

/// The control: without a slot the leases alone let both in.
#[test]
fn without_a_slot_it_is_run_twice() {
    let site = two_machines();
    let _others = held(&site, &["north", "west"]);
    let line = format!("{NOTE}; echo here; read go");
    let args = ["run", "north", "--or", "east,south,west", "--job", "letter", "--", "sh", "-c", &line];
    let both = ["a", "b"].map(|machine| {
        let mut run = site.start(machine, &args);
        assert_eq!(run.line(), "here");
        run
    });
    until("both ran", || (runs(&site).len() == 2).then_some(()));
    assert_eq!(runs(&site), ["east ", "south "].map(str::trim_end));
    drop(both);
}
