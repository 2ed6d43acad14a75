//! Checks that every slot came to exactly one end.

use leasehold::core::ledger::ItemState;
use leasehold::core::ledger::job_record::DroppedRange;
use leasehold_run::job_records;

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
    let found = job_records::read(store, &job.name).unwrap();
    let look = job_records::due_now(store, &job.terms(), now, job_records::Tried::Nothing).unwrap();
    let after = job_records::read(store, &job.name).unwrap();
    let closed = after.as_ref().is_some_and(|job_record| {
        job_record.open.is_empty()
            && job_record.paused.is_none()
            && job_record.dropped.iter().all(|range| !range.counting)
    });
    closed && found == after && look.start.is_empty() && !look.unsettled
}

fn terminal(state: ItemState) -> bool {
    !matches!(state, ItemState::Started | ItemState::Planned)
}

/// What is wrong with the slots of a job up to a second.
pub fn audit(world: &World, n: usize, upto: i64) -> Option<String> {
    let job = &world.watch.jobs[n];
    let Some(job_record) = &job.job_record else { return Some("nobody has seen the job".into()) };
    for (at, slot) in &job.slots {
        let Some(entry) = &slot.entry else { continue };
        if job_record.is_void(*at) && (slot.begins > 0 || !slot.haunted) {
            return Some(format!(
                "{at}: what its record says counts for nothing, and was {}",
                entry.state.word()
            ));
        }
        // Skipped by a scheduler that had slept since before its record was removed, or the schedule was changed.
        let late = entry.state == ItemState::Skipped && (slot.swept.is_some() || !job.counts(*at));
        // Its actor died before it removed the record. That record does not count if the slot was dropped.
        let void = job_record.is_void(*at) || job_record.range_of(*at).is_none();
        let excused = slot.ghost.is_some_and(|actor| world.is_excused(actor) && void || late);
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
            let told = told(&slot) || job_record.range_of(at).is_some();
            if !told {
                return Some(format!("{at}: lost without a reason"));
            }
        }
    }
    clusters(&job_record.dropped).iter().find_map(|ranges| miscounted(job, ranges))
}

/// Whether a slot has, or had, a record of its own.
fn told(slot: &Slot) -> bool {
    slot.entry.is_some() && slot.ghost.is_none() || slot.swept.is_some()
}

/// Ranges that have slots in common: where a slot that seemed to be begun was not, it has one of its own.
fn clusters(ranges: &[DroppedRange]) -> Vec<Vec<DroppedRange>> {
    let mut all: Vec<Vec<DroppedRange>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.iter().any(|before| before.last >= range.first) => last.push(*range),
            _ => all.push(vec![*range]),
        }
    }
    all
}

/// Whether each slot in these ranges that has no record is counted once.
fn miscounted(job: &JobWatch, ranges: &[DroppedRange]) -> Option<String> {
    if ranges.iter().any(|range| range.counting) {
        return Some(format!("{ranges:?}: never counted"));
    }
    let count: u64 = ranges.iter().map(|range| range.count).sum();
    let (first, last) = (ranges[0].first, ranges.iter().map(|range| range.last).max()?);
    let slot = |at: &i64| job.slots.get(at).cloned().unwrap_or_default();
    // What was withdrawn too late, or not at all, may have been found by others, before it was counted or after:
    // it was never run, and is told twice.
    let haunted = |at: &i64| slot(at).haunted && slot(at).begins == 0;
    // And one that somebody asked for again who then stood still until its record was old, and removed.
    let asked_late = |at: &i64| slot(at).swept.is_some() && slot(at).listed;
    let twice = |at: &i64| told(&slot(at)) && (haunted(at) || asked_late(at));
    // One of a schedule that was replaced needs no account, and has one if somebody was at it.
    let within: Vec<i64> = (first..=last).filter(|at| job.counts(*at) || slot(at).listed).collect();
    let least = within.iter().filter(|at| !told(&slot(at))).count() as u64;
    let most = least + within.iter().filter(|at| twice(at)).count() as u64;
    // They were not counted before the schedule was replaced.
    let loose = ranges.iter().any(|range| job.uncounted.contains(&(range.first, range.last)));
    let right = (least..=most).contains(&count) || loose && least <= count;
    (!right).then(|| format!("{ranges:?}: {least} of them have no record"))
}
