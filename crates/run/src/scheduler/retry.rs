//! Which slot of a job a scheduler starts next, and when: by what it has tried before. No clock, no store, no process.

use std::collections::BTreeMap;

use super::{Millis, SchedulerMode};
use crate::handoff::{NotBegun, SlotOutcome};
use crate::job_records::{SlotToStart, Tried};

/// A slot is tried again after this long, then after twice as long, and so on.
const AGAIN_MS: Millis = 1_000;
/// … up to this.
const AGAIN_MOST_MS: Millis = 60_000;
/// How often `tick` tries a slot, without waiting in between.
const TRIES_AT_ONCE: u32 = 3;

/// What one scheduler has tried of one job.
#[derive(Debug)]
pub struct Retry {
    /// Slots that were tried.
    slots: BTreeMap<i64, Tries>,
    /// Runs in a row that did not start their slot. Mostly the lease was held: the other slots would find it held too.
    held: Tries,
    /// The last run did not start its slot, and no run of the job would until somebody acts.
    hopeless: bool,
    /// The last run was of a slot that has a record: the next is of one that has none.
    had_record: bool,
    last: Tried,
}

/// How often something was tried, and when it may be tried again.
#[derive(Clone, Copy, Debug)]
struct Tries {
    count: u32,
    again: Millis,
}

impl Tries {
    const NONE: Tries = Tries { count: 0, again: Millis::MIN };

    fn one_more(self, now: Millis) -> Self {
        let wait = (AGAIN_MS << self.count.min(6)).min(AGAIN_MOST_MS);
        Self { count: self.count + 1, again: now + wait }
    }
}

impl Default for Retry {
    fn default() -> Self {
        let (slots, last) = (BTreeMap::new(), Tried::Nothing);
        Self { slots, held: Tries::NONE, hopeless: false, had_record: false, last }
    }
}

impl Retry {
    /// The slot that was tried last.
    pub fn last(&self) -> Tried {
        self.last
    }

    /// The slot to start now; or when one may be started, if at all. The oldest comes first, but slots that have a record
    /// take turns with the others. A slot that is `put_off` comes after all that are not. `skips`: see
    /// [`crate::job_records::Terms::skips`].
    pub fn choose<'s>(
        &self,
        offered: &'s [SlotToStart],
        skips: bool,
        mode: SchedulerMode,
        now: Millis,
        put_off: impl Fn(&SlotToStart) -> bool,
    ) -> Result<&'s SlotToStart, Option<Millis>> {
        let not_before = |start: &SlotToStart| self.not_before(start, skips, mode);
        let ready = || offered.iter().filter(|start| not_before(start).is_some_and(|at| at <= now));
        let at_once = || ready().filter(|start| !put_off(start));
        let other = at_once().find(|start| !start.again).filter(|_| self.had_record);
        let chosen = other.or_else(|| at_once().next()).or_else(|| ready().next());
        chosen.ok_or_else(|| offered.iter().filter_map(not_before).min())
    }

    /// When a slot may be tried; `None`: not any more.
    fn not_before(&self, start: &SlotToStart, skips: bool, mode: SchedulerMode) -> Option<Millis> {
        // A slot that gives way is tried once, even if others found the lease held.
        let held = if start.free || skips { Tries::NONE } else { self.held };
        let own = self.slots.get(&start.slot.number()).copied().unwrap_or(Tries::NONE);
        let over =
            mode == SchedulerMode::Once && (own.count >= TRIES_AT_ONCE || held.count > 0 || self.hopeless);
        (!over).then_some(own.again.max(held.again))
    }

    /// A run of this slot was started.
    pub fn started(&mut self, start: &SlotToStart) {
        self.had_record = start.again;
    }

    /// A slot was tried, and may have to be tried again. Gives when it may be.
    pub fn tried(&mut self, at: i64, now: Millis) -> Millis {
        let tries = self.slots.get(&at).copied().unwrap_or(Tries::NONE).one_more(now);
        self.slots.insert(at, tries);
        self.last = Tried::This(at);
        self.slots.retain(|_, tries| now - tries.again < 10 * AGAIN_MOST_MS);
        tries.again
    }

    /// A run of this slot has ended.
    pub fn ended(&mut self, at: i64, outcome: SlotOutcome, now: Millis) {
        self.tried(at, now);
        let not_begun = match outcome {
            SlotOutcome::Begun(_) => None,
            SlotOutcome::NotBegun(why) => Some(why),
        };
        self.hopeless = not_begun == Some(NotBegun::InVain);
        if let Some(tries) = self.slots.get_mut(&at)
            && matches!(not_begun, Some(NotBegun::InVain | NotBegun::NeedsYou))
        {
            *tries = Tries { count: TRIES_AT_ONCE.max(tries.count), again: now + AGAIN_MOST_MS };
        }
        self.held = if not_begun.is_none() { Tries::NONE } else { self.held.one_more(now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Slot;

    const NOW: Millis = 1_800_000_000_000;

    fn start(at: i64) -> SlotToStart {
        SlotToStart { slot: Slot::due_at(at).unwrap(), late: false, again: false, free: false }
    }

    #[test]
    fn the_end_of_a_run_decides_when_a_slot_is_tried_again() {
        let (this, other) = (start(60), start(120));
        // When that slot and another one may be tried: by a daemon, and by a tick.
        let again = |outcome| {
            let mut retry = Retry::default();
            retry.ended(60, outcome, NOW);
            let wait =
                |start, mode| retry.not_before(start, false, mode).map(|at| at.saturating_sub(NOW).max(-1));
            [&this, &other].map(|start| (wait(start, SchedulerMode::Stays), wait(start, SchedulerMode::Once)))
        };
        let (soon, late) = (Some(AGAIN_MS), Some(AGAIN_MOST_MS));
        assert_eq!(again(SlotOutcome::Begun(None)), [(soon, soon), (Some(-1), Some(-1))]);
        for why in [NotBegun::Skipped, NotBegun::Failed] {
            assert_eq!(again(SlotOutcome::NotBegun(why)), [(soon, None), (soon, None)], "{why:?}");
        }
        for why in [NotBegun::NeedsYou, NotBegun::InVain] {
            assert_eq!(again(SlotOutcome::NotBegun(why)), [(late, None), (soon, None)], "{why:?}");
        }
    }

    #[test]
    fn slots_with_a_record_take_turns_with_the_others() {
        let offered = [SlotToStart { again: true, ..start(60) }, start(120), start(180)];
        let mut retry = Retry::default();
        let chosen = |retry: &Retry, put_off: i64| {
            let put_off = |start: &SlotToStart| start.slot.number() == put_off;
            let chosen = retry.choose(&offered, false, SchedulerMode::Stays, NOW, put_off);
            chosen.map(|start| start.slot.number())
        };
        assert_eq!(chosen(&retry, 0), Ok(60));
        assert_eq!(chosen(&retry, 60), Ok(120));
        retry.started(&offered[0]);
        assert_eq!(chosen(&retry, 0), Ok(120));
        retry.started(&offered[1]);
        assert_eq!(chosen(&retry, 0), Ok(60));
        retry.ended(60, SlotOutcome::NotBegun(NotBegun::Skipped), NOW);
        assert_eq!(chosen(&retry, 0), Err(Some(NOW + AGAIN_MS)));
    }
}
