//! A time for which no slot is recorded: the runs around it.

use super::super::past_runs::PastRun;
use super::super::times::{local_text, slot_at, utc};
use crate::messages::why as say;

/// The runs that ended last before this second and first after it. `runs` are in order.
pub fn around(runs: &[PastRun], at: i64) -> &[PastRun] {
    let time = utc(at);
    let after = runs.iter().position(|run| run.when > time).unwrap_or(runs.len());
    &runs[after.saturating_sub(1)..runs.len().min(after + 1)]
}

/// How far the records reach.
///
/// `oldest`: the oldest run that is kept, if one is; `slots`: whether runs of this name are for slots.
pub fn reach(name: &str, time: &str, at: i64, oldest: Option<&PastRun>, slots: bool) -> String {
    let shown = slot_at(time, at);
    let kept = match oldest {
        None if slots => None,
        None => Some(say::none_kept(name, shown)),
        Some(oldest) if utc(at) < oldest.when => {
            Some(say::kept_later(name, shown, 8, local_text(&oldest.when)))
        }
        Some(oldest) => Some(say::kept(name, local_text(&oldest.when), shown)),
    };
    let (first, advice) = match slots {
        true => (say::no_such_slot(name, time), None),
        false => (say::no_slots(name), Some(say::keep_slots())),
    };
    let sentences = [Some(first), kept, Some(say::not_kept()), advice];
    sentences.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
