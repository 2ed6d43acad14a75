//! Names that are over: which records may be removed, and the record that says so to all machines.
//!
//! A lease that has no record starts again with token 1. So a machine that has seen a token of a lease refuses
//! it once its record is gone: the store may have lost it, and a holder may be at work. A *forgotten-record*
//! says that the record was removed on purpose. It is written before the lease is removed, and read only by a
//! run that would refuse otherwise. The new record gets a new epoch, so no epoch and token come twice.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::additions::{self, Additions};
use crate::ids::WriteId;
use crate::ledger::{Entry, ItemState};
use crate::name::Name;
use crate::record::LeaseRecord;
use crate::rules::{LeaseStanding, Rules, SeenToken, Standard, View};
use crate::update;

/// All keys of forgotten-records start with this.
pub const FORGOTTEN_PREFIX: &str = "forgotten/";
/// The least age of a record that is removed. A message that creates the record again may be late or be repeated, and
/// must not land after the removal: it would repeat a token. Nothing keeps a message for an hour.
pub const LEAST_AGE: Duration = Duration::from_secs(3_600);
/// The end of the names of leases that were made for a key.
pub const ONCE: &str = ".once";

/// The newest format that this version reads. It writes format 1, or 2 if there are additions.
const FORMAT: u64 = 2;
/// Longest body, in bytes.
const BODY_MAX: usize = 16 * 1024;
/// How many lives of one lease are listed. A machine that saw an older one refuses, as if nothing were listed.
const LIVES_MAX: usize = 64;

/// The names that a forgotten-record is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Names {
    /// One name.
    One(Name),
    /// Every name that begins with this; it ends with a slash.
    Under(String),
    /// The leases of keys: every name that ends in [`ONCE`].
    Once,
}

impl Names {
    /// The names that a text stands for: one, or with a slash at its end all that begin with it. Nothing: it is no name.
    pub fn parse(text: &str) -> Option<Self> {
        let name = Name::new(text).ok()?;
        Some(if text.ends_with('/') { Self::Under(text.into()) } else { Self::One(name) })
    }

    /// The text of [`Names::parse`], or [`ONCE`], which is no name.
    pub fn text(&self) -> &str {
        match self {
            Self::One(name) => name.as_str(),
            Self::Under(prefix) => prefix,
            Self::Once => ONCE,
        }
    }

    /// The key of their record.
    pub fn key(&self) -> String {
        format!("{FORGOTTEN_PREFIX}{}", self.text())
    }

    /// Whether a name is one of them.
    pub fn contain(&self, name: &Name) -> bool {
        match self {
            Self::One(one) => one == name,
            Self::Under(prefix) => name.as_str().starts_with(prefix.as_str()),
            Self::Once => name.as_str().ends_with(ONCE),
        }
    }

    /// All that contain a name: itself, each of its beginnings up to a slash, and the leases of keys.
    pub fn covering(name: &Name) -> Vec<Self> {
        let text = name.as_str();
        let under = text.match_indices('/').map(|(at, _)| Self::Under(text[..=at].into()));
        let once = text.ends_with(ONCE).then_some(Self::Once);
        let one = Self::parse(text).filter(|one| matches!(one, Self::One(_)));
        one.into_iter().chain(under).chain(once).collect()
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The record that says that names were forgotten on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Forgotten {
    /// The names.
    pub names: Names,
    /// Of one name: the last token of each of its records that was removed, the newest last. Those of several names are
    /// not listed.
    pub lives: Vec<SeenToken>,
    /// Who had them forgotten last, and when; for people.
    pub by: String,
    /// The time, by the clock of that machine.
    pub at: String,
    /// Additions of later versions, kept unread.
    pub more: Additions,
    /// The write that stored this.
    pub write: WriteId,
}

impl update::Record for Forgotten {
    fn write(&self) -> WriteId {
        self.write
    }
}

/// Why a body is not a forgotten-record that this version may act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadForgotten {
    /// A later version of Leasehold wrote it.
    Newer(u64),
    /// It is about other names, is damaged, or another program wrote it.
    Damaged(String),
}

impl fmt::Display for BadForgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer(format) => {
                write!(f, "the record has format {format} and this version reads up to {FORMAT}")
            }
            Self::Damaged(why) => write!(f, "the record is not readable ({why})"),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    leasehold_forgotten: u64,
    names: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lives: Vec<Life>,
    by: String,
    at: String,
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    more: Additions,
    write: WriteId,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Life {
    epoch: crate::ids::Epoch,
    token: crate::ids::Token,
}

#[derive(Deserialize)]
struct Format {
    leasehold_forgotten: u64,
}

impl Forgotten {
    /// A record in which nothing is forgotten yet.
    pub fn new(names: Names) -> Self {
        let (lives, by, at) = (Vec::new(), String::new(), String::new());
        Self { names, lives, by, at, more: Additions::new(), write: WriteId(0) }
    }

    /// The record after one more of its names is forgotten, with the last token of that name.
    #[must_use]
    pub fn with(mut self, last: Option<SeenToken>) -> Self {
        if let (Names::One(_), Some(last)) = (&self.names, last)
            && !self.says(Some(last))
        {
            self.lives.retain(|life| life.epoch != last.epoch);
            self.lives.push(last);
            let most = self.lives.len().saturating_sub(LIVES_MAX);
            self.lives.drain(..most);
        }
        self
    }

    /// Whether it says so already, of a name with this last token.
    pub fn says(&self, last: Option<SeenToken>) -> bool {
        match (&self.names, last) {
            (Names::One(name), Some(last)) => self.covers(name, last),
            _ => true,
        }
    }

    /// Whether what a machine has seen of a lease was forgotten on purpose. Of one name, what is listed and no later
    /// token: a later one was lost by the store. Of several, everything.
    pub fn covers(&self, lease: &Name, seen: SeenToken) -> bool {
        let listed = |life: &SeenToken| life.epoch == seen.epoch && seen.token <= life.token;
        self.names.contain(lease)
            && (self.names != Names::One(lease.clone()) || self.lives.iter().any(listed))
    }

    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        let lives = self.lives.iter().map(|life| Life { epoch: life.epoch, token: life.token });
        let wire = Wire {
            leasehold_forgotten: additions::format(&self.more),
            names: self.names.text().into(),
            lives: lives.collect(),
            by: self.by.clone(),
            at: self.at.clone(),
            more: self.more.clone(),
            write: self.write,
        };
        // Strings, numbers and derived structs only: encoding cannot fail.
        serde_json::to_vec(&wire).unwrap_or_default()
    }

    /// Decodes a record. Everything unusual is refused.
    pub fn decode(body: &[u8]) -> Result<Self, BadForgotten> {
        let damaged = |why: String| BadForgotten::Damaged(why);
        if body.len() > BODY_MAX {
            return Err(damaged(format!("{} bytes long", body.len())));
        }
        let format: Format = serde_json::from_slice(body).map_err(|e| damaged(e.to_string()))?;
        if format.leasehold_forgotten > FORMAT {
            return Err(BadForgotten::Newer(format.leasehold_forgotten));
        }
        let wire: Wire = serde_json::from_slice(body).map_err(|e| damaged(e.to_string()))?;
        if wire.leasehold_forgotten < 1 || !additions::fits(wire.leasehold_forgotten, &wire.more) {
            return Err(damaged(additions::UNFIT.into()));
        }
        let names = match wire.names.as_str() {
            ONCE => Some(Names::Once),
            text => Names::parse(text),
        };
        let Some(names) = names else { return Err(damaged("it names nothing".into())) };
        if wire.lives.len() > LIVES_MAX {
            return Err(damaged("it lists too much".into()));
        }
        let lives = wire.lives.into_iter().map(|life| SeenToken { epoch: life.epoch, token: life.token });
        Ok(Self {
            names,
            lives: lives.collect(),
            by: wire.by,
            at: wire.at,
            more: wire.more,
            write: wire.write,
        })
    }
}

/// Why a record is left where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Left {
    /// A run holds the lease.
    Held,
    /// A run held the lease and did not give it back.
    Expired,
    /// Its key or slot is not over: it is planned, or a run is at it.
    Open,
    /// It failed, and may be tried again.
    Failed,
    /// Nobody knows what its run has done: a person has to decide.
    Unknown,
    /// It changed more recently than that.
    Young,
    /// The store cannot tell its age.
    AgeUnknown,
    /// The store is behind what this machine has seen: it was rewound.
    Rewound,
    /// It cannot be read.
    Unreadable,
    /// It was changed while it was being removed.
    Changed,
}

impl Left {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Expired => "expired",
            Self::Open => "open",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::Young => "young",
            Self::AgeUnknown => "age-unknown",
            Self::Rewound => "rewound",
            Self::Unreadable => "unreadable",
            Self::Changed => "changed",
        }
    }
}

/// The facts on which it is decided whether a record may be removed. They come from the store.
#[derive(Clone, Copy, Debug)]
pub struct Aged<'a> {
    /// Its age by the store's clock, if known.
    pub age: Option<Duration>,
    /// How coarse that age is.
    pub resolution: Duration,
    /// The store instance that answered.
    pub instance: &'a str,
    /// It must be older than this.
    pub least: Duration,
}

impl Aged<'_> {
    fn is_older(&self) -> Result<(), Left> {
        let age = self.age.ok_or(Left::AgeUnknown)?;
        if age >= self.least.saturating_add(self.resolution) { Ok(()) } else { Err(Left::Young) }
    }
}

/// Whether a lease may be removed, and its last token. It must have been given back: of a run that did not do that,
/// nobody knows whether it is over. `seen`: the highest token that this machine has seen.
pub fn may_forget(record: &LeaseRecord, aged: &Aged<'_>, seen: Option<SeenToken>) -> Result<SeenToken, Left> {
    let view = View::at_a_glance(record, aged.age, aged.resolution, aged.instance);
    match Standard.standing(record, &view) {
        LeaseStanding::Free => {}
        LeaseStanding::Expired => return Err(Left::Expired),
        LeaseStanding::Held { .. } => return Err(Left::Held),
    }
    // Also if another instance answers: a message to the earlier one cannot land in this one any more.
    aged.is_older()?;
    let last = SeenToken { epoch: record.epoch, token: record.token };
    if seen.is_some_and(|seen| last.is_behind(seen)) {
        return Err(Left::Rewound);
    }
    Ok(last)
}

/// Whether the record of a key may be removed: it is done, or is not to be run.
pub fn may_forget_item(entry: &Entry, aged: &Aged<'_>) -> Result<(), Left> {
    match entry.state {
        ItemState::Ok | ItemState::Skipped => aged.is_older(),
        ItemState::Planned | ItemState::Started => Err(Left::Open),
        ItemState::Failed => Err(Left::Failed),
        ItemState::Lost | ItemState::Killed | ItemState::Unknown => Err(Left::Unknown),
    }
}

/// Whether the lease that was made for a key may be removed unasked, once it is old enough: the key is done for good.
pub fn may_sweep_lease_of(entry: &Entry) -> bool {
    matches!(entry.state, ItemState::Ok | ItemState::Skipped) && !entry.comes_again()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, Token};

    fn seen(epoch: u128, token: u64) -> SeenToken {
        SeenToken { epoch: Epoch::first(epoch), token: Token::new(token).unwrap() }
    }

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn a_name_is_covered_by_itself_and_its_beginnings() {
        let of = |text: &str| -> Vec<String> {
            Names::covering(&name(text)).iter().map(|names| names.text().into()).collect()
        };
        assert_eq!(of("site"), ["site"]);
        assert_eq!(of("a/b/c"), ["a/b/c", "a/", "a/b/"]);
        assert_eq!(of("a/b.once"), ["a/b.once", "a/", ".once"]);
        assert_eq!(of("a/"), ["a/"], "a name that ends with a slash is a prefix too");
        for names in Names::covering(&name("a/b.once")) {
            assert!(names.contain(&name("a/b.once")) && !names.contain(&name("b")), "{names}");
        }
    }

    #[test]
    fn a_later_token_was_not_forgotten() {
        let site = name("site");
        let record = Forgotten::new(Names::One(site.clone())).with(Some(seen(1, 7)));
        assert!(record.covers(&site, seen(1, 7)) && record.covers(&site, seen(1, 3)));
        assert!(!record.covers(&site, seen(1, 8)), "the store lost it");
        assert!(!record.covers(&site, seen(2, 1)), "a later life");
        assert!(!record.covers(&name("other"), seen(1, 7)));
        let again = record.with(Some(seen(2, 4))).with(Some(seen(2, 5)));
        assert_eq!(
            again.clone().with(Some(seen(2, 4))).lives,
            [seen(1, 7), seen(2, 5)],
            "no token goes back"
        );
        assert_eq!(again.lives, [seen(1, 7), seen(2, 5)]);
        assert!(!Forgotten::new(Names::One(site.clone())).covers(&site, seen(1, 1)), "nothing is listed");
        let all = Forgotten::new(Names::Under("a/".into())).with(Some(seen(1, 7)));
        assert!(
            all.lives.is_empty() && all.covers(&name("a/b"), seen(9, 9)) && !all.covers(&site, seen(1, 7))
        );
    }

    #[test]
    fn the_list_of_lives_has_an_end() {
        let site = name("site");
        let record = (1..=100).fold(Forgotten::new(Names::One(site.clone())), |record, epoch| {
            record.with(Some(seen(epoch, 1 << 52)))
        });
        assert_eq!(record.lives.len(), LIVES_MAX);
        assert!(record.covers(&site, seen(100, 1)) && !record.covers(&site, seen(1, 1)));
        assert_eq!(Forgotten::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn what_is_written_is_read_back_and_nothing_else() {
        let by = Forgotten { by: "me@mac/1".into(), ..Forgotten::new(Names::Once) };
        for record in [by.clone(), Forgotten { more: additions::some(), ..by.clone() }] {
            assert_eq!(Forgotten::decode(&record.encode()), Ok(record));
        }
        let good = String::from_utf8(by.encode()).unwrap();
        let newer = good.replace("\"leasehold_forgotten\":1", "\"leasehold_forgotten\":3,\"colour\":\"red\"");
        assert_eq!(Forgotten::decode(newer.as_bytes()), Err(BadForgotten::Newer(3)));
        for bad in [
            good.replace("\"leasehold_forgotten\":1", "\"leasehold_forgotten\":0"),
            good.replace(".once", "Not a name"),
            good.replace("\"by\"", "\"colour\":\"red\",\"by\""),
            good[..good.len() - 1].into(),
            String::new(),
        ] {
            assert!(matches!(Forgotten::decode(bad.as_bytes()), Err(BadForgotten::Damaged(_))), "{bad}");
        }
    }
}
