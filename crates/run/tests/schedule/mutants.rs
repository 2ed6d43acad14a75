//! Evaluators that are broken on purpose, each in a way that a cron in use is or was. The checks must notice.

use leasehold_run::schedule::{Cron, Gap, Missed, Overlap, Policy, Schedule, Slot};

use crate::checks::{self, Evaluator, Expression, at};
use crate::oracle;
use crate::zones::{changes, zone};

/// A schedule with something wrong about it.
struct Mutant {
    /// What the other fields are measured by.
    schedule: Schedule,
    /// A second one, whose slots are mixed in.
    also: Option<Schedule>,
    /// Which slots are left out.
    without: fn(&Slot) -> bool,
    /// Which are left out on the way back only.
    without_backwards: fn(&Slot) -> bool,
    name: fn(&Slot) -> String,
}

impl Mutant {
    fn of(schedule: Schedule) -> Mutant {
        let none = |_: &Slot| false;
        Mutant { schedule, also: None, without: none, without_backwards: none, name: Slot::id }
    }
}

impl Evaluator for Mutant {
    fn next_after(&self, second: i64) -> Option<Slot> {
        let next = |schedule: &Schedule| schedule.after(at(second)).find(|slot| !(self.without)(slot));
        let also = self.also.as_ref().and_then(next);
        next(&self.schedule).into_iter().chain(also).min_by_key(Slot::number)
    }

    fn prev_at_or_before(&self, second: i64) -> Option<Slot> {
        let without = |slot: &Slot| (self.without)(slot) || (self.without_backwards)(slot);
        let last = |schedule: &Schedule| schedule.back_from(at(second)).find(|slot| !without(slot));
        let also = self.also.as_ref().and_then(last);
        last(&self.schedule).into_iter().chain(also).max_by_key(Slot::number)
    }

    fn id(&self, slot: &Slot) -> String {
        (self.name)(slot)
    }
}

const NEW_YORK: &str = "America/New_York";

fn schedule(text: &str, gap: Gap, overlap: Overlap) -> Schedule {
    Schedule::cron(Cron::parse(text).unwrap(), zone(NEW_YORK), Policy { gap, overlap })
}

fn usual(text: &str) -> Schedule {
    schedule(text, Gap::Run, Overlap::First)
}

/// What the checks say of an evaluator that claims to be this pattern, around each change of 2026 and between.
fn verdict(text: &str, evaluator: &impl Evaluator) -> Result<(), String> {
    let (zone, day) = (zone(NEW_YORK), 24 * 60);
    let (begin, end) = (20_454 * day, 20_819 * day);
    let expression = Expression::read(text);
    let middles = changes(&zone, begin, end).into_iter().map(|(at, _)| at).chain([begin + 30 * day, end]);
    for middle in middles {
        let (from, to) = (middle - 2 * day, middle + 2 * day);
        let clock = oracle::clock(&zone, from - 2 * day, to + 2 * day);
        checks::exact(evaluator, &expression.pattern, Policy::default(), &clock, (from * 60, to * 60))?;
    }
    Ok(())
}

/// The right one passes where the wrong one is caught.
fn caught(what: &str, text: &str, mutant: &impl Evaluator) {
    assert_eq!(verdict(text, &usual(text)), Ok(()), "{what}: the right one");
    let why = verdict(text, mutant).expect_err(what);
    println!("{what}: {why}");
}

#[test]
fn at_a_gap() {
    let skipped = Mutant::of(schedule("30 2 * * *", Gap::Skip, Overlap::First));
    caught("a time in the gap is lost", "30 2 * * *", &skipped);
    let as_fixed = Mutant::of(usual("0 0,2,4,6,8,10,12,14,16,18,20,22 * * *"));
    caught("a star is made up for like a fixed time", "0 */2 * * *", &as_fixed);
    let own_time = Mutant {
        also: Some(usual("30 3 8 3 *")),
        ..Mutant::of(schedule("30 2 * * *", Gap::Skip, Overlap::First))
    };
    caught("a time in the gap runs an hour later", "30 2 * * *", &own_time);
    let again = Mutant { also: Some(usual("0 3 8 3 *")), ..Mutant::of(usual("30 1 * * *")) };
    caught("a time before the gap runs again at its end", "30 1 * * *", &again);
    let rest_of_day = Mutant {
        without: |slot| slot.id().starts_with("2026-03-08") && slot.civil().hour() > 2,
        ..Mutant::of(usual("0 */2 * * *"))
    };
    caught("the rest of the day is lost", "0 */2 * * *", &rest_of_day);
    let not_back = Mutant {
        without_backwards: |slot| slot.id() == "2026-03-08T02:30-05:00",
        ..Mutant::of(usual("30 2 * * *"))
    };
    caught("not found on the way back", "30 2 * * *", &not_back);
}

#[test]
fn at_an_overlap() {
    let twice = Mutant {
        also: Some(schedule("0,30 1 * * *", Gap::Run, Overlap::Last)),
        ..Mutant::of(usual("0,30 1 * * *"))
    };
    caught("a list runs in both passes", "0,30 1 * * *", &twice);
    let late = Mutant::of(schedule("30 1 * * *", Gap::Run, Overlap::Last));
    caught("the second pass instead of the first", "30 1 * * *", &late);
    let once = Mutant::of(usual("0,30 0-23 * * *"));
    caught("a star stands still in the second pass", "*/30 * * * *", &once);
    let nameless = |slot: &Slot| slot.id()[..16].to_string();
    let same_names = Mutant { name: nameless, ..Mutant::of(usual("*/30 * * * *")) };
    caught("names without the offset", "*/30 * * * *", &same_names);
}

#[test]
fn at_days() {
    caught("Sunday is 1", "0 9 * * 1", &Mutant::of(usual("0 9 * * 0")));
    caught("both days instead of either", "0 0 1-9 * 5", &Mutant::of(usual("0 0 * * 5")));
    caught("either day instead of both", "0 0 */10 * 1", &Mutant::of(usual("0 0 1,11,21,31 * 1")));
    let short = Mutant { without: |slot| slot.civil().day() == 31, ..Mutant::of(usual("0 12 * * *")) };
    caught("months end a day early", "0 12 * * *", &short);
    caught("the last day is always the 30th", "0 12 L * *", &Mutant::of(usual("0 12 30 * *")));
    let exclusive = Mutant { without: |slot| slot.civil().hour() == 4, ..Mutant::of(usual("0 2-4 * * *")) };
    caught("a range without its end", "0 2-4 * * *", &exclusive);
}

/// Slots in the wrong order, or the same one again.
struct Stuttering(Schedule);

impl Evaluator for Stuttering {
    fn next_after(&self, second: i64) -> Option<Slot> {
        Evaluator::next_after(&self.0, second - 1)
    }

    fn prev_at_or_before(&self, second: i64) -> Option<Slot> {
        Evaluator::prev_at_or_before(&self.0, second)
    }
}

#[test]
fn in_no_order() {
    let (from, to) = (1_767_225_600, 1_769_904_000);
    assert!(checks::in_order(&usual("0 * * * *"), (from, to), true).is_ok());
    let stuttering = Stuttering(usual("0 * * * *"));
    println!("{}", checks::in_order(&stuttering, (from, to), true).unwrap_err());
    caught("the same slot again", "0 * * * *", &stuttering);
}

/// Wrong about what is made up for.
struct Forgetful {
    schedule: Schedule,
    missed: fn(&Schedule, i64, i64, usize) -> Missed,
}

impl Evaluator for Forgetful {
    fn next_after(&self, second: i64) -> Option<Slot> {
        Evaluator::next_after(&self.schedule, second)
    }

    fn prev_at_or_before(&self, second: i64) -> Option<Slot> {
        Evaluator::prev_at_or_before(&self.schedule, second)
    }

    fn missed(&self, from: i64, to: i64, newest: usize) -> Missed {
        (self.missed)(&self.schedule, from, to, newest)
    }
}

#[test]
fn at_catching_up() {
    let (from, to) = (1_767_225_600, 1_769_904_000);
    let right = |schedule: &Schedule, from, to, newest| Evaluator::missed(schedule, from, to, newest);
    type Wrong = fn(&Schedule, i64, i64, usize) -> Missed;
    let wrong: [(&str, Wrong); 5] = [
        ("the oldest instead of the newest", |schedule, from, to, newest| {
            let run: Vec<Slot> = schedule.between(from, to).into_iter().take(newest).collect();
            let dropped = Evaluator::missed(schedule, run[newest - 1].number(), to, 0).dropped;
            Missed { run, dropped }
        }),
        ("the newest first", |schedule, from, to, newest| {
            let mut missed = Evaluator::missed(schedule, from, to, newest);
            missed.run.reverse();
            missed
        }),
        ("nothing said of what is dropped", |schedule, from, to, newest| Missed {
            dropped: None,
            ..Evaluator::missed(schedule, from, to, newest)
        }),
        ("the range goes one too far", |schedule, from, to, newest| {
            let mut missed = Evaluator::missed(schedule, from, to, newest);
            if let Some(range) = &mut missed.dropped {
                range.last = missed.run[0];
            }
            missed
        }),
        ("one too few counted", |schedule, from, to, newest| {
            let mut missed = Evaluator::missed(schedule, from, to, newest);
            if let Some(range) = &mut missed.dropped {
                range.count -= 1;
            }
            missed
        }),
    ];
    let check = |missed| {
        let evaluator = Forgetful { schedule: usual("15 * * * *"), missed };
        checks::catches_up(&evaluator, from, to, 3)
    };
    assert_eq!(check(right), Ok(()));
    for (what, missed) in wrong {
        println!("{what}: {}", check(missed).expect_err(what));
    }
}
