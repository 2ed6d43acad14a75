//! What is measured: time as the store sees it, how long calls take, and what lease that allows.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold_core::human_duration::HumanDuration;
use leasehold_core::time::BootTime;
use leasehold_core::timing::{DEFAULT_TTL, StoreClock, least_ttl};

use super::checks::{ENOUGH, text, write};
use super::{Depth, Latency, Visit};
use crate::clock::{boot_time, wall};
use crate::clock_offset::ahead_of;
use crate::stores::{Clock, Failure, RemarkLevel, Store, StoreFacts, Version};

/// What people should know about their clock.
const CLOCK_OFF: Duration = Duration::from_secs(5);
/// A store that takes longer for one read is asked for less.
const FAR: Duration = Duration::from_millis(30);
/// How long anybody waits to be told of a change.
const PUSH: Duration = Duration::from_secs(2);
/// How far any clock may be off, as a share: twice what the stop rule allows, for two clocks.
const DRIFT: u32 = 500;

/// A record whose age is asked again and again while other things are looked at.
pub(super) struct Ages {
    handle: Box<dyn Store>,
    pub(super) facts: StoreFacts,
    /// Between these two it was written.
    sent: BootTime,
    acknowledged: BootTime,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy)]
struct Sample {
    asked: BootTime,
    answered: BootTime,
    age: Option<Duration>,
}

impl Ages {
    pub(super) fn begin(mut handle: Box<dyn Store>) -> Result<Self, Failure> {
        let sent = boot_time();
        write(handle.as_mut(), "record", None)?;
        let (acknowledged, facts) = (boot_time(), handle.facts());
        let mut ages = Self { handle, facts, sent, acknowledged, samples: Vec::new() };
        // Several, for one alone may be slow by chance.
        for _ in 0..3 {
            ages.sample()?;
        }
        Ok(ages)
    }

    /// Whether a call takes so long that there is no time for many.
    pub(super) fn far(&self) -> bool {
        self.samples
            .iter()
            .map(|sample| sample.answered.since(sample.asked))
            .min()
            .is_some_and(|best| best > FAR)
    }

    pub(super) fn sample(&mut self) -> Result<(), Failure> {
        let asked = boot_time();
        let stored = pollster::block_on(self.handle.read("record"))?;
        // A record that vanished is what other examinations are about.
        let age = stored.and_then(|stored| stored.age);
        self.samples.push(Sample { asked, answered: boot_time(), age });
        Ok(())
    }

    /// Looks on until the clock must have moved, then says what was seen.
    pub(super) fn judge(mut self, visit: &mut Visit<'_>) -> Result<(), Failure> {
        visit.begin("age");
        let resolution = self.facts.resolution;
        let until = self.acknowledged.plus(resolution * 2 + Duration::from_millis(50));
        let between = (resolution / 20).max(Duration::from_millis(5));
        let (tight, more) = (self.samples.len(), if self.far() { 3 } else { 8 });
        while boot_time() < until || self.samples.len() < tight + more {
            visit.corner.pause(between);
            self.sample()?;
        }
        let again = self.begins_again()?;
        let (verdict, text) = match self.fault().or(again) {
            Some(fault) => (RemarkLevel::Unsafe, fault),
            None if self.facts.clock == Clock::Observed => (
                RemarkLevel::Weak,
                "the store knows no time: an abandoned lease is taken over only after it was watched for a full TTL"
                    .into(),
            ),
            None => self.steps(visit, tight),
        };
        visit.found("age", verdict, text);
        Ok(())
    }

    /// A renewal must begin a new age, or a lease that is kept would end all the same.
    fn begins_again(&mut self) -> Result<Option<String>, Failure> {
        let stored = pollster::block_on(self.handle.read("record"))?;
        let sent = boot_time();
        write(self.handle.as_mut(), "record", stored.map(|stored| stored.version).as_ref())?;
        let renewed = pollster::block_on(self.handle.read("record"))?.and_then(|stored| stored.age);
        let most = boot_time().since(sent);
        let early =
            renewed.filter(|age| *age > most + most / DRIFT + self.facts.resolution + self.facts.jump);
        Ok(early.map(|age| {
            format!(
                "a record renewed {} ago is said to be {} old: leases would end early",
                text(most),
                text(age)
            )
        }))
    }

    fn fault(&self) -> Option<String> {
        let slack = self.facts.resolution + self.facts.jump;
        let told: Vec<(Sample, Duration)> = self.samples.iter().filter_map(|s| Some((*s, s.age?))).collect();
        if self.facts.clock == Clock::Observed {
            return (!told.is_empty())
                .then(|| "the store declares that it knows no age, and tells one".into());
        }
        if told.len() < self.samples.len() {
            return Some("the store declares a clock and does not always tell an age".into());
        }
        let (first, last) = (told.first()?.1, told.last()?.1);
        if told.iter().all(|(_, age)| *age == first) {
            return Some(format!("an age stands still at {}: leases would never end", text(last)));
        }
        let back = told.windows(2).find(|pair| pair[1].1 + slack < pair[0].1);
        if let Some([(_, before), (_, after)]) = back {
            return Some(format!("an age went back from {} to {}", text(*before), text(*after)));
        }
        for (sample, age) in &told {
            let most = sample.answered.since(self.sent);
            if *age > most + most / DRIFT + slack {
                let (age, most) = (text(*age), text(most));
                return Some(format!(
                    "a record written {most} ago is said to be {age} old: leases would end early"
                ));
            }
            let least = sample.asked.since(self.acknowledged);
            if *age + least / DRIFT + slack + Duration::from_millis(1) < least {
                let (age, least) = (text(*age), text(least));
                return Some(format!(
                    "a record written {least} ago is said to be {age} old: the age stands still or goes back"
                ));
            }
        }
        None
    }

    /// How coarse the age is, against what was declared.
    fn steps(&self, visit: &mut Visit<'_>, tight: usize) -> (RemarkLevel, String) {
        let mut ages: Vec<Duration> = self.samples.iter().filter_map(|s| s.age).collect();
        ages.sort_unstable();
        let step = ages.windows(2).map(|pair| pair[1] - pair[0]).filter(|step| !step.is_zero()).min();
        let gaps = self.samples[tight..].windows(2).map(|pair| pair[1].asked.since(pair[0].asked));
        let gap = gaps.min().unwrap_or_default();
        let (step, declared) = (step.unwrap_or_default(), self.facts.resolution);
        visit.diagnosis.figures.resolution = Some(step);
        if step > declared + gap * 3 + Duration::from_millis(1) {
            let (step, declared) = (text(step), text(declared));
            return (
                RemarkLevel::Unsafe,
                format!(
                    "ages move in steps of {step}, coarser than the {declared} declared: leases would end early"
                ),
            );
        }
        let coarse = if declared.is_zero() { String::new() } else { format!(", to {}", text(declared)) };
        (RemarkLevel::Good, format!("moves forward by the store's own clock{coarse}"))
    }
}

/// How long a read and a conditional write take; gives the slow end of both.
pub(super) fn latency(visit: &mut Visit<'_>, ages: &mut Ages) -> Result<Duration, Failure> {
    let (count, patience) = match visit.depth {
        Depth::Full => (60, Duration::from_millis(1_200)),
        Depth::Probe | Depth::Quick => (10, Duration::from_millis(400)),
    };
    let patience = patience.min(visit.begun.plus(ENOUGH).since(boot_time()));
    visit.begin("latency");
    let mut handle = visit.corner.handle("latency");
    let mut version: Option<Version> = None;
    let (mut writes, mut ahead) = (Vec::new(), None);
    let until = boot_time().plus(patience);
    for n in 0..count {
        if n >= 5 && boot_time() >= until {
            break;
        }
        // Where writes of one key must be apart, each gets a key of its own.
        let apart = !ages.facts.spacing.is_zero();
        let key = if apart { format!("record-{n}") } else { "record".into() };
        let (before, sent) = (wall(), boot_time());
        let (written, store_time) = write(handle.as_mut(), &key, version.as_ref())?;
        let took = boot_time().since(sent);
        writes.push(took);
        version = (!apart).then_some(written);
        ahead = store_time.and_then(|at| ahead_of(at, before + took / 2));
    }
    let mut reads = Vec::new();
    let until = boot_time().plus(patience);
    while reads.len() < count && (reads.len() < 5 || boot_time() < until) {
        let sent = boot_time();
        pollster::block_on(handle.read("record"))?;
        reads.push(boot_time().since(sent));
    }
    let (read, cas) = (percentiles(reads), percentiles(writes));
    visit.diagnosis.figures.read = Some(read);
    visit.diagnosis.figures.cas = Some(cas);
    let line = format!(
        "read {} p50, {} p99; write {} p50, {} p99",
        text(read.p50),
        text(read.p99),
        text(cas.p50),
        text(cas.p99)
    );
    visit.found("latency", RemarkLevel::Good, line);
    if let Some(ahead) = ahead {
        clock(visit, ahead);
    }
    ages.sample()?;
    Ok(read.p99.max(cas.p99))
}

fn percentiles(mut times: Vec<Duration>) -> Latency {
    times.sort_unstable();
    let at = |share: usize| times.get((times.len() * share).div_ceil(100).saturating_sub(1)).copied();
    Latency { p50: at(50).unwrap_or_default(), p99: at(99).unwrap_or_default() }
}

/// This machine's wall clock beside the store's.
fn clock(visit: &mut Visit<'_>, ahead_ms: i64) {
    visit.diagnosis.figures.clock_ahead_ms = Some(ahead_ms);
    let apart = Duration::from_millis(ahead_ms.unsigned_abs());
    let resolution = visit.diagnosis.facts.as_ref().map_or(Duration::ZERO, |facts| facts.resolution);
    if apart <= Duration::from_secs(1) + resolution {
        visit.found("clock", RemarkLevel::Good, "this machine and the store agree about the time");
        return;
    }
    let way = if ahead_ms > 0 { "ahead of" } else { "behind" };
    let verdict = if apart >= CLOCK_OFF { RemarkLevel::Weak } else { RemarkLevel::Good };
    let line = format!(
        "this machine's clock is {} {way} the store's: no effect on leases, only on what people read",
        HumanDuration(apart)
    );
    visit.found("clock", verdict, line);
}

/// Whether waiters are told, as the store says, and how soon.
pub(super) fn push(visit: &mut Visit<'_>) -> Result<(), Failure> {
    if !visit.diagnosis.facts.as_ref().is_some_and(|facts| facts.pushes) {
        visit.found(
            "push",
            RemarkLevel::Good,
            "waiters are not told of changes: they ask again, at growing distances",
        );
        return Ok(());
    }
    visit.begin("push");
    let mut writer = visit.corner.handle("push");
    let (mut version, _) = write(writer.as_mut(), "record", None)?;
    let mut told = Vec::new();
    for _ in 0..3 {
        let mut waiter = visit.corner.handle("push");
        // So that the waiter is connected, as one is that has asked before.
        pollster::block_on(waiter.read("record"))?;
        let (ready, started) = mpsc::channel();
        let seen = version.clone();
        let waiting = thread::spawn(move || {
            let _ = ready.send(());
            let changed = pollster::block_on(waiter.wait_change("record", Some(&seen), PUSH));
            changed.then(boot_time)
        });
        let _ = started.recv();
        // A moment for the waiter to begin: one that was told before it waits measures nothing.
        visit.corner.pause(Duration::from_millis(30));
        let next = write(writer.as_mut(), "record", Some(&version));
        let written = boot_time();
        let heard = waiting.join().ok().flatten();
        version = next?.0;
        told.extend(heard.map(|heard| heard.since(written)));
    }
    told.sort_unstable();
    let middle = told.get(told.len() / 2).copied().filter(|_| told.len() > 1);
    visit.diagnosis.figures.push = middle;
    match middle {
        Some(middle) => {
            let line = format!("waiters are told of a change {} after it", text(middle));
            visit.found("push", RemarkLevel::Good, line);
        }
        None => {
            let line = format!(
                "a waiter was not told of a change within {}: waiters poll instead",
                HumanDuration(PUSH)
            );
            visit.found("push", RemarkLevel::Weak, line);
        }
    }
    Ok(())
}

/// The shortest lease for which a slow call, twice over, still leaves one renewal to spare.
pub(super) fn ttl(visit: &mut Visit<'_>, worst: Duration) {
    let Some(facts) = &visit.diagnosis.facts else { return };
    let clock = StoreClock { resolution: facts.resolution, jump: facts.jump };
    let least = least_ttl(worst * 2, clock);
    visit.diagnosis.figures.least_ttl = least;
    let (verdict, line) = match least.map(rounded) {
        Some(least) if least <= DEFAULT_TTL => {
            let default = HumanDuration(DEFAULT_TTL);
            (
                RemarkLevel::Good,
                format!("from {} on; the default of {default} leaves room", HumanDuration(least)),
            )
        }
        Some(least) => {
            (RemarkLevel::Weak, format!("use --ttl {} or more: calls are slow here", HumanDuration(least)))
        }
        None => (
            RemarkLevel::Weak,
            format!("calls take up to {}, too long for any lease to be renewed in time", text(worst)),
        ),
    };
    visit.found("ttl", verdict, line);
}

/// Up to whole seconds where they do not matter.
fn rounded(ttl: Duration) -> Duration {
    match ttl.as_millis() {
        0..2_000 => ttl,
        millis => Duration::from_secs(u64::try_from(millis.div_ceil(1_000)).unwrap_or(u64::MAX)),
    }
}
