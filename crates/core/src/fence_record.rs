//! The fence, as a target stores it: JSON that a person can read, decoded strictly.
//!
//! A write that was accepted but is not finished is `pending`. The fence then says how to finish the write,
//! or how to take it back. Without `pending`, a retry after a crash would get the answer that the write is
//! done.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::additions::{self, Additions};
use crate::codec;
use crate::fence::{Fence, FenceMode};
use crate::ids::{Epoch, Grant, Token};
use crate::name::Name;

/// The newest format that this version reads. It writes the oldest one that fits: format 1, or 2 if there are
/// additions.
pub const FORMAT: u64 = 2;
/// Longest body that is decoded, in bytes.
pub const BODY_MAX: usize = 16 * 1024;

/// A fence as stored. `fence.done` is false while there is a `pending` write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FenceRecord {
    /// The part that the rule looks at.
    pub fence: Fence,
    /// The write that was accepted and may not be finished.
    pub pending: Option<PendingWrite>,
    /// Where the last content is, for targets that keep it elsewhere: a name within the target.
    pub payload: Option<String>,
    /// A person reset the fence, so it is void: the next run seals the target as if there were none.
    pub forgotten: bool,
    /// Additions of later versions, kept unread.
    pub more: Additions,
}

/// A write that is not finished: how to finish it, or to take it back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PendingWrite {
    /// The file with the content: a bare file name in the directory of the artefact.
    pub temp: String,
    /// The digest before this write; empty if there was none.
    pub before: String,
    /// The kind of the artefact when the write was accepted, if it was looked up.
    pub over: Option<String>,
}

/// Why a body is not a fence that this version may act on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BadFence {
    /// A later version of Leasehold wrote it.
    Newer(u64),
    /// It is empty.
    Empty,
    /// It is damaged, or another program wrote it.
    Damaged(String),
}

impl fmt::Display for BadFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer(format) => {
                write!(f, "the fence has format {format} and this version reads up to {FORMAT}")
            }
            Self::Empty => f.write_str("the fence is empty"),
            Self::Damaged(why) => write!(f, "the fence is not readable ({why})"),
        }
    }
}

/// The JSON object. The fields are in the order in which a person reads them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    leasehold_fence: u64,
    lease: String,
    token: Token,
    seq: u64,
    state: WireState,
    mode: WireMode,
    #[serde(default, skip_serializing_if = "is_zero")]
    let_in: u64,
    epoch: Epoch,
    grant: Grant,
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    temp: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    over: Option<String>,
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    more: Additions,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireState {
    Done,
    Pending,
    Forgotten,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireMode {
    Enforce,
    Observe,
}

impl FenceRecord {
    /// A fence without a pending write.
    pub fn done(fence: Fence) -> Self {
        let fence = Fence { done: true, ..fence };
        Self { fence, pending: None, payload: None, forgotten: false, more: Additions::new() }
    }

    /// A fence with a pending write: `fence` counts it already.
    pub fn pending(fence: Fence, pending: PendingWrite) -> Self {
        let fence = Fence { done: false, ..fence };
        Self { fence, pending: Some(pending), payload: None, forgotten: false, more: Additions::new() }
    }

    /// This fence in place of `before`, with the additions of `before`.
    #[must_use]
    pub fn after(self, before: Option<&Self>) -> Self {
        Self { more: before.map(|before| before.more.clone()).unwrap_or_default(), ..self }
    }

    /// This fence with its content at another place.
    #[must_use]
    pub fn with_payload(self, payload: Option<String>) -> Self {
        Self { payload, ..self }
    }

    /// The fence, unless it is void.
    pub fn standing(&self) -> Option<&Fence> {
        (!self.forgotten).then_some(&self.fence)
    }

    /// This fence, void.
    #[must_use]
    pub fn forgotten(self) -> Self {
        Self { forgotten: true, ..self }
    }

    /// The fence once the pending write is in place.
    pub fn finished(&self) -> Self {
        Self::done(self.fence.clone()).after(Some(self))
    }

    /// The fence as if the pending write had not been accepted.
    pub fn taken_back(&self) -> Self {
        let Some(pending) = &self.pending else { return self.clone() };
        let (seq, digest) = (self.fence.seq.saturating_sub(1), pending.before.clone());
        Self::done(Fence { seq, digest, ..self.fence.clone() }).after(Some(self))
    }

    /// The bytes to store, with a line end for people who use `cat`.
    pub fn encode(&self) -> Vec<u8> {
        let fence = &self.fence;
        let pending = self.pending.as_ref();
        let wire = Wire {
            leasehold_fence: additions::format(&self.more),
            lease: fence.lease.as_str().into(),
            token: fence.token,
            seq: fence.seq,
            state: match pending {
                Some(_) => WireState::Pending,
                None if self.forgotten => WireState::Forgotten,
                None => WireState::Done,
            },
            mode: match fence.mode {
                FenceMode::Enforce => WireMode::Enforce,
                FenceMode::Observe => WireMode::Observe,
            },
            let_in: fence.let_in,
            epoch: fence.epoch,
            grant: fence.grant,
            digest: fence.digest.clone(),
            payload: self.payload.clone(),
            temp: pending.map(|p| p.temp.clone()),
            before: pending.map(|p| p.before.clone()),
            over: pending.and_then(|p| p.over.clone()),
            more: self.more.clone(),
        };
        // Strings, numbers and derived structs only: encoding cannot fail.
        let mut bytes = serde_json::to_vec(&wire).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Reads what `encode` writes. Everything unusual is refused.
    pub fn decode(body: &[u8]) -> Result<Self, BadFence> {
        let damaged = |why: String| BadFence::Damaged(why);
        if body.is_empty() {
            return Err(BadFence::Empty);
        }
        let wire = codec::decode(
            body,
            (BODY_MAX, FORMAT),
            |wire: &Wire| (wire.leasehold_fence, &wire.more),
            BadFence::Newer,
            BadFence::Damaged,
        )?;
        let lease = Name::new(&wire.lease).map_err(|e| damaged(e.to_string()))?;
        let forgotten = matches!(wire.state, WireState::Forgotten);
        let pending = match (wire.state, wire.temp, wire.before, wire.over) {
            (WireState::Done | WireState::Forgotten, None, None, None) => None,
            (WireState::Pending, Some(temp), Some(before), over) if wire.seq > 0 && is_bare(&temp) => {
                Some(PendingWrite { temp, before, over })
            }
            _ => return Err(damaged("its state contradicts the rest".into())),
        };
        // A sealed fence has written nothing; a write always has a digest.
        if (wire.seq == 0) != wire.digest.is_empty() {
            return Err(damaged("its number of writes contradicts its digest".into()));
        }
        let mode = match wire.mode {
            WireMode::Enforce => FenceMode::Enforce,
            WireMode::Observe => FenceMode::Observe,
        };
        let fence = Fence {
            lease,
            epoch: wire.epoch,
            token: wire.token,
            grant: wire.grant,
            seq: wire.seq,
            digest: wire.digest,
            done: pending.is_none(),
            mode,
            let_in: wire.let_in,
        };
        Ok(Self { fence, pending, payload: wire.payload, forgotten, more: wire.more })
    }
}

/// Whether this is the name of a file in the same directory: files that a fence names are renamed.
fn is_bare(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    fn fence() -> Fence {
        Fence {
            lease: Name::new("site").unwrap(),
            epoch: Epoch::first(5),
            token: Token::new(42).unwrap(),
            grant: Grant(7),
            seq: 2,
            digest: "d2".into(),
            done: true,
            mode: FenceMode::Enforce,
            let_in: 0,
        }
    }

    fn pending() -> FenceRecord {
        FenceRecord::pending(
            fence(),
            PendingWrite { temp: ".a.leasehold-new".into(), before: "d1".into(), over: None },
        )
    }

    fn text(record: &FenceRecord) -> String {
        String::from_utf8(record.encode()).unwrap()
    }

    fn decode(text: &str) -> Result<FenceRecord, BadFence> {
        FenceRecord::decode(text.as_bytes())
    }

    #[test]
    fn what_is_written_is_read_back() {
        let sealed = FenceRecord::done(Fence { seq: 0, digest: String::new(), ..fence() });
        let observed = FenceRecord::done(Fence { mode: FenceMode::Observe, let_in: 9, ..fence() });
        let elsewhere = FenceRecord::done(fence()).with_payload(Some("42.2.d2".into()));
        for record in [FenceRecord::done(fence()), sealed, observed, elsewhere, pending()] {
            assert_eq!(decode(&text(&record)), Ok(record));
        }
    }

    #[test]
    fn a_pending_write_is_finished_or_taken_back() {
        assert_eq!(pending().finished(), FenceRecord::done(fence()));
        let before = Fence { seq: 1, digest: "d1".into(), ..fence() };
        assert_eq!(pending().taken_back(), FenceRecord::done(before));
    }

    #[test]
    fn a_person_can_read_it() {
        let text = text(&pending());
        let start =
            r#"{"leasehold_fence":1,"lease":"site","token":42,"seq":2,"state":"pending","mode":"enforce","#;
        assert!(text.starts_with(start) && text.ends_with("}\n"), "{text}");
    }

    #[test]
    fn a_newer_format_is_named_even_with_fields_we_do_not_know() {
        let text = text(&pending()).replace("_fence\":1,", "_fence\":3,\"colour\":\"red\",");
        assert_eq!(decode(&text), Err(BadFence::Newer(3)));
    }

    #[test]
    fn additions_are_carried_along() {
        let with = FenceRecord { more: additions::some(), ..pending() };
        assert!(text(&with).starts_with(r#"{"leasehold_fence":2,"#), "an older reader is told so");
        assert_eq!(decode(&text(&with)), Ok(with.clone()));
        for next in [with.finished(), with.taken_back(), FenceRecord::done(fence()).after(Some(&with))] {
            assert_eq!(next.more, with.more);
        }
    }

    #[test]
    fn strict_about_everything_else() {
        let (good, done) = (text(&pending()), text(&FenceRecord::done(fence())));
        let bad = vec![
            good.replace("\"token\":42", "\"token\":9007199254740992"),
            good.replace("\"token\":42", "\"token\":0"),
            good.replace("\"token\":42", "\"token\":42.0"),
            good.replace("\"token\":42", "\"token\":42,\"token\":43"),
            good.replace("\"token\":42", "\"token\":42,\"colour\":\"red\""),
            good.replace("\"lease\":\"site\"", "\"lease\":\"../site\""),
            good.replace("\"seq\":2", "\"seq\":0"),
            good.replace("\"seq\":2", "\"seq\":-1"),
            good.replace("\"state\":\"pending\"", "\"state\":\"done\""),
            good.replace("\"state\":\"pending\"", "\"state\":\"Pending\""),
            good.replace("\"mode\":\"enforce\"", "\"mode\":\"off\""),
            good.replace(".a.leasehold-new", "../elsewhere"),
            good.replace(".a.leasehold-new", ".."),
            good.replace(".a.leasehold-new", ""),
            good.replace("_fence\":1", "_fence\":0"),
            good.replace("_fence\":1", "\":1"),
            good.replace("}", ",\"more\":{\"colour\":\"red\"}}"),
            done.replace("\"state\":\"done\"", "\"state\":\"pending\""),
            done.replace("\"seq\":2", "\"seq\":0"),
            done.replace("\"digest\":\"d2\"", "\"digest\":\"\""),
            format!("{good} {{}}"),
            format!("{good}x"),
            good[..good.len() - 2].into(),
            "\n".into(),
            "null".into(),
            "42".into(),
            "<html>busy</html>".into(),
            good.replace("d1", &"d".repeat(BODY_MAX)),
        ];
        for text in bad {
            assert!(matches!(decode(&text), Err(BadFence::Damaged(_))), "{text}");
        }
        assert_eq!(decode(""), Err(BadFence::Empty));
    }
}
