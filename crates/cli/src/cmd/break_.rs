//! `leasehold break NAME`: ask the holder to stop; the next token is ours.

use std::time::Duration;

use leasehold::byhand::{self, Ask};
use leasehold::core::errand::{ErrandOutcome, Verb, describe};
use leasehold::core::name::Name;
use leasehold::core::session::{Within, lease_key};
use leasehold::core::stop::{Text, Wishes};

use super::by_hand::{Taken, not_acquired, print, signals, take};
use super::{Opened, bad_record, held_by, store_failed, unconfirmed};
use crate::args::{Break, Everywhere};
use crate::exit::{self, Failed};
use crate::out::Out;

/// Nobody takes the request back.
const STANDS: &str = "The request stands: it stops at its next renewal";

/// Asks, waits and takes; with `--now` takes at once.
pub fn run(flags: &Everywhere, args: &Break, out: &Out) -> Result<u8, Failed> {
    let lease = super::name(&args.name)?;
    let mut opened = super::open_tested(flags, std::slice::from_ref(&lease))?;
    let wishes = Wishes { ttl: Some(args.ttl), ..Wishes::default() };
    let timing = super::timing(wishes, opened.store.as_ref())?;
    refuse_unknown(&lease, &mut opened)?;
    super::enrol(&opened, std::slice::from_ref(&lease))?;
    // Before anybody is asked: what was asked is to be told.
    let signals = signals()?;
    let (asked, wait) = match args.now {
        true => (false, Duration::ZERO),
        false => ask_holder(&lease, &mut opened, args.wait, out)?,
    };
    // Its own run ends it while it waits, as it asked for.
    let within = Within::default();
    let ask = Ask { lease: lease.clone(), job: lease.clone(), timing, wait, force: args.now, within };
    let taken =
        take(&ask, opened, signals, out).map_err(|failed| match asked && failed.word == "interrupted" {
            true => Failed {
                message: format!("{}. The holder was asked to stop. {STANDS}", failed.message),
                ..failed
            },
            false => failed,
        });
    match taken? {
        Taken::Granted(granted, chosen) => {
            print(&granted, false, &chosen, out)?;
            if args.now {
                out.warn(&format!(
                    "{lease} was taken at once. Its old job may still be running until its next renewal: only a \
                     fence at the target protects you from it"
                ));
            }
            out.note(&format!(
                "{lease} is yours: nobody else can run {lease} until you release it (\"leasehold release {lease} \
                 --token {}\") or {} have passed",
                granted.token,
                Text(super::by_hand::left(&granted))
            ));
            Ok(exit::OK)
        }
        Taken::Busy(busy) => {
            if out.json {
                out.object(&not_acquired(&busy));
            }
            let stands = if asked { format!(". {STANDS}") } else { String::new() };
            out.note(&format!("{lease} is still {}{stands}", held_by(&busy)));
            Ok(exit::BUSY)
        }
    }
}

/// A mistyped name must not become a lease.
fn refuse_unknown(lease: &Name, opened: &mut Opened) -> Result<(), Failed> {
    let found = pollster::block_on(opened.store.read(&lease_key(lease)));
    match found.map_err(|failure| store_failed(&failure, &opened.chosen))? {
        Some(_) => Ok(()),
        None if opened.memory.recall(lease).seen.is_some() => Ok(()),
        None => Err(Failed::usage(format!(
            "no such lease: {lease} on {}. Nothing was changed. See: leasehold status",
            opened.chosen.shown
        ))),
    }
}

/// Asks the holder to stop; whether there was one, and how long to wait for it.
fn ask_holder(
    lease: &Name,
    opened: &mut Opened,
    wait: Option<Duration>,
    out: &Out,
) -> Result<(bool, Duration), Failed> {
    match byhand::errand(Verb::Revoke, lease, opened.store.as_mut()) {
        ErrandOutcome::Done { record, .. } => {
            let left = record.hold.as_ref().map(|h| h.ttl).unwrap_or_default();
            let holder = &record.holder;
            out.note(&format!(
                "asked {}/{} (token {}) to stop; it has until its lease ends, at most {}",
                holder.host,
                holder.pid,
                record.token,
                Text(left)
            ));
            // A little longer than the lease can last, for the look that finds it expired.
            Ok((true, wait.unwrap_or(left + Duration::from_secs(2) + opened.store.facts().resolution * 2)))
        }
        ErrandOutcome::Idle(found) | ErrandOutcome::NotOurs(found) => {
            out.note(&format!("nobody to ask: {}", describe(&found)));
            Ok((false, wait.unwrap_or_default()))
        }
        ErrandOutcome::Revoked(_) => Ok((true, wait.unwrap_or_default())),
        ErrandOutcome::Bad(bad) => Err(bad_record(lease, &bad, &opened.chosen.shown)),
        ErrandOutcome::Failed { failure, sent } => Err(unconfirmed(&failure, sent, lease, &opened.chosen)),
    }
}
