//! The director: every actor is a thread that waits for its turn before each call to the store, and one runs at a time.
//!
//! The actor that gives up its turn chooses the next one, by the dice; so a turn costs at most one switch of threads.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use leasehold::backends::memory::MemoryStore;
use leasehold::core::ids::WriteId;
use leasehold::core::store::Version;
use leasehold::core::time::BootTime;
use leasehold_run::handoff::SlotOutcome;

use crate::flaws::Flaw;
use crate::plan::Plan;
use crate::watch::Watch;

/// Turns after which nothing goes wrong any more, unless the plan says otherwise.
const STORM: u32 = 170;
/// No schedule needs as many.
const TURNS_MAX: u32 = 6_000;
const STACK: usize = 512 * 1024;

/// Xorshift: the same seed, the same numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % n
    }

    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What an actor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Stays, and is started again when it was killed.
    Daemon,
    /// Ends when nothing is to be done.
    Tick,
    /// Of this job, for this slot.
    Run(usize, i64),
    Operator,
    Sweeper,
}

/// What an actor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// A turn.
    Turn,
    /// This time, or a nudge.
    Time(u64),
    /// Nothing: it has the turn.
    Nothing,
    /// Nothing: it has ended, or was killed.
    Over,
}

struct Actor {
    role: Role,
    want: Want,
    go: Arc<AtomicBool>,
    thread: Thread,
    /// Not chosen before this turn.
    frozen: u32,
    killed: bool,
    nudged: bool,
    /// A call of it went wrong.
    faulted: bool,
    parent: Option<usize>,
}

/// A call, as it was let through.
#[derive(Clone, Debug)]
pub struct Call {
    pub actor: usize,
    pub verb: &'static str,
    pub key: String,
    /// When, and what came of it; for people.
    pub clock: u64,
    pub said: String,
}

/// A write without an answer that lands later.
pub struct Late {
    pub actor: usize,
    pub key: String,
    pub expected: Option<Version>,
    /// Nothing: it removes.
    pub write: Option<(WriteId, Vec<u8>)>,
}

pub struct State {
    pub dice: Dice,
    /// Seconds since 1970, by the store and by everybody.
    pub clock: u64,
    pub trace: Vec<Call>,
    /// Answers are written down as well.
    pub tracing: bool,
    pub watch: Watch,
    pub plan: Plan,
    pub flaw: Flaw,
    /// No more failures.
    pub calm: bool,
    /// Ticks look as of this time, whenever they begin.
    pub as_of: Option<u64>,
    /// Nothing was left to be done about what was due by then.
    pub quiet: bool,
    pub late: Vec<Late>,
    pub faults: u64,
    /// What runs have handed back.
    pub outcomes: BTreeMap<usize, SlotOutcome>,
    actors: Vec<Actor>,
    last: usize,
    turns: u32,
    storm: u32,
    handles: Vec<JoinHandle<()>>,
    /// Everybody has ended.
    idle: Arc<AtomicBool>,
    main: Thread,
}

pub struct Stage {
    state: Mutex<State>,
    pub memory: MemoryStore,
}

/// An actor as it sees itself.
#[derive(Clone)]
pub struct Me {
    pub stage: Arc<Stage>,
    pub id: usize,
}

/// What unwinds the thread of an actor that is killed.
struct Killed;

impl Stage {
    pub fn new(seed: u64, flaw: Flaw) -> Arc<Self> {
        let mut dice = Dice::new(seed);
        let plan = Plan::new(&mut dice);
        let memory = MemoryStore::with_manual_clock().unwrap();
        let clock = 1_800_000_000 + dice.below(1_200);
        memory.set_time(BootTime(Duration::from_secs(clock)));
        let state = State {
            watch: Watch::new(&plan),
            clock,
            trace: Vec::new(),
            tracing: false,
            plan,
            flaw,
            calm: false,
            as_of: None,
            quiet: false,
            late: Vec::new(),
            faults: dice.one_of(&[0, 20, 60, 120]),
            outcomes: BTreeMap::new(),
            storm: STORM - dice.below(100) as u32,
            dice,
            actors: Vec::new(),
            last: 0,
            turns: 0,
            handles: Vec::new(),
            idle: Arc::default(),
            main: thread::current(),
        };
        Arc::new(Self { state: Mutex::new(state), memory })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the turn to the actors until all have ended.
    pub fn play(self: &Arc<Self>) {
        let (next, idle) = {
            let mut state = self.lock();
            (self.pick(&mut state), state.idle.clone())
        };
        if let Some((go, thread)) = next {
            wake(&go, &thread);
            wait(&idle);
        }
        let handles = std::mem::take(&mut self.lock().handles);
        handles.into_iter().for_each(|handle| handle.join().unwrap());
    }

    /// A new actor, which has its turn later.
    pub fn spawn(
        self: &Arc<Self>,
        state: &mut State,
        role: Role,
        parent: Option<usize>,
        act: impl FnOnce(&Me) + Send + 'static,
    ) -> usize {
        let (id, go) = (state.actors.len(), Arc::new(AtomicBool::new(false)));
        let (me, turn) = (Me { stage: self.clone(), id }, go.clone());
        let body = move || {
            wait(&turn);
            let acted = catch_unwind(AssertUnwindSafe(|| {
                me.check();
                act(&me);
            }));
            match acted {
                Ok(()) => me.over(),
                Err(why) if why.is::<Killed>() => {}
                Err(why) => {
                    let text = why.downcast_ref::<String>().map_or("?", String::as_str);
                    me.stage.lock().watch.wrong(format!("panicked: {text}"));
                    me.over();
                }
            }
        };
        let handle = thread::Builder::new().stack_size(STACK).spawn(body).unwrap();
        let thread = handle.thread().clone();
        state.handles.push(handle);
        let want = Want::Turn;
        let (killed, nudged, faulted, frozen) = (false, false, false, 0);
        state.actors.push(Actor { role, want, go, thread, frozen, killed, nudged, faulted, parent });
        id
    }

    /// The actor that has the next turn; `None` if all have ended.
    fn pick(self: &Arc<Self>, state: &mut State) -> Option<(Arc<AtomicBool>, Thread)> {
        state.turns += 1;
        if state.turns > TURNS_MAX {
            state.watch.wrong("there is no end to it".into());
            (0..state.actors.len()).for_each(|id| state.kill(id));
        }
        if !state.calm {
            self.mischief(state);
        } else if state.dice.chance(60) {
            self.pass(state, 1);
        }
        loop {
            let ready: Vec<usize> = (0..state.actors.len()).filter(|id| state.is_ready(*id)).collect();
            if !ready.is_empty() {
                let stays = ready.contains(&state.last) && state.dice.chance(500);
                let next = if stays { state.last } else { state.dice.one_of(&ready) };
                state.last = next;
                let actor = &mut state.actors[next];
                // What it was nudged for during a call is looked at after it.
                actor.nudged &= actor.want == Want::Turn;
                actor.want = Want::Nothing;
                return Some((actor.go.clone(), actor.thread.clone()));
            }
            let turns = state.turns;
            let times = state.actors.iter().filter(|actor| actor.frozen <= turns);
            let next = times.filter_map(|actor| match actor.want {
                Want::Time(at) if at < u64::MAX => Some(at),
                _ => None,
            });
            match next.min() {
                Some(at) => self.pass(state, at.saturating_sub(state.clock)),
                None if state.actors.iter().all(|actor| actor.want == Want::Over) => return None,
                None => state.actors.iter_mut().for_each(|actor| actor.frozen = 0),
            }
        }
    }

    /// Time passes.
    pub fn pass(&self, state: &mut State, seconds: u64) {
        state.clock += seconds;
        self.memory.set_time(BootTime(Duration::from_secs(state.clock)));
    }

    /// What happens between two calls.
    fn mischief(self: &Arc<Self>, state: &mut State) {
        if state.turns >= state.storm {
            while let Some(late) = state.late.pop() {
                if state.dice.chance(500) {
                    crate::store::land(state, &self.memory, &late);
                }
            }
            state.calm = true;
            state.actors.iter_mut().for_each(|actor| (actor.frozen, actor.nudged) = (0, true));
            return;
        }
        if state.dice.chance(200) {
            let seconds = 1 + state.dice.below(3);
            self.pass(state, seconds);
        }
        if state.dice.chance(18) {
            let seconds = state.plan.unit * (1 + state.dice.below(6)) + state.dice.below(10);
            self.pass(state, seconds);
        }
        let alive: Vec<usize> =
            (0..state.actors.len()).filter(|id| state.actors[*id].want != Want::Over).collect();
        if !alive.is_empty() && state.dice.chance(25) {
            let id = state.dice.one_of(&alive);
            state.actors[id].frozen = state.turns + 10 + state.dice.below(70) as u32;
        }
        if !alive.is_empty() && state.dice.chance(state.plan.deaths) {
            let id = state.dice.one_of(&alive);
            if state.actors[id].want != Want::Nothing {
                state.kill(id);
            }
        }
        if !state.late.is_empty() && state.dice.chance(60) {
            let at = state.dice.below(state.late.len() as u64) as usize;
            let late = state.late.swap_remove(at);
            crate::store::land(state, &self.memory, &late);
        }
        if state.dice.chance(60) {
            crate::schedulers::replace(self, state);
        }
    }
}

impl State {
    fn is_ready(&self, id: usize) -> bool {
        let actor = &self.actors[id];
        let wants = match actor.want {
            Want::Turn => true,
            Want::Time(at) => at <= self.clock || actor.nudged,
            Want::Nothing | Want::Over => false,
        };
        wants && actor.frozen <= self.turns
    }

    /// Ends an actor before its next call.
    fn kill(&mut self, id: usize) {
        let actor = &mut self.actors[id];
        if actor.want == Want::Over {
            return;
        }
        (actor.killed, actor.want) = (true, Want::Over);
        wake(&actor.go, &actor.thread);
        self.ended(id);
    }

    fn ended(&mut self, id: usize) {
        self.watch.gone(id);
        if let Some(parent) = self.actors[id].parent {
            self.actors[parent].nudged = true;
        }
    }

    pub fn faulted(&mut self, id: usize) {
        self.actors[id].faulted = true;
    }

    /// Whether it may have left something undone.
    pub fn is_excused(&self, id: usize) -> bool {
        self.actors[id].faulted || self.actors[id].killed
    }

    pub fn is_over(&self, id: usize) -> bool {
        self.actors[id].want == Want::Over
    }

    pub fn role(&self, id: usize) -> Role {
        self.actors[id].role
    }

    /// Who they all were.
    pub fn cast(&self) -> Vec<Role> {
        self.actors.iter().map(|actor| actor.role).collect()
    }

    /// How many of a role go on.
    pub fn living(&self, role: Role) -> usize {
        self.actors.iter().filter(|actor| actor.role == role && actor.want != Want::Over).count()
    }

    pub fn count(&self, role: Role) -> usize {
        self.actors.iter().filter(|actor| actor.role == role).count()
    }

    /// Wakes all actors that wait for a time.
    pub fn nudge_all(&mut self) {
        self.actors.iter_mut().for_each(|actor| actor.nudged = true);
    }
}

impl Me {
    /// Waits for a turn.
    pub fn turn(&self) {
        self.yields(Want::Turn);
    }

    /// Waits for this time, or until something happened that is of interest.
    pub fn idle(&self, until: u64) {
        self.yields(Want::Time(until));
    }

    fn yields(&self, want: Want) {
        let mut state = self.stage.lock();
        state.actors[self.id].want = want;
        let own = state.actors[self.id].go.clone();
        let next = self.stage.pick(&mut state);
        if state.actors[self.id].want == Want::Nothing {
            return;
        }
        match next {
            Some((go, thread)) => {
                drop(state);
                wake(&go, &thread);
            }
            // It was killed, as the last of all.
            None => {
                let (idle, main) = (state.idle.clone(), state.main.clone());
                drop(state);
                wake(&idle, &main);
            }
        }
        wait(&own);
        self.check();
    }

    fn check(&self) {
        if self.stage.lock().actors[self.id].killed {
            resume_unwind(Box::new(Killed));
        }
    }

    /// It has ended.
    fn over(&self) {
        let mut state = self.stage.lock();
        state.actors[self.id].want = Want::Over;
        state.ended(self.id);
        match self.stage.pick(&mut state) {
            Some((go, thread)) => wake(&go, &thread),
            None => wake(&state.idle, &state.main),
        }
    }

    pub fn clock(&self) -> u64 {
        self.stage.lock().clock
    }

    pub fn below(&self, n: u64) -> u64 {
        self.stage.lock().dice.below(n)
    }
}

fn wake(go: &AtomicBool, thread: &Thread) {
    go.store(true, Ordering::Release);
    thread.unpark();
}

fn wait(go: &AtomicBool) {
    while !go.swap(false, Ordering::Acquire) {
        thread::park();
    }
}
