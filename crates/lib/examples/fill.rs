//! Fills a store with what finished keys leave, for `benches/listing`: `fill URL KEY COUNT` copies the records of a key that
//! is done to so many others, whose runs ended one after the other within the last 90 days. Their leases were swept.

use std::env;
use std::time::Duration;

use leasehold::core::ids::{Grant, WriteId};
use leasehold::core::ledger::{Entry, Subject};
use leasehold::core::run_log::{LogId, LogRecord};
use leasehold::ledger::{key_of, lease_of};
use leasehold::run_log::{Scope, Window, creation, newest};
use leasehold::stores::{self, BatchWrite, Cas};
use leasehold::{host, random};
use pollster::block_on;

const SPAN: Duration = Duration::from_secs(90 * 86_400);
const BATCH: u32 = 500;

fn main() -> Result<(), String> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [url, key, count] = &words[..] else { return Err("usage: fill URL KEY COUNT".into()) };
    let count: u32 = count.parse().map_err(text)?;
    let mut store = stores::open(url).map_err(|e| e.to_string())?;
    let (subject, lease) = (Subject::Key(key.clone()), lease_of(key));
    let mut read = |key: &str| {
        let stored = block_on(store.read(key)).map_err(|failure| failure.message)?;
        stored.map(|stored| stored.body).ok_or_else(|| format!("no record {key}"))
    };
    let item = Entry::decode(&read(&key_of(&subject))?).map_err(text)?;
    let (found, _) = newest(store.as_mut(), Scope::Job(&lease), Window::all(), 1, |_| true)
        .map_err(|failure| failure.message)?;
    let logged = found.into_iter().find_map(|entry| entry.record).ok_or("no record of its run")?;
    for first in (0..count).step_by(BATCH as usize) {
        let mut writes = Vec::new();
        for number in first..count.min(first + BATCH) {
            let key = format!("{key}-{number}");
            let (subject, lease, grant) = (Subject::Key(key.clone()), lease_of(&key), Grant(random::seed()));
            let at = logged.at.saturating_sub(SPAN * number / count);
            let mut item = Entry { subject, job: lease.clone(), ..item.clone() };
            (item.claim.lease, item.claim.grant) = (lease.clone(), grant);
            item.claim.holder.since = host::utc(at.as_secs());
            let write = WriteId(random::seed());
            let record = |key: String, body: Vec<u8>| BatchWrite { key, expected: None, write, body };
            writes.push(record(
                key_of(&item.subject),
                Entry { write, ..item.clone() }.encode().ok_or("too long")?,
            ));
            writes.push(creation(&LogRecord {
                at,
                job: lease.clone(),
                lease: Some(lease),
                id: LogId::of(grant.0),
                item: Some(item.subject),
                ..logged.clone()
            }));
        }
        let wrong =
            block_on(store.cas_many(&writes)).into_iter().find(|cas| !matches!(cas, Cas::Written { .. }));
        if let Some(wrong) = wrong {
            return Err(format!("not written: {wrong:?}"));
        }
    }
    Ok(())
}

fn text(why: impl std::fmt::Display) -> String {
    why.to_string()
}
