//! Whether, in the end, every slot came to exactly one end.

use leasehold::agenda;
use leasehold::core::ledger::State;
use leasehold::core::ledger::agenda::Range;

use crate::plan::{Job, dues};
use crate::store::Turned;
use crate::turns::{Me, State as World};
use crate::watch::{JobWatch, Slot};

/// Looks once more whether nothing is left to be done about what was due by then, as an actor like any other.
pub fn last_look(me: &Me, upto: i64) {
    let (mut store, jobs) = (me.store(), me.stage.lock().plan.jobs.clone());
    let quiet = jobs.iter().all(|job| is_quiet(&mut store, job, upto));
    me.stage.lock().quiet = quiet;
}

fn is_quiet(store: &mut Turned, job: &Job, now: i64) -> bool {
    let found = agenda::read(store, &job.name).unwrap();
    let look = agenda::look(store, &job.terms(), now, agenda::Tried::Nothing).unwrap();
    let after = agenda::read(store, &job.name).unwrap();
    let closed = after.as_ref().is_some_and(|agenda| {
        agenda.open.is_empty()
            && agenda.paused.is_none()
            && agenda.dropped.iter().all(|range| !range.counting)
    });
    closed && found == after && look.start.is_empty() && !look.unsettled
}

fn terminal(state: State) -> bool {
    !matches!(state, State::Started | State::Planned)
}

/// The range that tells of a slot: the narrowest, where one was found out about within another.
fn owner(ranges: &[Range], at: i64) -> Option<&Range> {
    let covers = |range: &&Range| (range.first..=range.last).contains(&at);
    ranges.iter().filter(covers).min_by_key(|range| range.last - range.first)
}

/// What is wrong with the slots of a job up to a second.
pub fn audit(world: &World, n: usize, upto: i64) -> Option<String> {
    let job = &world.watch.jobs[n];
    let Some(agenda) = &job.agenda else { return Some("nobody has seen the job".into()) };
    for (at, slot) in &job.slots {
        let Some(entry) = &slot.entry else { continue };
        // Waved off by somebody who had slept since before its record was removed, or the schedule was changed.
        let late = entry.state == State::Skipped && (slot.swept.is_some() || !job.counts(*at));
        let excused = slot.ghost.is_some_and(|actor| world.is_excused(actor) || late);
        // It died between seeing that the slot is settled and putting its record back.
        let excused = excused || slot.overdone.is_some_and(|actor| world.is_excused(actor));
        if slot.ghost.is_some() && !excused {
            return Some(format!("{at}: its record was to be withdrawn, and says {}", entry.state.word()));
        }
        if !terminal(entry.state) && !excused {
            return Some(format!("{at}: says {} for ever", entry.state.word()));
        }
    }
    for span in &job.spans {
        for at in dues()[span.due].between(span.from, span.to.unwrap_or(upto)) {
            let slot = job.slots.get(&at).cloned().unwrap_or_default();
            let told = told(&slot) || owner(&agenda.dropped, at).is_some();
            if !told {
                return Some(format!("{at}: lost without a reason"));
            }
        }
    }
    agenda.dropped.iter().find_map(|range| miscounted(job, &agenda.dropped, range))
}

/// Whether a slot has, or had, a record of its own.
fn told(slot: &Slot) -> bool {
    slot.entry.is_some() && slot.ghost.is_none() || slot.swept.is_some()
}

fn miscounted(job: &JobWatch, all: &[Range], range: &Range) -> Option<String> {
    let same = |other: &&Range| (other.first, other.last) == (range.first, range.last);
    if all.iter().filter(same).count() != 1 {
        return Some(format!("{range:?}: there twice"));
    }
    if range.counting {
        return Some(format!("{range:?}: never counted"));
    }
    let apart = |other: &Range| other.last < range.first || other.first > range.last;
    let within = |a: &Range, b: &Range| a.first >= b.first && a.last <= b.last;
    if all.iter().any(|other| !apart(other) && !within(other, range) && !within(range, other)) {
        return Some(format!("{range:?}: overlaps another"));
    }
    let slot = |at: &i64| job.slots.get(at).cloned().unwrap_or_default();
    // One of a schedule that was replaced needs no account, and has one if somebody was at it.
    let own = |at: &i64| (job.counts(*at) || slot(at).listed) && owner(all, *at) == Some(range);
    // What was withdrawn too late, or not at all, may have been found by others, before it was counted or after:
    // it was never run, and is told twice.
    let twice = |at: &i64| told(&slot(at)) && slot(at).haunted && slot(at).begins == 0;
    let within: Vec<i64> = (range.first..=range.last).filter(own).collect();
    let least = within.iter().filter(|at| !told(&slot(at))).count() as u64;
    let most = least + within.iter().filter(|at| twice(at)).count() as u64;
    let loose = job.uncounted.contains(&(range.first, range.last)) && least <= range.count;
    let right = (least..=most).contains(&range.count) || loose;
    (!right).then(|| format!("{range:?}: {least} of them have no record"))
}
