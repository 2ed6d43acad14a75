//! The guard's check inside the caller's own transaction.

use leasehold_core::fence::{Bearer, RefusalReason};
use leasehold_core::ids::Token;
use leasehold_core::name::Name;
use serde::Deserialize;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, GenericClient, Transaction};

use super::{PgTarget, Refused, RefusedAction, SealedBy, TargetError, errors, shared};
use crate::backends::postgres::errors::said;
use crate::targets::sql::{carrier, not_one_transaction};

/// A guarded table, as one run sees it.
///
/// ```no_run
/// # async fn publish(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::backends::postgres::TableFence;
///
/// // Inside `leasehold run NAME --fence pg:...#public.accounts -- this program`.
/// let fence = TableFence::from_env("public.accounts").ok_or("not inside a run")?;
/// let tx = client.transaction().await?;
/// fence.check(&tx).await?; // a stale run ends here, with both tokens
/// tx.execute("UPDATE public.accounts SET balance = balance - 1 WHERE id = 7", &[]).await?;
/// tx.commit().await?; // no later run can have sealed the table in between
/// # Ok(()) }
/// ```
pub type TableFence = shared::TableFence<PgTarget>;

impl TableFence {
    /// Checks that this run may write the table until the end of this transaction: a later run cannot seal it
    /// before that. It also shows the run to the guard, independent of the session's application name, so it
    /// works behind a pooler.
    pub async fn check(&self, tx: &Transaction<'_>) -> Result<(), TargetError> {
        let asked = admit(tx, &self.table, &self.bearer).await;
        asked.map_err(|e| refused(&self.table, &self.bearer, &e, "check"))
    }
}

pub(super) async fn admit<C: GenericClient>(client: &C, table: &str, bearer: &Bearer) -> Result<(), Error> {
    let shown = carrier(bearer);
    let params: &[(&(dyn ToSql + Sync), Type)] = &[(&table, Type::TEXT), (&shown, Type::TEXT)];
    let sql = "SELECT leasehold_guard.admit($1::text::regclass, $2)::text";
    client.query_typed(sql, params).await.map(drop)
}

/// The guard's answer to [`admit`], as an error.
pub(super) fn refused(target: &str, bearer: &Bearer, error: &Error, doing: &'static str) -> TargetError {
    if let Some(ruled) = ruled(target, bearer, error) {
        return ruled;
    }
    match error.code().map(|code| code.code()) {
        // The schema, or the function in it.
        Some("3F000" | "42883") => errors::no_guard(target),
        Some("42P01") => errors::no_table(target, target),
        _ => errors::said(target, doing, error),
    }
}

/// The error of a script: a refusal by the guard, or an error of the script itself.
pub(super) fn stopped(target: &str, bearer: &Bearer, error: &Error, script: &str) -> TargetError {
    let unfit = || {
        let said = said(error);
        let stdin = script.to_ascii_lowercase().contains("from stdin");
        match error.code().map(|code| code.code()) {
            // With rows below it, COPY is a syntax error; without them, it is not possible in a function.
            Some("42601") if stdin => Some(copies(target, &said)),
            Some("0A000") if said.contains("COPY") => Some(copies(target, &said)),
            // Not possible in a function, such as transactions.
            Some("0A000") => Some(not_one_transaction(target, &said)),
            _ => None,
        }
    };
    ruled(target, bearer, error).or_else(unfit).unwrap_or_else(|| errors::said(target, "write", error))
}

/// COPY FROM STDIN: there is no client that sends the rows.
fn copies(target: &str, said: &str) -> TargetError {
    TargetError::Unfit {
        target: target.into(),
        why: format!("was given a script that copies from or to a client, and there is none ({said})"),
        fix: "Write the rows as INSERT, or run psql in the job, where its SQL is fenced too".into(),
    }
}

/// The fence, in the detail of the guard's error.
#[derive(Deserialize)]
struct GuardDetail {
    lease: String,
    token: u64,
}

/// A refusal by the guard, with the rule's reason.
fn ruled(target: &str, bearer: &Bearer, error: &Error) -> Option<TargetError> {
    let reason = match error.code()?.code() {
        "LH001" => RefusalReason::Stale,
        "LH003" => RefusalReason::NotSealed,
        "LH004" => RefusalReason::Fork,
        "LH005" => RefusalReason::Epoch,
        "LH006" => RefusalReason::OtherLease,
        "LH007" => {
            return Some(TargetError::BadFence {
                target: target.into(),
                fence: errors::ROW.into(),
                why: "the guard has no fence".into(),
            });
        }
        _ => return None,
    };
    // The guard shows only these two, because a role that may write the table must not see the rest.
    let detail = error.as_db_error().and_then(|e| e.detail()).unwrap_or_default();
    let fence = serde_json::from_str::<GuardDetail>(detail).ok().and_then(|said| {
        Some(SealedBy { lease: Name::new(&said.lease).ok()?, token: Token::new(said.token)? })
    });
    let refused = Refused { fence, ..Refused::new(RefusedAction::Write, reason, target, bearer, None) };
    Some(TargetError::Refused(Box::new(refused)))
}
