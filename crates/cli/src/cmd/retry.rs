//! `leasehold retry`: a person decides about an item.

use jiff::Timestamp;
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::ledger::job_record::OPEN_MAX;
use leasehold::core::ledger::{
    self, Alive, Amended, Amending, Entry, IfUnknown, ItemClaim, ItemRequest, ItemState, Subject,
    done_by_hand, retry, settle,
};
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord};
use leasehold::host;
use leasehold::ledger::{alive, amend, key_of, lease_of, open};
use leasehold::other_stores::OtherStores;
use leasehold::random;
use leasehold::stores::{Failure, Store, Version};
use leasehold_run::job_records;
use leasehold_run::jobs;

use super::{OpenedStore, daemon, history, item_args, other_stores, run_log, stats, store_failed};
use crate::args::{Everywhere, RetryArgs};
use crate::exit::{self, Failed};
use crate::messages::retry as say;
use crate::out::Out;

/// Decides.
pub fn run(flags: &Everywhere, args: &RetryArgs, out: &Out) -> Result<u8, Failed> {
    let mut opened = super::open(flags, &[])?;
    let mut found = None;
    let subjects = subjects(flags, &args.key);
    for subject in &subjects {
        found = found_at(&mut opened, subject)?;
        if found.is_some() {
            break;
        }
    }
    if found.is_none() && args.done {
        found = seen_elsewhere(&subjects, &mut opened)?;
    }
    let Some((entry, version)) = found else {
        if let Ok(name) = Name::new(&args.key)
            && (history::is_known_here(flags, name.as_str()) || stats::is_known(&mut opened, &name)?)
        {
            return Err(say::not_an_item(name));
        }
        return Err(say::no_record(&args.key, &opened.chosen.shown));
    };
    // The key first: a scheduler that finds the slot open must not find the key waiting for a person.
    if let Some(key) = key_beside(flags, &entry.subject)
        && let Some((entry, version)) = found_at(&mut opened, &key)?
        && entry.state != ItemState::Planned
    {
        decide(&mut opened, entry, version, args.done, out)?;
    }
    decide(&mut opened, entry, version, args.done, out)?;
    Ok(exit::OK)
}

/// The key beside a slot, if the leasehold.toml here gives it one.
fn key_beside(flags: &Everywhere, subject: &Subject) -> Option<Subject> {
    let Subject::Slot { job, id, .. } = subject else { return None };
    let jobs = jobs::load_elsewhere(&daemon::path(flags)).ok()?;
    let job = jobs.into_iter().find(|known| known.name == *job)?;
    job.filled(id, id.parse().ok()?).ok()?.key.map(Subject::Key)
}

fn found_at(opened: &mut OpenedStore, subject: &Subject) -> Result<Option<(Entry, Version)>, Failed> {
    let stored = pollster::block_on(opened.store.read(&key_of(subject)));
    let Some(stored) = stored.map_err(|failure| store_failed(&failure, &opened.chosen))? else {
        return Ok(None);
    };
    let entry = Entry::decode_of(subject, &stored.body)
        .map_err(|why| say::bad_record(item_args::shown(subject), why))?;
    let job_record = match subject {
        Subject::Slot { job, .. } => job_records::read(opened.store.as_mut(), job),
        Subject::Key(_) | Subject::Latest(_) => Ok(None),
    };
    let job_record = job_record.map_err(|failure| store_failed(&failure, &opened.chosen))?;
    Ok(job_records::told(vec![entry], job_record.as_slice()).pop().map(|entry| (entry, stored.version)))
}

/// Starts an item that has no record here, if this machine saw it on another store. No lease is held for it: if we end
/// here, the next run finds that it never reported, and asks.
fn seen_elsewhere(
    subjects: &[Subject],
    opened: &mut OpenedStore,
) -> Result<Option<(Entry, Version)>, Failed> {
    let seen = OtherStores::new(&opened.state, &opened.chosen.shown);
    let Some(subject) = subjects.iter().find(|subject| !seen.others(subject, None).is_empty()) else {
        return Ok(None);
    };
    let job = match subject {
        Subject::Key(key) => lease_of(key),
        Subject::Slot { job, .. } | Subject::Latest(job) => job.clone(),
    };
    let seed = random::seed();
    let claim = ItemClaim {
        lease: job.clone(),
        epoch: Epoch::first(seed),
        token: Token::FIRST,
        grant: Grant(seed),
        holder: host::holder(&host::fresh_run_id(None), &job),
    };
    let (name, subject) = (item_args::shown(subject), subject.clone());
    let ask = ItemRequest { subject, job, claim, if_unknown: IfUnknown::Refuse, attempts: 1, keep: None };
    match open(opened.store.as_mut(), ask).0 {
        ledger::Opened::Begun(entry, version) => Ok(Some((entry, version))),
        ledger::Opened::Settled => Ok(None),
        ledger::Opened::Failed { failure, .. } => Err(store_failed(&failure, &opened.chosen)),
        _ => Err(changed(&name)),
    }
}

fn changed(name: &str) -> Failed {
    say::changed(name, item_args::quoted(name))
}

/// Records the decision about one item.
fn decide(
    opened: &mut OpenedStore,
    entry: Entry,
    version: Version,
    done: bool,
    out: &Out,
) -> Result<(), Failed> {
    let (name, store) = (item_args::shown(&entry.subject), opened.store.as_mut());
    let failed = |failure| store_failed(&failure, &opened.chosen);
    let lives = alive(store, &entry.claim.lease, entry.claim.grant).map_err(failed)? != Alive::No;
    let ending = || done_by_hand(&run_log::who(), item_args::now());
    let run = LogId::of(entry.claim.grant.0);
    let next = if done { settle(&entry, lives, ending()) } else { retry(&entry, lives) };
    let Some(next) = next else {
        let why = match entry.state {
            ItemState::Ok => say::is_done(),
            // An earlier `retry` may have ended before a scheduler was told.
            ItemState::Planned => say::is_planned(listed(store, &entry).map_err(failed)?),
            _ => say::is_running(&entry.claim.lease),
        };
        out.note(&say::left(name, why));
        return Ok(());
    };
    let amended = amend(store, Amending::new(version, next, random::seed()));
    if let Amended::Done(entry, _) = &amended {
        let event = if done { LogEvent::Done } else { LogEvent::Retry };
        let (item, lease) = (Some(entry.subject.clone()), Some(entry.claim.lease.clone()));
        run_log::by_person(opened, event, &entry.job, |log| LogRecord { item, lease, id: run, ..log });
    }
    let (store, failed) = (opened.store.as_mut(), |failure| store_failed(&failure, &opened.chosen));
    match amended {
        Amended::Done(entry, _) if done => {
            let seen = OtherStores::new(&opened.state, &opened.chosen.shown);
            if let Err(e) = seen.note(&entry, None) {
                other_stores::warn_unnoted(&entry.subject, &e, out);
            }
            out.note(&say::done(name));
        }
        Amended::Done(entry, _) => {
            out.note(&say::again(
                item_args::shown_with_time(&entry.subject),
                listed(store, &entry).map_err(failed)?,
            ));
        }
        Amended::Superseded(_) => return Err(changed(&name)),
        Amended::Failed(failure) => {
            let told = say::unconfirmed(failure.message.trim_end_matches('.'), item_args::quoted(&name));
            return Err(Failed { told, ..failed(failure) });
        }
    }
    Ok(())
}

/// Has schedulers look at a slot once more, if they know its job; after its record says that it may be run, or they
/// would find it settled. Gives who will run it.
fn listed(store: &mut dyn Store, entry: &Entry) -> Result<String, Failure> {
    let Subject::Slot { job, at, id } = &entry.subject else { return Ok(say::by_the_next_run()) };
    Ok(match job_records::again(store, job, *at)? {
        Some(job_record) if job_record.is_settled(*at) => say::by_nobody(OPEN_MAX, job),
        Some(job_record) if job_record.is_paused() => say::after_resume(job),
        Some(_) => say::by_a_scheduler(),
        None => say::by_slot(id, job),
    })
}

/// What the text may name, the likeliest first.
fn subjects(flags: &Everywhere, text: &str) -> Vec<Subject> {
    let slot = text.rsplit_once('@').and_then(|(job, slot)| {
        let (job, at) = (Name::new(job).ok()?, slot.parse::<Timestamp>().ok()?);
        item_args::slot_here(flags, slot, &job, at).ok()
    });
    slot.into_iter().chain([Subject::Key(text.into())]).collect()
}
