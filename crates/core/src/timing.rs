//! When the job must be dead: the stop rule, and the settings that it allows.
//!
//! A lease lasts `ttl` of store time from the moment at which the store applied a renewal. The holder
//! counts from the moment at which it *sent* the renewal, which is earlier. Its clock does not stop
//! while the machine sleeps. The TTL is scaled for drift and reduced by the largest step of the store's
//! clock, so the holder's time always ends first. The time that a kill needs is taken off that.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::time::Duration;

use crate::human_duration::HumanDuration;
use crate::time::BootTime;

/// Largest rate error of any clock, in parts per million.
pub const DRIFT_PPM: u64 = 1_000;
/// Shortest TTL that can be asked for.
pub const TTL_MIN: Duration = Duration::from_millis(500);
/// Longest TTL that can be asked for.
pub const TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The least time between two heartbeats and the deadline: a store call and a kill must fit in.
const SLACK_MIN: Duration = Duration::from_millis(50);

/// The settings that a user can give. The others follow from the TTL and the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TimingWishes {
    /// How long a lease lasts after its last renewal.
    pub ttl: Option<Duration>,
    /// Time between renewals.
    pub heartbeat: Option<Duration>,
    /// Time between TERM and KILL.
    pub grace: Option<Duration>,
}

/// The limits of a store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreClock {
    /// How coarse ages are.
    pub resolution: Duration,
    /// Largest forward step plus largest difference between its clocks (`J`).
    pub jump: Duration,
}

/// Checked timing of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// How long a lease lasts after its last renewal (`T`).
    pub ttl: Duration,
    /// Time between renewals (`I`).
    pub heartbeat: Duration,
    /// Time between TERM and KILL (`G`).
    pub grace: Duration,
    /// Time for the kill itself, and for the kernel to schedule this process (`K`).
    pub margin: Duration,
    /// How long one store call may take (`r`).
    pub timeout: Duration,
    /// The limits of the store's clock.
    pub clock: StoreClock,
}

/// The default TTL, from the articles that Leasehold is based on.
pub const DEFAULT_TTL: Duration = Duration::from_secs(90);
const DEFAULT_GRACE: Duration = Duration::from_secs(5);
const DEFAULT_MARGIN: Duration = Duration::from_secs(1);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The error for settings that leave too little time, with the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTiming(String);

impl fmt::Display for BadTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for BadTiming {}

/// `x (1 - p) / (1 + p)`: the part of `x` that is left if both clocks are off by `p`.
fn scaled(x: Duration) -> Duration {
    let nanos = x.as_nanos() * u128::from(1_000_000 - DRIFT_PPM) / u128::from(1_000_000 + DRIFT_PPM);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Timing {
    /// Fills in the missing settings and checks that one renewal may fail without loss: two heartbeats and
    /// one store call must fit in before the job has to be stopped.
    pub fn new(wishes: TimingWishes, clock: StoreClock) -> Result<Self, BadTiming> {
        let ttl = wishes.ttl.unwrap_or(DEFAULT_TTL);
        if ttl < TTL_MIN || ttl > TTL_MAX {
            return Err(BadTiming(format!(
                "a ttl of {} is outside {}..{}",
                HumanDuration(ttl),
                HumanDuration(TTL_MIN),
                HumanDuration(TTL_MAX)
            )));
        }
        let heartbeat = wishes.heartbeat.unwrap_or(ttl / 3);
        if heartbeat.is_zero() || heartbeat > TTL_MAX {
            return Err(BadTiming(format!("a heartbeat of {} is not possible", HumanDuration(heartbeat))));
        }
        let too_long = |grace: &Duration| *grace > TTL_MAX;
        if let Some(grace) = wishes.grace.filter(too_long) {
            return Err(BadTiming(format!("a grace of {} is longer than any lease", HumanDuration(grace))));
        }
        let timing = Self::filled(ttl, wishes, clock);
        if timing.fits() { Ok(timing) } else { Err(timing.does_not_fit(wishes)) }
    }

    /// Checks that the store accepts writes as often as the heartbeat makes them. `spacing`: the least time
    /// between two writes of one record.
    pub fn with_spacing(self, spacing: Duration) -> Result<Self, BadTiming> {
        let least = spacing * 10;
        if self.ttl >= least && self.heartbeat >= spacing {
            return Ok(self);
        }
        Err(BadTiming(format!(
            "a ttl of {} with a heartbeat of {} is too short: the store limits how often one record may be written. \
             Make the ttl at least {} and the heartbeat at least {}",
            HumanDuration(self.ttl),
            HumanDuration(self.heartbeat),
            HumanDuration(least),
            HumanDuration(spacing),
        )))
    }

    /// Settings that the user did not give follow from the TTL.
    fn filled(ttl: Duration, wishes: TimingWishes, clock: StoreClock) -> Self {
        let heartbeat = wishes.heartbeat.unwrap_or(ttl / 3);
        let slack = scaled(ttl.saturating_sub(clock.jump)).saturating_sub(heartbeat * 2);
        // Shares of the slack: 2/5 grace, 1/5 kill margin, 2/5 one store call; each capped.
        let margin = DEFAULT_MARGIN.min(slack / 5);
        let grace = wishes.grace.unwrap_or(DEFAULT_GRACE.min(slack * 2 / 5));
        let timeout = DEFAULT_TIMEOUT.min(slack.saturating_sub(grace + margin));
        Self { ttl, heartbeat, grace, margin, timeout, clock }
    }

    fn fits(&self) -> bool {
        let slack = scaled(self.ttl.saturating_sub(self.clock.jump)).saturating_sub(self.heartbeat * 2);
        slack >= SLACK_MIN && self.timeout >= SLACK_MIN / 5
    }

    fn does_not_fit(&self, wishes: TimingWishes) -> BadTiming {
        let jump = match self.clock.jump {
            Duration::ZERO => String::new(),
            jump => format!(" less {} for the store's clock", HumanDuration(jump)),
        };
        let enough = first(|ttl| Self::filled(ttl, wishes, self.clock).fits()).map_or_else(
            || "Shorten the heartbeat or the grace".into(),
            |ttl| {
                // Rounded up to a tenth of a second, as it is shown.
                let tenths = u64::try_from(ttl.as_millis().div_ceil(100)).unwrap_or(u64::MAX);
                let ttl = Duration::from_millis(tenths.saturating_mul(100));
                format!("Make the ttl at least {}, or shorten the heartbeat or the grace", HumanDuration(ttl))
            },
        );
        let stopping = self.grace + self.margin;
        let why = match stopping {
            Duration::ZERO => {
                format!("two heartbeats of {} leave no time to stop the job", HumanDuration(self.heartbeat))
            }
            _ => format!(
                "two heartbeats of {} and {} to stop the job do not fit",
                HumanDuration(self.heartbeat),
                HumanDuration(stopping)
            ),
        };
        BadTiming(format!("a ttl of {}{jump} is too short: {why}. {enough}", HumanDuration(self.ttl)))
    }

    /// How long after a confirmed write was sent the job must be told to stop: `D - s`.
    pub fn trusted_for(&self) -> Duration {
        scaled(self.ttl.saturating_sub(self.clock.jump)).saturating_sub(self.grace + self.margin)
    }

    /// When the job must be told to stop (`D`), if the last confirmed write was sent at `sent`.
    pub fn stop_at(&self, sent: BootTime) -> BootTime {
        sent.plus(self.trusted_for())
    }

    /// A job starts only if at least this time is left until `D`; otherwise a renewal comes first. The run
    /// must survive one call without an answer and one late answer.
    pub fn least_to_start(&self) -> Duration {
        (self.timeout * 2).min(self.trusted_for() / 2)
    }

    /// Whether the store's clock ran ahead of ours by more than its limits, between two confirmed writes.
    pub fn store_ran_ahead(&self, store_elapsed: Duration, ours_elapsed: Duration) -> bool {
        let most = ours_elapsed + ours_elapsed * (2 * DRIFT_PPM as u32) / 1_000_000;
        store_elapsed > most + self.clock.jump + self.clock.resolution
    }
}

/// The shortest TTL whose default settings leave the time `call` for one store call. None if no TTL does: a
/// call never gets more than a few seconds.
pub fn least_ttl(call: Duration, clock: StoreClock) -> Option<Duration> {
    first(|ttl| {
        let timing = Timing::filled(ttl, TimingWishes::default(), clock);
        timing.fits() && timing.timeout >= call
    })
}

/// The shortest TTL that works, found by bisection: a longer TTL never leaves less time.
fn first(works: impl Fn(Duration) -> bool) -> Option<Duration> {
    let works = |millis: u64| works(Duration::from_millis(millis));
    let (mut low, mut high) = (TTL_MIN.as_millis() as u64, TTL_MAX.as_millis() as u64);
    if !works(high) {
        return None;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if works(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(Duration::from_millis(high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn with_ttl(ttl: Duration) -> TimingWishes {
        TimingWishes { ttl: Some(ttl), ..TimingWishes::default() }
    }

    #[test]
    fn the_defaults_are_the_articles() {
        let t = Timing::new(TimingWishes::default(), StoreClock::default()).unwrap();
        assert_eq!((t.ttl, t.heartbeat, t.grace, t.margin), (secs(90), secs(30), secs(5), secs(1)));
        assert!(t.trusted_for() < secs(84) && t.trusted_for() > secs(83));
    }

    #[test]
    fn one_renewal_may_always_fail() {
        for jump in [0, 1, 3] {
            let clock = StoreClock { jump: secs(jump), resolution: secs(jump.min(1)) };
            for millis in (500..120_000).step_by(250) {
                let Ok(t) = Timing::new(with_ttl(Duration::from_millis(millis)), clock) else {
                    continue;
                };
                assert!(t.heartbeat * 2 + t.timeout <= t.trusted_for() + Duration::from_nanos(10), "{t:?}");
                assert!(t.trusted_for() + t.grace + t.margin + t.clock.jump < t.ttl, "{t:?}");
            }
        }
    }

    #[test]
    fn short_ttls_work_by_scaling_the_grace() {
        let t = Timing::new(with_ttl(TTL_MIN), StoreClock::default()).unwrap();
        assert!(t.grace > Duration::from_millis(40) && t.margin > Duration::from_millis(20), "{t:?}");
    }

    #[test]
    fn impossible_settings_are_refused_with_numbers() {
        let wishes = TimingWishes { ttl: Some(secs(10)), grace: Some(secs(5)), ..TimingWishes::default() };
        let error = Timing::new(wishes, StoreClock::default()).unwrap_err().to_string();
        assert!(error.contains("ttl of 10s") && error.contains("5.6s to stop the job"), "{error}");
        let three = StoreClock { jump: secs(3), resolution: secs(2) };
        assert!(Timing::new(with_ttl(secs(8)), three).is_err());
        let wishes = TimingWishes { heartbeat: Some(secs(60)), ..TimingWishes::default() };
        assert!(Timing::new(wishes, StoreClock::default()).is_err());
        for odd in [Duration::ZERO, Duration::MAX] {
            let wishes = TimingWishes { heartbeat: Some(odd), ..TimingWishes::default() };
            assert!(Timing::new(wishes, StoreClock::default()).is_err());
        }
        let wishes = TimingWishes { grace: Some(Duration::MAX), ..TimingWishes::default() };
        assert!(Timing::new(wishes, StoreClock::default()).is_err());
        assert!(Timing::new(with_ttl(secs(0)), StoreClock::default()).is_err());
        assert!(Timing::new(with_ttl(secs(3_000_000_000)), StoreClock::default()).is_err());
    }

    #[test]
    fn what_the_error_says_is_enough_really_is() {
        let wishes = TimingWishes { ttl: Some(secs(30)), heartbeat: Some(secs(10)), grace: Some(secs(15)) };
        let error = Timing::new(wishes, StoreClock::default()).unwrap_err().to_string();
        assert!(error.contains("at least 36.1s"), "{error}");
        let wishes = TimingWishes { ttl: Some(Duration::from_millis(36_100)), ..wishes };
        assert!(Timing::new(wishes, StoreClock::default()).is_ok(), "{error}");
        // Also if no time, or nearly none, is left for the job.
        for (ttl, heartbeat) in [(2_000, 1_000), (2_030, 1_000), (40_000, 20_000), (600, 400)] {
            let heartbeat = Some(Duration::from_millis(heartbeat));
            let wishes = TimingWishes { ttl: Some(Duration::from_millis(ttl)), heartbeat, grace: None };
            let error = Timing::new(wishes, StoreClock::default()).unwrap_err().to_string();
            assert!(!error.contains(" 0s"), "{error}");
            let enough = error.split("at least ").nth(1).and_then(|rest| rest.split_once(','));
            let enough = enough.unwrap().0;
            let ttl = match enough.strip_suffix("ms") {
                Some(millis) => millis.parse().map(Duration::from_millis).unwrap(),
                None => Duration::from_secs_f64(enough.strip_suffix('s').unwrap().parse().unwrap()),
            };
            let wishes = TimingWishes { ttl: Some(ttl), ..wishes };
            assert!(Timing::new(wishes, StoreClock::default()).is_ok(), "{error}");
        }
        // The heartbeat follows from the TTL, so it is another one for the TTL that is suggested.
        let far = StoreClock { jump: secs(3), resolution: secs(0) };
        let error = Timing::new(with_ttl(secs(8)), far).unwrap_err().to_string();
        assert!(error.contains("at least 9.2s"), "{error}");
        assert!(Timing::new(with_ttl(Duration::from_millis(9_200)), far).is_ok(), "{error}");
        assert!(Timing::new(with_ttl(Duration::from_millis(9_100)), far).is_err(), "{error}");
    }

    #[test]
    fn a_store_that_limits_writes_needs_a_longer_lease() {
        let timing = |ttl, heartbeat| {
            let wishes = TimingWishes { heartbeat: Some(secs(heartbeat)), ..with_ttl(secs(ttl)) };
            Timing::new(wishes, StoreClock::default()).unwrap()
        };
        assert!(timing(9, 1).with_spacing(Duration::ZERO).is_ok());
        assert!(timing(10, 1).with_spacing(secs(1)).is_ok());
        let error = timing(9, 1).with_spacing(secs(1)).unwrap_err().to_string();
        assert!(error.contains("at least 10s and the heartbeat at least 1s"), "{error}");
        assert!(timing(20, 1).with_spacing(secs(2)).is_err(), "the heartbeat is too short");
    }

    #[test]
    fn the_least_ttl_works_and_one_less_does_not() {
        for jump in [0, 1, 3] {
            let clock = StoreClock { jump: secs(jump), resolution: secs(jump.min(1)) };
            for call in [0, 1, 5, 80, 700, 3_000, 5_000].map(Duration::from_millis) {
                let least = least_ttl(call, clock).unwrap();
                let timing = Timing::new(with_ttl(least), clock).unwrap();
                assert!(timing.timeout >= call, "{timing:?}");
                let less = Timing::new(with_ttl(least - Duration::from_millis(1)), clock);
                assert!(less.is_err() || less.is_ok_and(|t| t.timeout < call), "{least:?}");
            }
            assert_eq!(least_ttl(secs(6), clock), None);
        }
        assert_eq!(least_ttl(Duration::ZERO, StoreClock::default()), Some(TTL_MIN));
    }
}
