//! The guard's check inside the caller's own transaction, and the function that the guard calls.

use leasehold_core::fence::{Bearer, FenceOffer, FenceVerdict, next_seq, verdict};
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, Transaction};

use super::{Refused, RefusedAction, SqliteTarget, TargetError, errors, row_of, shared, sql};
use crate::targets::sql::carrier;

/// A guarded table, as one run sees it.
///
/// ```no_run
/// # fn publish(db: &mut rusqlite::Connection) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::backends::sqlite::TableFence;
///
/// // Inside `leasehold run NAME --fence sqlite:/srv/shop.db#stock -- this program`.
/// let fence = TableFence::from_env("stock").ok_or("not inside a run")?;
/// let tx = db.transaction()?;
/// fence.check(&tx)?; // a stale run ends here, with both tokens
/// tx.execute("UPDATE stock SET left = left - 1 WHERE id = 7", [])?;
/// tx.commit()?; // no later run can have sealed the table in between
/// # Ok(()) }
/// ```
pub type TableFence = shared::TableFence<SqliteTarget>;

impl TableFence {
    /// Lets this connection write as this run: adds the function that the guard calls.
    pub fn attach(&self, db: &Connection) -> rusqlite::Result<()> {
        show(db, Some(carrier(&self.bearer)))
    }

    /// Checks that this run may write the table until the end of this transaction: a later run cannot seal it
    /// before that. Attaches the run to the connection as well.
    pub fn check(&self, tx: &Transaction<'_>) -> Result<(), TargetError> {
        check(tx, &self.table, &self.table, &self.bearer)
    }
}

/// Sets the text that this connection shows to guards.
pub(super) fn show(db: &Connection, shown: Option<String>) -> rusqlite::Result<()> {
    let flags =
        FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    db.create_scalar_function(sql::FUNCTION, 0, flags, move |_| Ok(shown.clone()))
}

pub(super) fn check(db: &Connection, target: &str, table: &str, bearer: &Bearer) -> Result<(), TargetError> {
    let said = |e: rusqlite::Error| errors::said(target, "check", &e);
    show(db, Some(carrier(bearer))).map_err(said)?;
    // Changes nothing, but takes the write lock: from here to the commit no other run can seal.
    let touch = "UPDATE leasehold_fences SET let_in = let_in WHERE guarded = ?1 COLLATE NOCASE";
    db.execute(touch, [table]).map_err(|e| errors::no_guard_or(target, "check", &e))?;
    let row = row_of(db, table).map_err(said)?.ok_or_else(|| errors::no_guard(target))?;
    let fence = row.0.fence().map_err(|why| errors::bad_fence(target, why))?;
    let seq = next_seq(fence.as_ref());
    match verdict(fence.as_ref(), bearer, &FenceOffer::Write { seq, digest: "-".into() }) {
        // In observe mode the trigger counts.
        FenceVerdict::Accept(_) | FenceVerdict::Repeat | FenceVerdict::LetIn(..) => Ok(()),
        FenceVerdict::Refuse(reason) => Err(TargetError::Refused(Box::new(Refused::new(
            RefusedAction::Write,
            reason,
            target,
            bearer,
            fence.as_ref(),
        )))),
    }
}
