//! What a name means in a store: a job, a lease, a key, a slot, or all jobs below a prefix. Found by reading the records
//! that have this name; no list of all names is read.

use std::collections::BTreeSet;

use jiff::Timestamp;
use leasehold::core::ledger::job_record::JobRecord;
use leasehold::core::ledger::{Alive, Entry, ItemState, Subject};
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::run_log::LOG_PREFIX;
use leasehold::core::session::{LEASE_PREFIX, lease_key};
use leasehold::ledger::{alive, key_of, slots_of};
use leasehold::run_log::{LogEntry, Scope};
use leasehold::stores::{Failure, Store};
use leasehold::text::did_you_mean;
use leasehold_run::job_records::{self, Unreadable, told};
use leasehold_run::jobs::Job;
use pollster::block_on;

use super::super::{OpenedStore, item_args, now, store_failed};
use super::line::ItemRow;
use crate::config::scope;
use crate::exit::Failed;
use crate::messages::history as say;

/// Most jobs that are named if there is none of this name.
const JOBS_SHOWN: usize = 20;
/// Most names that are looked through for one that was meant.
const NAMES: usize = 200;
/// Most slots that are read of one job.
const SLOTS: usize = 100;

/// What was asked about.
#[derive(Debug)]
pub enum About {
    Everything,
    /// All jobs whose names start with this.
    Prefix(String),
    /// One slot.
    Slot(i64),
    /// A job, a lease or a key.
    Name(String),
}

/// What was asked about, and what is known of it beside the run log.
#[derive(Debug)]
pub struct Asked {
    pub about: About,
    /// The jobs that may have records about it. The job of this name is the first. None: any job.
    jobs: Option<BTreeSet<Name>>,
    /// The record of the lease of this name.
    pub lease: Option<LeaseRecord>,
    pub job_record: Option<JobRecord>,
    /// Records of items of this name.
    pub rows: Vec<ItemRow>,
    /// A key whose job has another name: the keys of the run log do not tell which of its records are about it.
    key_of_job: bool,
    /// Records that cannot be used.
    pub unreadable: Vec<Unreadable>,
}

impl Asked {
    /// Reads what a name means. `jobs`: those of the leasehold.toml here.
    pub fn of(store: &mut dyn Store, name: Option<&str>, jobs: &[Job]) -> Result<Self, Failure> {
        let mut asked = Self {
            about: About::Everything,
            jobs: None,
            lease: None,
            job_record: None,
            rows: Vec::new(),
            key_of_job: false,
            unreadable: Vec::new(),
        };
        let Some(name) = name else { return Ok(asked) };
        if name.ends_with('/') && Name::new(name.trim_end_matches('/')).is_ok() {
            asked.about = About::Prefix(name.into());
            return Ok(asked);
        }
        asked.about = About::Name(name.into());
        asked.read_item(store, &Subject::Key(name.into()))?;
        let mut users: BTreeSet<Name> = asked.rows.iter().map(|row| row.entry.job.clone()).collect();
        asked.key_of_job = users.iter().any(|job| *job != leasehold::ledger::lease_of(name));
        if let Ok(job) = Name::new(name) {
            asked.read_job(store, &job)?;
            users.extend(asked.lease.iter().filter_map(|record| Name::new(&record.holder.job).ok()));
            let needs = |other: &&Job| other.leases.contains(&job);
            users.extend(jobs.iter().filter(needs).map(|other| other.name.clone()));
            users.insert(job);
            // Any job may have run under a lease of this name, if a list of the store says so.
            if asked.lease.is_none() || !lists_bodies(store)? {
                asked.jobs = Some(users);
            }
        } else if let Some(slot) = slot_named(name) {
            asked.read_item(store, &slot)?;
            if let Subject::Slot { job, at, .. } = slot {
                (asked.about, asked.jobs) = (About::Slot(at), Some([job].into()));
            }
        } else if let Ok(at) = name.parse::<Timestamp>() {
            // Of any job: their records say for which slot they are.
            asked.about = About::Slot(at.as_second());
        } else {
            asked.jobs = Some(users);
        }
        Ok(asked)
    }

    /// What a job and a lease of this name have recorded.
    fn read_job(&mut self, store: &mut dyn Store, job: &Name) -> Result<(), Failure> {
        self.read_item(store, &Subject::Latest(job.clone()))?;
        let key = lease_key(job);
        if let Some(stored) = block_on(store.read(&key))? {
            match LeaseRecord::decode(job, &stored.body) {
                Ok(record) => self.lease = Some(record),
                Err(bad) => self.unreadable.push((key, bad.to_string())),
            }
        }
        match job_records::read(store, job) {
            Ok(job_record) => self.job_record = job_record,
            Err(bad) if bad.kind == leasehold::core::store::FailureKind::Unusable => {
                self.unreadable.push((leasehold::ledger::job::job_record_key(job), bad.message));
            }
            Err(failure) => return Err(failure),
        }
        let running = self.lease.as_ref().and_then(|record| {
            let (job, slot) = (Name::new(&record.holder.job).ok()?, record.holder.slot.as_ref()?);
            item_args::slot_of(slot, &job, now()).ok()
        });
        let mut open: Vec<Subject> = running.into_iter().collect();
        if let Some(job_record) = &self.job_record {
            open.extend(job_record.open.iter().take(SLOTS).map(|at| slot(job, *at)));
        }
        for subject in open {
            self.read_item(store, &subject)?;
        }
        let settled = self.job_record.as_ref().map(|job_record| job_record.settled);
        settled.map_or(Ok(()), |settled| self.read_slots(store, job, settled))
    }

    /// Reads the slots of a job after this second.
    pub fn read_slots(&mut self, store: &mut dyn Store, job: &Name, after: i64) -> Result<(), Failure> {
        let prefix = slots_of(job);
        let listed = block_on(store.list(&prefix, &format!("{prefix}{:012}", after.max(0)), SLOTS))?;
        for found in listed {
            if let Ok(at) = found.key[prefix.len()..].parse() {
                self.read_item(store, &slot(job, at))?;
            }
        }
        Ok(())
    }

    /// Reads the record of an item, if it has one that counts.
    pub fn read_item(&mut self, store: &mut dyn Store, subject: &Subject) -> Result<(), Failure> {
        let key = key_of(subject);
        if self.rows.iter().any(|row| key_of(&row.entry.subject) == key) {
            return Ok(());
        }
        let Some(stored) = block_on(store.read(&key))? else { return Ok(()) };
        match Entry::decode(&stored.body) {
            Ok(entry) if key_of(&entry.subject) == key => {
                for entry in told(vec![entry], self.job_record.as_slice()) {
                    self.rows.push(ItemRow { state: state(store, &entry)?, entry });
                }
            }
            Ok(_) => {}
            Err(bad) => self.unreadable.push((key, bad.to_string())),
        }
        Ok(())
    }

    /// Whose records of the run log may be about it.
    pub fn scopes(&self) -> Vec<Scope<'_>> {
        match (&self.about, &self.jobs) {
            (About::Prefix(prefix), _) => vec![Scope::Prefix(prefix)],
            (_, Some(jobs)) => jobs.iter().map(Scope::Job).collect(),
            (_, None) => vec![Scope::All],
        }
    }

    /// Whether only the body of a record can tell whether it is about this.
    pub fn needs_body(&self, entry: &LogEntry) -> bool {
        let About::Name(name) = &self.about else { return false };
        self.key_of_job && entry.record.is_none() && entry.line.job.as_str() != name
    }

    /// Whether a record of these scopes is about it. One without a body is, if its job may have such records.
    pub fn is_about(&self, entry: &LogEntry) -> bool {
        let name = match &self.about {
            About::Everything | About::Prefix(_) => return true,
            About::Slot(at) => return slot_in(entry) == Some(*at),
            About::Name(name) => name,
        };
        let Some(record) = &entry.record else { return true };
        let key = matches!(&record.item, Some(Subject::Key(key)) if key == name);
        let lease = record.lease.as_ref().is_some_and(|lease| lease.as_str() == name);
        let run = || self.rows.iter().any(|row| row.id() == entry.line.id && is_named(row, name));
        entry.line.job.as_str() == name || lease || key || run()
    }

    /// Whether the store has a record of this name beside the run log.
    pub fn is_known(&self) -> bool {
        self.lease.is_some()
            || self.job_record.is_some()
            || !self.rows.is_empty()
            || !self.unreadable.is_empty()
    }
}

/// Whether an item is the key of this name.
fn is_named(row: &ItemRow, name: &str) -> bool {
    matches!(&row.entry.subject, Subject::Key(key) if key == name)
}

/// The slot that a record is about. A run that never reported has it with its holder.
fn slot_in(entry: &LogEntry) -> Option<i64> {
    let held = || entry.record.as_ref()?.holder.slot.as_ref()?.parse::<Timestamp>().ok();
    entry.line.slot.or_else(|| held().map(Timestamp::as_second))
}

/// The slot of a job that is due at a second.
pub fn slot(job: &Name, at: i64) -> Subject {
    Subject::Slot { job: job.clone(), at, id: super::super::times::utc(at) }
}

/// `JOB@SLOT`
fn slot_named(name: &str) -> Option<Subject> {
    let (job, slot) = name.split_once('@')?;
    let job = Name::new(job).ok()?;
    item_args::slot_of(slot, &job, now()).ok().filter(|_| !slot.starts_with("now/"))
}

/// Whether the store's lists have bodies.
fn lists_bodies(store: &mut dyn Store) -> Result<bool, Failure> {
    let first = block_on(store.list(LOG_PREFIX, "", 1))?;
    Ok(first.first().is_some_and(|listed| listed.stored.is_some()))
}

/// The outcome of an item, or that a run is working on it now.
pub fn state(store: &mut dyn Store, entry: &Entry) -> Result<ItemState, Failure> {
    Ok(match entry.state {
        ItemState::Started if alive(store, &entry.claim.lease, entry.claim.grant)? == Alive::No => {
            ItemState::Unknown
        }
        state => state,
    })
}

/// Nothing has this name; which names there are.
pub fn unheard_of(opened: &mut OpenedStore, name: &str) -> Result<Failed, Failed> {
    let failed = |failure| store_failed(&failure, &opened.chosen);
    let names = |store: &mut dyn Store, prefix: &str| {
        let listed = block_on(store.list(prefix, "", NAMES))?;
        Ok::<_, Failure>(
            listed.into_iter().map(|found| found.key[prefix.len()..].to_owned()).collect::<Vec<_>>(),
        )
    };
    let (job_records, _) = job_records::read_all(opened.store.as_mut()).map_err(failed)?;
    let leases = names(opened.store.as_mut(), LEASE_PREFIX).map_err(failed)?;
    let jobs: Vec<&str> = job_records.iter().map(|job_record| job_record.job.as_str()).collect();
    let known: Vec<&str> = jobs.iter().copied().chain(leases.iter().map(String::as_str)).collect();
    let meant = did_you_mean(name, &known).map(say::meant_name).unwrap_or_default();
    let there = match &jobs[..] {
        [] => say::no_jobs(),
        few if few.len() <= JOBS_SHOWN => say::jobs(few.join(", ")),
        many => say::some_jobs(many[..JOBS_SHOWN].join(", "), many.len() - JOBS_SHOWN),
    };
    let chosen = &opened.chosen;
    Ok(say::unknown_name(name, &chosen.shown, scope(chosen), there, meant))
}
