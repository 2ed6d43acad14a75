//! What the run log of a job adds up to: counts, run times, and which TTL its lease should have.
//!
//! Everything is counted in whole milliseconds and in tenths of a percent, so two machines that read the same
//! records say the same.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::run_log::{LogEvent, LogId, LogLine};
use crate::timing::{DEFAULT_TTL, StoreClock, Timing, TimingWishes};

/// With fewer healthy runs than this, no TTL is advised.
pub const RUNS_FOR_ADVICE: usize = 10;
/// A TTL from here on blocks others for long, and a renewed lease gains little from it.
pub const LONG_TTL: Duration = Duration::from_secs(600);
/// If more than one run in so many was lost, a longer TTL is advised.
const LOST_IN: u64 = 50;

/// Counts the records of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    events: BTreeMap<LogEvent, u64>,
    skips: BTreeMap<String, u64>,
    dropped_slots: u64,
    /// Run times of runs that were ok, in milliseconds.
    ok: Vec<u32>,
    /// How long the lease was held by hand.
    by_hand: Vec<u32>,
    /// When runs started, in milliseconds since 1970.
    started: Vec<u64>,
    /// Runs that told their end.
    ended: Vec<LogId>,
    /// Runs from which another one took over before they told it; and how many records say so.
    unknown: BTreeMap<LogId, u64>,
}

impl Tally {
    /// Counts a record. `slots`: of a record of dropped slots, how many they were.
    pub fn add(&mut self, line: &LogLine, slots: Option<u64>) {
        let Some(event) = line.event() else { return };
        *self.events.entry(event).or_default() += 1;
        match event {
            LogEvent::Skipped => {
                *self.skips.entry(line.reason.clone().unwrap_or_default()).or_default() += 1;
            }
            LogEvent::Dropped => self.dropped_slots = self.dropped_slots.saturating_add(slots.unwrap_or(1)),
            LogEvent::Ok => self.ok.extend(line.took.map(millis)),
            LogEvent::Released => self.by_hand.extend(line.took.map(millis)),
            LogEvent::Unknown => *self.unknown.entry(line.id).or_default() += 1,
            _ => {}
        }
        if event.is_run() && event != LogEvent::Unknown {
            self.ended.push(line.id);
        }
        if let Some(took) = line.took.filter(|_| event.is_run() || event == LogEvent::Released) {
            let start = line.at.saturating_sub(took).as_millis();
            self.started.push(u64::try_from(start).unwrap_or(u64::MAX));
        }
    }

    /// How many records there are of an event.
    pub fn count(&self, event: LogEvent) -> u64 {
        self.events.get(&event).copied().unwrap_or(0)
    }

    /// The sums.
    pub fn sums(mut self) -> RunStats {
        // A run that told its end after another one took over is one run.
        let late: u64 = self.ended.iter().filter_map(|id| self.unknown.remove(id)).sum();
        self.events.entry(LogEvent::Unknown).and_modify(|count| *count -= late);
        self.started.sort_unstable();
        let mut gaps: Vec<u64> = self.started.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        let interval = quantile(&gaps, 50).map(Duration::from_millis);
        let (ok, by_hand) = (RunTimes::of(self.ok), RunTimes::of(self.by_hand));
        RunStats {
            events: self.events,
            skips: self.skips,
            dropped_slots: self.dropped_slots,
            ok,
            by_hand,
            interval,
        }
    }
}

/// The run log of one job, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    events: BTreeMap<LogEvent, u64>,
    /// How many skips there were, by their reason.
    pub skips: BTreeMap<String, u64>,
    /// How many slots were dropped.
    pub dropped_slots: u64,
    /// The times of the runs that were ok.
    pub ok: RunTimes,
    /// How long the lease was held by hand.
    pub by_hand: RunTimes,
    /// The time between two starts that is in the middle of all.
    pub interval: Option<Duration>,
}

impl RunStats {
    /// How many records there are of an event.
    pub fn count(&self, event: LogEvent) -> u64 {
        self.events.get(&event).copied().unwrap_or(0)
    }

    /// How many there are of each event: records, and of slots that were dropped, slots.
    pub fn counts(&self) -> impl Iterator<Item = (LogEvent, u64)> {
        self.events.iter().map(|(event, count)| match event {
            LogEvent::Dropped => (*event, self.dropped_slots),
            _ => (*event, *count),
        })
    }

    /// How many runs executed their command.
    pub fn runs(&self) -> u64 {
        self.events.iter().filter(|(event, _)| event.is_run()).map(|(_, count)| count).sum()
    }

    /// How many of all runs, with those that were skipped, were skipped: in tenths of a percent.
    pub fn skipped_permille(&self) -> Option<u64> {
        let skipped = self.count(LogEvent::Skipped);
        let all = self.runs() + skipped;
        skipped.saturating_mul(1_000).saturating_add(all / 2).checked_div(all)
    }

    /// Which TTL the lease should have. `ttl` is the one that it has, if that is known.
    pub fn advice(&self, ttl: Option<Duration>) -> TtlAdvice {
        match self.by_hand.count > 0 && self.count(LogEvent::Released) > self.runs() {
            true => by_hand(&self.by_hand, ttl),
            false => self.renewed(ttl),
        }
    }

    fn renewed(&self, ttl: Option<Duration>) -> TtlAdvice {
        let healthy = self.ok.count;
        if healthy < RUNS_FOR_ADVICE {
            return TtlAdvice::TooFew { healthy };
        }
        let ttl = ttl.unwrap_or(DEFAULT_TTL);
        let lost = self.count(LogEvent::Lost);
        let fit = if ttl >= LONG_TTL {
            TtlFit::Long
        } else if lost.saturating_mul(LOST_IN) > self.runs() {
            TtlFit::Short
        } else {
            TtlFit::Right
        };
        TtlAdvice::Renewed { ttl, fit, survives: survives(ttl), lost }
    }
}

/// How long a sleep loses no lease: the last renewal may be a heartbeat old when it begins, and a part of the TTL is kept to
/// end the job.
pub fn survives(ttl: Duration) -> Duration {
    let wishes = TimingWishes { ttl: Some(ttl), heartbeat: None, grace: None };
    let kept = Timing::new(wishes, StoreClock::default());
    let kept = kept.map_or(ttl / 3, |timing| timing.heartbeat + timing.grace + timing.margin);
    Duration::from_secs(ttl.saturating_sub(kept).as_secs())
}

fn by_hand(times: &RunTimes, ttl: Option<Duration>) -> TtlAdvice {
    let (Some(worst), true) = (times.worst, times.count >= RUNS_FOR_ADVICE) else {
        return TtlAdvice::TooFew { healthy: times.count };
    };
    let (least, most) = (full(worst * 3 / 2), full(worst * 2));
    let fit = ttl.map(|ttl| match ttl {
        short if short < least => TtlFit::Short,
        long if long > most => TtlFit::Long,
        _ => TtlFit::Right,
    });
    TtlAdvice::ByHand { worst, least, most, ttl, fit }
}

/// Rounded up to seconds, or to minutes if it is longer than two of them.
fn full(time: Duration) -> Duration {
    let seconds = time.as_millis().div_ceil(1_000);
    let seconds = u64::try_from(seconds).unwrap_or(u64::MAX).max(1);
    Duration::from_secs(if seconds > 120 { seconds.div_ceil(60).saturating_mul(60) } else { seconds })
}

/// Run times in order of length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// How many there are.
    pub count: usize,
    /// Half of them took no longer than this.
    pub p50: Option<Duration>,
    /// 95 of 100 took no longer than this.
    pub p95: Option<Duration>,
    /// The longest.
    pub worst: Option<Duration>,
}

impl RunTimes {
    fn of(mut times: Vec<u32>) -> Self {
        times.sort_unstable();
        let at = |percent| quantile(&times, percent).map(|ms| Duration::from_millis(ms.into()));
        Self { count: times.len(), p50: at(50), p95: at(95), worst: at(100) }
    }
}

/// The smallest value that so many percent are not above; of a sorted list.
fn quantile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// How a TTL fits the runs of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlFit {
    /// It need not be changed.
    Right,
    /// It is longer than the job needs.
    Long,
    /// It is shorter than the job needs.
    Short,
}

impl TtlFit {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Long => "long",
            Self::Short => "short",
        }
    }
}

/// Which TTL a lease should have, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlAdvice {
    /// There are too few healthy runs to say.
    TooFew {
        /// How many there are.
        healthy: usize,
    },
    /// A run renews the lease: how long the job takes does not matter.
    Renewed {
        /// The TTL. A dead holder blocks others for that long.
        ttl: Duration,
        /// How it fits.
        fit: TtlFit,
        /// A sleep of this length loses no lease.
        survives: Duration,
        /// How many runs were lost.
        lost: u64,
    },
    /// Nothing renews the lease: the TTL must outlast the longest hold.
    ByHand {
        /// The longest healthy hold.
        worst: Duration,
        /// 1.5 times as long.
        least: Duration,
        /// Twice as long.
        most: Duration,
        /// The TTL of the present hold, if there is one.
        ttl: Option<Duration>,
        /// How it fits.
        fit: Option<TtlFit>,
    },
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
