//! What a server in front of a store may let a client write over a lease record.
//!
//! A store of our own compares versions, and so does every other. Where many clients share one and one
//! of them may be confused, the server also asks here whether the new body is one that the rules could
//! have made of the old one. It never learns who asks: within a lease, an honest release and a
//! mistaken one look alike. [`table`] holds every stored state against every offer, for servers that
//! run a copy of this rule.

mod table;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::time::Duration;

pub use table::{PolicyCase, PolicyTable, table};

use crate::history;
use crate::ids::{Token, WriteId};
use crate::name::Name;
use crate::record::{Hold, LeaseRecord};
use crate::rules::INSTANCE_SKIP;
use crate::session::LEASE_PREFIX;
use crate::timing::StoreClock;

/// How coarse the ages are that a server of our protocol tells.
pub const RESOLUTION: Duration = Duration::from_millis(1);
/// How far the clock of such a server may jump, for its clients.
pub const JUMP: Duration = Duration::from_secs(1);

/// The age that a server reports of a record in a store with this clock. Clients expect an exact age, and a clock that
/// jumps by at most [`JUMP`]. The error of a worse clock is taken off the age: a lease then ends later, never earlier.
pub fn reported_age(age: Duration, clock: StoreClock) -> Duration {
    age.saturating_sub(clock.resolution + clock.jump.saturating_sub(JUMP))
}

/// A write that a client wants to make.
#[derive(Clone, Copy, Debug)]
pub struct WriteOffer<'a> {
    /// Where.
    pub key: &'a str,
    /// What is stored there.
    pub old: Option<&'a [u8]>,
    /// How long it has been, by the store's clock; nothing if nobody can tell.
    pub age: Option<Duration>,
    /// How coarse that age is.
    pub resolution: Duration,
    /// The store instance that is asked.
    pub instance: &'a str,
    /// Whether this client may take a lease from a living holder.
    pub admin: bool,
    /// The id of this attempt.
    pub write: WriteId,
    /// What is to be stored.
    pub new: &'a [u8],
}

/// What a legal write does to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseChange {
    /// Not a lease: versions decide alone.
    Free,
    /// The first grant of a new record.
    Create,
    /// A grant of a free lease.
    Grant,
    /// A grant of a lease that expired, or whose age nobody can tell.
    TakeOver,
    /// A grant of a lease that somebody holds.
    Force,
    /// The holder goes on.
    Renew,
    /// The holder is asked to stop.
    Revoke,
    /// The lease is given back.
    Release,
}

impl LeaseChange {
    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Create => "create",
            Self::Grant => "grant",
            Self::TakeOver => "take-over",
            Self::Force => "force",
            Self::Renew => "renew",
            Self::Revoke => "revoke",
            Self::Release => "release",
        }
    }
}

/// Why a write is not legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Illegal {
    /// The key names no lease.
    Name,
    /// The new body is not a record of that lease as we write it.
    Record,
    /// The write id is not the one of this attempt, or was used before.
    Write,
    /// A new record must be a first grant.
    First,
    /// What is stored is not a record of that lease.
    Stored,
    /// Another epoch.
    Epoch,
    /// The token is not the one that follows.
    Token,
    /// The store changed its instance since the client looked.
    Instance,
    /// Something changed that this kind of write leaves alone.
    Changed,
    /// A lease that is free stays as it is until it is granted.
    Idle,
    /// A holder that was asked to stop does not go on, and the request is not taken back.
    Revoked,
    /// A request to stop that ends the lease before the holder must have stopped.
    Early,
    /// Somebody holds the lease.
    Held,
}

impl Illegal {
    /// The word that goes over the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Record => "record",
            Self::Write => "write",
            Self::First => "first",
            Self::Stored => "stored",
            Self::Epoch => "epoch",
            Self::Token => "token",
            Self::Instance => "instance",
            Self::Changed => "changed",
            Self::Idle => "idle",
            Self::Revoked => "revoked",
            Self::Early => "early",
            Self::Held => "held",
        }
    }

    /// The client did nothing wrong: what it looked at is no longer so. It is told of a conflict.
    pub fn is_conflict(self) -> bool {
        self == Self::Instance
    }
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "the key does not name a lease",
            Self::Record => "the body is not a record of this lease",
            Self::Write => "the write id is not this attempt's own",
            Self::First => "a new record begins with token 1, a holder and no past",
            Self::Stored => "what is stored is not a record of this lease, and is left as it is",
            Self::Epoch => "the epoch of a record never changes",
            Self::Token => "the token is not the one that follows",
            Self::Instance => "the store's instance changed in between",
            Self::Changed => "this write may not change what it changes",
            Self::Idle => "a free lease can only be granted",
            Self::Revoked => "a revoked lease can only be given back",
            Self::Early => "a revocation may not end the lease early",
            Self::Held => "somebody holds the lease, and only an admin bearer may take it from them",
        })
    }
}

/// Whether `offer` is a write that the rules could have made.
pub fn legal(offer: &WriteOffer<'_>) -> Result<LeaseChange, Illegal> {
    let Some(name) = offer.key.strip_prefix(LEASE_PREFIX) else { return Ok(LeaseChange::Free) };
    let name = Name::new(name).map_err(|_| Illegal::Name)?;
    let new = exact(&name, offer.new).ok_or(Illegal::Record)?;
    if new.write != offer.write {
        return Err(Illegal::Write);
    }
    let Some(old) = offer.old else {
        let hold = new.hold.as_ref().filter(|hold| !hold.revoke);
        return match hold {
            Some(_) if new.token != Token::FIRST || new.epoch.generation != 1 => Err(Illegal::First),
            Some(_) if !new.past.is_empty() => Err(Illegal::First),
            Some(_) if new.instance != offer.instance => Err(Illegal::Instance),
            Some(_) => Ok(LeaseChange::Create),
            None => Err(Illegal::First),
        };
    };
    let old = exact(&name, old).ok_or(Illegal::Stored)?;
    if new.write == old.write {
        return Err(Illegal::Write);
    }
    if new.epoch != old.epoch {
        return Err(Illegal::Epoch);
    }
    let change = match (&old.hold, &new.hold) {
        (None, None) => Err(Illegal::Idle),
        (Some(_), None) => kept(&old, &new).map(|()| LeaseChange::Release),
        (Some(was), Some(is)) if was.grant == is.grant => {
            kept(&old, &new)?;
            same_grant(&old, was, is, offer)
        }
        (before, Some(is)) => granted(&old, before.as_ref(), &new, is, offer),
    }?;
    // Where a hold ends, a line about it may be added to the past.
    let ends = matches!(change, LeaseChange::Release | LeaseChange::TakeOver | LeaseChange::Force);
    let kept = new.past == old.past || ends && history::follows(&old, &new.past);
    if kept { Ok(change) } else { Err(Illegal::Changed) }
}

/// A record exactly as we write it: no field twice, no space, no other way to write a number.
fn exact(name: &Name, body: &[u8]) -> Option<LeaseRecord> {
    LeaseRecord::decode(name, body).ok().filter(|record| record.encode() == body)
}

/// What only a grant may change.
fn kept(old: &LeaseRecord, new: &LeaseRecord) -> Result<(), Illegal> {
    if new.token != old.token {
        return Err(Illegal::Token);
    }
    let same = new.instance == old.instance && new.holder == old.holder;
    if same { Ok(()) } else { Err(Illegal::Changed) }
}

/// How old the record is, where the store can tell: an instance that may have lost writes cannot.
fn age(old: &LeaseRecord, offer: &WriteOffer<'_>) -> Option<Duration> {
    offer.age.filter(|_| old.instance == offer.instance)
}

fn same_grant(
    old: &LeaseRecord,
    was: &Hold,
    is: &Hold,
    offer: &WriteOffer<'_>,
) -> Result<LeaseChange, Illegal> {
    if is.lock != was.lock {
        return Err(Illegal::Changed);
    }
    match (was.revoke, is.revoke) {
        (true, _) => Err(Illegal::Revoked),
        (false, false) if is.ttl == was.ttl => Ok(LeaseChange::Renew),
        (false, false) => Err(Illegal::Changed),
        (false, true) => {
            // Written in whole milliseconds, so a fraction of one may be missing.
            let end = was.ttl.saturating_add(offer.resolution);
            let left = age(old, offer).map_or(was.ttl, |age| end.saturating_sub(age).min(was.ttl));
            let fits = is.ttl <= was.ttl && is.ttl.saturating_add(RESOLUTION) >= left;
            match fits {
                true => Ok(LeaseChange::Revoke),
                // What is left was reckoned by ages that the instance asked now cannot vouch for.
                false if old.instance != offer.instance => Err(Illegal::Instance),
                false => Err(Illegal::Early),
            }
        }
    }
}

fn granted(
    old: &LeaseRecord,
    before: Option<&Hold>,
    new: &LeaseRecord,
    is: &Hold,
    offer: &WriteOffer<'_>,
) -> Result<LeaseChange, Illegal> {
    if is.revoke {
        return Err(Illegal::Revoked);
    }
    if new.instance != offer.instance {
        return Err(Illegal::Instance);
    }
    let steps = if old.instance == offer.instance { 1 } else { INSTANCE_SKIP };
    if Some(new.token) != old.token.after(steps) {
        return Err(Illegal::Token);
    }
    let Some(was) = before else { return Ok(LeaseChange::Grant) };
    // Where no age is known the client has watched for a whole TTL, which nobody else can check.
    let expired = age(old, offer).is_none_or(|age| age >= was.ttl.saturating_add(offer.resolution));
    match (expired, offer.admin) {
        (true, _) => Ok(LeaseChange::TakeOver),
        (false, true) => Ok(LeaseChange::Force),
        (false, false) => Err(Illegal::Held),
    }
}

/// Records that nobody removes, whatever their version: a lease that vanished would begin again at its
/// first token.
pub fn removable(key: &str) -> bool {
    !key.starts_with(LEASE_PREFIX)
}

/// What a bearer may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The names it may use begin with this.
    pub prefix: String,
    /// It may take a lease from a living holder.
    pub admin: bool,
}

/// What a bearer gets to see of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedListing {
    /// Everything with this prefix.
    Prefix(String),
    /// Nothing of that is its own.
    Nothing,
    /// It may not ask that.
    Refused,
}

/// The kinds of keys with which a store is tested and asked for its time.
const TESTS: [&str; 2] = ["doctor", "probe"];

impl Rights {
    /// Where what it calls `key` (`kind/name…`) is kept; nothing: it may not use that. What a store is tested with
    /// is kept under its own prefix, so that no bearer changes what another one tests.
    pub fn place(&self, key: &str) -> Option<String> {
        let kind = key.split_once('/').filter(|_| !self.prefix.is_empty());
        match kind {
            None => self.prefix.is_empty().then(|| key.into()),
            Some((kind, name)) if TESTS.contains(&kind) => Some(format!("{kind}/{}{name}", self.prefix)),
            Some((_, name)) => name.starts_with(&self.prefix).then(|| key.into()),
        }
    }

    /// What it calls the key that is kept at `place`, which is one of its own.
    pub fn called(&self, place: &str) -> String {
        let tests = place.split_once('/').filter(|(kind, _)| TESTS.contains(kind));
        let name = tests.and_then(|(kind, name)| Some((kind, name.strip_prefix(self.prefix.as_str())?)));
        name.map_or_else(|| place.into(), |(kind, name)| format!("{kind}/{name}"))
    }

    /// What to list when it asks for `prefix`.
    pub fn listing(&self, prefix: &str) -> AllowedListing {
        if let Some(place) = self.place(prefix) {
            return AllowedListing::Prefix(place);
        }
        match prefix.split_once('/') {
            Some((kind, name)) if self.prefix.starts_with(name) => {
                AllowedListing::Prefix(format!("{kind}/{}", self.prefix))
            }
            Some(_) => AllowedListing::Nothing,
            None => AllowedListing::Refused,
        }
    }
}
