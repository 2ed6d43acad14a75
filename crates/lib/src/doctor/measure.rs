//! Measurements: the ages that the store gives, how long calls take, and the shortest TTL that they allow.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold_core::human_duration::HumanDuration;
use leasehold_core::time::BootTime;
use leasehold_core::timing::{DEFAULT_TTL, least_ttl};

use super::checks::{Check, ENOUGH, text, write};
use super::messages as say;
use super::{Depth, Latency, Visit};
use crate::clock::{boot_time, wall};
use crate::clock_offset::ahead_of;
use crate::stores::{Clock, Failure, RemarkLevel, Store, StoreFacts, Version};

/// From this difference on the clock is reported as weak.
const CLOCK_OFF: Duration = Duration::from_secs(5);
/// A store that takes longer for one read gets fewer calls.
const FAR: Duration = Duration::from_millis(30);
/// How long a waiter waits for the notice of a change.
const PUSH: Duration = Duration::from_secs(2);
/// The share by which two clocks may differ: twice what the stop rule allows for one.
const DRIFT: u32 = 500;

/// A record whose age is sampled between the other checks.
pub(super) struct Ages {
    handle: Box<dyn Store>,
    pub(super) facts: StoreFacts,
    /// The record was written between these two.
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
        // Several, because one alone may be slow by chance.
        for _ in 0..3 {
            ages.sample()?;
        }
        Ok(ages)
    }

    /// Whether calls take too long to make many.
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
        // Other checks find a record that vanished.
        let age = stored.and_then(|stored| stored.age);
        self.samples.push(Sample { asked, answered: boot_time(), age });
        Ok(())
    }

    /// Samples until the clock must have moved, then reports.
    pub(super) fn judge(mut self, visit: &mut Visit<'_>) -> Result<(), Failure> {
        visit.begin(Check::Age);
        let resolution = self.facts.resolution;
        let until = self.acknowledged.plus(resolution * 2 + Duration::from_millis(50));
        let between = (resolution / 20).max(Duration::from_millis(5));
        let (tight, more) = (self.samples.len(), if self.far() { 3 } else { 8 });
        while boot_time() < until || self.samples.len() < tight + more {
            visit.scratch.pause(between);
            self.sample()?;
        }
        let again = self.begins_again()?;
        let (verdict, text) = match self.fault().or(again) {
            Some(fault) => (RemarkLevel::Unsafe, fault),
            None if self.facts.clock == Clock::Observed => (RemarkLevel::Weak, say::no_age()),
            None => self.steps(visit, tight),
        };
        visit.found(Check::Age, verdict, text);
        Ok(())
    }

    /// A renewal must restart the age, or a lease that is renewed would expire all the same.
    fn begins_again(&mut self) -> Result<Option<String>, Failure> {
        let stored = pollster::block_on(self.handle.read("record"))?;
        let sent = boot_time();
        write(self.handle.as_mut(), "record", stored.map(|stored| stored.version).as_ref())?;
        let renewed = pollster::block_on(self.handle.read("record"))?.and_then(|stored| stored.age);
        let most = boot_time().since(sent);
        let early =
            renewed.filter(|age| *age > most + most / DRIFT + self.facts.resolution + self.facts.jump);
        Ok(early.map(|age| say::renewed_too_old(text(most), text(age))))
    }

    fn fault(&self) -> Option<String> {
        let slack = self.facts.resolution + self.facts.jump;
        let told: Vec<(Sample, Duration)> = self.samples.iter().filter_map(|s| Some((*s, s.age?))).collect();
        if self.facts.clock == Clock::Observed {
            return (!told.is_empty()).then(say::undeclared_age);
        }
        if told.len() < self.samples.len() {
            return Some(say::missing_age());
        }
        let (first, last) = (told.first()?.1, told.last()?.1);
        if told.iter().all(|(_, age)| *age == first) {
            return Some(say::age_stands(text(last)));
        }
        let back = told.windows(2).find(|pair| pair[1].1 + slack < pair[0].1);
        if let Some([(_, before), (_, after)]) = back {
            return Some(say::age_went_back(text(*before), text(*after)));
        }
        for (sample, age) in &told {
            let most = sample.answered.since(self.sent);
            if *age > most + most / DRIFT + slack {
                return Some(say::too_old(text(most), text(*age)));
            }
            let least = sample.asked.since(self.acknowledged);
            if *age + least / DRIFT + slack + Duration::from_millis(1) < least {
                return Some(say::too_young(text(least), text(*age)));
            }
        }
        None
    }

    /// Compares the steps of the age with the declared resolution.
    fn steps(&self, visit: &mut Visit<'_>, tight: usize) -> (RemarkLevel, String) {
        let mut ages: Vec<Duration> = self.samples.iter().filter_map(|s| s.age).collect();
        ages.sort_unstable();
        let step = ages.windows(2).map(|pair| pair[1] - pair[0]).filter(|step| !step.is_zero()).min();
        let gaps = self.samples[tight..].windows(2).map(|pair| pair[1].asked.since(pair[0].asked));
        let gap = gaps.min().unwrap_or_default();
        let (step, declared) = (step.unwrap_or_default(), self.facts.resolution);
        visit.diagnosis.figures.resolution = Some(step);
        if step > declared + gap * 3 + Duration::from_millis(1) {
            return (RemarkLevel::Unsafe, say::coarse_age(text(step), text(declared)));
        }
        let coarse = if declared.is_zero() { String::new() } else { say::age_step(text(declared)) };
        (RemarkLevel::Good, say::age(coarse))
    }
}

/// Measures reads and conditional writes; gives the slower p99 of the two.
pub(super) fn latency(visit: &mut Visit<'_>, ages: &mut Ages) -> Result<Duration, Failure> {
    let (count, patience) = match visit.depth {
        Depth::Full => (60, Duration::from_millis(1_200)),
        Depth::Probe | Depth::Quick => (10, Duration::from_millis(400)),
    };
    let patience = patience.min(visit.started.plus(ENOUGH).since(boot_time()));
    visit.begin(Check::Latency);
    let mut handle = visit.scratch.handle("latency");
    let mut version: Option<Version> = None;
    let (mut writes, mut ahead) = (Vec::new(), None);
    let until = boot_time().plus(patience);
    for n in 0..count {
        if n >= 5 && boot_time() >= until {
            break;
        }
        // Where a store limits the writes of one key, each write gets its own key.
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
    let line = say::latency(text(read.p50), text(read.p99), text(cas.p50), text(cas.p99));
    visit.found(Check::Latency, RemarkLevel::Good, line);
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

/// Compares this machine's wall clock with the store's.
fn clock(visit: &mut Visit<'_>, ahead_ms: i64) {
    visit.diagnosis.figures.clock_ahead_ms = Some(ahead_ms);
    let apart = Duration::from_millis(ahead_ms.unsigned_abs());
    let resolution = visit.diagnosis.facts.as_ref().map_or(Duration::ZERO, |facts| facts.resolution);
    if apart <= Duration::from_secs(1) + resolution {
        visit.found(Check::Clock, RemarkLevel::Good, say::clock_agrees());
        return;
    }
    let verdict = if apart >= CLOCK_OFF { RemarkLevel::Weak } else { RemarkLevel::Good };
    let apart = HumanDuration(apart);
    let line = if ahead_ms > 0 { say::clock_ahead(apart) } else { say::clock_behind(apart) };
    visit.found(Check::Clock, verdict, line);
}

/// Whether waiters are told of changes, if the store declares it, and how soon.
pub(super) fn push(visit: &mut Visit<'_>) -> Result<(), Failure> {
    if !visit.diagnosis.facts.as_ref().is_some_and(|facts| facts.pushes) {
        visit.found(Check::Push, RemarkLevel::Good, say::no_push());
        return Ok(());
    }
    visit.begin(Check::Push);
    let mut writer = visit.scratch.handle("push");
    let (mut version, _) = write(writer.as_mut(), "record", None)?;
    let mut told = Vec::new();
    for _ in 0..3 {
        let mut waiter = visit.scratch.handle("push");
        // Connects the waiter first, so that the figure does not contain the time for that.
        pollster::block_on(waiter.read("record"))?;
        let (ready, started) = mpsc::channel();
        let seen = version.clone();
        let waiting = thread::spawn(move || {
            let _ = ready.send(());
            let changed = pollster::block_on(waiter.wait_change("record", Some(&seen), PUSH));
            changed.then(boot_time)
        });
        let _ = started.recv();
        // Time for the waiter to wait: a write before that measures nothing.
        visit.scratch.pause(Duration::from_millis(30));
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
        Some(middle) => visit.found(Check::Push, RemarkLevel::Good, say::push(text(middle))),
        None => visit.found(Check::Push, RemarkLevel::Weak, say::push_missed(HumanDuration(PUSH))),
    }
    Ok(())
}

/// The shortest TTL with which one renewal may fail even if calls take twice as long as the slowest measured one.
pub(super) fn ttl(visit: &mut Visit<'_>, worst: Duration) {
    let Some(facts) = &visit.diagnosis.facts else { return };
    let least = least_ttl(worst * 2, facts.store_clock());
    visit.diagnosis.figures.least_ttl = least;
    let (verdict, line) = match least.map(rounded) {
        Some(least) if least <= DEFAULT_TTL => {
            (RemarkLevel::Good, say::ttl(HumanDuration(least), HumanDuration(DEFAULT_TTL)))
        }
        Some(least) => (RemarkLevel::Weak, say::ttl_longer(HumanDuration(least))),
        None => (RemarkLevel::Weak, say::no_ttl(text(worst))),
    };
    visit.found(Check::Ttl, verdict, line);
}

/// Rounded up to whole seconds from two seconds on.
fn rounded(ttl: Duration) -> Duration {
    match ttl.as_millis() {
        0..2_000 => ttl,
        millis => Duration::from_secs(u64::try_from(millis.div_ceil(1_000)).unwrap_or(u64::MAX)),
    }
}
