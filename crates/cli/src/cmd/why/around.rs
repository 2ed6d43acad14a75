//! A time for which no slot is recorded: what the run log can say about it.

use std::time::Duration;

use leasehold::clock;

use super::super::times::slot_at;
use super::kept_for;
use crate::messages::why as say;

/// How far the records reach.
///
/// `found`: records around this second are shown; `slots`: whether runs of this name are for slots; `kept`: how long records
/// are kept.
pub fn reach(name: &str, time: &str, at: i64, found: bool, slots: bool, kept: Option<Duration>) -> String {
    let shown = slot_at(time, at);
    let asked = Duration::from_secs(u64::try_from(at).unwrap_or(0));
    let over = kept.is_some_and(|age| clock::wall().saturating_sub(asked) > age);
    let answer = match (over, found) {
        (true, _) => say::too_old(name, shown, kept_for(kept)),
        (false, true) => say::nearest(name, shown),
        (false, false) => say::none_kept(name, shown, kept_for(kept)),
    };
    let (first, advice) = match slots {
        true => (say::no_such_slot(name, time), None),
        false => (say::no_slots(name), Some(say::keep_slots())),
    };
    [Some(first), Some(answer), advice].into_iter().flatten().collect::<Vec<_>>().join(" ")
}
