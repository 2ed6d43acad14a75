//! Three weeks of a publishing script on two machines: runs that overlap, are fired again, or freeze.
//!
//! The script does what such scripts do: fetch, see whether this slot is published, commit, push; if the
//! push is rejected, rebase and push again. Time is virtual: a seed decides who does which step when. Git,
//! the repository, the pushes and the fence are real.

use std::path::PathBuf;

use leasehold_testkit::git::{RepoAccess, git, must};

use super::kit::{MAIN, Scene};
use crate::world::long;

/// Ten a day, for three weeks.
const RUNS: u64 = 210;

/// What happens to one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// One machine runs it.
    Alone,
    /// Both fire at once, and their steps mix.
    Overlap,
    /// The other machine fires it again, long after.
    Refire,
    /// The machine stops between commit and push; the other one is fired; then the first wakes.
    Frozen,
}

/// A well-mixed number for each count.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn fate(slot: u64) -> Fate {
    match mixed(slot) % 20 {
        0..8 => Fate::Alone,
        8..14 => Fate::Overlap,
        14..17 => Fate::Refire,
        _ => Fate::Frozen,
    }
}

/// The lease, in virtual time: what the rules of the core come to when nothing goes wrong with the store.
#[derive(Default)]
struct Lease {
    token: u64,
    holder: Option<usize>,
}

impl Lease {
    /// Free, or silent for longer than its time: granted with the next token.
    fn acquire(&mut self, machine: usize, expired: bool) -> Option<u64> {
        if self.holder.is_some() && !expired {
            return None;
        }
        self.holder = Some(machine);
        self.token += 1;
        Some(self.token)
    }

    fn release(&mut self, machine: usize) {
        if self.holder == Some(machine) {
            self.holder = None;
        }
    }
}

/// What it came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    conflict_retries: u32,
    refused: u32,
    skipped: u32,
}

struct Story {
    scene: Scene,
    machines: [PathBuf; 2],
    leasehold: bool,
    lease: Lease,
    tokens: [Option<u64>; 2],
    count: Count,
}

impl Story {
    fn new(leasehold: bool) -> Self {
        let scene = Scene::new(RepoAccess::File);
        let machines = [scene.clone.clone(), scene.yard.dir().join("other")];
        must(&machines[0], &["push", "--quiet", "origin", "main"]);
        must(scene.yard.dir(), &["clone", "--quiet", &scene.server.url(), "other"]);
        must(&scene.yard.bare(), &["config", "receive.autogc", "false"]);
        Self {
            scene,
            machines,
            leasehold,
            lease: Lease::default(),
            tokens: [None; 2],
            count: Count::default(),
        }
    }

    /// Starts the run; whether it goes on. Seal, then read.
    fn start(&mut self, machine: usize, expired: bool) -> bool {
        if !self.leasehold {
            return true;
        }
        self.tokens[machine] = self.lease.acquire(machine, expired);
        match self.tokens[machine] {
            Some(token) => self.scene.seal(token),
            None => self.count.skipped += 1,
        }
        self.tokens[machine].is_some()
    }

    /// Looks whether the slot is published, and commits it if not.
    fn prepare(&self, machine: usize, slot: u64) -> bool {
        let clone = &self.machines[machine];
        must(clone, &["fetch", "--quiet", "origin", "+main:refs/remotes/origin/main"]);
        must(clone, &["reset", "--quiet", "--hard", "origin/main"]);
        if must(clone, &["log", "--format=%s"]).lines().any(|line| line == format!("slot {slot}")) {
            return false;
        }
        // The machine's name in it, or two commits of one second would be one and the same.
        self.scene.yard.commit(clone, &format!("slot {slot}\n\nby machine {machine}"));
        true
    }

    fn push(&mut self, machine: usize) {
        for _ in 0..3 {
            let clone = &self.machines[machine];
            let pushed = match self.tokens[machine] {
                Some(token) => {
                    let output =
                        self.scene.push_in(clone, token, &["--quiet", "origin", "main"]).output().unwrap();
                    match output.status.code() {
                        Some(76) => {
                            self.count.refused += 1;
                            return;
                        }
                        code => code == Some(0),
                    }
                }
                None => {
                    git(clone).args(["push", "--quiet", "origin", "main"]).output().unwrap().status.success()
                }
            };
            if pushed {
                return;
            }
            self.count.conflict_retries += 1;
            must(clone, &["fetch", "--quiet", "origin", "+main:refs/remotes/origin/main"]);
            must(clone, &["rebase", "--quiet", "origin/main"]);
        }
    }

    fn end(&mut self, machine: usize) {
        self.lease.release(machine);
        self.tokens[machine] = None;
    }

    /// One run from its start to its end.
    fn whole(&mut self, machine: usize, slot: u64, expired: bool) {
        if self.start(machine, expired) {
            if self.prepare(machine, slot) {
                self.push(machine);
            }
            self.end(machine);
        }
    }

    fn slot(&mut self, slot: u64) {
        let first = usize::try_from(mixed(slot ^ 0xabcd) % 2).unwrap();
        let other = 1 - first;
        match fate(slot) {
            Fate::Alone => self.whole(first, slot, false),
            Fate::Refire => {
                self.whole(first, slot, false);
                self.whole(other, slot, false);
            }
            Fate::Overlap => {
                let going = [first, other].map(|machine| self.start(machine, false));
                let ready: Vec<usize> = [first, other]
                    .into_iter()
                    .zip(going)
                    .filter(|(machine, going)| *going && self.prepare(*machine, slot))
                    .map(|(machine, _)| machine)
                    .collect();
                for machine in ready {
                    self.push(machine);
                }
                self.end(first);
                self.end(other);
            }
            Fate::Frozen => {
                let going = self.start(first, false) && self.prepare(first, slot);
                // Silent for longer than its lease lasts.
                self.whole(other, slot, true);
                if going {
                    self.push(first);
                }
                self.end(first);
            }
        }
    }

    /// How often each slot was published.
    fn published(&self, runs: u64) -> Vec<usize> {
        let log = must(&self.scene.yard.bare(), &["log", "--format=%s", MAIN]);
        let times = |slot: u64| log.lines().filter(|line| *line == format!("slot {slot}")).count();
        (0..runs).map(times).collect()
    }
}

fn tell(leasehold: bool, runs: u64) -> (Count, usize, usize) {
    let mut story = Story::new(leasehold);
    (0..runs).for_each(|slot| story.slot(slot));
    let times = story.published(runs);
    let duplicates = times.iter().filter(|times| **times > 1).count();
    let missing = times.iter().filter(|times| **times == 0).count();
    let with = if leasehold { "with leasehold" } else { "without" };
    println!("{runs} runs {with}: {duplicates} slots twice, {missing} missing, {:?}", story.count);
    (story.count, duplicates, missing)
}

fn runs() -> u64 {
    if long() { RUNS } else { 24 }
}

/// The negative control: the same three weeks by the script alone.
#[test]
fn without_leasehold_slots_are_published_twice() {
    let (count, duplicates, missing) = tell(false, runs());
    assert!(duplicates > 0 && count.conflict_retries > 0, "{count:?}, {duplicates}");
    assert_eq!(missing, 0);
}

#[test]
fn with_leasehold_every_slot_is_published_once() {
    let (count, duplicates, missing) = tell(true, runs());
    assert_eq!((count.conflict_retries, duplicates, missing), (0, 0, 0), "{count:?}");
    assert!(count.refused > 0 && count.skipped > 0, "nothing happened: {count:?}");
}
