//! A time at which no slot is recorded: what is known of the runs around it.

use leasehold::core::history::MOST;

use super::super::job_status;
use super::super::past_runs::PastRun;

/// The runs that ended last before this second and first after it. `runs` are in order.
pub fn around(runs: &[PastRun], at: i64) -> &[PastRun] {
    let time = job_status::time(at);
    let after = runs.iter().position(|run| run.when > time).unwrap_or(runs.len());
    &runs[after.saturating_sub(1)..runs.len().min(after + 1)]
}

/// How far the records reach.
///
/// `oldest`: the oldest run that is kept, if one is; `slots`: whether runs of this name are for slots.
pub fn reach(name: &str, time: &str, at: i64, oldest: Option<&PastRun>, slots: bool) -> String {
    let unrecorded = "A run that found the lease held leaves no record, nor does one with --no-history.";
    let began = match slots {
        true => format!("no run with --slot {time} of {name} has begun. "),
        false => String::new(),
    };
    let kept = match oldest {
        None if slots => String::new(),
        None => format!("whether {name} ran at {time} is not known: no run of it is kept. "),
        Some(oldest) if job_status::time(at) < oldest.when => format!(
            "whether {name} ran at {time} is not known: the last {MOST} runs are kept, and the oldest of them ended at {}. ",
            oldest.when
        ),
        Some(oldest) => {
            format!("runs of {name} are kept since {}, and no other around {time}. ", oldest.when)
        }
    };
    format!("{began}{kept}{unrecorded}")
}
