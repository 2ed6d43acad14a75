//! Shared by the SQL targets: how a session shows which run it belongs to.
//!
//! A run's sessions have a text that PostgreSQL accepts as an application name: at most 63 bytes. Other users of
//! the server, and its logs, can see it. So it does not contain the grant, and is of use only for SQL targets.

use std::io::Read;
use std::marker::PhantomData;

use leasehold_core::fence::{Bearer, Fence, FenceMode};
use leasehold_core::ids::{Epoch, Grant, Token};
use leasehold_core::name::Name;
use sha2::{Digest, Sha256};

use super::cas_fence::never_sealed;
use super::{Content, Refused, TargetError, enclosing, sealing};

/// A guarded table, as one run sees it, in the database `D`.
#[derive(Clone, Debug)]
pub struct TableFence<D> {
    pub(crate) bearer: Bearer,
    pub(crate) table: String,
    database: PhantomData<D>,
}

impl<D> TableFence<D> {
    /// The table, by its name in the database, for this run.
    pub fn new(bearer: Bearer, table: impl Into<String>) -> Self {
        Self { bearer, table: table.into(), database: PhantomData }
    }

    /// The same for the run that this process is part of, if it is part of one.
    pub fn from_env(table: impl Into<String>) -> Option<Self> {
        Some(Self::new(enclosing()?, table))
    }
}

/// The prefix of every such text.
pub const PREFIX: &str = "leasehold:";
/// The variable with that text in a job's environment, for clients that must set it themselves.
pub const VARIABLE: &str = "LEASEHOLD_SQL_GRANT";

/// The longest script that is run.
const SCRIPT_MAX: u64 = 64 * 1024 * 1024;

/// The text that a session of this run shows: `leasehold:TOKEN:PROOF:LEASE:EPOCH`, the last three hashed.
///
/// A target compares the whole text. Its parts are for the message of a refusal: they tell whether the lease, the
/// epoch or the token differs.
pub fn carrier(bearer: &Bearer) -> String {
    let Bearer { lease, epoch, token, grant } = bearer;
    let proof = letters(&format!("leasehold sql\n{lease}\n{epoch}\n{token}\n{grant}"), 22);
    let (lease, epoch) = (letters(lease.as_str(), 6), letters(&epoch.to_string(), 6));
    format!("{PREFIX}{token}:{proof}:{lease}:{epoch}")
}

/// The first `count` letters of a hash, six bits each.
fn letters(text: &str, count: usize) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let hash = Sha256::digest(text.as_bytes());
    let mut bits = hash.iter().take(16).fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    let mut word = String::with_capacity(count);
    for _ in 0..count {
        word.push(char::from(LETTERS[(bits & 63) as usize]));
        bits >>= 6;
    }
    word
}

/// A guard on Leasehold's own records would keep every run from its lease.
pub(crate) fn own_store(target: &str) -> TargetError {
    TargetError::Unfit {
        target: target.into(),
        why: "is a table in which Leasehold keeps leases, and a guard on it would refuse every lease".into(),
        fix: "Name one of your own tables".into(),
    }
}

/// The columns of a stored fence; either all of the first six are set or none.
#[derive(Clone, Debug, Default)]
pub(crate) struct FenceRow {
    pub lease: Option<String>,
    pub generation: Option<i64>,
    pub epoch: Option<String>,
    pub token: Option<i64>,
    pub grant: Option<String>,
    pub carrier: Option<String>,
    pub mode: String,
    pub let_in: i64,
}

impl FenceRow {
    /// The fence, if there is one; or a sentence about what is wrong with the row.
    pub(crate) fn fence(&self) -> Result<Option<Fence>, String> {
        let mode = FenceMode::parse(&self.mode)
            .ok_or_else(|| format!("the mode of the fence, {:?}, is unknown", self.mode))?;
        let parts = (&self.lease, self.generation, &self.epoch, self.token, &self.grant, &self.carrier);
        let (lease, generation, epoch, token, grant, carried) = match parts {
            (None, None, None, None, None, None) => return Ok(None),
            (Some(l), Some(n), Some(e), Some(t), Some(g), Some(c)) => (l, n, e, t, g, c),
            _ => return Err("a part of the fence is missing".into()),
        };
        let damaged = |what: &str| format!("the {what} of the fence is not readable");
        let bearer = Bearer {
            lease: Name::new(lease).map_err(|_| damaged("lease"))?,
            epoch: Epoch::parse(&format!("{generation}-{epoch}")).ok_or_else(|| damaged("epoch"))?,
            token: u64::try_from(token).ok().and_then(Token::new).ok_or_else(|| damaged("token"))?,
            grant: Grant::parse(grant).ok_or_else(|| damaged("grant"))?,
        };
        // The text that sessions are compared with must match the columns that people see.
        if *carried != carrier(&bearer) {
            return Err("the fence contradicts itself".into());
        }
        let let_in = u64::try_from(self.let_in).map_err(|_| damaged("count"))?;
        let Bearer { lease, epoch, token, grant } = bearer;
        let (seq, digest, done) = (0, String::new(), true);
        Ok(Some(Fence { lease, epoch, token, grant, seq, digest, done, mode, let_in }))
    }

    /// The columns of a table without a fence.
    pub(crate) fn unsealed() -> Self {
        Self { mode: FenceMode::Enforce.word().into(), ..Self::default() }
    }

    /// The columns for a fence.
    pub(crate) fn of(fence: &Fence) -> Self {
        let Fence { lease, epoch, token, grant, .. } = fence.clone();
        let carried = carrier(&Bearer { lease, epoch, token, grant });
        Self {
            lease: Some(fence.lease.as_str().into()),
            generation: Some(fence.epoch.generation.into()),
            epoch: Some(format!("{:032x}", epoch.id)),
            token: i64::try_from(token.get()).ok(),
            grant: Some(grant.to_string()),
            carrier: Some(carried),
            mode: fence.mode.word().into(),
            let_in: i64::try_from(fence.let_in).unwrap_or(i64::MAX),
        }
    }
}

/// The fence of a table after a seal, and the refusal that is only counted because the table observes.
pub(crate) fn sealed(
    before: Option<Fence>,
    bearer: &Bearer,
    mode: FenceMode,
    shown: &str,
) -> Result<(Option<Fence>, Option<Refused>), TargetError> {
    Ok(match sealing(before.as_ref(), bearer, mode, shown)? {
        Some((next, let_in)) => (Some(next), let_in),
        None => (before, None),
    })
}

/// The fence of a table in another mode.
pub(crate) fn in_mode(
    before: Option<Fence>,
    mode: FenceMode,
    shown: &str,
) -> Result<(Option<Fence>, ()), TargetError> {
    match before {
        Some(fence) => Ok((Some(Fence { mode, ..fence }), ())),
        None => Err(never_sealed(shown)),
    }
}

/// The error for a script with transactions of its own: what it commits would stay if the rest fails.
pub(crate) fn not_one_transaction(target: &str, what: &str) -> TargetError {
    TargetError::Unfit {
        target: target.into(),
        why: format!("was given a script that cannot be run as one transaction ({what})"),
        fix: "Leave out BEGIN, COMMIT, END, ROLLBACK, SAVEPOINT and RELEASE: the script runs in one transaction".into(),
    }
}

/// The script, as text.
pub(crate) fn script(target: &str, seq: Option<u64>, content: Content<'_>) -> Result<String, TargetError> {
    let unfit =
        |why: &str, fix: &str| TargetError::Unfit { target: target.into(), why: why.into(), fix: fix.into() };
    if seq.is_some() {
        return Err(unfit(
            "does not number writes",
            "Write without a number: the script runs in one transaction",
        ));
    }
    let mut bytes = Vec::new();
    match content {
        Content::Bytes(given) => bytes.extend_from_slice(given),
        Content::Stream(stream) => {
            stream.take(SCRIPT_MAX + 1).read_to_end(&mut bytes).map_err(|source| TargetError::Io {
                target: target.into(),
                doing: "read the statements for",
                source,
            })?;
        }
        Content::Directory(_) => {
            return Err(unfit("is a table, but a directory was given", "Give it SQL statements"));
        }
    }
    if u64::try_from(bytes.len()).is_ok_and(|length| length > SCRIPT_MAX) {
        return Err(unfit("was given more than 64 MiB of SQL", "Run it in parts, in a job with --fence"));
    }
    // SQLite and PostgreSQL's protocol would end the text there.
    if bytes.contains(&0) {
        return Err(unfit("was given a script with a NUL byte in it", "Remove the byte"));
    }
    let no_text = |_| unfit("was given a script that is not UTF-8", "Write the SQL in UTF-8");
    String::from_utf8(bytes).map_err(no_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(token: u64) -> Bearer {
        Bearer {
            lease: Name::new("site").unwrap(),
            epoch: Epoch::first(7),
            token: Token::new(token).unwrap(),
            grant: Grant(50),
        }
    }

    #[test]
    fn it_fits_into_an_application_name() {
        let long = Bearer { lease: Name::new(&"a".repeat(128)).unwrap(), ..bearer(Token::MAX) };
        let text = carrier(&long);
        assert!(text.len() <= 63, "{text}");
        assert!(text.bytes().all(|b| b.is_ascii_graphic() && b != b'\'' && b != b'\\'), "{text}");
        assert!(carrier(&bearer(33)).starts_with("leasehold:33:"));
    }

    #[test]
    fn every_part_of_a_bearer_counts_and_the_grant_is_not_in_it() {
        let me = bearer(33);
        let others = [
            Bearer { lease: Name::new("other").unwrap(), ..me.clone() },
            Bearer { epoch: Epoch { generation: 2, id: 7 }, ..me.clone() },
            Bearer { epoch: Epoch::first(8), ..me.clone() },
            bearer(34),
            Bearer { grant: Grant(51), ..me.clone() },
        ];
        for other in others {
            assert_ne!(carrier(&other), carrier(&me));
        }
        let secret = Bearer { grant: Grant(0x0123_4567_89ab_cdef), ..me };
        assert!(!carrier(&secret).contains("89abcdef"));
    }

    #[test]
    fn a_stored_row_is_read_strictly() {
        let bearer = bearer(33);
        let Bearer { lease, epoch, token, grant } = bearer;
        let (seq, digest, done, mode, let_in) = (0, String::new(), true, FenceMode::Observe, 4);
        let fence = Fence { lease, epoch, token, grant, seq, digest, done, mode, let_in };
        let row = FenceRow::of(&fence);
        assert_eq!(row.fence(), Ok(Some(fence)));
        assert_eq!(FenceRow { mode: "enforce".into(), ..FenceRow::default() }.fence(), Ok(None));
        let damaged = [
            FenceRow { lease: None, ..row.clone() },
            FenceRow { token: Some(34), ..row.clone() },
            FenceRow { token: Some(0), ..row.clone() },
            FenceRow { generation: Some(0), ..row.clone() },
            FenceRow { carrier: Some("leasehold:33".into()), ..row.clone() },
            FenceRow { mode: "off".into(), ..row.clone() },
            FenceRow { let_in: -1, ..row.clone() },
            FenceRow { mode: String::new(), ..FenceRow::default() },
        ];
        for row in damaged {
            assert!(row.fence().is_err(), "{row:?}");
        }
    }
}
