//! Which writes a server in front of a store accepts for a lease record.
//!
//! Every store compares versions. A server that many clients share also checks that the rules could have made
//! the new record from the old one, in case a client is faulty. The server does not know who asks, so within
//! a lease it cannot tell a mistaken release from a right one. The feature `tables` has every stored state
//! against every offer, for servers that run a copy of this rule.

#[cfg(any(test, feature = "tables"))]
mod table;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

#[cfg(any(test, feature = "tables"))]
pub use table::{PolicyCase, PolicyTable, table};

use crate::forgotten::{Aged, FORGOTTEN_PREFIX, Forgotten, LEAST_AGE, Left, may_forget};
use crate::ids::{Token, WriteId};
use crate::name::Name;
use crate::past_lines;
use crate::record::{Hold, LeaseRecord};
use crate::rules::{ends_in, next_token, told_age};
use crate::run_log::LOG_PREFIX;
use crate::session::LEASE_PREFIX;
use crate::timing::StoreClock;

/// The resolution of the ages that a server of our protocol tells.
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
    /// The key.
    pub key: &'a str,
    /// The record that is stored there.
    pub old: Option<&'a [u8]>,
    /// Its age, by the store's clock, if known.
    pub age: Option<Duration>,
    /// How coarse that age is.
    pub resolution: Duration,
    /// The store instance that is asked.
    pub instance: &'a str,
    /// Whether this client may take a lease from a living holder.
    pub admin: bool,
    /// The id of this attempt.
    pub write: WriteId,
    /// The new record.
    pub new: &'a [u8],
}

/// The change that a legal write makes to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseChange {
    /// The key is not a lease: only the version decides.
    Free,
    /// The first grant of a new record.
    Create,
    /// A grant of a free lease.
    Grant,
    /// A grant of a lease that expired, or whose age is unknown.
    TakeOver,
    /// A grant of a lease that another run holds.
    Force,
    /// A renewal.
    Renew,
    /// The holder is asked to stop.
    Revoke,
    /// The lease is given back.
    Release,
}

impl LeaseChange {
    /// The word for it.
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
    /// The key is not the name of a lease.
    Name,
    /// The new body is not a record of that lease, in the form in which we write it.
    Record,
    /// The write id is not the one of this attempt, or was used before.
    Write,
    /// A new record must be a first grant.
    First,
    /// The stored body is not a record of that lease.
    Stored,
    /// The epoch is another one.
    Epoch,
    /// The token is not the one that follows.
    Token,
    /// The store changed its instance since the client looked.
    Instance,
    /// A field changed that this kind of write must not change.
    Changed,
    /// A free lease can only be granted.
    Idle,
    /// A holder that was asked to stop cannot renew, and the request cannot be withdrawn.
    Revoked,
    /// The request to stop ends the lease before the holder has to stop.
    Early,
    /// Another run holds the lease, or has not given it back.
    Held,
    /// Only an admin bearer may have names forgotten.
    Admin,
    /// The lease changed too recently to be removed, or nobody knows when.
    Young,
    /// No forgotten-record says that the lease is removed on purpose.
    Unannounced,
    /// This record is never removed.
    Kept,
}

impl Illegal {
    /// The word in the protocol.
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
            Self::Admin => "admin",
            Self::Young => "young",
            Self::Unannounced => "unannounced",
            Self::Kept => "kept",
        }
    }

    /// Whether the client did nothing wrong: the store changed since it looked. The client gets a conflict.
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
            Self::Admin => "only an admin bearer may have names forgotten",
            Self::Young => "a lease that changed within the last hour is not removed",
            Self::Unannounced => "no forgotten-record says that this lease is removed on purpose",
            Self::Kept => "a forgotten-record is never removed",
        })
    }
}

/// Whether `offer` is a write that the rules could have made.
pub fn legal(offer: &WriteOffer<'_>) -> Result<LeaseChange, Illegal> {
    if offer.key.starts_with(FORGOTTEN_PREFIX) {
        let new = Forgotten::decode(offer.new).ok().filter(|new| new.names.key() == offer.key);
        return match new {
            _ if !offer.admin => Err(Illegal::Admin),
            None => Err(Illegal::Record),
            Some(new) if new.write != offer.write => Err(Illegal::Write),
            Some(_) => Ok(LeaseChange::Free),
        };
    }
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
    // A write that ends a hold may add a line about it.
    let ends = matches!(change, LeaseChange::Release | LeaseChange::TakeOver | LeaseChange::Force);
    let kept = new.past == old.past || ends && past_lines::follows(&old, &new.past);
    if kept { Ok(change) } else { Err(Illegal::Changed) }
}

/// Decodes a record that is written exactly as we write it, byte for byte.
fn exact(name: &Name, body: &[u8]) -> Option<LeaseRecord> {
    LeaseRecord::decode(name, body).ok().filter(|record| record.encode() == body)
}

/// Checks that no field changed that only a grant may change.
fn kept(old: &LeaseRecord, new: &LeaseRecord) -> Result<(), Illegal> {
    if new.token != old.token {
        return Err(Illegal::Token);
    }
    let same = new.instance == old.instance && new.holder == old.holder;
    if same { Ok(()) } else { Err(Illegal::Changed) }
}

/// When a hold expires, if its age is known.
fn hold_ends_in(old: &LeaseRecord, was: &Hold, offer: &WriteOffer<'_>) -> Option<Duration> {
    told_age(old, offer.instance, offer.age).map(|age| ends_in(was, age, offer.resolution))
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
            // The TTL is written in whole milliseconds, so a fraction may be missing.
            let left = hold_ends_in(old, was, offer).map_or(was.ttl, |left| left.min(was.ttl));
            let fits = is.ttl <= was.ttl && is.ttl.saturating_add(RESOLUTION) >= left;
            match fits {
                true => Ok(LeaseChange::Revoke),
                // The client computed the rest of the TTL from the age that another instance told.
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
    if Some(new.token) != next_token(old, offer.instance) {
        return Err(Illegal::Token);
    }
    let Some(was) = before else { return Ok(LeaseChange::Grant) };
    // If no age is known, the client has watched the record for a whole TTL. The server cannot check that.
    let expired = hold_ends_in(old, was, offer).is_none_or(|left| left.is_zero());
    match (expired, offer.admin) {
        (true, _) => Ok(LeaseChange::TakeOver),
        (false, true) => Ok(LeaseChange::Force),
        (false, false) => Err(Illegal::Held),
    }
}

/// Whether every client may remove records under this key. A lease that vanished would start again with its first
/// token, so leases are removed only as [`may_remove`] says.
pub fn removable(key: &str) -> bool {
    !key.starts_with(LEASE_PREFIX) && !key.starts_with(FORGOTTEN_PREFIX)
}

/// A removal that a client wants to make, of the version that is stored.
#[derive(Clone, Copy, Debug)]
pub struct RemovalOffer<'a> {
    /// The key.
    pub key: &'a str,
    /// The record that is stored there.
    pub old: &'a [u8],
    /// Its age, by the store's clock, if known.
    pub age: Option<Duration>,
    /// How coarse that age is.
    pub resolution: Duration,
    /// The store instance that is asked.
    pub instance: &'a str,
    /// Whether this client may have names forgotten.
    pub admin: bool,
    /// The forgotten-records that may be about the lease.
    pub forgotten: &'a [Vec<u8>],
}

/// Whether a client may make this removal. A lease must be free for an hour, and a forgotten-record must say that it is
/// removed on purpose.
pub fn may_remove(offer: &RemovalOffer<'_>) -> Result<(), Illegal> {
    let Some(name) = offer.key.strip_prefix(LEASE_PREFIX) else {
        return if removable(offer.key) { Ok(()) } else { Err(Illegal::Kept) };
    };
    if !offer.admin {
        return Err(Illegal::Admin);
    }
    let name = Name::new(name).map_err(|_| Illegal::Name)?;
    let old = exact(&name, offer.old).ok_or(Illegal::Stored)?;
    let RemovalOffer { age, resolution, instance, .. } = *offer;
    let aged = Aged { age, resolution, instance, least: LEAST_AGE };
    let last = may_forget(&old, &aged, None).map_err(|left| {
        if matches!(left, Left::Held | Left::Expired) { Illegal::Held } else { Illegal::Young }
    })?;
    let said = offer.forgotten.iter().filter_map(|body| Forgotten::decode(body).ok());
    let covered = said.into_iter().any(|record| record.covers(&name, last));
    if covered { Ok(()) } else { Err(Illegal::Unannounced) }
}

/// The rights of a bearer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The names that it may use start with this.
    pub prefix: String,
    /// It may take a lease from its holder.
    pub admin: bool,
}

/// The part of a list that a bearer may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedListing {
    /// Everything with this prefix.
    Prefix(String),
    /// Nothing: it may use no such key.
    Nothing,
    /// The bearer may not ask for that.
    Refused,
}

/// The kind of a key and the name in it: the part after the first slash, or after the second where a day is part of the
/// kind.
fn kind_and_name(key: &str) -> Option<(&str, &str)> {
    let days = if key.starts_with(LOG_PREFIX) { LOG_PREFIX.len() } else { 0 };
    let slash = days + key.get(days..)?.find('/')?;
    Some((&key[..slash], &key[slash + 1..]))
}

/// The kinds of keys that serve to test a store and to ask for its time.
const TESTS: [&str; 2] = ["doctor", "probe"];

impl Rights {
    /// The place of the key that the bearer calls `key` (`kind/name…`); none if it may not use that key. Keys
    /// of tests are kept under the prefix of each bearer, so that no bearer changes the tests of another.
    pub fn place(&self, key: &str) -> Option<String> {
        let kind = kind_and_name(key).filter(|_| !self.prefix.is_empty());
        match kind {
            None => self.prefix.is_empty().then(|| key.into()),
            Some((kind, name)) if TESTS.contains(&kind) => Some(format!("{kind}/{}{name}", self.prefix)),
            Some((_, name)) => name.starts_with(&self.prefix).then(|| key.into()),
        }
    }

    /// The bearer's name for the key at `place`, which must be one of its own.
    pub fn called(&self, place: &str) -> String {
        let tests = place.split_once('/').filter(|(kind, _)| TESTS.contains(kind));
        let name = tests.and_then(|(kind, name)| Some((kind, name.strip_prefix(self.prefix.as_str())?)));
        name.map_or_else(|| place.into(), |(kind, name)| format!("{kind}/{name}"))
    }

    /// The list to give when it asks for `prefix`.
    pub fn listing(&self, prefix: &str) -> AllowedListing {
        if let Some(place) = self.place(prefix) {
            return AllowedListing::Prefix(place);
        }
        match kind_and_name(prefix) {
            Some((kind, name)) if self.prefix.starts_with(name) => {
                AllowedListing::Prefix(format!("{kind}/{}", self.prefix))
            }
            Some(_) => AllowedListing::Nothing,
            None => AllowedListing::Refused,
        }
    }
}
