//! What must hold of an evaluator. Generic, so that a broken one can be put in the place of ours.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold_run::schedule::{Cron, Missed, Policy, Schedule, Slot};

use crate::oracle::{self, Pattern, Shown};

/// A slot as both sides can tell of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    /// In Unix seconds.
    pub due: i64,
    /// What the wall clock shows in its name, in minutes since 1970-01-01 00:00 there.
    pub local: i64,
    /// The offset in its name, in seconds.
    pub offset: i64,
}

impl Fired {
    /// The name, put together anew.
    pub fn id(&self) -> String {
        let shown = jiff::tz::Offset::UTC.to_datetime(Timestamp::from_second(self.local * 60).unwrap());
        let ahead = (self.offset / 60).abs();
        let sign = if self.offset < 0 { '-' } else { '+' };
        format!("{}{sign}{:02}:{:02}", shown.strftime("%Y-%m-%dT%H:%M"), ahead / 60, ahead % 60)
    }
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An evaluator under test: ours, or one that is broken on purpose.
pub trait Evaluator {
    fn next_after(&self, second: i64) -> Option<Slot>;
    fn prev_at_or_before(&self, second: i64) -> Option<Slot>;

    /// Slots that are due after `from`, up to and with `to`.
    fn between(&self, from: i64, to: i64) -> Vec<Slot> {
        let mut found = Vec::new();
        let mut last = from;
        while let Some(slot) = self.next_after(last).filter(|slot| slot.number() <= to) {
            found.push(slot);
            if slot.number() <= last {
                break; // A checker will say so.
            }
            last = slot.number();
        }
        found
    }

    /// The same, from the last to the first.
    fn back(&self, from: i64, to: i64) -> Vec<Slot> {
        let mut found = Vec::new();
        let mut last = to;
        while let Some(slot) = self.prev_at_or_before(last).filter(|slot| slot.number() > from) {
            found.push(slot);
            if slot.number() > last {
                break;
            }
            last = slot.number() - 1;
        }
        found
    }

    fn id(&self, slot: &Slot) -> String {
        slot.id()
    }

    fn count(&self, from: i64, to: i64) -> u64 {
        self.between(from, to).len() as u64
    }

    fn missed(&self, _from: i64, _to: i64, _newest: usize) -> Missed {
        Missed::default()
    }
}

impl Evaluator for Schedule {
    fn next_after(&self, second: i64) -> Option<Slot> {
        Schedule::next_after(self, at(second))
    }

    fn prev_at_or_before(&self, second: i64) -> Option<Slot> {
        Schedule::prev_at_or_before(self, at(second))
    }

    fn between(&self, from: i64, to: i64) -> Vec<Slot> {
        self.after(at(from)).take_while(|slot| slot.number() <= to).collect()
    }

    fn back(&self, from: i64, to: i64) -> Vec<Slot> {
        self.back_from(at(to)).take_while(|slot| slot.number() > from).collect()
    }

    fn count(&self, from: i64, to: i64) -> u64 {
        Schedule::count(self, at(from), at(to))
    }

    fn missed(&self, from: i64, to: i64, newest: usize) -> Missed {
        Schedule::missed(self, at(from), at(to), newest, None)
    }
}

/// A pattern for the evaluator and for the oracle.
pub struct Expression {
    pub text: String,
    pub cron: Cron,
    pub pattern: Pattern,
}

impl Expression {
    pub fn read(text: &str) -> Expression {
        let cron = Cron::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        Expression { text: text.into(), cron, pattern: Pattern::read(text) }
    }

    pub fn schedule(&self, zone: &TimeZone, policy: Policy) -> Schedule {
        Schedule::cron(self.cron.clone(), zone.clone(), policy)
    }
}

fn fired(slot: &Slot) -> Fired {
    let local = jiff::tz::Offset::UTC.to_timestamp(slot.civil()).unwrap().as_second() / 60;
    Fired { due: slot.number(), local, offset: slot.utc_offset() }
}

fn told(slots: &[String]) -> String {
    slots.iter().take(8).cloned().collect::<Vec<_>>().join(" ")
}

/// Within the clock, less a day at either end: exactly what is due, by the right names; the same backwards,
/// and by number.
pub fn exact(
    evaluator: &impl Evaluator,
    pattern: &Pattern,
    policy: Policy,
    clock: &[Shown],
    (from, to): (i64, i64),
) -> Result<usize, String> {
    let mut should = oracle::due(pattern, policy, clock);
    should.retain(|slot| slot.due > from && slot.due <= to);
    let does = evaluator.between(from, to);
    let found: Vec<Fired> = does.iter().map(fired).collect();
    if found != should {
        let should: Vec<String> = should.iter().map(|f| format!("{}@{}", f.id(), at(f.due))).collect();
        let found: Vec<String> = found.iter().map(|f| format!("{}@{}", f.id(), at(f.due))).collect();
        let first = should.iter().zip(&found).take_while(|(a, b)| a == b).count();
        return Err(format!(
            "{} due, {} found, from number {first} on: due {}; found {}",
            should.len(),
            found.len(),
            told(&should[first..]),
            told(&found[first..])
        ));
    }
    // Writing a name takes far longer than finding it: all in the middle, where the change is, and some others.
    let middle = from + (to - from) / 2;
    for (n, (slot, does)) in should.iter().zip(&does).enumerate() {
        if ((slot.due - middle).abs() < 2 * 3600 || n % 16 == 0) && evaluator.id(does) != slot.id() {
            return Err(format!("{} is called {}", slot.id(), evaluator.id(does)));
        }
    }
    if evaluator.count(from, to) != should.len() as u64 {
        return Err(format!("{} due, {} counted", should.len(), evaluator.count(from, to)));
    }
    backwards(evaluator, &does, (from, to))?;
    Ok(should.len())
}

/// The same slots backwards.
fn backwards(evaluator: &impl Evaluator, slots: &[Slot], (from, to): (i64, i64)) -> Result<(), String> {
    let mut back = evaluator.back(from, to);
    back.reverse();
    if back == slots {
        return Ok(());
    }
    let only = |some: &[Slot], others: &[Slot]| {
        told(&some.iter().filter(|s| !others.contains(s)).map(Slot::id).collect::<Vec<_>>())
    };
    Err(format!("only forwards: {}; only backwards: {}", only(slots, &back), only(&back, slots)))
}

/// Over any stretch of time: slots come in order, and if that is asked, no name twice. Returns how many.
pub fn in_order(evaluator: &impl Evaluator, (from, to): (i64, i64), names: bool) -> Result<usize, String> {
    let slots = evaluator.between(from, to);
    let mut seen = std::collections::HashSet::new();
    let mut last = from;
    for slot in &slots {
        if slot.number() <= last {
            return Err(format!("{slot} is not after {}", at(last)));
        }
        last = slot.number();
        if names && !seen.insert((slot.civil(), slot.utc_offset())) {
            return Err(format!("{slot} comes twice"));
        }
    }
    Ok(slots.len())
}

/// Of an outage: the newest are run, the oldest of them first, and the rest is told of as one range.
pub fn catches_up(evaluator: &impl Evaluator, from: i64, to: i64, newest: usize) -> Result<(), String> {
    let all = evaluator.between(from, to);
    let Missed { run, dropped } = evaluator.missed(from, to, newest);
    let split = all.len().saturating_sub(newest);
    if run != all[split..] {
        return Err(format!("runs {}", told(&run.iter().map(Slot::id).collect::<Vec<_>>())));
    }
    match (dropped, &all[..split]) {
        (None, []) => Ok(()),
        (Some(range), [first, .., last]) | (Some(range), [first @ last])
            if range.first == *first && range.last == *last && range.count == split as u64 =>
        {
            Ok(())
        }
        (range, _) => Err(format!("{split} dropped, but told {range:?}")),
    }
}
