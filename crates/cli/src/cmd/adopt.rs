//! `leasehold adopt NAME`: accept the record of a lease as the store has it, after the store lost what this machine had seen.

use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::rules::{SeenToken, rewound};
use leasehold::core::session::lease_key;
use leasehold_run::runner::{self, environment::RUN_STORE};
use serde_json::json;

use super::{OpenedStore, bad_record, names, other_stores, store_failed};
use crate::args::{AdoptArgs, Everywhere};
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;

/// Forgets what this machine had seen, unless a job of it still runs here.
pub fn run(flags: &Everywhere, args: &AdoptArgs, out: &Out) -> Result<u8, Failed> {
    let lease = super::name(&args.name)?;
    let mut opened = super::open(flags, std::slice::from_ref(&lease))?;
    let record = record(&lease, &mut opened)?;
    let (shown, seen) = (&opened.chosen.shown, opened.memory.recall(&lease).seen);
    let lost = seen.filter(|seen| rewound(*seen, record.as_ref()).is_some());
    if lost.is_some() {
        let of_it = [format!("LEASEHOLD_LEASE={lease}"), format!("{RUN_STORE}={shown}")];
        let at_work = runner::started_with(&of_it);
        if !at_work.is_empty() {
            let message = format!(
                "a job of {lease} still runs here, and the store has lost its lease: {}. Nothing was changed. Wait for its end, \
                 or end it; then: leasehold adopt {lease}",
                names(&at_work)
            );
            return Err(Failed::new(FailKind::Busy, "busy", message));
        }
        other_stores::set_aside(&opened.chosen, &opened.state)?;
        opened.memory.forget(&lease).map_err(|e| {
            let why = format!("{} cannot be written: {e}. Nothing was changed", opened.memory.place(&lease));
            Failed::new(FailKind::Config, "state", why)
        })?;
    }
    let token = record.map(|record| record.token);
    if out.json {
        let object = json!({
            "v": 1, "lease": lease.as_str(), "store": shown, "adopted": lost.is_some(),
            "token": token.map(|token| token.get()), "seen": seen.map(|seen| seen.token.get()),
        });
        out.object(&object);
    }
    out.note(&match lost {
        None => format!("{lease} is left as it is: {shown} has lost nothing of it that this machine has seen"),
        Some(SeenToken { token: seen, .. }) => {
            let what = token.map_or_else(|| "no record".into(), |token| format!("token {token}"));
            format!(
                "{lease} is accepted as {shown} has it: {what}, where this machine had seen token {seen}. A target that was sealed \
                 with a later token refuses the next runs (79) until: leasehold fence reset TARGET. A key or slot that this \
                 machine saw begun or done and the store has lost is refused (78) until a run says --new-here"
            )
        }
    });
    Ok(exit::OK)
}

fn record(lease: &Name, opened: &mut OpenedStore) -> Result<Option<LeaseRecord>, Failed> {
    let stored = pollster::block_on(opened.store.read(&lease_key(lease)));
    let stored = stored.map_err(|failure| store_failed(&failure, &opened.chosen))?;
    let decoded = stored.map(|stored| LeaseRecord::decode(lease, &stored.body)).transpose();
    decoded.map_err(|bad| bad_record(lease, &bad, &opened.chosen.shown))
}
