//! Keys and slots: from the command line to their records, and what a run says about them.

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
use leasehold::text::shell_quoted;
use leasehold_run::placeholders::{Moment, filled};
use leasehold_run::{duration, jobs};

use super::{daemon, held_for, store_failed, times};
use crate::args::{self, Everywhere, ItemArgs, RunArgs};
use crate::config::Chosen;
use crate::exit::{self, Failed};
use crate::messages::items as say;
use crate::out::Out;

/// The item of a run, if it has one; and the key beside a slot.
pub fn item(
    args: &RunArgs,
    leases: &[Name],
    job: &Name,
    when: &Moment,
) -> Result<(Option<Item>, Option<Item>), Failed> {
    let ItemArgs { if_unknown, provider_keeps, attempts, keep, tail: _, new_here } = args.doing;
    let if_unknown = match (if_unknown, provider_keeps) {
        (args::IfUnknownArg::Refuse, None) => IfUnknown::Refuse,
        (args::IfUnknownArg::Retry, None) => IfUnknown::Retry,
        (args::IfUnknownArg::Retry, Some(keeps)) => IfUnknown::RetryWithin(keeps),
        (args::IfUnknownArg::Refuse, Some(_)) => return Err(say::lone_provider_keeps()),
    };
    let about_an_item =
        attempts.is_some() || keep.is_some() || if_unknown != IfUnknown::Refuse || new_here.said;
    let attempts = attempts.unwrap_or(args::ATTEMPTS);
    let item = |subject| Item { subject, if_unknown, attempts, keep };
    let key = args.key.as_ref().map(|key| key_of(key, &leases[0], job, when)).transpose()?.map(Subject::Key);
    let slot = when.slot.as_ref().map(|slot| slot_of(slot, job, when.at)).transpose()?;
    Ok(match (slot, key, args.cooldown) {
        (Some(slot), key, _) => {
            let if_unknown = if if_unknown == IfUnknown::Refuse { unasked(&slot).0 } else { if_unknown };
            (Some(Item { if_unknown, ..item(slot) }), key.map(item))
        }
        (None, Some(key), _) => (Some(item(key)), None),
        (None, None, _) if about_an_item => return Err(say::no_item()),
        (None, None, Some(cooldown)) => {
            let (subject, keep) = (Subject::Latest(job.clone()), Some(cooldown));
            let (if_unknown, attempts) = unasked(&subject);
            (Some(Item { subject, if_unknown, attempts, keep }), None)
        }
        (None, None, None) => (None, None),
    })
}

/// What a run without a flag about it does if the outcome is unknown, and how often the item may fail.
pub fn unasked(subject: &Subject) -> (IfUnknown, u32) {
    match subject {
        Subject::Key(_) => (IfUnknown::Refuse, args::ATTEMPTS),
        // The command of a slot that has steps can go on where it stopped.
        Subject::Slot { .. } => (unknown_slot(false), args::ATTEMPTS),
        Subject::Latest(_) => (IfUnknown::Retry, u32::MAX),
    }
}

/// A key with its placeholders filled in.
fn key_of(template: &str, lease: &Name, job: &Name, when: &Moment) -> Result<String, Failed> {
    checked(filled(template, lease, job, when)?)
}

/// What placeholders of a run stand for: its slot and the day on which that was due, or today. A slot that runs late has
/// the same targets and keys as one that runs in time.
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
        return Err(say::bad_key(KEY_MAX, key.len()));
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
    let wrong = |why: String| say::bad_slot(format!("{text:?}"), why);
    if let Some(interval) = text.strip_prefix("now/") {
        let interval = duration::parse(interval).map_err(wrong)?;
        let seconds = i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
        if seconds == 0 || interval.subsec_nanos() != 0 {
            return Err(wrong(say::slot_interval()));
        }
        // The nearest: machines whose clocks differ a little still name the same one.
        let half = SignedDuration::from_secs(seconds / 2);
        let from = now.checked_add(half).map_err(|e| wrong(e.to_string()))?;
        let at = from.as_second().div_euclid(seconds) * seconds;
        let id = Timestamp::from_second(at).map_err(|e| wrong(e.to_string()))?.to_string();
        return Ok(Subject::Slot { job: job.clone(), at, id });
    }
    let at: Timestamp = text
        .parse()
        .or_else(|_| text.parse::<Zoned>().map(|zoned| zoned.timestamp()))
        .map_err(|_| wrong(say::slot_no_time()))?;
    if at.subsec_nanosecond() != 0 {
        return Err(wrong(say::slot_fraction()));
    }
    // A second 60 was read as 59, which is another slot.
    let digits = text.split(['T', 't', ' ']).nth(1).unwrap_or_default().chars().filter(|c| *c != ':');
    if digits.skip(4).take(2).eq("60".chars()) {
        return Err(wrong(say::slot_leap()));
    }
    Ok(Subject::Slot { job: job.clone(), at: at.as_second(), id: at.to_string() })
}

/// Refuses what this store's clock cannot tell.
pub fn check_clock(item: &Item, facts: &StoreFacts) -> Result<(), Failed> {
    let timed = item.keep.is_some() || matches!(item.if_unknown, IfUnknown::RetryWithin(_));
    if facts.clock != Clock::Observed || !timed {
        return Ok(());
    }
    Err(say::no_clock(&facts.url))
}

/// As people call it.
pub fn shown(subject: &Subject) -> String {
    match subject {
        Subject::Key(key) => key.clone(),
        Subject::Slot { job, id, .. } => format!("{job}@{id}"),
        Subject::Latest(job) => job.to_string(),
    }
}

/// The same, with the local time beside a slot.
pub fn shown_with_time(subject: &Subject) -> String {
    with_local_time(subject, &shown(subject))
}

/// The name of a subject with the local time beside it, if it is a slot.
pub fn with_local_time(subject: &Subject, name: &str) -> String {
    match subject {
        Subject::Slot { at, .. } => times::slot_at(name, *at),
        Subject::Key(_) | Subject::Latest(_) => name.to_owned(),
    }
}

/// "mac-mini/8123 (token 42) 3m ago", or "hand (me@mac-mini/8123) 3m ago"
pub fn by_whom(entry: &Entry) -> String {
    let claim = &entry.claim;
    let when = entry.ending.as_ref().map_or(&claim.holder.since, |ending| &ending.at);
    let ago = spaced(held_for(when).map(|time| say::ago(HumanDuration(time))));
    match entry.done_by_hand() {
        Some(who) => say::by_hand(who, ago),
        None => say::by(&claim.holder, claim.token, ago),
    }
}

/// With a space before it, if there is something.
pub fn spaced(text: Option<String>) -> String {
    text.map(|text| format!(" {text}")).unwrap_or_default()
}

/// "once", or "3 times"
pub fn times(count: u32) -> String {
    if count == 1 { say::once() } else { say::times(count) }
}

/// For `--json` and `--report`: the outcome of a run that did not start because of its item, and the reason in a word.
pub fn outcome(opened: &Opened) -> (ItemState, &'static str) {
    let word = opened.skip_word().unwrap_or_default();
    match opened {
        Opened::Done(_) | Opened::Skipped(_) | Opened::InProgress(_) | Opened::Settled => {
            (ItemState::Skipped, word)
        }
        Opened::Unknown(..) => (ItemState::Unknown, word),
        Opened::Quarantined(_) => (ItemState::Failed, word),
        Opened::Bad(_) => (ItemState::Failed, "bad_record"),
        Opened::Failed { .. } => (ItemState::Failed, "store_unreachable"),
        Opened::Begun(..) => (ItemState::Ok, word),
    }
}

/// Why an item is rightly not run now; nothing if there is another reason, or none.
pub fn skip_reason(opened: &Opened, item: &Item) -> Option<String> {
    Some(match opened {
        Opened::Done(entry) if matches!(item.subject, Subject::Latest(_)) => {
            say::cooling_down(by_whom(entry), HumanDuration(item.keep.unwrap_or(Duration::ZERO)))
        }
        Opened::Done(entry) => say::done(by_whom(entry)),
        Opened::Skipped(entry) => {
            say::not_wanted(entry.ending.as_ref().map(Ending::told).unwrap_or_default())
        }
        Opened::InProgress(entry) => say::in_progress(by_whom(entry), &entry.claim.lease),
        Opened::Settled => say::over(),
        _ => return None,
    })
}

/// Says why an item is not run now; the exit code.
pub fn not_run(
    opened: &Opened,
    item: &Item,
    skip_exit: u8,
    chosen: &Chosen,
    out: &Out,
) -> Result<u8, Failed> {
    let name = shown(&item.subject);
    if let Some(why) = skip_reason(opened, item) {
        out.note(&say::skipped(name, why));
        return Ok(skip_exit);
    }
    match opened {
        Opened::Unknown(entry, doubt) => Err(unknown(entry, *doubt, &name)),
        Opened::Quarantined(entry) => {
            Err(say::quarantined(&name, times(entry.failures), by_whom(entry), quoted(&name)))
        }
        Opened::Bad(bad) => Err(say::bad_record(name, &chosen.shown, bad)),
        Opened::Failed { failure, sent } => {
            let late = if *sent { say::maybe_recorded() } else { String::new() };
            let why = failure.message.trim_end_matches('.');
            let told = say::not_asked(why, &chosen.shown, name, late);
            Err(Failed { told, ..store_failed(failure, chosen) })
        }
        Opened::Done(_)
        | Opened::Skipped(_)
        | Opened::InProgress(_)
        | Opened::Settled
        | Opened::Begun(..) => Ok(exit::OK),
    }
}

fn unknown(entry: &Entry, doubt: RetryDoubt, name: &str) -> Failed {
    let how = match entry.state {
        ItemState::Lost => say::lost_half_way(),
        ItemState::Killed => say::stopped_half_way(),
        _ => say::silent(),
    };
    let doubt = match doubt {
        RetryDoubt::NotAsked => String::new(),
        RetryDoubt::TooLate { since_first } => say::too_late(HumanDuration(since_first)),
        RetryDoubt::NoClock => say::no_age(),
        RetryDoubt::TooOften { silences } => say::too_often(silences),
    };
    let steps = match entry.steps.len() {
        0 => String::new(),
        1 => say::one_step_done(),
        count => say::steps_done(count),
    };
    say::unknown(name, by_whom(entry), how, doubt, steps, quoted(name))
}

/// A name as one word of a shell, which no command takes for an option.
pub fn quoted(name: &str) -> String {
    let word = shell_quoted(name);
    if word.starts_with('-') { format!("-- {word}") } else { word }
}

/// Warns if the end of the item could not be recorded, and if a person has to decide about it.
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
    let warning = match closed {
        Some(Amended::Done(entry, _)) if entry.state.is_silent() && if_unknown == IfUnknown::Refuse => {
            say::ended_unknown(&name, quoted(&name))
        }
        Some(Amended::Done(..)) => return,
        Some(Amended::Superseded(Some(by))) if by.claim.grant == entry.claim.grant => {
            say::unrecorded_silent(name)
        }
        Some(Amended::Superseded(by)) => {
            let by = by.as_ref().map(|by| say::changed_by(by_whom(by)));
            say::unrecorded_changed(name, by.unwrap_or_default())
        }
        Some(Amended::Failed(failure)) => {
            say::unrecorded_perhaps(name, failure.message.trim_end_matches('.'))
        }
        None => say::unrecorded(name),
    };
    out.warn(&warning);
}

/// Now, by this machine, for a record.
pub fn now() -> String {
    leasehold::host::utc(clock::wall().as_secs())
}
