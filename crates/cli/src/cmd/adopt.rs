//! `leasehold adopt NAME`: accept the record of a lease as it is, after the store lost a newer one.

use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::rules::{SeenToken, rewound};
use leasehold::core::session::lease_key;
use leasehold_run::runner::{self, environment::RUN_STORE};
use serde_json::json;

use super::{OpenedStore, bad_record, names, other_stores, store_failed};
use crate::args::{AdoptArgs, Everywhere};
use crate::exit::{self, Failed};
use crate::messages::adopt as say;
use crate::out::Out;

/// Forgets the newer token that this machine has seen, unless a job of the lease still runs here.
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
            return Err(say::still_runs(&lease, names(&at_work)));
        }
        other_stores::set_aside(&opened.chosen, &opened.state)?;
        let forgotten = opened.memory.forget(&lease);
        forgotten.map_err(|e| say::not_written(&lease, opened.memory.place(&lease), e))?;
    }
    let token = record.map(|record| record.token);
    if out.json {
        let object = json!({
            "v": 1, "lease": lease.as_str(), "store": shown, "adopted": lost.is_some(),
            "token": token.map(|token| token.get()), "seen": seen.map(|seen| seen.token.get()),
        });
        out.object(&object);
    }
    match lost {
        None => out.note(&say::nothing_lost(&lease, shown)),
        Some(SeenToken { token: seen, .. }) => {
            let found = token.map_or_else(say::no_record, say::token);
            out.note(&say::accepted(&lease, shown, found, seen));
            out.note(&say::later_fences());
            out.note(&say::lost_items());
        }
    }
    Ok(exit::OK)
}

fn record(lease: &Name, opened: &mut OpenedStore) -> Result<Option<LeaseRecord>, Failed> {
    let stored = pollster::block_on(opened.store.read(&lease_key(lease)));
    let stored = stored.map_err(|failure| store_failed(&failure, &opened.chosen))?;
    let decoded = stored.map(|stored| LeaseRecord::decode(lease, &stored.body)).transpose();
    decoded.map_err(|bad| bad_record(lease, &bad, &opened.chosen.shown))
}
