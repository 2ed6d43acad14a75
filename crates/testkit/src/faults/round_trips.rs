//! The requests that each step of a lease takes on an open connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::core::ids::{Grant, WriteId};
use leasehold::core::session::{Event, Granted, Input, JobExit, Outcome, SessionPlan, Signal};
use leasehold::core::time::BootTime;
use leasehold::driver::{Driver, InputSender, ProtectedWork};
use leasehold::random;
use leasehold::run_log::LogWriter;
use leasehold::seen_tokens::SeenTokens;
use leasehold::stores::{Cas, Failure, Listed, Store, StoreFacts, Stored, Version};
use pollster::block_on;

use super::aimed::WarmStore;
use super::lane::Lane;
use super::worker::{self, HEARTBEAT};
use crate::proxy::{Proxy, ProxyState, lock};

const RENEWALS: usize = 5;

/// Requests that the proxy saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    /// To find a lease held.
    pub held: u64,
    /// To take a free one.
    pub acquire: u64,
    /// To renew once.
    pub renew: u64,
    /// To release it.
    pub release: u64,
}

impl RoundTrips {
    /// The bar: one to find it held, two to take it, one to renew and one to release it.
    ///
    /// # Panics
    ///
    /// If a number differs.
    pub fn assert_fewest(self) {
        assert_eq!(self, Self { held: 1, acquire: 2, renew: 1, release: 1 });
    }
}

/// The step of the session during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Acquire,
    Renew,
    Release,
}

struct Tally {
    stage: Stage,
    /// The step of each call, and its number of requests.
    calls: Vec<(Stage, u64)>,
}

/// Counts the requests of every call.
struct Counting {
    inner: WarmStore,
    proxy: Arc<ProxyState>,
    tally: Arc<Mutex<Tally>>,
}

impl Counting {
    fn count<T>(&self, call: impl FnOnce(&mut dyn Store) -> T) -> T {
        // The step at the start of the call, because a release cannot overtake a renewal.
        let stage = lock(&self.tally).stage;
        let before = self.proxy.requests();
        let answer = call(lock(&self.inner).as_mut());
        lock(&self.tally).calls.push((stage, self.proxy.requests() - before));
        answer
    }
}

#[async_trait(?Send)]
impl Store for Counting {
    fn facts(&self) -> StoreFacts {
        lock(&self.inner).facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.count(|s| block_on(s.read(key)))
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.count(|s| block_on(s.cas(key, expected, write, body)))
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.count(|s| block_on(s.list(prefix, after, limit)))
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.count(|s| block_on(s.remove(key, version)))
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        lock(&self.inner).limit_calls(each)
    }
}

/// A job that ends after this many renewals.
struct Until {
    tally: Arc<Mutex<Tally>>,
    renewals: usize,
    started: bool,
}

impl ProtectedWork for Until {
    fn start(&mut self, _: &Granted, _: BootTime) -> Result<(), JobExit> {
        lock(&self.tally).stage = Stage::Renew;
        self.started = true;
        Ok(())
    }
    fn seal(&mut self, _: &Granted, _: InputSender) {}
    fn term(&mut self) {}
    fn kill(&mut self) {}
    fn freeze(&mut self) {}
    fn thaw(&mut self) {}
    fn forward(&mut self, _: Signal) {}
    fn tell(&mut self, event: &Event) {
        if *event == Event::Renewed {
            self.renewals = self.renewals.saturating_sub(1);
        }
    }
}

/// Runs one session; gives its calls and its outcome.
fn session(
    plan: SessionPlan,
    inner: &WarmStore,
    proxy: &Proxy,
    renewals: usize,
) -> (Vec<(Stage, u64)>, Outcome) {
    let tally = Arc::new(Mutex::new(Tally { stage: Stage::Acquire, calls: Vec::new() }));
    let counting = Counting { inner: inner.clone(), proxy: proxy.shared(), tally: tally.clone() };
    let mut shell =
        Driver::new(plan, Box::new(counting), SeenTokens::none(), None, LogWriter::without_state())
            .expect("a timer and a pipe");
    let mut job = Until { tally: tally.clone(), renewals, started: false };
    let mut ended = shell.step(Input::Start, &mut job);
    while ended.is_none() {
        if job.started && job.renewals == 0 {
            job.started = false;
            lock(&tally).stage = Stage::Release;
            ended = shell.step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true }, &mut job);
            continue;
        }
        for input in shell.wait(None).expect("poll").0 {
            ended = ended.or(shell.step(input, &mut job));
        }
    }
    let outcome = ended.expect("it ended");
    shell.finish(&outcome);
    let calls = lock(&tally).calls.clone();
    (calls, outcome)
}

fn sum(calls: &[(Stage, u64)], stage: Stage) -> u64 {
    calls.iter().filter(|(s, _)| *s == stage).map(|(_, n)| n).sum()
}

pub(super) fn count(
    name: &str,
    proxy: &Proxy,
    through: Box<dyn Store>,
    direct: Box<dyn Store>,
) -> RoundTrips {
    let lane = Lane::new(name);
    let (inner, direct): (WarmStore, WarmStore) =
        (Arc::new(Mutex::new(through)), Arc::new(Mutex::new(direct)));
    let beating = |store: &WarmStore, heartbeat| {
        worker::plan(&lane, lock(store).as_ref(), Grant(random::seed()), heartbeat)
    };
    let fresh = |store: &WarmStore| beating(store, Duration::from_secs(60));
    // The first session connects, and makes missing tables.
    let (_, outcome) = session(beating(&inner, HEARTBEAT), &inner, proxy, 1);
    assert!(matches!(outcome, Outcome::Finished { .. }), "{outcome:?}");
    let (calls, outcome) = session(fresh(&inner), &inner, proxy, 0);
    assert!(matches!(outcome, Outcome::Finished { .. }), "{outcome:?}");
    let (acquire, release) = (sum(&calls, Stage::Acquire), sum(&calls, Stage::Release));
    let (calls, outcome) = session(beating(&inner, HEARTBEAT), &inner, proxy, RENEWALS);
    assert!(matches!(outcome, Outcome::Finished { .. }), "{outcome:?}");
    // The largest number: an average could hide it.
    let renewals = calls.iter().filter(|(stage, _)| *stage == Stage::Renew);
    let renew = renewals.map(|(_, n)| *n).max().unwrap_or(0);
    let by_hand = SessionPlan { by_hand: true, ..fresh(&direct) };
    let (_, outcome) = session(by_hand, &direct, proxy, 0);
    assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
    let (calls, outcome) = session(fresh(&inner), &inner, proxy, 0);
    assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
    RoundTrips { held: sum(&calls, Stage::Acquire), acquire, renew, release }
}
