//! What Firestore is asked, counted at the server: finding a lease held is one read; taking it a read
//! and a write; keeping it and giving it back a write each.

use std::time::Duration;

use leasehold::core::ids::Grant;
use leasehold::core::name::Name;
use leasehold::core::session::{Event, Granted, Input, Outcome, Plan, Signal};
use leasehold::core::stop::{StoreClock, Timing, Wishes};
use leasehold::memory::Memory;
use leasehold::shell::{Job, Shell};
use leasehold::{host, random};

use crate::firestore::{fresh_url, store};
use crate::firestore_double::{Double, Flaw};

/// Heartbeats: several in a test, and none.
const OFTEN: Duration = Duration::from_millis(5);
const RARE: Duration = Duration::from_secs(15);

/// A job that is over after so many renewals.
struct Counted {
    left: usize,
    started: bool,
}

impl Job for Counted {
    fn start(&mut self, _: &Granted) -> Result<(), i32> {
        self.started = true;
        Ok(())
    }
    fn seal(&mut self, _: &Granted) -> Result<(), String> {
        Ok(())
    }
    fn term(&mut self) {}
    fn kill(&mut self) {}
    fn freeze(&mut self) {}
    fn thaw(&mut self) {}
    fn forward(&mut self, _: Signal) {}
    fn tell(&mut self, event: &Event) {
        if *event == Event::Renewed {
            self.left = self.left.saturating_sub(1);
        }
    }
}

fn plan(heartbeat: Duration) -> Plan {
    let lease = Name::new("site").unwrap();
    let wishes = Wishes { ttl: Some(Duration::from_secs(60)), heartbeat: Some(heartbeat), grace: None };
    Plan {
        leases: vec![Memory::none().recall(&lease)],
        grant: Grant(random::seed()),
        timing: Timing::new(wishes, StoreClock::default()).unwrap(),
        wait: Duration::ZERO,
        max_run: None,
        seal: false,
        by_hand: false,
        force: false,
        lock: None,
        holder: host::holder("run", &lease),
    }
}

/// A session on the collection, and its job, up to where the job runs or the session is over.
fn begin(url: &str, heartbeat: Duration, renewals: usize) -> (Shell, Counted, Option<Outcome>) {
    let mut shell = Shell::new(plan(heartbeat), store(url), Memory::none()).unwrap();
    let mut job = Counted { left: renewals, started: false };
    let mut ended = shell.step(Input::Start, &mut job);
    while !job.started && ended.is_none() {
        for input in shell.wait(None).unwrap().0 {
            ended = ended.or(shell.step(input, &mut job));
        }
    }
    (shell, job, ended)
}

/// Lets the job have its renewals and end.
fn finish(mut shell: Shell, mut job: Counted) -> Outcome {
    let mut ended = None;
    while ended.is_none() {
        if job.started && job.left == 0 {
            job.started = false;
            ended = shell.step(Input::JobExited { status: 0, tree_empty: true }, &mut job);
            continue;
        }
        for input in shell.wait(None).unwrap().0 {
            ended = ended.or(shell.step(input, &mut job));
        }
    }
    let outcome = ended.unwrap();
    shell.finish(&outcome);
    outcome
}

#[test]
fn calls_are_as_few_as_promised() {
    let double = Double::new(Flaw::None);
    let url = fresh_url(&double.endpoint());
    for _ in 0..3 {
        let (shell, job, _) = begin(&url, RARE, 0);
        assert!(matches!(finish(shell, job), Outcome::Finished { status: 0, .. }));
        assert_eq!(double.calls(), ["batchGet", "commit", "commit"]);
    }
    let (shell, job, _) = begin(&url, OFTEN, 20);
    assert!(matches!(finish(shell, job), Outcome::Finished { status: 0, .. }));
    let calls = double.calls();
    // One more renewal may be under way when the job ends.
    assert!((23..=24).contains(&calls.len()) && calls[0] == "batchGet", "{calls:?}");
    assert!(calls[1..].iter().all(|call| call == "commit"), "{calls:?}");
}

#[test]
fn finding_it_held_is_one_read() {
    let double = Double::new(Flaw::None);
    let url = fresh_url(&double.endpoint());
    let (_holder, ..) = begin(&url, RARE, 1);
    assert_eq!(double.calls(), ["batchGet", "commit"]);
    let (_, _, outcome) = begin(&url, RARE, 0);
    assert!(matches!(outcome, Some(Outcome::Busy(_))), "{outcome:?}");
    assert_eq!(double.calls(), ["batchGet"]);
}
