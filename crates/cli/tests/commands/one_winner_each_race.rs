//! 32 processes race for one lease: each time exactly one gets it, the others are told who has it, and
//! no token is ever granted twice, whether the last holder released, expired or was killed.
//!
//! The racers are started first and held back by the pipes from which they read the store's URL, so
//! that they really collide.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use crate::world::{Ended, PATIENCE, Running, World, kill, lives, until};
use async_trait::async_trait;
use leasehold::clock::boot_time;
use leasehold::core::ids::WriteId;
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::session::{Outcome, Within, lease_key};
use leasehold::core::timing::{StoreClock, Timing, TimingWishes};
use leasehold::liveness;
use leasehold::manual::{self, AcquireRequest};
use leasehold::seen_tokens::SeenTokens;
use leasehold::stores::{Cas, Failure, Listed, Store, StoreFacts, Stored, Version, memory::MemoryStore};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

const RACERS: usize = 32;

/// How one racer fared, as far as the claims go.
#[derive(Debug)]
enum Fared {
    Won { token: u64, pid: u32 },
    Lost { code: i32, said: String },
}

/// What must hold over all rounds.
#[derive(Default)]
struct Checker {
    last: u64,
    /// How the last holder is named, if it was killed.
    killed: Option<String>,
}

impl Checker {
    fn rises(&mut self, token: u64) -> Result<(), String> {
        if token <= self.last {
            return Err(format!("token {token} after {}", self.last));
        }
        self.last = token;
        Ok(())
    }

    fn check(&mut self, fared: &[Fared]) -> Result<(), String> {
        let won: Vec<_> = fared
            .iter()
            .filter_map(|f| if let Fared::Won { token, pid } = f { Some((*token, *pid)) } else { None })
            .collect();
        if won.is_empty() && self.killed.is_some() {
            return Ok(());
        }
        let [(token, pid)] = won[..] else { return Err(format!("{} winners: {won:?}", won.len())) };
        self.rises(token)?;
        let holder = format!("/{pid} (token {token})");
        for fared in fared {
            match fared {
                Fared::Lost { code: 11, said } if said.contains(&holder) => {}
                // While other processes come and go, it may not be certain that a killed holder is gone.
                Fared::Lost { code: 11, said } if self.killed.as_ref().is_some_and(|k| said.contains(k)) => {}
                Fared::Lost { code, said } => return Err(format!("a loser of {holder}: {code}, {said:?}")),
                Fared::Won { .. } => {}
            }
        }
        Ok(())
    }
}

/// The racers' lane: one pipe for each, to hold it back.
struct Lane {
    world: World,
    store: String,
}

impl Lane {
    fn new(scheme: &str) -> Self {
        let world = World::new();
        for n in 0..RACERS {
            rustix::fs::mkfifoat(rustix::fs::CWD, world.path(&format!("gate{n}")), Mode::RUSR | Mode::WUSR)
                .unwrap();
        }
        let store = world.store(scheme);
        Self { world, store }
    }

    /// Starts the racers and lets them go once every one of them waits for the store's URL.
    fn race(&self, args: &[&str]) -> Vec<Running> {
        let start = |n: usize| {
            let mut command = self.world.command(args);
            command.env("LEASEHOLD_STORE_FILE", self.world.path(&format!("gate{n}")));
            Running::new(command)
        };
        let racers: Vec<Running> = (0..RACERS).map(start).collect();
        let gates: Vec<File> = (0..RACERS).map(|n| self.gate(n)).collect();
        for mut gate in gates {
            gate.write_all(self.store.as_bytes()).unwrap();
        }
        racers
    }

    fn gate(&self, n: usize) -> File {
        let path = self.world.path(&format!("gate{n}"));
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // Fails as long as nobody reads.
        until("a racer at its gate", || rustix::fs::open(&path, flags, Mode::empty()).ok()).into()
    }

    fn ours(&self, args: &[&str]) -> Ended {
        self.world.run(&[&["--store", &self.store], args].concat())
    }

    fn status(&self) -> serde_json::Value {
        self.world.status(&["--store", &self.store], "site")
    }

    /// By hand: the winner is left with the lease.
    fn race_by_hand(&self) -> Vec<Fared> {
        let racers = self.race(&["acquire", "site", "--ttl", "10m"]);
        let fared = |racer: Running| {
            let pid = racer.pid();
            let ended = racer.ended();
            match ended.code {
                0 => Fared::Won { token: ended.token(), pid },
                code => Fared::Lost { code, said: ended.err },
            }
        };
        racers.into_iter().map(fared).collect()
    }

    /// Under `run`: the winner's job stays until it is killed together with what runs it.
    fn race_and_crash(&self) -> Vec<Fared> {
        let job = "echo $LEASEHOLD_TOKEN $$; exec cat >/dev/null";
        let racers = self.race(&["run", "-E", "11", "--ttl", "10m", "site", "sh", "-c", job]);
        let mut jobs = Vec::new();
        let fared = |mut racer: Running| match racer.line_or_end() {
            Some(line) => {
                let (token, job) = line.split_once(' ').unwrap();
                jobs.push((job.parse().unwrap(), racer.pid(), Some(racer)));
                let pid = jobs.last().unwrap().1;
                Fared::Won { token: token.parse().unwrap(), pid }
            }
            None => {
                let ended = racer.ended();
                Fared::Lost { code: ended.code, said: ended.err }
            }
        };
        let fared = racers.into_iter().map(fared).collect();
        for (job, pid, racer) in &mut jobs {
            kill(*pid, Signal::KILL);
            assert_eq!(racer.take().unwrap().ended().code, 137);
            until("the end of the job of a killed run", || (!lives(*job)).then_some(()));
        }
        fared
    }

    /// For a failure's message: what the evidence of the current holder says now.
    fn evidence(&self) -> Option<String> {
        let mut store = leasehold::stores::open(&self.store).ok()?;
        let lease = Name::new("site").unwrap();
        let stored = pollster::block_on(store.read(&lease_key(&lease))).ok()??;
        let record = LeaseRecord::decode(&lease, &stored.body).ok()?;
        let hold = record.hold?;
        let lock = hold.lock.unwrap_or_default();
        let dir = store.facts().lock_dir?;
        Some(format!("{:?}", liveness::explain(&dir, hold.grant, &record.holder.run, &lock)))
    }

    fn release(&self, token: u64) {
        self.ours(&["release", "site", "--token", &token.to_string()]).is(0, "").names(&["released"]);
    }

    fn expire(&self, checker: &mut Checker) {
        // On a busy machine the answer may come too late for so short a lease.
        let token = until("a short lease", || {
            let taken = self.ours(&["acquire", "site", "--ttl", "500ms"]);
            if taken.code == 0 {
                Some(taken.token())
            } else {
                assert_ne!(taken.code, 78, "{taken:#?}");
                None
            }
        });
        checker.rises(token).unwrap();
        until("the end of a short lease", || (self.status()["state"] == "expired").then_some(()));
    }
}

fn races(scheme: &str) {
    let (lane, mut checker) = (Lane::new(scheme), Checker::default());
    let rounds = if crate::world::long() { 2_000 } else { 200 };
    for round in 0..rounds {
        let crash = round % 10 == 7;
        let fared = if crash { lane.race_and_crash() } else { lane.race_by_hand() };
        checker.check(&fared).unwrap_or_else(|wrong| {
            panic!("{fared:#?}\nround {round}: {wrong}; evidence: {:?}", lane.evidence());
        });
        let winner =
            fared.iter().find_map(|f| if let Fared::Won { pid, .. } = f { Some(*pid) } else { None });
        match winner {
            Some(pid) if crash => checker.killed = Some(format!("/{pid} (token {})", checker.last)),
            Some(_) => lane.release(checker.last),
            None => {
                // All were in doubt; but nobody has to wait for the ten minutes of the lease.
                let token = lane.ours(&["acquire", "site", "--wait", "50s"]).token();
                checker.rises(token).unwrap();
                lane.release(token);
            }
        }
        if !crash {
            checker.killed = None;
        }
        if round % 10 == 3 {
            lane.expire(&mut checker);
        }
    }
    assert!(checker.last >= rounds);
}

#[test]
fn on_sqlite() {
    races("sqlite");
}

#[test]
fn in_a_directory() {
    races("dir");
}

/// A store that takes every write. All its clients look before any of them writes.
struct NoCompare {
    inner: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    all_looked: Arc<Barrier>,
    looked: bool,
    facts: StoreFacts,
}

#[async_trait(?Send)]
impl Store for NoCompare {
    fn facts(&self) -> StoreFacts {
        self.facts.clone()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let body = self.inner.lock().unwrap().get(key).cloned();
        if !std::mem::replace(&mut self.looked, true) {
            self.all_looked.wait();
        }
        let version = Version(body.as_ref().map_or(0, Vec::len).to_string());
        Ok(body.map(|body| Stored { version, body, age: Some(std::time::Duration::ZERO) }))
    }

    async fn cas(&mut self, key: &str, _: Option<&Version>, _: WriteId, body: &[u8]) -> Cas {
        self.inner.lock().unwrap().insert(key.into(), body.into());
        Cas::Written { version: Version(body.len().to_string()), store_time: None }
    }

    async fn list(&mut self, _: &str, _: &str, _: usize) -> Result<Vec<Listed>, Failure> {
        Ok(Vec::new())
    }

    async fn remove(&mut self, _: &str, _: &Version) -> Cas {
        Cas::Conflict
    }
}

/// The same race inside one process, on any store.
fn race_in_threads(open: impl Fn() -> Box<dyn Store>) -> Vec<Fared> {
    let racers: Vec<_> = (0..RACERS)
        .map(|_| {
            let store = open();
            thread::spawn(move || {
                let lease = Name::new("site").unwrap();
                let timing = Timing::new(TimingWishes::default(), StoreClock::default()).unwrap();
                let wait = std::time::Duration::ZERO;
                let ask = AcquireRequest {
                    job: lease.clone(),
                    lease,
                    timing,
                    wait,
                    force: false,
                    within: Within::default(),
                };
                match manual::acquire(&ask, store, SeenTokens::none()).unwrap() {
                    Outcome::Granted(granted) => Fared::Won { token: granted.token.get(), pid: 0 },
                    Outcome::Busy(busy) => {
                        Fared::Lost { code: 11, said: format!("/0 (token {})", busy.token) }
                    }
                    other => panic!("{other:?}"),
                }
            })
        })
        .collect();
    racers.into_iter().map(|racer| racer.join().unwrap()).collect()
}

#[test]
fn a_store_that_does_not_compare_is_caught() {
    let begun = boot_time();
    let (inner, all_looked) = (Arc::default(), Arc::new(Barrier::new(RACERS)));
    let facts = MemoryStore::new().unwrap().facts();
    let open = || -> Box<dyn Store> {
        let (inner, all_looked) = (Arc::clone(&inner), Arc::clone(&all_looked));
        Box::new(NoCompare { inner, all_looked, looked: false, facts: facts.clone() })
    };
    let fared = race_in_threads(open);
    let wrong = Checker::default().check(&fared).unwrap_err();
    assert!(wrong.contains(" winners"), "{wrong}");
    assert!(boot_time().since(begun) < PATIENCE);
}

#[test]
fn the_checker_catches_repeated_tokens_and_ignorant_losers() {
    let won = |token| Fared::Won { token, pid: 7 };
    let lost = |said: &str| Fared::Lost { code: 11, said: said.into() };
    let mut checker = Checker::default();
    assert_eq!(checker.check(&[won(1), lost("held by h/7 (token 1)")]), Ok(()));
    assert!(checker.check(&[won(1)]).is_err(), "the same token again");
    assert!(checker.check(&[]).is_err(), "nobody won");
    assert!(checker.check(&[won(2), lost("busy")]).is_err(), "the loser does not know who");
    let other_code = Fared::Lost { code: 1, said: "held by h/7 (token 3)".into() };
    assert!(checker.check(&[won(3), other_code]).is_err());
    checker.killed = Some("held by h/9 (token 3)".into());
    assert!(checker.check(&[won(4), won(5)]).is_err(), "two winners after a kill");
    assert!(checker.check(&[won(3)]).is_err(), "the killed holder's token again");
}
