//! Names that are over: their records are removed. [`leasehold_core::forgotten`] decides, and this module makes the calls.

use std::time::Duration;

use leasehold_core::forgotten::{
    Aged, BadForgotten, Forgotten, Left, Names, ONCE, may_forget, may_forget_item,
};
use leasehold_core::ledger::{Entry, Subject};
use leasehold_core::name::Name;
use leasehold_core::record::LeaseRecord;
use leasehold_core::rules::SeenToken;
use leasehold_core::run_log::{LOG_PREFIX, LogLine};
use leasehold_core::session::{LEASE_PREFIX, lease_key};
use leasehold_core::update::{FoundRecord, Update, UpdateDecision, UpdateOutcome};
use pollster::block_on;

use crate::ledger::{PREFIXES, key_of, lease_of, plain};
use crate::seen_tokens::SeenTokens;
use crate::stores::{Cas, Clock, Failure, FailureKind, Landed, Listed, Store, StoreFacts, Stored};
use crate::update::{NextCall, StoreAnswer, drive};
use crate::{clock, host, random};

/// Records in one page.
const PAGE: usize = 200;
/// How often one removal is tried.
const TRIES: u32 = 3;

/// What is to be forgotten.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    /// The text that the user typed: a name, a prefix or a key.
    pub text: &'a str,
    /// The names, if the text is one or a prefix of some.
    pub names: Option<&'a Names>,
    /// Records must be older than this.
    pub older_than: Duration,
    /// Who asks, for people.
    pub by: &'a str,
    /// What this machine has seen of leases on the store.
    pub notes: Option<&'a SeenTokens>,
    /// Look only.
    pub dry: bool,
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A lease.
    Lease,
    /// A key.
    Key,
}

impl RecordKind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Key => "key",
        }
    }
}

/// A record that is left where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftRecord {
    /// Its kind.
    pub kind: RecordKind,
    /// Its name.
    pub name: String,
    /// Why.
    pub why: Left,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgot {
    /// The leases that were removed.
    pub leases: Vec<Name>,
    /// The keys that were removed.
    pub keys: Vec<String>,
    /// How many records of the run log were removed.
    pub log: usize,
    /// What is left.
    pub left: Vec<LeftRecord>,
    /// A forgotten-record says already that the name was forgotten.
    pub before: bool,
}

impl Forgot {
    fn left(&mut self, kind: RecordKind, name: impl Into<String>, why: Left) {
        self.left.push(LeftRecord { kind, name: name.into(), why });
    }
}

/// Why not everything could be forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgetError {
    /// The store failed.
    Store(Failure),
    /// The forgotten-record there cannot be used.
    Bad(Names, BadForgotten),
}

impl From<Failure> for ForgetError {
    fn from(failure: Failure) -> Self {
        Self::Store(failure)
    }
}

/// The forgotten-records that may be about a lease: the bodies of those that there are.
pub fn records(store: &mut dyn Store, lease: &Name) -> Result<Vec<Vec<u8>>, Failure> {
    let mut bodies = Vec::new();
    for names in Names::covering(lease) {
        match block_on(store.read(&names.key())) {
            Ok(stored) => bodies.extend(stored.map(|stored| stored.body)),
            // A bearer of a prefix may not read what is about names beyond it.
            Err(failure) if failure.kind == FailureKind::Denied => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(bodies)
}

/// Says, before anything is removed, that these names are forgotten on purpose.
pub fn announce(
    store: &mut dyn Store,
    names: &Names,
    last: Option<SeenToken>,
    by: &str,
) -> Result<(), ForgetError> {
    let mut update: Update<Forgotten> = Update::new(random::seed());
    let said = drive(store, &names.key(), NextCall::Read, None, |_, answer| {
        let next = match answer {
            StoreAnswer::Read(read) => {
                let decoded =
                    read.map(|stored| stored.map(|stored| FoundRecord::of(stored, Forgotten::decode)));
                update.on_read(decoded, |found, write| {
                    let found = match found.map(|found| found.record).transpose() {
                        Ok(found) => found,
                        Err(bad) => return UpdateDecision::Stop(Err(bad)),
                    };
                    if found.as_ref().is_some_and(|found| found.says(last)) {
                        return UpdateDecision::Stop(Ok(()));
                    }
                    let record = found.unwrap_or_else(|| Forgotten::new(names.clone())).with(last);
                    let (by, at) = (by.to_owned(), host::utc(clock::wall().as_secs()));
                    UpdateDecision::Write(Forgotten { by, at, write, ..record })
                })
            }
            StoreAnswer::Cas(cas) => update.on_cas(cas),
        };
        NextCall::of(next, |record: &Forgotten| Some(record.encode()))
    })?;
    match said {
        UpdateOutcome::Landed { .. } | UpdateOutcome::Stopped(Ok(())) => Ok(()),
        UpdateOutcome::Stopped(Err(bad)) => Err(ForgetError::Bad(names.clone(), bad)),
        UpdateOutcome::Failed { failure, .. } => Err(failure.into()),
    }
}

/// Forgets leases and keys, and the run log of those that are gone. What was done is in `forgot` also if it fails.
pub fn forget(store: &mut dyn Store, wish: &Wish<'_>, forgot: &mut Forgot) -> Result<(), ForgetError> {
    if let Some(names) = wish.names {
        let prefix = match names {
            Names::Under(prefix) => Some(format!("{LEASE_PREFIX}{prefix}")),
            Names::One(_) | Names::Once => None,
        };
        match (names, prefix) {
            (_, Some(prefix)) => each(store, &prefix, |store, key, stored| {
                let name = key.strip_prefix(LEASE_PREFIX).unwrap_or(&key);
                forget_lease(store, wish, names, name, &stored, forgot)
            })?,
            (Names::One(name), _) => {
                if let Some(stored) = block_on(store.read(&lease_key(name)))? {
                    forget_lease(store, wish, names, name.as_str(), &stored, forgot)?;
                } else {
                    forgot.before = block_on(store.read(&names.key()))?.is_some();
                }
            }
            (Names::Under(_) | Names::Once, None) => {}
        }
    }
    match wish.names {
        Some(Names::Under(prefix)) => {
            // The letter keeps the slash as it is.
            let keys = format!("{}{}", PREFIXES[0], plain(&format!("{prefix}x")));
            each(store, keys.trim_end_matches('x'), |store, key, stored| {
                forget_key(store, wish, &key, &stored, forgot)
            })?;
        }
        Some(Names::One(_) | Names::Once) | None => {
            let key = key_of(&Subject::Key(wish.text.into()));
            if let Some(stored) = block_on(store.read(&key))? {
                forget_key(store, wish, &key, &stored, forgot)?;
            }
        }
    }
    let gone = !forgot.leases.is_empty() || !forgot.keys.is_empty();
    if gone && !wish.dry {
        forgot.log = forget_log(store, wish, forgot)?;
    }
    Ok(())
}

/// Calls `visit` with every record below a prefix.
fn each(
    store: &mut dyn Store,
    prefix: &str,
    mut visit: impl FnMut(&mut dyn Store, String, Stored) -> Result<(), ForgetError>,
) -> Result<(), ForgetError> {
    let mut after = String::new();
    loop {
        let page = block_on(store.list(prefix, &after, PAGE))?;
        let full = page.len() == PAGE;
        for Listed { key, stored } in page {
            after.clone_from(&key);
            let stored = match stored {
                Some(stored) => Some(stored),
                None => block_on(store.read(&key))?,
            };
            if let Some(stored) = stored {
                visit(store, key, stored)?;
            }
        }
        if !full {
            return Ok(());
        }
    }
}

/// The age of a record, as far as its store knows it. A store of one machine does not know it across a restart of the
/// machine: then the record is at least as old as this start.
pub(crate) fn known_age(facts: &StoreFacts, age: Option<Duration>) -> Option<Duration> {
    age.map(|age| match facts.clock {
        Clock::BootTime if age == Duration::MAX => clock::boot_time().0,
        _ => age,
    })
}

/// Removes a lease that is over. A key's lease stays while its key is not over.
fn forget_lease(
    store: &mut dyn Store,
    wish: &Wish<'_>,
    under: &Names,
    name: &str,
    stored: &Stored,
    forgot: &mut Forgot,
) -> Result<(), ForgetError> {
    let judged = match judge_lease(store, wish.notes, name, stored, wish.older_than) {
        Ok((lease, last)) => match key_stays(store, &lease)? {
            Some(Err(why)) => Err(why),
            Some(Ok(())) | None => Ok((lease, last)),
        },
        Err(why) => Err(why),
    };
    let (lease, last) = match judged {
        Ok(judged) => judged,
        Err(why) => {
            forgot.left(RecordKind::Lease, name, why);
            return Ok(());
        }
    };
    if !wish.dry {
        // For several names once, before the first is removed.
        let several = matches!(under, Names::One(_));
        if several || forgot.leases.is_empty() || *under == Names::Once {
            announce(store, under, Some(last), wish.by)?;
        }
        if !remove(store, &lease_key(&lease), stored)? {
            forgot.left(RecordKind::Lease, name, Left::Changed);
            return Ok(());
        }
    }
    forgot.leases.push(lease);
    Ok(())
}

/// Whether a lease may be removed, and its last token.
pub(crate) fn judge_lease(
    store: &dyn Store,
    notes: Option<&SeenTokens>,
    name: &str,
    stored: &Stored,
    least: Duration,
) -> Result<(Name, SeenToken), Left> {
    let lease = Name::new(name).map_err(|_| Left::Unreadable)?;
    let record = LeaseRecord::decode(&lease, &stored.body).map_err(|_| Left::Unreadable)?;
    let facts = store.facts();
    let (age, resolution) = (known_age(&facts, stored.age), facts.resolution);
    let seen = notes.and_then(|notes| notes.recall(&lease).seen);
    let last = may_forget(&record, &Aged { age, resolution, instance: &facts.instance, least }, seen)?;
    Ok((lease, last))
}

/// Whether the key that a lease was made for is over, and if not, why; nothing: there is no such key.
fn key_stays(store: &mut dyn Store, lease: &Name) -> Result<Option<Result<(), Left>>, Failure> {
    let Some(key) = lease.as_str().strip_suffix(ONCE) else { return Ok(None) };
    let subject = Subject::Key(key.into());
    let Some(stored) = block_on(store.read(&key_of(&subject)))? else { return Ok(None) };
    Ok(Some(judge_key(store, &subject, &stored, None)))
}

fn judge_key(
    store: &dyn Store,
    subject: &Subject,
    stored: &Stored,
    least: Option<Duration>,
) -> Result<(), Left> {
    let entry = Entry::decode_of(subject, &stored.body).map_err(|_| Left::Unreadable)?;
    let facts = store.facts();
    // Of a lease that is old enough the key may be of any age.
    let (age, least) =
        least.map_or((Some(Duration::ZERO), Duration::ZERO), |least| (known_age(&facts, stored.age), least));
    let resolution = if least.is_zero() { Duration::ZERO } else { facts.resolution };
    may_forget_item(&entry, &Aged { age, resolution, instance: &facts.instance, least })
}

/// Removes the record of a key that is over, and the lease that was made for it.
fn forget_key(
    store: &mut dyn Store,
    wish: &Wish<'_>,
    at: &str,
    stored: &Stored,
    forgot: &mut Forgot,
) -> Result<(), ForgetError> {
    let subject = Entry::decode(&stored.body).map(|entry| entry.subject);
    let subject = subject.ok().filter(|subject| key_of(subject) == at);
    let Some(Subject::Key(key)) = subject else {
        forgot.left(RecordKind::Key, at.trim_start_matches(PREFIXES[0]), Left::Unreadable);
        return Ok(());
    };
    if let Err(why) = judge_key(store, &Subject::Key(key.clone()), stored, Some(wish.older_than)) {
        forgot.left(RecordKind::Key, key, why);
        return Ok(());
    }
    let lease = lease_of(&key);
    let seen = forgot.leases.contains(&lease) || wish.names.is_some_and(|names| names.contain(&lease));
    if let Some(of_it) = block_on(store.read(&lease_key(&lease)))?.filter(|_| !seen) {
        forget_lease(store, wish, &Names::Once, lease.as_str(), &of_it, forgot)?;
    }
    if !wish.dry && !remove(store, at, stored)? {
        forgot.left(RecordKind::Key, key, Left::Changed);
        return Ok(());
    }
    forgot.keys.push(key);
    Ok(())
}

/// Removes a record if it is still as it was read; whether it was.
pub(crate) fn remove(store: &mut dyn Store, key: &str, stored: &Stored) -> Result<bool, Failure> {
    let mut tries = 0;
    loop {
        tries += 1;
        match block_on(store.remove(key, &stored.version)) {
            Cas::Written { .. } => return Ok(true),
            // An earlier try may have removed it.
            Cas::Conflict if tries > 1 => return Ok(block_on(store.read(key))?.is_none()),
            Cas::Conflict => return Ok(false),
            // To remove this very version twice does no harm.
            Cas::Unknown(failure)
                if tries < TRIES
                    && failure.kind == FailureKind::Unreachable
                    && failure.landed == Landed::Maybe => {}
            Cas::Unknown(failure) => return Err(failure),
        }
    }
}

/// Removes the run log of what is gone. Gives how many records.
fn forget_log(store: &mut dyn Store, wish: &Wish<'_>, forgot: &Forgot) -> Result<usize, Failure> {
    let left =
        |job: &Name| forgot.left.iter().any(|left| left.name == job.as_str() || lease_of(&left.name) == *job);
    let ours = |job: &Name| match wish.names {
        Some(names @ Names::Under(_)) => names.contain(job) && !left(job),
        _ => (job.as_str() == wish.text || lease_of(wish.text) == *job) && !left(job),
    };
    let beginning = match wish.names {
        Some(Names::Under(prefix)) => prefix.clone(),
        _ if lease_of(wish.text).as_str().starts_with(wish.text) => wish.text.into(),
        _ => lease_of(wish.text).to_string(),
    };
    let (mut removed, mut after) = (0, String::new());
    loop {
        // The next day of which there are records.
        let first = match block_on(store.list(LOG_PREFIX, &after, 1)) {
            Ok(first) => first,
            // A bearer of a prefix may not list all days. The records go when they are old.
            Err(failure) if failure.kind == FailureKind::Denied => return Ok(removed),
            Err(failure) => return Err(failure),
        };
        let day = first.first().and_then(|first| first.key[LOG_PREFIX.len()..].split('/').next());
        let Some(day) = day.map(|day| format!("{LOG_PREFIX}{day}")) else { return Ok(removed) };
        let mut goes = Vec::new();
        each(store, &format!("{day}/{beginning}"), |store, key, stored| {
            let age = known_age(&store.facts(), stored.age);
            if LogLine::read(&key).is_some_and(|line| ours(&line.job))
                && age.is_some_and(|age| age >= wish.older_than)
            {
                goes.push((key, stored));
            }
            Ok(())
        })
        .map_err(|e| match e {
            ForgetError::Store(failure) => failure,
            ForgetError::Bad(_, bad) => Failure::new(FailureKind::Unusable, bad.to_string()),
        })?;
        for (key, stored) in &goes {
            removed += usize::from(remove(store, key, stored)?);
        }
        // The digit sorts after the slash that follows the day.
        after = format!("{day}0");
    }
}
