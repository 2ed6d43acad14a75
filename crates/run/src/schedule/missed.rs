//! Which missed slots are run after an outage.

use std::time::Duration;

use jiff::Timestamp;

use super::{Schedule, Slot};

/// The slots of an outage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// To run now, the oldest first.
    pub run: Vec<Slot>,
    /// Dropped; all are older than those that are run.
    pub dropped: Option<Dropped>,
}

/// A range of dropped slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The oldest.
    pub first: Slot,
    /// The newest.
    pub last: Slot,
    /// How many there are, with both.
    pub count: u64,
}

impl Schedule {
    /// Of the slots after `from`, up to and including `to`: at most `newest` slots that were due at most `max_age` before
    /// `to`, and the range of the others. Takes time and memory only for those that are run.
    pub fn missed(&self, from: Timestamp, to: Timestamp, newest: usize, max_age: Option<Duration>) -> Missed {
        let oldest = max_age.map_or(Timestamp::MIN, |age| to.checked_sub(age).unwrap_or(Timestamp::MIN));
        let still_wanted = |slot: &Slot| slot.due() > from && slot.due() >= oldest;
        let mut run: Vec<Slot> = self.back_from(to).take(newest).take_while(still_wanted).collect();
        run.reverse();
        let end = match run.first() {
            // Slots are whole seconds apart.
            Some(first) => Timestamp::from_second(first.number() - 1).unwrap_or(Timestamp::MIN),
            None => to,
        };
        Missed { run, dropped: self.range(from, end) }
    }

    /// The slots after `from`, up to and including `to`, as a range.
    fn range(&self, from: Timestamp, to: Timestamp) -> Option<Dropped> {
        let first = self.next_after(from).filter(|slot| slot.due() <= to)?;
        let last = self.prev_at_or_before(to)?;
        Some(Dropped { first, last, count: self.count(from, to) })
    }
}
