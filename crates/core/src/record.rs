//! The lease record: JSON that a person can read in psql or a bucket browser, decoded strictly.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::additions::{self, Additions};
use crate::codec;
use crate::ids::{Epoch, Grant, Token, WriteId};
use crate::name::Name;
use crate::past_lines;

/// The newest format that this version reads. It writes the oldest one that fits: format 1, or 2 if there are
/// additions.
pub const FORMAT: u64 = 2;
/// The longest TTL of a record. A longer one would block its lease without end.
const TTL_MAX_MS: u64 = crate::timing::TTL_MAX.as_secs() * 1_000;
/// Longest body that is decoded, in bytes.
pub const BODY_MAX: usize = 16 * 1024;

/// The run that holds a lease, or held it last. Rules compare the run, the job and the slot; the rest is for
/// people.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Host name.
    pub host: String,
    /// Process id of Leasehold.
    pub pid: u32,
    /// Run id.
    pub run: String,
    /// Name of the job.
    pub job: String,
    /// When the run got the lease, by its own wall clock.
    pub since: String,
    /// The slot of its job, if it runs one: schedulers see that the slot is being run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
}

/// The machine and the process.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.pid)
    }
}

/// The part of a record that is there only while the lease is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The identity of the acquisition.
    pub grant: Grant,
    /// The TTL: if the record stays unchanged for this time, any run may take the lease.
    pub ttl: Duration,
    /// A person asked the holder to stop.
    pub revoke: bool,
    /// Where other processes on the same machine can see whether the holder lives; opaque to core.
    pub lock: Option<String>,
}

/// One lease, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRecord {
    /// The lease's own name, so that a record copied under another key is noticed.
    pub lease: Name,
    /// The epoch of the record: a record that is made again gets another one.
    pub epoch: Epoch,
    /// The token of the holder or, if the lease is free, of the last holder.
    pub token: Token,
    /// The write that stored this body.
    pub write: WriteId,
    /// The store instance that was written to.
    pub instance: String,
    /// The current hold; none if the lease is free.
    pub hold: Option<Hold>,
    /// The current or last holder.
    pub holder: Holder,
    /// Lines about past runs, from before there was a run log. Carried along; no rule reads them.
    pub past: Vec<String>,
    /// Additions of later versions, kept unread.
    pub more: Additions,
}

/// Why a body is not a lease record that this version may act on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BadRecord {
    /// A later version of Leasehold wrote it.
    Newer(u64),
    /// A record of another lease under this key.
    OtherLease(String),
    /// It is damaged, or another program wrote it.
    Damaged(String),
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer(format) => {
                write!(f, "the record has format {format} and this version reads up to {FORMAT}")
            }
            Self::OtherLease(name) => write!(f, "the record belongs to the lease {name:?}"),
            Self::Damaged(why) => write!(f, "the record is not readable ({why})"),
        }
    }
}

/// The JSON object. The fields are in the order in which a person reads them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire<'a> {
    leasehold: u64,
    lease: Cow<'a, str>,
    state: WireState,
    token: Token,
    epoch: Epoch,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grant: Option<Grant>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    revoke: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lock: Option<Cow<'a, str>>,
    holder: Cow<'a, Holder>,
    #[serde(default, skip_serializing_if = "<[String]>::is_empty")]
    past: Cow<'a, [String]>,
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    more: Cow<'a, Additions>,
    write: WriteId,
    instance: Cow<'a, str>,
}

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireState {
    Held,
    Free,
}

impl LeaseRecord {
    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        let hold = self.hold.as_ref();
        let wire = Wire {
            leasehold: additions::format(&self.more),
            lease: Cow::Borrowed(self.lease.as_str()),
            state: if hold.is_some() { WireState::Held } else { WireState::Free },
            token: self.token,
            epoch: self.epoch,
            grant: hold.map(|h| h.grant),
            ttl_ms: hold.map(|h| u64::try_from(h.ttl.as_millis()).unwrap_or(u64::MAX)),
            revoke: hold.is_some_and(|h| h.revoke),
            lock: hold.and_then(|h| h.lock.as_deref()).map(Cow::Borrowed),
            holder: Cow::Borrowed(&self.holder),
            past: Cow::Borrowed(&self.past),
            more: Cow::Borrowed(&self.more),
            write: self.write,
            instance: Cow::Borrowed(&self.instance),
        };
        // Strings, numbers and derived structs only: encoding cannot fail.
        serde_json::to_vec(&wire).unwrap_or_default()
    }

    /// Decodes the record stored under the key of `lease`. Everything unusual is refused.
    pub fn decode(lease: &Name, body: &[u8]) -> Result<Self, BadRecord> {
        let damaged = |why: String| BadRecord::Damaged(why);
        let wire = codec::decode(
            body,
            (BODY_MAX, FORMAT),
            |wire: &Wire<'_>| (wire.leasehold, &*wire.more),
            BadRecord::Newer,
            BadRecord::Damaged,
        )?;
        if wire.lease != lease.as_str() {
            return Err(BadRecord::OtherLease(wire.lease.into_owned()));
        }
        if !past_lines::fits(&wire.past) {
            return Err(damaged("its history is too long".into()));
        }
        let hold = match (wire.state, wire.grant, wire.ttl_ms) {
            (WireState::Held, Some(grant), Some(ttl_ms)) if (1..=TTL_MAX_MS).contains(&ttl_ms) => {
                let (ttl, lock) = (Duration::from_millis(ttl_ms), wire.lock.map(Cow::into_owned));
                Some(Hold { grant, ttl, revoke: wire.revoke, lock })
            }
            (WireState::Free, None, None) if !wire.revoke && wire.lock.is_none() => None,
            _ => return Err(damaged("state and grant contradict each other".into())),
        };
        Ok(Self {
            lease: lease.clone(),
            epoch: wire.epoch,
            token: wire.token,
            write: wire.write,
            instance: wire.instance.into_owned(),
            hold,
            holder: wire.holder.into_owned(),
            past: wire.past.into_owned(),
            more: wire.more.into_owned(),
        })
    }

    /// Whether this grant is in the record. The lease may have expired.
    pub fn held_by(&self, grant: Grant) -> bool {
        self.hold.as_ref().is_some_and(|h| h.grant == grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    fn record() -> LeaseRecord {
        LeaseRecord {
            lease: Name::new("gemilab").unwrap(),
            epoch: Epoch::first(5),
            token: Token::new(42).unwrap(),
            write: WriteId(9),
            instance: "i".into(),
            hold: Some(Hold {
                grant: Grant(7),
                ttl: Duration::from_secs(90),
                revoke: false,
                lock: Some("here".into()),
            }),
            holder: Holder {
                host: "mac".into(),
                pid: 8123,
                run: "mac-8123-a1".into(),
                job: "gemilab".into(),
                since: "2026-11-15T14:02:11Z".into(),
                slot: None,
            },
            past: vec!["41 ok 0 1200 2026-11-15T14:00:00Z gemilab mac/8001".into()],
            more: Additions::new(),
        }
    }

    fn text(record: &LeaseRecord) -> String {
        String::from_utf8(record.encode()).unwrap()
    }

    fn decode(text: &str) -> Result<LeaseRecord, BadRecord> {
        LeaseRecord::decode(&Name::new("gemilab").unwrap(), text.as_bytes())
    }

    #[test]
    fn what_is_written_is_read_back() {
        let held = record();
        assert_eq!(decode(&text(&held)).unwrap(), held);
        let free = LeaseRecord { hold: None, ..held };
        assert_eq!(decode(&text(&free)).unwrap(), free);
    }

    #[test]
    fn a_person_can_read_it() {
        let text = text(&record());
        assert!(text.starts_with(r#"{"leasehold":1,"lease":"gemilab","state":"held","token":42,"#), "{text}");
        assert!(text.contains(r#""ttl_ms":90000"#), "{text}");
    }

    #[test]
    fn a_newer_format_is_named_even_with_fields_we_do_not_know() {
        let text = text(&record()).replace("{\"leasehold\":1,", "{\"leasehold\":3,\"colour\":\"red\",");
        assert_eq!(decode(&text), Err(BadRecord::Newer(3)));
    }

    #[test]
    fn additions_are_carried_along() {
        let with = LeaseRecord { more: additions::some(), ..record() };
        let stored = text(&with);
        assert!(stored.starts_with(r#"{"leasehold":2,"#), "an older reader is told so: {stored}");
        assert_eq!(decode(&stored), Ok(with));
    }

    #[test]
    fn strict_about_everything_else() {
        let good = text(&record());
        let bad = vec![
            good.replace("\"token\":42", "\"token\":9007199254740992"),
            good.replace("\"token\":42", "\"token\":0"),
            good.replace("\"token\":42", "\"token\":-1"),
            good.replace("\"token\":42", "\"token\":42.0"),
            good.replace("\"token\":42", "\"token\":42,\"token\":43"),
            good.replace("\"token\":42", "\"token\":42,\"colour\":\"red\""),
            good.replace("\"pid\":8123", "\"pid\":8123,\"shoe\":43"),
            good.replace("\"state\":\"held\"", "\"state\":\"free\""),
            good.replace("\"state\":\"held\"", "\"state\":\"Held\""),
            good.replace("\"leasehold\":1", "\"leasehold\":0"),
            good.replace("\"write\"", "\"more\":{\"colour\":\"red\"},\"write\""),
            good.replace("\"ttl_ms\":90000", "\"ttl_ms\":0"),
            good.replace("\"ttl_ms\":90000", "\"ttl_ms\":18446744073709551615"),
            format!("{good} {{}}"),
            format!("{good}x"),
            good[..good.len() - 1].into(),
            String::new(),
            "null".into(),
            "<html>busy</html>".into(),
            good.replace("mac", &"m".repeat(BODY_MAX)),
        ];
        for text in bad {
            assert!(matches!(decode(&text), Err(BadRecord::Damaged(_))), "{text}");
        }
        let other = Name::new("other").unwrap();
        assert_eq!(
            LeaseRecord::decode(&other, good.as_bytes()),
            Err(BadRecord::OtherLease("gemilab".into()))
        );
    }
}
