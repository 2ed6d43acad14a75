//! Items of work: from the command line to the ledger, and what is said of them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Zoned};
use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::{
    Amended, Ending, Entry, IfUnknown, ItemOpened, ItemRecorded, ItemState, KEY_MAX, Opened, RetryDoubt,
    Subject, unknown_slot,
};
use leasehold::core::name::Name;
use leasehold::ledger::Item;
use leasehold::stores::{Clock, StoreFacts};
pub use leasehold::text::shell_quoted as quoted;
use leasehold_run::placeholders::{Moment, filled};
use leasehold_run::{duration, jobs};

use super::{by_kind, daemon, held_for};
use crate::args::{self, Everywhere, ItemArgs, RunArgs};
use crate::config::Chosen;
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;

/// What a run is to do once, if it said so; and with a slot, the key beside it.
pub fn item(
    args: &RunArgs,
    leases: &[Name],
    job: &Name,
    when: &Moment,
) -> Result<(Option<Item>, Option<Item>), Failed> {
    let ItemArgs { if_unknown, provider_keeps, attempts, keep, tail, new_here } = args.doing;
    let if_unknown = match (if_unknown, provider_keeps) {
        (args::IfUnknownArg::Refuse, None) => IfUnknown::Refuse,
        (args::IfUnknownArg::Retry, None) => IfUnknown::Retry,
        (args::IfUnknownArg::Retry, Some(keeps)) => IfUnknown::RetryWithin(keeps),
        (args::IfUnknownArg::Refuse, Some(_)) => {
            let why = "--provider-keeps says how long a retry is safe: it goes with --if-unknown retry";
            return Err(Failed::usage(format!("{why}. Nothing was run.")));
        }
    };
    let about_an_item =
        attempts.is_some() || keep.is_some() || if_unknown != IfUnknown::Refuse || new_here.said;
    let attempts = attempts.unwrap_or(args::ATTEMPTS);
    let item = |subject| Item { subject, if_unknown, attempts, keep };
    let key = args.key.as_ref().map(|key| key_of(key, &leases[0], job, when)).transpose()?.map(Subject::Key);
    let slot = when.slot.as_ref().map(|slot| slot_of(slot, job, when.at)).transpose()?;
    Ok(match (slot, key, args.cooldown) {
        (Some(slot), key, _) => {
            // A slot that has come as far as a step is written to be gone on with.
            let gone_on = if if_unknown == IfUnknown::Refuse { unknown_slot(false) } else { if_unknown };
            (Some(Item { if_unknown: gone_on, ..item(slot) }), key.map(item))
        }
        (None, Some(key), _) => (Some(item(key)), None),
        (None, None, _) if about_an_item => {
            let why = "--attempts, --keep, --if-unknown, --provider-keeps and --new-here are about a --key or a --slot, and there is none";
            return Err(Failed::usage(format!("{why}. Nothing was run.")));
        }
        (None, None, Some(cooldown)) => {
            let (subject, keep) = (Subject::Latest(job.clone()), Some(cooldown));
            let (attempts, if_unknown) = (u32::MAX, IfUnknown::Retry);
            (Some(Item { subject, if_unknown, attempts, keep }), None)
        }
        (None, None, None) if tail => {
            let why = "--tail keeps the last lines in the record of a --key, a --slot or a --cooldown, and there is none";
            return Err(Failed::usage(format!("{why}. Nothing was run.")));
        }
        (None, None, None) => (None, None),
    })
}

/// A key with its placeholders filled in.
fn key_of(template: &str, lease: &Name, job: &Name, when: &Moment) -> Result<String, Failed> {
    checked(filled(template, lease, job, when)?)
}

/// What placeholders of a run stand for: its slot and the day on which that was due, or today. A slot that is run late
/// is about the same targets and keys as one that is run in time.
pub fn moment(flags: &Everywhere, args: &RunArgs, job: &Name) -> Result<Moment, Failed> {
    let today = Moment::at(super::now());
    let Some(slot) = args.slot.as_deref() else { return Ok(today) };
    Ok(match slot_here(flags, slot, job, today.at)? {
        Subject::Slot { at, id, .. } => Moment { slot: Some(id), at: second(at) },
        other => Moment { slot: Some(shown(&other)), ..today },
    })
}

fn second(at: i64) -> Timestamp {
    Timestamp::from_second(at).unwrap_or_default()
}

/// A key that can be one.
pub fn checked(key: String) -> Result<String, Failed> {
    if key.is_empty() || key.len() > KEY_MAX {
        let (bytes, most) = (key.len(), KEY_MAX);
        let why = format!("a key has 1 to {most} bytes and this one has {bytes}. Nothing was run");
        return Err(Failed::usage(why));
    }
    Ok(key)
}

/// The slot that a text names. If the leasehold.toml here has the job, by its schedule: `plan` shows a time that the wall
/// clock skips as it would have been, and the slot is due at another instant. What ends in Z is an instant.
pub fn slot_here(flags: &Everywhere, text: &str, job: &Name, now: Timestamp) -> Result<Subject, Failed> {
    let plain = slot_of(text, job, now)?;
    if text.starts_with("now/") || text.ends_with(['Z', 'z']) {
        return Ok(plain);
    }
    // A file that is wrong is no reason to run nothing by hand.
    let jobs = jobs::here(&daemon::path(flags)).unwrap_or_default();
    let known = jobs.iter().find(|known| known.name == *job);
    let slot = known.and_then(|known| Some(known.terms().subject(&known.schedule.parse_slot_id(text).ok()?)));
    Ok(slot.unwrap_or(plain))
}

/// The slot that a text names, as an instant.
pub fn slot_of(text: &str, job: &Name, now: Timestamp) -> Result<Subject, Failed> {
    let wrong = |why: &str| {
        Failed::usage(format!(
            "--slot {text:?}: {why}. Write a time with its offset, as 2026-11-16T05:45Z or 2026-11-16T14:45+09:00, or \
             now/15m for the nearest multiple of 15 minutes. Nothing was run."
        ))
    };
    if let Some(interval) = text.strip_prefix("now/") {
        let interval = duration::parse(interval).map_err(|e| wrong(&e))?;
        let seconds = i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
        if seconds == 0 || interval.subsec_nanos() != 0 {
            return Err(wrong("the interval is a whole number of seconds"));
        }
        // The nearest: two machines a little before and a little after it mean the same one.
        let half = SignedDuration::from_secs(seconds / 2);
        let from = now.checked_add(half).map_err(|e| wrong(&e.to_string()))?;
        let at = from.as_second().div_euclid(seconds) * seconds;
        let id = Timestamp::from_second(at).map_err(|e| wrong(&e.to_string()))?.to_string();
        return Ok(Subject::Slot { job: job.clone(), at, id });
    }
    let at: Timestamp = text
        .parse()
        .or_else(|_| text.parse::<Zoned>().map(|zoned| zoned.timestamp()))
        .map_err(|_| wrong("that is no time with an offset from UTC"))?;
    if at.subsec_nanosecond() != 0 {
        return Err(wrong("a slot begins with a whole second"));
    }
    // Read as 59, which is another slot.
    let digits = text.split(['T', 't', ' ']).nth(1).unwrap_or_default().chars().filter(|c| *c != ':');
    if digits.skip(4).take(2).eq("60".chars()) {
        return Err(wrong("a minute has the seconds 0 to 59"));
    }
    Ok(Subject::Slot { job: job.clone(), at: at.as_second(), id: at.to_string() })
}

/// Refuses what this store's clock cannot tell.
pub fn check_clock(item: &Item, facts: &StoreFacts) -> Result<(), Failed> {
    let timed = item.keep.is_some() || matches!(item.if_unknown, IfUnknown::RetryWithin(_));
    if facts.clock != Clock::Observed || !timed {
        return Ok(());
    }
    Err(Failed::config(format!(
        "{} cannot tell how long ago something was written, so --cooldown, --keep and --provider-keeps mean nothing \
         there. Nothing was run. Use --key or --slot, or a store with a clock",
        facts.url
    )))
}

/// As people call it.
pub fn shown(subject: &Subject) -> String {
    match subject {
        Subject::Key(key) => key.clone(),
        Subject::Slot { job, id, .. } => format!("{job}@{id}"),
        Subject::Latest(job) => job.to_string(),
    }
}

/// "mac-mini/8123 (token 42) 3m ago", or "hand (me@mac-mini/8123) 3m ago"
pub fn by_whom(entry: &Entry) -> String {
    let claim = &entry.claim;
    let when = entry.ending.as_ref().map_or(&claim.holder.since, |ending| &ending.at);
    let ago = held_for(when).map(|d| format!(" {} ago", HumanDuration(d))).unwrap_or_default();
    match entry.done_by_hand() {
        Some(who) => format!("hand ({who}){ago}"),
        None => format!("{}/{} (token {}){ago}", claim.holder.host, claim.holder.pid, claim.token),
    }
}

/// The outcome of a run that rightly did nothing.
pub const SKIPPED: &str = "skipped";

/// The word for `--json` and `--report`: what became of a run that was not begun.
pub fn outcome(opened: &Opened) -> (&'static str, &'static str) {
    match opened {
        Opened::Done(Entry { subject: Subject::Latest(_), .. }) => (SKIPPED, "cooldown"),
        Opened::Done(_) => (SKIPPED, "done"),
        Opened::Skipped(_) => (SKIPPED, "skipped"),
        Opened::InProgress(_) => (SKIPPED, "in-progress"),
        Opened::Unknown(..) => ("unknown", "never-reported"),
        Opened::Settled => (SKIPPED, "settled"),
        Opened::Quarantined(_) => ("failed", "quarantined"),
        Opened::Bad(_) => ("failed", "bad_record"),
        Opened::Failed { .. } => ("failed", "store_unreachable"),
        Opened::Begun(..) => ("ok", ""),
    }
}

/// Why an item is rightly not run now; nothing if there is another reason, or none.
pub fn skip_reason(opened: &Opened, item: &Item) -> Option<String> {
    Some(match opened {
        Opened::Done(entry) if matches!(item.subject, Subject::Latest(_)) => {
            let cooldown = HumanDuration(item.keep.unwrap_or(Duration::ZERO));
            format!("its last good run, by {}, is within the cooldown of {cooldown}", by_whom(entry))
        }
        Opened::Done(entry) => format!("done by {}", by_whom(entry)),
        Opened::Skipped(entry) => {
            let told = entry.ending.as_ref().map(Ending::told).unwrap_or_default();
            format!("it was decided not to run it ({told})")
        }
        Opened::InProgress(entry) => {
            format!("in progress, begun by {} under {}", by_whom(entry), entry.claim.lease)
        }
        Opened::Settled => {
            "its time is settled: it was dropped, or done so long ago that its record was removed".into()
        }
        _ => return None,
    })
}

/// What is said of an item that is not run now, and the exit code.
pub fn not_run(
    opened: &Opened,
    item: &Item,
    skip_exit: u8,
    chosen: &Chosen,
    out: &Out,
) -> Result<u8, Failed> {
    let name = shown(&item.subject);
    let needs_you = |word, message| Err(Failed::new(FailKind::NeedsYou, word, message));
    if let Some(why) = skip_reason(opened, item) {
        out.note(&format!("skipped {name}: {why}"));
        return Ok(skip_exit);
    }
    match opened {
        Opened::Unknown(entry, doubt) => needs_you("outcome_unknown", unknown(entry, *doubt, &name)),
        Opened::Quarantined(entry) => needs_you(
            "quarantined",
            format!(
                "{name} failed {}, last by {}, and waits for you. Nothing was run. See what is wrong; then: \
                 leasehold retry {}",
                if entry.failures == 1 { "once".into() } else { format!("{} times", entry.failures) },
                by_whom(entry),
                quoted(&name)
            ),
        ),
        Opened::Bad(bad) => needs_you(
            "bad_record",
            format!(
                "{name} on {}: {bad}. Nothing was changed, nothing was run: it may have been done",
                chosen.shown
            ),
        ),
        Opened::Failed { failure, sent } => {
            let late =
                if *sent { " It may be recorded as begun: then the next run asks you (79)." } else { "" };
            let message = failure.message.trim_end_matches('.');
            let message =
                format!("{message} ({}). Nothing was run: {name} may be done already.{late}", chosen.shown);
            Err(by_kind(failure.kind, message))
        }
        Opened::Done(_)
        | Opened::Skipped(_)
        | Opened::InProgress(_)
        | Opened::Settled
        | Opened::Begun(..) => Ok(exit::OK),
    }
}

fn unknown(entry: &Entry, doubt: RetryDoubt, name: &str) -> String {
    let how = match entry.state {
        ItemState::Lost => "was stopped half way because its lease was lost",
        ItemState::Killed => "was stopped half way",
        _ => "never said how it ended: it was killed, its machine died, or could not reach the store",
    };
    let why = match doubt {
        RetryDoubt::NotAsked => String::new(),
        RetryDoubt::TooLate { since_first } => {
            format!(
                " It was first begun {} ago, and by now the other side may have forgotten the key.",
                HumanDuration(since_first)
            )
        }
        RetryDoubt::NoClock => " The store cannot tell how long ago it was first begun.".into(),
        RetryDoubt::TooOften { silences } => {
            format!(" So did {silences} runs of it in a row: it is not begun again by itself.")
        }
    };
    let steps = match entry.steps.len() {
        0 => String::new(),
        n => format!(" {n} of its steps are done and would not be done again."),
    };
    format!(
        "{name} was begun by {} and {how}. Nobody can tell whether it did its work, so nothing was run.{why}{steps} {}",
        by_whom(entry),
        decided(name),
        name = quoted(name),
    )
}

/// What a person does about it.
fn decided(name: &str) -> String {
    let name = quoted(name);
    format!(
        "Look at what it was to do; then `leasehold retry {name}` lets it run again, and `leasehold retry --done {name}` \
         records it as done"
    )
}

/// Warns if it could not be recorded how the item ended, and if a person has to say it.
pub fn check_recorded(
    opened: &ItemOpened,
    recorded: Option<&ItemRecorded>,
    if_unknown: IfUnknown,
    out: &Out,
) {
    let recorded = recorded.or(opened.recorded.as_ref());
    let items = [
        (Some(&opened.item), recorded.and_then(|recorded| recorded.item.as_ref())),
        (opened.key.as_ref(), recorded.and_then(|recorded| recorded.key.as_ref())),
    ];
    for (opened, closed) in items {
        if let Some(Opened::Begun(entry, _)) = opened {
            check_closed(entry, closed, if_unknown, out);
        }
    }
}

fn check_closed(entry: &Entry, closed: Option<&Amended>, if_unknown: IfUnknown, out: &Out) {
    let name = shown(&entry.subject);
    match closed {
        Some(Amended::Done(entry, _))
            if entry.state.is_silent() && if_unknown == IfUnknown::Refuse =>
        {
            out.warn(&format!(
                "{name} was stopped half way, and nobody can tell whether it did its work: the next run asks you (79). {}",
                decided(&name)
            ));
        }
        Some(Amended::Done(..)) => {}
        Some(Amended::Superseded(Some(by))) if by.claim.grant == entry.claim.grant => out.warn(&format!(
            "how {name} ended was not recorded: others found this run silent, and have recorded that; the next run asks \
             you (79)"
        )),
        Some(Amended::Superseded(by)) => {
            let by = by.as_ref().map(|by| format!(" by {}", by_whom(by))).unwrap_or_default();
            out.warn(&format!("how {name} ended was not recorded: it was gone over{by} meanwhile"));
        }
        Some(Amended::Failed(failure)) => out.warn(&format!(
            "how {name} ended may not be recorded: {}. Unless it is, the next run asks you (79)",
            failure.message.trim_end_matches('.')
        )),
        None => out.warn(&format!("how {name} ended was not recorded; the next run asks you (79)")),
    }
}

/// Now, by this machine, for a record.
pub fn now() -> String {
    leasehold::host::utc(clock::wall().as_secs())
}
