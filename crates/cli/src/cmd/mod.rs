//! One file per command; each returns the exit code. What they share is here.

pub mod adopt;
pub mod break_;
pub mod daemon;
pub mod demo;
pub mod dispatch;
pub mod doctor;
pub mod fence;
pub mod gate;
pub mod guard;
pub mod help;
pub mod history;
pub mod item_args;
pub mod job_status;
pub mod manual;
pub mod once;
pub mod other_stores;
pub mod past_runs;
pub mod pause;
pub mod plan;
pub mod push;
pub mod read;
pub mod retry;
pub mod run;
#[cfg(feature = "http")]
pub mod serve;
pub mod status;
pub mod step;
pub mod target_args;
pub mod times;
pub mod use_;
pub mod why;
pub mod write;

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use leasehold::backends::{self, Holders};
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::name::Name;
use leasehold::core::record::BadRecord;
use leasehold::core::rules::Refusal;
use leasehold::core::session::{Busy, NotStarted, Within};
use leasehold::core::store::{Failure, FailureKind};
use leasehold::core::timing::{Timing, TimingWishes};
use leasehold::doctor::{FirstUse, FirstUseNotes, Tell};
use leasehold::host::{self, Enclosing};
use leasehold::messages::Explanation;
use leasehold::seen_tokens::SeenTokens;
use leasehold::state::{StateDir, is_denial};
use leasehold::stores::Store;
use leasehold_run::runner;
use leasehold_run::runner::signals::signal_number;
use leasehold_run::runner::tree_types::Survivor;

use crate::args::Everywhere;
use crate::config::{self, Chosen, Missing};
use crate::exit::{FailKind, Failed};
use crate::out::Out;

/// The runs around this process, and the lease that the script around it took by hand.
pub fn within() -> Within {
    let by_hand = Enclosing::from_env(|name| std::env::var(name).ok());
    Within { runs: host::outer_runs(), grant: by_hand.map(|outer| outer.grant) }
}

/// Whether a store is that of the run we are in, as far as that says.
pub fn is_on_the_runs_store(shown: &str) -> bool {
    std::env::var(leasehold_run::runner::environment::RUN_STORE).map_or(true, |its| its == shown)
}

/// A lease name from the command line.
pub fn name(text: &str) -> Result<Name, Failed> {
    Name::new(text).map_err(|e| Failed::usage(e.to_string()))
}

/// Checked timing for this store.
pub fn timing(wishes: TimingWishes, store: &dyn Store) -> Result<Timing, Failed> {
    leasehold::stores::timing(wishes, store).map_err(|e| Failed::usage(format!("{e}. Nothing was run.")))
}

/// The store, opened, with what this host remembers about it.
pub struct OpenedStore {
    /// Which store.
    pub chosen: Chosen,
    /// The store itself.
    pub store: Box<dyn Store>,
    /// This host's memory of it.
    pub memory: SeenTokens,
    /// Where this user keeps state.
    pub state: StateDir,
}

/// Chooses and opens the store; `leases` must not have run on another one if nobody named any.
pub fn open(flags: &Everywhere, leases: &[Name]) -> Result<OpenedStore, Failed> {
    open_for(flags, leases, Holders::Here)
}

/// The same for those who hold leases there.
pub fn open_for(flags: &Everywhere, leases: &[Name], holders: Holders) -> Result<OpenedStore, Failed> {
    let state = config::state_dir()?;
    let chosen = config::choose(flags, &state)?;
    let memory = SeenTokens::new(state.clone(), chosen.shown.clone());
    let out = Out::new(flags);
    for lease in leases {
        config::refuse_wrong_store(&chosen, &memory, lease, &out)?;
    }
    let store = config::open_for(&chosen, Missing::Refuse, holders)?;
    if let Some(ignored) = backends::ignored(&chosen.url) {
        out.note(&ignored);
    }
    Ok(OpenedStore { chosen, store, memory, state })
}

/// The same for whoever is going to take a lease: a store that machines share must have shown, to this user
/// on this machine, that it compares and sets.
pub fn open_tested(flags: &Everywhere, leases: &[Name]) -> Result<OpenedStore, Failed> {
    tested(open(flags, leases)?, flags)
}

/// The store, once it has shown that.
pub fn tested(opened: OpenedStore, flags: &Everywhere) -> Result<OpenedStore, Failed> {
    if opened.store.facts().this_machine_only {
        return Ok(opened);
    }
    let OpenedStore { chosen, store, memory, state } = opened;
    let notes = FirstUseNotes::new(&state, &chosen.url, &chosen.shown);
    let out = Out::new(flags);
    let silence = SlowStoreNotice::begin(&out, &chosen);
    let tell: Tell = Arc::new(move |text: &str| out.note(text));
    let begun = FirstUse::begin(store, config::examined_opener(&chosen), notes, tell);
    drop(silence);
    let store = begun.map_err(|failure| {
        let message = failure.message.trim_end_matches('.');
        by_kind(failure.kind, format!("{message} ({}). Nothing was run.", chosen.shown))
    })?;
    Ok(OpenedStore { chosen, store, memory, state })
}

/// A lease that is about to be asked for on a store that somebody named is noted first: what this machine cannot
/// remember it cannot protect later. Once per lease and store.
pub fn enrol(opened: &OpenedStore, leases: &[Name]) -> Result<(), Failed> {
    if opened.chosen.embedded {
        return Ok(());
    }
    let shared = !opened.store.facts().this_machine_only;
    leases.iter().try_for_each(|lease| {
        opened.memory.enrol(lease, shared).map_err(|e| {
            let message = format!(
                "this machine cannot note in {} that {lease} is kept on {}: {e}. Nothing was run: without the note a \
                 run on a wrong store, or after the record vanished, would not be refused. Make room or give the \
                 rights there, or set XDG_STATE_HOME to a directory of your own",
                opened.memory.place(lease),
                opened.chosen.shown
            );
            let kind = if is_denial(&e) { FailKind::Denied } else { FailKind::Config };
            Failed::new(kind, "state", message)
        })
    })
}

/// Says what no longer holds when something could not be remembered. The embedded store is in the same place and
/// says so itself.
pub fn forgetful(memory: &SeenTokens, chosen: &Chosen, out: &Out) {
    if let Some(trouble) = memory.trouble().filter(|_| !chosen.embedded) {
        out.warn(&format!(
            "this machine could not remember the lease ({trouble}). Until it can, it does not notice if the record \
             vanishes or the store is rewound below this run. Make room there"
        ));
    }
}

/// Says, where somebody watches, that a store is silent for long.
pub struct SlowStoreNotice {
    /// Nothing is sent: the end of it ends the waiting.
    _end: Option<Sender<()>>,
}

impl SlowStoreNotice {
    /// From now on, until it is dropped.
    pub fn begin(out: &Out, chosen: &Chosen) -> Self {
        if !out.chatty() {
            return Self { _end: None };
        }
        let (end, ended) = mpsc::channel::<()>();
        let (out, text) = (out.hurried(), format!("no answer yet from {}; still waiting", chosen.shown));
        let said = move || {
            if ended.recv_timeout(LONG) == Err(mpsc::RecvTimeoutError::Timeout) {
                out.chat(&text);
            }
        };
        // Without it, it stays silent: that is all.
        let _ = std::thread::Builder::new().name("silence".into()).spawn(said);
        Self { _end: Some(end) }
    }
}

/// After this long a word is due.
const LONG: Duration = Duration::from_secs(3);

/// "held by mac-mini/8123 (token 42) for 38s, lease ends in 71s if not renewed"
pub fn held_by(busy: &Busy) -> String {
    let holder = &busy.holder;
    let since = held_for(&holder.since).filter(|d| !d.is_zero());
    let since = since.map(|d| format!(" for {}", HumanDuration(d))).unwrap_or_default();
    let ends = match busy.ends_in {
        Some(left) => format!("lease ends in {} if not renewed", HumanDuration(left)),
        None => format!("it can be taken over once it has not changed for {}", HumanDuration(busy.ttl)),
    };
    let a_run_here = busy.evident && holder.host == host::name();
    let orphans = if a_run_here { runner::orphans(holder.pid, &holder.run) } else { Vec::new() };
    let left = match &orphans[..] {
        [] => String::new(),
        left => format!(
            "; its wrapper was killed, but {} of its job is still alive, and keeps the lease until then: wait, or end it",
            names(left)
        ),
    };
    format!("held by {}/{} (token {}){since}, {ends}{left}", holder.host, holder.pid, busy.token)
}

/// The first few, by number and command.
pub fn names(processes: &[Survivor]) -> String {
    const MOST: usize = 8;
    let named = processes.iter().take(MOST).map(|s| match s.command.is_empty() {
        true => format!("process {}", s.pid),
        false => format!("{} ({})", s.pid, s.command),
    });
    let mut names: Vec<String> = named.collect();
    // Gone before it could be asked for its name.
    if names.is_empty() {
        names.push("a process without a name".into());
    }
    if processes.len() > MOST {
        names.push(format!("{} more", processes.len() - MOST));
    }
    names.join(", ")
}

/// How long ago a holder says it was granted, by wall clocks; for people only.
pub fn held_for(since: &str) -> Option<Duration> {
    let since: jiff::Timestamp = since.parse().ok()?;
    let since = Duration::from_secs(u64::try_from(since.as_second()).ok()?);
    leasehold::clock::wall().checked_sub(since).map(|d| Duration::from_secs(d.as_secs()))
}

/// What a claim without an answer can come to.
const LATE: &str = " A claim may still land: the lease may then stay busy until it expires.";

/// What was wanted of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// To run something.
    Run,
    /// To have it, by hand.
    Take,
}

/// A job that was not started, or a lease that was not taken, as a failure.
pub fn not_started(why: &NotStarted, chosen: &Chosen, lease: &Name, aim: Aim) -> Failed {
    match why {
        NotStarted::Store { failure, in_doubt } => {
            let late = if *in_doubt { LATE } else { "" };
            let nothing = match aim {
                Aim::Run => {
                    format!("Nothing was run: without the store two machines could run {lease} at once.")
                }
                Aim::Take => format!("{lease} was not taken."),
            };
            let message = failure.message.trim_end_matches('.');
            let message = format!("{message} ({}). {nothing}{late}", chosen.shown);
            by_kind(failure.kind, message)
        }
        NotStarted::Refused { lease, refusal } => refused(lease, refusal, &chosen.shown),
        NotStarted::Seal { why, .. } => {
            Failed::new(FailKind::Unreachable, "seal_failed", format!("{why}. Nothing was run."))
        }
        NotStarted::Item => Failed::new(FailKind::Unreachable, "item", format!("{why}. Nothing was run.")),
        NotStarted::Interrupted { signal, in_doubt } => {
            let code = 128 + signal_number(*signal);
            let mut message = match aim {
                Aim::Run => "interrupted before anything was run".into(),
                Aim::Take => format!("interrupted; {lease} was not taken"),
            };
            if *in_doubt {
                message.push('.');
                message.push_str(LATE);
            }
            Failed::new(FailKind::Interrupted(code), "interrupted", message)
        }
    }
}

pub fn by_kind(kind: FailureKind, told: impl Into<Explanation>) -> Failed {
    match kind {
        FailureKind::Unreachable => Failed::new(FailKind::Unreachable, "store_unreachable", told),
        FailureKind::Denied => Failed::new(FailKind::Denied, "denied", told),
        FailureKind::Unusable => Failed::new(FailKind::Config, "store_unusable", told),
    }
}

/// What time it is by the wall.
pub fn now() -> jiff::Timestamp {
    let wall = leasehold::clock::wall();
    let seconds = i64::try_from(wall.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::new(seconds, wall.subsec_nanos().cast_signed()).unwrap_or(jiff::Timestamp::MAX)
}

/// A store failure outside of any run.
pub fn store_failed(failure: &Failure, chosen: &Chosen) -> Failed {
    by_kind(failure.kind, format!("{} ({})", failure.message.trim_end_matches('.'), chosen.shown))
}

/// A change by hand that the store did not confirm; `sent`: it may have taken effect, or may yet.
pub fn unconfirmed(failure: &Failure, sent: bool, lease: &Name, chosen: &Chosen) -> Failed {
    let failed = store_failed(failure, chosen);
    if !sent {
        return failed;
    }
    let doubt = "The change was sent and not confirmed: it may have been made, or may yet be made";
    Failed {
        told: Explanation::parts(failed.told.what, doubt, format!("See: leasehold status {lease}")),
        ..failed
    }
}

/// A store whose content must not be acted on.
fn refused(lease: &Name, refusal: &Refusal, store: &str) -> Failed {
    let needs_you = |word, message| Failed::new(FailKind::NeedsYou, word, message);
    match refusal {
        Refusal::Bad(bad) => bad_record(lease, bad, store),
        Refusal::Behind { seen, found } => needs_you(
            "store_rewound",
            format!(
                "{store} says token {found} for {lease}, but this machine has seen {seen}: the store was \
                 rewound (restored from a backup, or it lost writes). Nothing was run: tokens would repeat. \
                 Find out what happened to the store; when no job of {lease} runs any more: leasehold adopt {lease}"
            ),
        ),
        Refusal::Vanished { seen } => needs_you(
            "record_vanished",
            format!(
                "{store} has no record of {lease}, but this machine has seen token {seen} there: the record \
                 was deleted, or this is another store under the same name. Nothing was run: a holder may \
                 still be working under the lost record. When no job of {lease} runs any more: leasehold adopt {lease}"
            ),
        ),
        Refusal::Returned { token } => needs_you(
            "store_rewound",
            format!(
                "{store} brought back a claim of this run on {lease} (token {token}) that somebody had replaced since: \
                 the store was rewound (it lost writes, or was restored). Nothing was run, and whoever had replaced \
                 it is stopped. Find out what happened to the store; the next run may start when that claim has run out"
            ),
        ),
        Refusal::Exhausted => needs_you(
            "tokens_exhausted",
            format!("{lease} has used up its tokens (2^53 - 1). Nothing was run. Use another lease name"),
        ),
    }
}

/// A record that must not be acted on.
pub fn bad_record(lease: &Name, bad: &BadRecord, store: &str) -> Failed {
    match bad {
        BadRecord::Newer(_) => Failed::config(format!(
            "{lease} on {store}: {bad}. Nothing was changed. Upgrade leasehold on this machine"
        )),
        BadRecord::OtherLease(_) | BadRecord::Damaged(_) => Failed::new(
            FailKind::NeedsYou,
            "bad_record",
            format!(
                "{lease} on {store}: {bad}. Nothing was changed: acting on it could let two jobs run. \
                 Look at what wrote there; restore the record, or use another lease name"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_left_behind_is_called_something() {
        let left = |pid, command: &str| Survivor { pid, command: command.into() };
        assert_eq!(names(&[left(7, "sleep 9"), left(8, "")]), "7 (sleep 9), process 8");
        assert_eq!(names(&[]), "a process without a name");
    }
}
