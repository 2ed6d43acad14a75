//! Seeded random numbers, the kinds of faults, and the settings of one world.

use std::time::Duration;

use leasehold_core::timing::{DRIFT_PPM, StoreClock, Timing, TimingWishes};

/// splitmix64: small, seeded, good enough to choose schedules.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn wide(&mut self) -> u128 {
        (u128::from(self.next()) << 64) | u128::from(self.next())
    }

    /// A number below `n`; zero if `n` is zero.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        u64::try_from((u128::from(self.next()) * u128::from(n)) >> 64).unwrap_or(0)
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// A number in `-most..=most`.
    pub(crate) fn either_side(&mut self, most: i64) -> i64 {
        let span = u64::try_from(most).unwrap_or(0);
        i64::try_from(self.between(0, 2 * span)).unwrap_or(0) - most
    }
}

macro_rules! kinds {
    ($($name:ident),* $(,)?) => {
        /// Every kind of fault and of unusual situation. A test must meet nearly all of them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault { $($name),* }

        pub(crate) const KINDS: &[Fault] = &[$(Fault::$name),*];
    };
}

kinds! {
    ReplyLost, RequestLost, ReplyLate, LandLate, ReplyTwice, RequestTwice, UnknownButLanded,
    Partition, Outage, Restart, Failover, Rewind, Vanish, StepForward, StepBack, NoAge, CoarseAge,
    AgeLost, WildDrift, WildStep, Suspend, MachineFreeze, PauseAll, PauseWrapper, Crash, CrashOrphan, Reboot,
    SignalTerm, SignalTwice, ErrandRenew, ErrandRelease, ErrandRevoke, IgnoresTerm, LeavesSurvivors,
    SealFails, SealSlow, WriteReplyLost, WriteLate, ZombieWrite, Forced, ByHand, SharedHost,
    ProbedGone, ProbedAlive, MaxRun, TwoLeases, Waited, LateClaimFound, HostRefuses, NapSurvived, Pushed,
    Forgotten, ForgetRaced, ForgottenMet, ItemBegun, ItemDone, ItemInProgress, ItemUnknown, ItemTakenBack, ItemGivenUp, ItemLeaseUnreadable,
}

/// How often each kind was met.
#[derive(Clone)]
pub(crate) struct Met(pub(crate) Vec<u64>);

impl Met {
    pub(crate) fn new() -> Self {
        Self(vec![0; KINDS.len()])
    }

    pub(crate) fn add(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    pub(crate) fn merge(&mut self, other: &Met) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }
}

/// The store's fault with writes that it has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It keeps them all.
    Keeps,
    /// A restart loses the last few, under a new instance identity.
    Restarts,
    /// It is restored from an old snapshot, under the same instance identity.
    Rewinds,
    /// The record is deleted.
    Vanishes,
}

/// How the store tells ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgeMode {
    Exact,
    /// Both ends cut to whole seconds.
    Coarse,
    /// Not at all: sessions watch by their own clocks.
    Never,
}

/// The settings of one world, chosen by its seed.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The host of each worker.
    pub(crate) hosts: Vec<usize>,
    pub(crate) leases: usize,
    pub(crate) timing: Timing,
    /// Clocks leave their bounds: only P1 and P2 are promised.
    pub(crate) wild: bool,
    pub(crate) loss: Loss,
    pub(crate) age: AgeMode,
    /// Messages with a fault, per mille.
    pub(crate) noise: u64,
    /// When faults stop, in nanoseconds.
    pub(crate) quiet_at: u64,
    /// Half of the time that scheduling and killing may take together.
    pub(crate) lag: u64,
    pub(crate) latency: u64,
    /// Workers on one host can see each other's processes.
    pub(crate) evidence: bool,
    pub(crate) seals: bool,
    pub(crate) drift: i64,
    /// Number of large faults.
    pub(crate) plagues: u64,
    /// The store says that it reports changes.
    pub(crate) pushes: bool,
}

pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn choose_timing(rng: &mut Rng, age: AgeMode) -> Timing {
    // Long leases mean many polls by waiting sessions, so they are rarer.
    let ttls =
        [700, 700, 1_500, 1_500, 1_500, 4_000, 4_000, 4_000, 4_000, 4_000, 10_000, 10_000, 30_000, 90_000];
    let jumps = [0, 0, 100, 1_000, 3_000];
    let resolution = if age == AgeMode::Coarse { 1_000 } else { 0 };
    loop {
        let ttl = ttls[usize::try_from(rng.below(ttls.len() as u64)).unwrap_or(0)] + rng.below(500);
        let jump = jumps[usize::try_from(rng.below(5)).unwrap_or(0)];
        let wishes = TimingWishes { ttl: Some(Duration::from_millis(ttl)), ..TimingWishes::default() };
        let clock =
            StoreClock { resolution: Duration::from_millis(resolution), jump: Duration::from_millis(jump) };
        if let Ok(timing) = Timing::new(wishes, clock) {
            return timing;
        }
    }
}

impl Config {
    pub(crate) fn choose(rng: &mut Rng) -> Self {
        let age = match rng.below(10) {
            0..=5 => AgeMode::Exact,
            6..=7 => AgeMode::Coarse,
            _ => AgeMode::Never,
        };
        let loss = match rng.below(20) {
            0..=13 => Loss::Keeps,
            14..=15 => Loss::Restarts,
            16..=17 => Loss::Rewinds,
            _ => Loss::Vanishes,
        };
        let timing = choose_timing(rng, age);
        let workers = 2 + usize::try_from(rng.below(3)).unwrap_or(0);
        let shared = rng.chance(300);
        let hosts = (0..workers).map(|w| if shared { w / 2 } else { w }).collect();
        let wild = rng.chance(60);
        let lag = nanos(timing.margin) * 9 / 20;
        Self {
            hosts,
            leases: if rng.chance(100) { 2 } else { 1 },
            wild,
            loss,
            age,
            noise: if rng.chance(250) { 0 } else { rng.between(20, 250) },
            quiet_at: nanos(timing.ttl) * rng.between(4, 10) / 2,
            lag,
            latency: (nanos(timing.timeout) / 20).clamp(1_000, 20_000_000),
            evidence: shared && rng.chance(700),
            seals: rng.chance(800),
            drift: i64::try_from(DRIFT_PPM).unwrap_or(0) * if wild { 50 } else { 1 },
            plagues: rng.between(1, 6),
            pushes: rng.chance(300),
            timing,
        }
    }
}
