//! A table in PostgreSQL as a target: `pg:postgres://USER@HOST/DATABASE#SCHEMA.TABLE`.
//!
//! `guard install` adds a fence and a trigger to the table, so that the job's own SQL is fenced without a change.
//! Each statement that writes checks the text that its session shows (see [`crate::targets::sql`]), in the
//! transaction that writes. Sealing waits until every transaction that passed the check has ended. So after
//! sealing a run reads the final state that the run before left.

mod check;
mod errors;
mod guard;
mod sql;

use std::cell::Cell;
use std::ffi::OsString;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, FenceMode};
use leasehold_core::fence_record::FenceRecord;
use leasehold_core::store::{Failure, FailureKind};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

pub use self::check::TableFence;
#[cfg(feature = "conformance")]
pub use self::sql::check as trigger_sql;
use super::config::Config;
use super::connection::{self, PgConnection};
use super::{env, shown};
use crate::backends::remote;
use crate::targets::guard::{Guard, GuardChange, GuardReport, Others, ShownBy};
use crate::targets::sql as shared;
use crate::targets::{
    Class, Content, Refused, RefusedAction, Sealed, SealedBy, Target, TargetAction, TargetError, Variables,
    Written,
};
use crate::text::percent_decoded;

/// How long a seal waits for transactions that write the table.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Additional time for the connection and the other statements.
const MARGIN: Duration = Duration::from_secs(10);

/// A table that only the holder of a lease may write.
#[derive(Clone)]
pub struct PgTarget {
    server: Config,
    table: String,
    shown: String,
    patience: Duration,
    margin: Duration,
    /// The way of showing a run that installing was asked for.
    shown_by: Option<ShownBy>,
}

impl fmt::Debug for PgTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PgTarget").field(&self.shown).finish()
    }
}

/// A connection, and whether a COMMIT was sent on it: from then on a missing answer leaves the outcome unknown.
struct PgCall {
    link: PgConnection,
    committing: Cell<bool>,
}

impl Deref for PgCall {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.link
    }
}

/// The table in the catalogue, and its guard.
struct TableState {
    /// The table's OID.
    oid: u32,
    /// The id of its fence.
    id: i64,
    row: shared::FenceRow,
    others: Others,
}

impl PgTarget {
    /// Reads the URL; `rest` is the part after `pg:`. Connects with the first call.
    pub fn open(url: &str, rest: &str) -> Result<Self, TargetError> {
        let unfit = |why: String, fix: &str| TargetError::Unfit { target: shown(url), why, fix: fix.into() };
        let example = "Write pg:postgres://USER@HOST/DATABASE#SCHEMA.TABLE";
        let Some((server, table)) = rest.rsplit_once('#').filter(|(_, table)| !table.is_empty()) else {
            return Err(unfit("names no table: there is nothing after a #".into(), example));
        };
        let Some(table) = percent_decoded(table) else {
            return Err(unfit(
                "has a % in its table name that starts no %XX".into(),
                "Write a plain % as %25",
            ));
        };
        let server = match server.strip_prefix("//") {
            Some(rest) => format!("postgres://{rest}"),
            None => server.to_owned(),
        };
        if !server.starts_with("postgres://") && !server.starts_with("postgresql://") {
            return Err(unfit("is not a PostgreSQL URL".into(), example));
        }
        let server = Config::parse(&server, &env)
            .map_err(|why| unfit(format!("cannot be read: {}", why.trim_end_matches('.')), example))?;
        Ok(Self { server, table, shown: shown(url), patience: PATIENCE, margin: MARGIN, shown_by: None })
    }

    /// Waits this long for transactions that write the table.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Allows this additional time for the other statements.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_margin(self, margin: Duration) -> Self {
        Self { margin, ..self }
    }

    /// Connects, runs `work` and disconnects, in a new runtime, so that any thread can call it.
    fn connected<T>(
        &self,
        doing: &'static str,
        work: impl AsyncFnOnce(&PgCall) -> Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        let failed = |failure| errors::remote(&self.shown, doing, failure);
        let runtime = remote::start().map_err(failed)?;
        runtime.block_on(async {
            let link = connection::connect(&self.server, MARGIN).await.map_err(failed)?;
            work(&PgCall { link, committing: Cell::new(false) }).await
        })
    }

    /// The same, with a time limit for the whole work.
    fn drive<T>(
        &self,
        doing: &'static str,
        asked: TargetAction,
        work: impl AsyncFnOnce(&PgCall) -> Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        self.connected(doing, async |call: &PgCall| self.within(call, doing, asked, work(call)).await)
    }

    /// Runs `work` with a time limit, and returns the right error when it is over.
    async fn within<T>(
        &self,
        call: &PgCall,
        doing: &'static str,
        asked: TargetAction,
        work: impl Future<Output = Result<T, TargetError>>,
    ) -> Result<T, TargetError> {
        let limit = self.patience + self.margin;
        match tokio::time::timeout(limit, work).await {
            Ok(answer) => answer,
            Err(_) if call.committing.get() => Err(self.in_doubt(asked, errors::silence(limit))),
            Err(_) => {
                let failure = Failure::new(FailureKind::Unreachable, errors::silence(limit));
                Err(errors::remote(&self.shown, doing, failure))
            }
        }
    }

    async fn commit(
        &self,
        call: &PgCall,
        doing: &'static str,
        asked: TargetAction,
    ) -> Result<(), TargetError> {
        call.committing.set(true);
        let done = call.client.batch_execute("COMMIT").await;
        done.map_err(|e| match errors::cause(&e) {
            errors::Cause::Lost => self.in_doubt(asked, "the connection broke during the COMMIT".into()),
            _ => errors::said(&self.shown, doing, &e),
        })
    }

    fn in_doubt(&self, asked: TargetAction, why: String) -> TargetError {
        TargetError::InDoubt { target: self.shown.clone(), asked, why }
    }

    fn said(&self, doing: &'static str) -> impl Fn(Error) -> TargetError {
        move |e| errors::said(&self.shown, doing, &e)
    }

    /// The table and its fence; an error if the guard is not as it was installed.
    async fn found(&self, link: &PgConnection, doing: &'static str) -> Result<TableState, TargetError> {
        let here = guard::Here::ask(self, link, doing).await?;
        let oid = here.table.ok_or_else(|| errors::no_table(&self.shown, &self.table))?;
        if !here.schema {
            return Err(errors::no_guard(&self.shown));
        }
        let found = self.fence_of(link, sql::FENCE, oid, doing).await?;
        let found = found.ok_or_else(|| errors::no_guard(&self.shown))?;
        let tree = guard::tree(self, link, oid, doing).await?;
        if let Some((name, parent)) = guard::way_round(&tree) {
            return Err(errors::way_round(&self.shown, name, parent));
        }
        match tree.first() {
            Some(root) if root.stands(found.id) => Ok(found),
            _ => Err(errors::weak_guard(&self.shown)),
        }
    }

    async fn fence_of(
        &self,
        link: &PgConnection,
        statement: &str,
        oid: u32,
        doing: &'static str,
    ) -> Result<Option<TableState>, TargetError> {
        let rows =
            link.client.query_typed(statement, &[(&oid, Type::OID)]).await.map_err(self.said(doing))?;
        rows.first().map(|row| read(row, oid)).transpose().map_err(self.said(doing))?.transpose().map_err(
            |why| TargetError::BadFence { target: self.shown.clone(), fence: errors::ROW.into(), why },
        )
    }

    fn fence(&self, found: &TableState) -> Result<Option<Fence>, TargetError> {
        found.row.fence().map_err(|why| TargetError::BadFence {
            target: self.shown.clone(),
            fence: errors::ROW.into(),
            why,
        })
    }

    /// Changes the fence under its lock: every transaction that passed the check before has ended by then.
    fn changing<T>(
        &self,
        asked: TargetAction,
        change: impl Fn(Option<Fence>) -> Result<(Option<Fence>, T), TargetError>,
    ) -> Result<T, TargetError> {
        self.drive(asked.doing(), asked, async |call: &PgCall| self.change(call, asked, change).await)
    }

    async fn change<T>(
        &self,
        call: &PgCall,
        asked: TargetAction,
        change: impl Fn(Option<Fence>) -> Result<(Option<Fence>, T), TargetError>,
    ) -> Result<T, TargetError> {
        let doing = asked.doing();
        let found = self.found(call, doing).await?;
        let limit = self.patience.as_millis().max(1);
        // Not the default isolation: after the wait for the lock, the newest fence must be read.
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {limit}; \
             SET LOCAL statement_timeout = {limit}; SET LOCAL synchronous_commit = 'on'"
        );
        call.client.batch_execute(&begin).await.map_err(self.said(doing))?;
        let locked = call
            .client
            .query_typed("SELECT pg_catalog.pg_advisory_xact_lock($1)::text", &[(&found.id, Type::INT8)])
            .await;
        let locked = match locked {
            Ok(_) => self.fence_of(call, sql::FENCE_LOCKED, found.oid, doing).await,
            Err(e) if errors::cause(&e) == errors::Cause::Waiting => {
                return Err(self.kept_waiting(call, found.id, doing).await);
            }
            Err(e) => return Err(errors::said(&self.shown, doing, &e)),
        };
        let mut now = locked?.ok_or_else(|| errors::no_guard(&self.shown))?;
        let folded = call.client.query_typed(sql::FOLD, &[(&now.id, Type::INT8)]).await;
        now.row.let_in += first::<i64>(&folded.map_err(self.said(doing))?).unwrap_or(0);
        let before = self.fence(&now)?;
        let (next, answer) = change(before)?;
        self.store(call, &now, next.as_ref()).await.map_err(self.said(doing))?;
        self.commit(call, doing, asked).await?;
        Ok(answer)
    }

    /// Writes the fence, or only the count of stale writes in observe mode.
    async fn store(&self, link: &PgConnection, now: &TableState, next: Option<&Fence>) -> Result<(), Error> {
        // No fence any more: clear its columns.
        let forgotten = now.row.lease.is_some().then(shared::FenceRow::unsealed);
        let Some(row) = next.map(shared::FenceRow::of).or(forgotten) else {
            let params: &[(&(dyn ToSql + Sync), Type)] =
                &[(&now.id, Type::INT8), (&now.row.mode, Type::TEXT), (&now.row.let_in, Type::INT8)];
            return link.client.query_typed(sql::COUNT, params).await.map(drop);
        };
        let params: &[(&(dyn ToSql + Sync), Type)] = &[
            (&now.id, Type::INT8),
            (&row.lease, Type::TEXT),
            (&row.token, Type::INT8),
            (&row.generation, Type::INT8),
            (&row.epoch, Type::TEXT),
            (&row.grant, Type::TEXT),
            (&row.carrier, Type::TEXT),
            (&row.mode, Type::TEXT),
            (&row.let_in, Type::INT8),
        ];
        link.client.query_typed(sql::RAISE, params).await.map(drop)
    }

    /// The error that names the transactions that block, and how to end them.
    async fn kept_waiting(&self, link: &PgConnection, id: i64, doing: &'static str) -> TargetError {
        // Our transaction has failed; this releases its locks.
        let _ = link.client.batch_execute("ROLLBACK").await;
        let (high, low) = (i64::from((id >> 32) as u32), i64::from(id as u32));
        let params = &[(&high as &(dyn ToSql + Sync), Type::INT8), (&low, Type::INT8)];
        let rows = link.client.query_typed(sql::HOLDERS, params).await.unwrap_or_default();
        errors::kept_waiting(&self.shown, doing, self.patience, &rows)
    }

    /// Runs the script without a time limit; the statements around it have one.
    async fn run_script(&self, call: &PgCall, bearer: &Bearer, script: &str) -> Result<Written, TargetError> {
        let begin = async {
            call.client.batch_execute("BEGIN").await.map_err(self.said("write"))?;
            let asked = check::admit(&call.client, &self.table, bearer).await;
            asked.map_err(|e| check::refused(&self.shown, bearer, &e, "write"))
        };
        self.within(call, "write", TargetAction::Write, begin).await?;
        let ran = call.client.batch_execute(&sql::as_one(script)).await;
        ran.map_err(|e| check::stopped(&self.shown, bearer, &e, script))?;
        self.within(call, "write", TargetAction::Write, self.commit(call, "write", TargetAction::Write))
            .await?;
        Ok(Written { seq: 0, repeat: false, let_in: None })
    }
}

/// The first column of the first row.
fn first<'a, T: tokio_postgres::types::FromSql<'a>>(rows: &'a [Row]) -> Option<T> {
    rows.first().and_then(|row| row.try_get(0).ok())
}

fn read(row: &Row, oid: u32) -> Result<Result<TableState, String>, Error> {
    let others: String = row.try_get(1)?;
    let fence = shared::FenceRow {
        mode: row.try_get(2)?,
        lease: row.try_get(3)?,
        token: row.try_get(4)?,
        generation: row.try_get(5)?,
        epoch: row.try_get(6)?,
        grant: row.try_get(7)?,
        carrier: row.try_get(8)?,
        let_in: row.try_get(9)?,
    };
    let id = row.try_get(0)?;
    Ok(Others::parse(&others).map(|others| TableState { oid, id, row: fence, others }))
}

impl Target for PgTarget {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn class(&self) -> Class {
        Class::Atomic
    }

    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        let seal =
            || self.changing(TargetAction::Seal, |before| shared::sealed(before, bearer, mode, &self.shown));
        let let_in = match seal() {
            // The fence may be raised already: raising it again changes nothing then.
            Err(first @ (TargetError::Lost { .. } | TargetError::InDoubt { .. })) => {
                seal().map_err(|second| match (first, second) {
                    (_, refused @ TargetError::Refused(_)) => refused,
                    (doubt @ TargetError::InDoubt { .. }, _) => doubt,
                    (_, second) => second,
                })?
            }
            answer => answer?,
        };
        Ok(Sealed { let_in })
    }

    /// The content is an SQL script, which is run in one transaction of this run. Writes have no numbers here: see
    /// `docs/targets/sql.md`.
    fn write(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        content: Content<'_>,
    ) -> Result<Written, TargetError> {
        let script = shared::script(&self.shown, seq, content)?;
        let mut session = self.clone();
        session.server.application = Some(shared::carrier(bearer));
        session.connected("write", async |call: &PgCall| session.run_script(call, bearer, &script).await)
    }

    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
        self.drive("read the fence of", TargetAction::Seal, async |call: &PgCall| {
            let found = self.found(call, "read the fence of").await?;
            Ok(self.fence(&found)?.map(FenceRecord::done))
        })
    }

    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError> {
        self.changing(TargetAction::Mode, |before| shared::in_mode(before, mode, &self.shown))
    }

    fn forget(&mut self) -> Result<Option<Fence>, TargetError> {
        self.changing(TargetAction::Reset, |before| Ok((None, before)))
    }

    fn environment(&self, bearer: &Bearer, _has: Variables<'_>) -> Vec<(OsString, OsString)> {
        let carrier = OsString::from(shared::carrier(bearer));
        vec![("PGAPPNAME".into(), carrier.clone()), (shared::VARIABLE.into(), carrier)]
    }

    /// Warns of tables that are not guarded.
    fn aftermath(&mut self, _bearer: &Bearer) -> Option<String> {
        let report = guard::inspect(self).ok()?;
        let open: Vec<&str> =
            report.tables.iter().filter(|t| !t.guarded).map(|t| t.name.as_str()).take(5).collect();
        if open.is_empty() {
            return report.pooled.then(|| guard::POOLED.into());
        }
        Some({
            format!(
                "{} {} not guarded, so writes to it are not fenced. Run: leasehold guard install {} --others {}",
                open.join(", "),
                if open.len() == 1 { "is" } else { "are" },
                self.shown,
                report.others.word()
            )
        })
    }
}

impl Guard for PgTarget {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn accept(&mut self, shown_by: ShownBy) -> Result<(), TargetError> {
        self.shown_by = Some(shown_by);
        Ok(())
    }

    fn install(&mut self, others: Others, run: bool) -> Result<GuardChange, TargetError> {
        guard::install(self, others, run)
    }

    fn remove(&mut self, run: bool) -> Result<GuardChange, TargetError> {
        guard::remove(self, run)
    }

    fn inspect(&mut self) -> Result<GuardReport, TargetError> {
        guard::inspect(self)
    }
}
