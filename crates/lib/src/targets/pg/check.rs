//! The guard's question inside the caller's own transaction.

use leasehold_core::fence::{Bearer, Fence, Mode, Reason};
use leasehold_core::ids::{Epoch, Grant, Token};
use leasehold_core::name::Name;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, GenericClient, Transaction};

use super::super::sql::carrier;
use super::{Attempt, Refused, TargetError, trouble};
use crate::host::Enclosing;

/// A guarded table, as one run sees it.
///
/// ```no_run
/// # async fn publish(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::targets::pg::TableFence;
///
/// // Inside `leasehold run NAME --fence pg:...#public.accounts -- this program`.
/// let fence = TableFence::from_env("public.accounts").ok_or("not inside a run")?;
/// let tx = client.transaction().await?;
/// fence.check(&tx).await?; // a stale run ends here, with both tokens
/// tx.execute("UPDATE public.accounts SET balance = balance - 1 WHERE id = 7", &[]).await?;
/// tx.commit().await?; // no later run can have sealed the table in between
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TableFence {
    bearer: Bearer,
    table: String,
}

impl TableFence {
    /// The table, named as in SQL, for this run.
    pub fn new(bearer: Bearer, table: impl Into<String>) -> Self {
        Self { bearer, table: table.into() }
    }

    /// The same for the run this process is part of; nothing if it is not part of one.
    pub fn from_env(table: impl Into<String>) -> Option<Self> {
        let run = Enclosing::from_env(|name| std::env::var(name).ok())?;
        Some(Self::new(run.into(), table))
    }

    /// Whether this run may write the table, until the end of this transaction: a later run cannot seal it
    /// before that. It also shows the grant to the guard, whatever the session calls itself, so it works
    /// behind a pooler.
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

/// What the guard said, as the rule's own answer.
pub(super) fn refused(target: &str, bearer: &Bearer, error: &Error, doing: &'static str) -> TargetError {
    let code = error.code().map(|code| code.code().to_owned()).unwrap_or_default();
    let reason = match code.as_str() {
        "LH001" => Reason::Stale,
        "LH003" => Reason::NotSealed,
        "LH004" => Reason::Fork,
        "LH005" => Reason::Epoch,
        "LH006" => Reason::OtherLease,
        "LH007" => {
            return TargetError::BadFence {
                target: target.into(),
                fence: trouble::ROW.into(),
                why: "the guard has no fence".into(),
            };
        }
        // The schema, or the function in it.
        "3F000" | "42883" => return trouble::no_guard(target),
        "42P01" => return trouble::no_table(target, target),
        _ => return trouble::said(target, doing, error),
    };
    let detail = error.as_db_error().and_then(|e| e.detail()).unwrap_or_default();
    // "The fence says: lease site, token 34."
    let said = detail.strip_prefix("The fence says: lease ").and_then(|rest| rest.split_once(", token "));
    let token = said.and_then(|(_, token)| token.trim_end_matches('.').parse().ok());
    TargetError::Refused(Box::new(refusal(reason, target, bearer, said.map(|(lease, _)| lease), token)))
}

/// A refusal that was spoken by the database itself, from what it says about it.
fn refusal(
    reason: Reason,
    target: &str,
    bearer: &Bearer,
    lease: Option<&str>,
    token: Option<u64>,
) -> Refused {
    // The rest of the fence is not for those who may only write the table.
    let known = lease.and_then(|l| Name::new(l).ok()).zip(token.and_then(Token::new));
    let fence = known.map(|(lease, token)| Fence {
        lease,
        epoch: Epoch { generation: 0, id: 0 },
        token,
        grant: Grant(0),
        seq: 0,
        digest: String::new(),
        done: true,
        mode: Mode::Enforce,
        let_in: 0,
    });
    Refused::new(Attempt::Write, reason, target, bearer, fence.as_ref())
}
