//! One world: workers, their hosts, a store and a target, on one thread and in virtual time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt::Write as _;
use std::time::Duration;

use leasehold_core::fence::Fence;
use leasehold_core::name::Name;
use leasehold_core::one_shot::OneShot;
use leasehold_core::rules::{Rules, SeenToken};
use leasehold_core::session::{Input, Op, RequestId, Session, WatchedRecord};
use leasehold_core::time::BootTime;

use crate::checks::{Ledger, Mark};
use crate::clock::Clock;
use crate::faults::{AgeMode, Config, Fault, Met, Rng, nanos};
use crate::forgets::{Forget, Forgets};
use crate::items::{self, Items};
use crate::jobs::Tree;
use crate::mutants::Mutant;
use crate::store::Store;

/// A session: its worker, and its number there.
pub(crate) type Owner = (usize, u32);

/// More steps than this in one instant are a busy loop.
const STEPS_PER_INSTANT: u32 = 1_000;
/// More steps than this in one schedule mean that a session never ends.
const EVENTS_MAX: u64 = 60_000;

/// Writes a line of the trace, if it is on.
macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if $world.tracing {
            $world.say(&format!($($arg)*));
        }
    };
}
pub(crate) use trace;

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Session(Owner, RequestId),
    Errand(usize),
}

/// What a request asks for, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    Read,
    Forgotten,
    Write,
}

impl Asks {
    pub(crate) fn of(op: &Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Forgotten => Self::Forgotten,
            Op::Cas { .. } => Self::Write,
        }
    }
}

/// A request on its way to the store.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) from: From,
    pub(crate) lease: usize,
    pub(crate) op: Op,
    pub(crate) incarnation: u32,
    /// The time from landing to the answer; none: the answer never arrives.
    pub(crate) reply: Option<u64>,
    pub(crate) again: Option<u64>,
    /// The answer is replaced by "unknown" on the way.
    pub(crate) muffled: bool,
}

pub(crate) enum Event {
    Begin(usize),
    Input(Owner, Box<Input>),
    Timer(usize, u32),
    Land(Box<Request>),
    Refused(From, Asks),
    ErrandInput(usize, Box<Input>),
    Sealing(Owner, usize),
    JobEnds(usize),
    Dies(usize),
    Write(usize),
    WriteLands(usize, u64, Option<u64>),
    WriteCommits(usize, Box<Fence>, u64),
    WriteAnswered(usize, u64, bool),
    Plague(Fault),
    Forget(Forget),
    Wake(usize, u64, bool),
    Overlap(usize),
    Quiet,
    MustHold,
    /// A call about an item reaches the store: its session, its id, its item, and the time of its answer.
    ItemLands(Owner, u64, u64, Box<items::Op>, Option<u64>),
    ItemAnswer(Owner, u64, Box<items::Answer>),
}

struct Entry {
    at: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// A machine with its memory.
pub(crate) struct Host {
    pub(crate) clock: Clock,
    pub(crate) still_until: u64,
    pub(crate) seen: Vec<Option<SeenToken>>,
    pub(crate) watched: Vec<Option<WatchedRecord>>,
    /// The error of this machine's wall clock; only a mutant uses it.
    pub(crate) skew: i64,
}

pub(crate) struct Worker<R: Rules> {
    pub(crate) host: usize,
    pub(crate) session: Option<Session<R>>,
    pub(crate) count: u32,
    pub(crate) armed: Option<BootTime>,
    pub(crate) timer_at: Option<u64>,
    pub(crate) cut_until: u64,
    pub(crate) wrapper_until: u64,
    pub(crate) job_until: u64,
    pub(crate) tree: Option<usize>,
    pub(crate) sent: BootTime,
    pub(crate) last_request: RequestId,
    pub(crate) mark: Mark,
    /// Its last write met a conflict; only a mutant uses it.
    pub(crate) conflicted: bool,
    pub(crate) item: Option<items::Task>,
}

pub(crate) struct World<R: Rules> {
    pub(crate) now: u64,
    pub(crate) rng: Rng,
    pub(crate) config: Config,
    pub(crate) mutant: Mutant,
    pub(crate) rules: fn(Mutant, i64) -> R,
    queue: BinaryHeap<Entry>,
    order: u64,
    pub(crate) names: Vec<Name>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) workers: Vec<Worker<R>>,
    pub(crate) trees: Vec<Tree>,
    pub(crate) one_shots: Vec<Option<OneShot>>,
    pub(crate) store: Store,
    pub(crate) fences: Vec<Option<Fence>>,
    pub(crate) ledger: Ledger,
    pub(crate) items: Items,
    pub(crate) forgets: Forgets,
    pub(crate) met: Met,
    pub(crate) quiet: bool,
    pub(crate) draining: bool,
    pub(crate) stepped_back: u64,
    pub(crate) stepped_on: u64,
    instant_steps: u32,
    pub(crate) tracing: bool,
    pub(crate) trace: String,
    pub(crate) violation: Option<String>,
}

impl<R: Rules> World<R> {
    pub(crate) fn new(seed: u64, mutant: Mutant, rules: fn(Mutant, i64) -> R, tracing: bool) -> Self {
        let mut rng = Rng::new(seed);
        let config = Config::choose(&mut rng);
        let leases = config.leases;
        let host_count = config.hosts.iter().max().map_or(1, |h| h + 1);
        let hosts = (0..host_count)
            .map(|_| Host {
                clock: Clock::new(rng.between(1_000_000_000, 1 << 50), rng.either_side(config.drift)),
                still_until: 0,
                seen: vec![None; leases],
                watched: vec![None; leases],
                skew: rng.either_side(i64::try_from(nanos(config.timing.ttl)).unwrap_or(0)),
            })
            .collect();
        let store = Store::new(leases, config.age, rng.either_side(config.drift), config.pushes);
        let workers = config.hosts.iter().map(|host| Worker::new(*host)).collect();
        let names = ["s/site", "s/other"].iter().take(leases).filter_map(|n| Name::new(n).ok()).collect();
        let mut world = Self {
            now: 0,
            rng,
            mutant,
            rules,
            queue: BinaryHeap::new(),
            order: 0,
            names,
            hosts,
            workers,
            trees: Vec::new(),
            one_shots: Vec::new(),
            store,
            fences: vec![None; leases],
            ledger: Ledger::new(leases),
            items: Items::new(seed),
            forgets: Forgets::new(seed, &config),
            met: Met::new(),
            quiet: false,
            draining: false,
            stepped_back: 0,
            stepped_on: 0,
            instant_steps: 0,
            tracing,
            trace: String::new(),
            violation: None,
            config,
        };
        world.prepare();
        world
    }

    fn prepare(&mut self) {
        trace!(self, "{:?}", self.config);
        self.meet_shape();
        let gap = nanos(self.config.timing.heartbeat);
        for w in 0..self.workers.len() {
            let at = self.rng.below(gap);
            self.after(at, Event::Begin(w));
        }
        for _ in 0..self.config.plagues {
            let plague = self.choose_plague();
            let at = self.rng.below(self.config.quiet_at);
            self.after(at, Event::Plague(plague));
        }
        self.plan_forgets();
        self.after(self.config.quiet_at, Event::Quiet);
    }

    pub(crate) fn say(&mut self, line: &str) {
        let _ = writeln!(self.trace, "{:>12.6} {line}", self.now as f64 / 1e9);
    }

    pub(crate) fn violate(&mut self, what: String) {
        trace!(self, "VIOLATION {what}");
        self.violation.get_or_insert(what);
    }

    pub(crate) fn after(&mut self, wait: u64, event: Event) {
        self.at(self.now.saturating_add(wait), event);
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.queue.push(Entry { at: at.max(self.now), order: self.order, event });
    }

    pub(crate) fn ttl(&self) -> u64 {
        nanos(self.config.timing.ttl)
    }

    pub(crate) fn input_after(&mut self, wait: u64, owner: Owner, input: Input) {
        self.after(wait, Event::Input(owner, Box::new(input)));
    }

    /// Runs to the end, or to the first broken promise.
    pub(crate) fn run(&mut self) {
        let mut events = 0;
        while let Some(entry) = self.queue.pop() {
            if entry.at > self.now {
                self.now = entry.at;
                self.instant_steps = 0;
            }
            self.handle(entry.event);
            events += 1;
            if events > EVENTS_MAX {
                self.violate("liveness: the schedule does not come to an end".into());
            }
            if self.violation.is_some() {
                return;
            }
        }
        self.check_end();
    }

    pub(crate) fn count_step(&mut self) {
        self.instant_steps += 1;
        if self.instant_steps > STEPS_PER_INSTANT {
            self.violate("busy loop: a thousand steps in one instant".into());
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Begin(w) => self.begin(w),
            Event::Input(owner, input) => self.deliver(owner, *input),
            Event::Timer(w, count) => self.timer(w, count),
            Event::Land(request) => self.land(*request),
            Event::Refused(from, asks) => self.answer_unreachable(from, asks),
            Event::ErrandInput(one_shot, input) => self.errand_input(one_shot, *input),
            Event::Sealing(owner, lease) => self.seal_lands(owner, lease),
            Event::JobEnds(tree) => self.job_ends(tree),
            Event::Dies(tree) => self.tree_dies(tree),
            Event::Write(tree) => self.job_writes(tree),
            Event::WriteLands(tree, seq, reply) => self.write_lands(tree, seq, reply),
            Event::WriteCommits(tree, fence, seq) => self.write_commits(tree, *fence, seq),
            Event::WriteAnswered(tree, seq, accepted) => self.write_answered(tree, seq, accepted),
            Event::Plague(fault) => self.plague(fault),
            Event::Forget(step) => self.forget(step),
            Event::Wake(host, length, stopped) => self.wake(host, length, stopped),
            Event::Overlap(lease) => self.check_overlap(lease),
            Event::Quiet => self.go_quiet(),
            Event::MustHold => self.check_held(),
            Event::ItemLands(owner, id, item, op, reply) => self.item_lands(owner, id, item, *op, reply),
            Event::ItemAnswer(owner, id, answer) => self.item_answer(owner, id, *answer),
        }
    }

    /// Faults stop. From now on a session must get the lease.
    fn go_quiet(&mut self) {
        trace!(self, "faults stop");
        self.quiet = true;
        self.store.down_until = 0;
        let now = self.now;
        for worker in &mut self.workers {
            worker.cut_until = 0;
            worker.wrapper_until = worker.wrapper_until.min(now);
            worker.job_until = worker.job_until.min(now);
        }
        // Paused workers go on now, not at the end of their pause.
        for w in 0..self.workers.len() {
            if self.workers[w].session.is_some() {
                let (count, wait) = (self.workers[w].count, self.rng.below(self.config.lag));
                self.after(wait, Event::Timer(w, count));
            }
        }
        // There are no more changes by hand.
        self.one_shots.iter_mut().for_each(|one_shot| *one_shot = None);
        // Late requests never arrive.
        let soon = self.now + self.config.latency * 4;
        self.queue.retain(|e| !(matches!(e.event, Event::Land(_)) && e.at > soon));
        let timing = self.config.timing;
        // A record from before a failover has to be watched. The time counts from the first look, which may
        // come later.
        let only_watched = self.config.age == AgeMode::Never || self.store.is_another();
        let first_look = if only_watched { timing.ttl } else { Duration::ZERO };
        let most =
            first_look + timing.ttl + timing.clock.resolution + timing.heartbeat * 2 + timing.timeout * 2;
        let slack = nanos(most) / 200 + 1_200_000_000 + self.config.lag * 4;
        self.after(nanos(most) + slack + self.stepped_back, Event::MustHold);
    }

    /// A held lease is enough now: no new sessions start, and jobs end.
    pub(crate) fn drain(&mut self) {
        trace!(self, "draining");
        self.draining = true;
        for tree in 0..self.trees.len() {
            let wait = self.rng.below(self.ttl() / 2);
            self.after(wait, Event::JobEnds(tree));
        }
    }
}

impl<R: Rules> Worker<R> {
    fn new(host: usize) -> Self {
        Self {
            host,
            session: None,
            count: 0,
            armed: None,
            timer_at: None,
            cut_until: 0,
            wrapper_until: 0,
            job_until: 0,
            tree: None,
            sent: BootTime::default(),
            last_request: RequestId(0),
            mark: Mark::default(),
            conflicted: false,
            item: None,
        }
    }
}
