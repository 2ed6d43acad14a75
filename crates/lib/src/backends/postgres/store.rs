//! PostgreSQL: one table in its own schema, one statement for each verb, the server's clock.
//!
//! Statements have no names, and no state outlives a transaction except a waiter's `LISTEN`. So it works behind
//! PgBouncer in transaction mode, where waiters poll.

mod examine;
mod notify;
mod sql;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use self::sql::{IdentityDetail, Statement};
use super::config::Config;
use super::connection::{self, PgConnection};
use super::{env, errors, shown};
use crate::stores::{
    BatchWrite, Cas, Clock, Examine, Failure, Listed, Remark, Store, StoreFacts, Stored, Version,
};

/// How many writes go into one statement of [`Store::cas_many`].
const CHUNK: usize = 1500;
/// How often one call is repeated because the table or the server's identity had to be created or found first.
const ROUNDS: usize = 8;
/// The number of columns of every answer that identify the server.
const ME: usize = 3;

/// The statements that create the table. The store runs them itself if its role may.
pub const SCHEMA_SQL: &str = sql::SCHEMA;

/// A PostgreSQL database.
pub struct PostgresStore {
    config: Config,
    url: String,
    limit: Duration,
    /// None during a call, so that a call that is dropped closes its connection.
    link: Option<PgConnection>,
    identity: IdentityDetail,
    /// The instance that was read last. A write is for that one only.
    instance: String,
    /// Whether a pooler is in between; None before the first answer.
    pooled: Option<bool>,
    /// Our own test notification did not arrive, so waiters must poll.
    no_notifications: bool,
    /// How often a connection broke when it started to listen.
    broken_listens: u32,
}

/// A call without an answer.
struct FailedCall {
    failure: Failure,
    code: Option<SqlState>,
}

impl From<Failure> for FailedCall {
    fn from(failure: Failure) -> Self {
        Self { failure, code: None }
    }
}

/// Parameters with their types, so that the server need not be asked for the types.
type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// Whether a statement may be sent again if its connection turns out to be dead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Resend {
    Reads,
    Writes,
}

impl PostgresStore {
    /// Reads the URL; connects with the first call. The error is a sentence about the URL.
    pub fn open(url: &str) -> Result<Self, String> {
        Ok(Self {
            config: Config::parse(url, &env)?,
            url: shown(url),
            limit: Duration::from_secs(10),
            link: None,
            identity: IdentityDetail::Full,
            instance: String::new(),
            pooled: None,
            no_notifications: false,
            broken_listens: 0,
        })
    }

    fn user(&self) -> &str {
        self.config.user.as_deref().unwrap_or("this user")
    }

    fn pushes(&self) -> bool {
        !self.no_notifications && self.pooled != Some(true)
    }

    /// Records that listening failed. If the connection still works, it never will; a broken one may work the next time.
    fn could_not_listen(&mut self, link: &PgConnection) {
        self.broken_listens += 1;
        self.no_notifications = self.no_notifications || !link.client.is_closed() || self.broken_listens >= 3;
    }

    /// Takes the connection, or makes one; true if it was used before.
    async fn link(&mut self) -> Result<(PgConnection, bool), Failure> {
        match self.link.take().filter(|l| !l.client.is_closed()) {
            Some(link) => Ok((link, true)),
            None => Ok((connection::connect(&self.config, self.limit).await?, false)),
        }
    }

    /// Runs one statement. Creates the table if it is missing.
    async fn ask(
        &mut self,
        statement: Statement,
        params: Params<'_>,
        kind: Resend,
    ) -> Result<Vec<Row>, FailedCall> {
        let mut error = None;
        for _ in 0..ROUNDS {
            let (link, used) = self.link().await?;
            let found = link.client.query_typed(&statement(self.identity), params).await;
            let e = match found {
                Ok(rows) => {
                    self.learn(&link, &rows, kind)?;
                    self.link = Some(link);
                    return Ok(rows);
                }
                Err(e) => e,
            };
            let fault = FailedCall {
                failure: errors::no_answer(&link.host, self.user(), &e),
                code: e.code().cloned(),
            };
            // Each of these errors came before anything was done.
            match &fault.code {
                Some(c) if *c == SqlState::UNDEFINED_TABLE || *c == SqlState::INVALID_SCHEMA_NAME => {
                    self.create(&link).await?;
                    self.link = Some(link);
                }
                Some(c) if refuses_identity(c, &e) && self.identity.less().is_some() => {
                    self.identity = self.identity.less().unwrap_or(self.identity);
                    self.link = Some(link);
                }
                code if used && kind == Resend::Reads && code.as_ref().is_none_or(is_passing) => {}
                _ => return Err(fault),
            }
            error = Some(fault);
        }
        Err(error.unwrap_or_else(|| errors::unusable("PostgreSQL did not answer.".into()).into()))
    }

    /// Records the server's identity in an answer.
    fn learn(&mut self, link: &PgConnection, rows: &[Row], kind: Resend) -> Result<(), FailedCall> {
        let Some(row) = rows.first() else { return Ok(()) };
        let strange = |_| {
            errors::unusable(format!(
                "PostgreSQL at {} gave an answer that does not fit the statement.",
                link.host.shown()
            ))
        };
        if row.try_get(1).map_err(strange)? {
            return Err(errors::replica(&link.host).into());
        }
        let instance: String = row.try_get(0).map_err(strange)?;
        // The identity is not recorded: the caller must read from this server before it writes.
        if kind == Resend::Writes && self.met().is_some_and(|met| met != instance) {
            return Err(errors::another(&link.host).into());
        }
        self.instance = instance;
        let pid: i32 = row.try_get(2).map_err(strange)?;
        self.pooled = Some(link.announced.is_some_and(|announced| announced != pid));
        Ok(())
    }

    /// The instance that was read last, if there is one.
    fn met(&self) -> Option<String> {
        (!self.instance.is_empty()).then(|| self.instance.clone())
    }

    /// Creates the table. Another process may do so at the same time.
    async fn create(&self, link: &PgConnection) -> Result<(), FailedCall> {
        let made = link.client.batch_execute(&sql::create()).await;
        let made = match made {
            Err(e) if e.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                link.client.batch_execute(&sql::create_table()).await
            }
            made => made,
        };
        let Err(e) = made else { return Ok(()) };
        match e.code() {
            Some(c) if is_there_already(c) => Ok(()),
            Some(c) if *c == SqlState::INSUFFICIENT_PRIVILEGE || *c == SqlState::INVALID_SCHEMA_NAME => {
                Err(errors::denied(format!(
                    "The table leasehold.records is not in this database, and {:?} may not create it at {}. Run \
                     the output of `leasehold doctor --print-sql` as a role that may.",
                    self.user(),
                    link.host.shown()
                ))
                .into())
            }
            _ => Err(errors::no_answer(&link.host, self.user(), &e).into()),
        }
    }

    /// One write of one key.
    async fn write(&mut self, statement: Statement, params: Params<'_>, version: Version) -> Cas {
        match self.ask(statement, params, Resend::Writes).await {
            Ok(rows) => match rows.first().map(|row| row.try_get(ME)) {
                Some(Ok(Some(at))) => Cas::Written { version, store_time: micros(at) },
                Some(Ok(None)) => Cas::Conflict,
                Some(Err(_)) | None => Cas::Unknown(errors::unusable(
                    "PostgreSQL gave an answer that does not fit the write.".into(),
                )),
            },
            Err(fault) => refused(fault),
        }
    }

    /// One statement of [`Store::cas_many`]: the time of each key that was written.
    async fn chunk(&mut self, writes: &[&BatchWrite]) -> Result<HashMap<String, Option<i64>>, FailedCall> {
        let keys: Vec<&str> = writes.iter().map(|w| w.key.as_str()).collect();
        let expected: Vec<Option<&str>> =
            writes.iter().map(|w| w.expected.as_ref().map(|v| v.0.as_str())).collect();
        let versions: Vec<String> = writes.iter().map(|w| w.write.to_string()).collect();
        let met = self.met();
        let bodies: Vec<&[u8]> = writes.iter().map(|w| w.body.as_slice()).collect();
        let params: Params = &[
            (&keys, Type::TEXT_ARRAY),
            (&expected, Type::TEXT_ARRAY),
            (&versions, Type::TEXT_ARRAY),
            (&bodies, Type::BYTEA_ARRAY),
            (&sql::WAITING, Type::INT8),
            (&met, Type::TEXT),
        ];
        let rows = self.ask(sql::cas_many, params, Resend::Writes).await?;
        let written =
            |row: &Row| Some((row.try_get::<_, Option<String>>(ME).ok()??, row.try_get(ME + 1).ok()?));
        Ok(rows.iter().filter_map(written).collect())
    }
}

/// A write that was certainly undone is a conflict; the caller reads and tries again.
fn refused(fault: FailedCall) -> Cas {
    match fault.code {
        Some(code) if code == SqlState::T_R_SERIALIZATION_FAILURE => Cas::Conflict,
        _ => Cas::Unknown(fault.failure),
    }
}

/// Whether the error is about the functions for the server's identity, and not about the table.
fn refuses_identity(code: &SqlState, error: &tokio_postgres::Error) -> bool {
    let about = error.as_db_error().map_or("", |e| e.message());
    let names = ["pg_control_system", "pg_walfile_name", "pg_current_wal_lsn"];
    let refusals = [
        &SqlState::INSUFFICIENT_PRIVILEGE,
        &SqlState::UNDEFINED_FUNCTION,
        &SqlState::FEATURE_NOT_SUPPORTED,
        &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    ];
    refusals.contains(&code) && (names.iter().any(|n| about.contains(n)) || about.contains("WAL"))
}

/// Errors that may not come again: the server ended the connection, a pooler lost its own, or the database has a
/// default isolation at which a single statement can fail.
fn is_passing(code: &SqlState) -> bool {
    code.code().starts_with("57P")
        || code.code().starts_with("08")
        || *code == SqlState::T_R_SERIALIZATION_FAILURE
}

/// Errors for the loser of a race to create something.
fn is_there_already(code: &SqlState) -> bool {
    [
        &SqlState::UNIQUE_VIOLATION,
        &SqlState::DUPLICATE_SCHEMA,
        &SqlState::DUPLICATE_TABLE,
        &SqlState::DUPLICATE_OBJECT,
    ]
    .contains(&code)
}

/// A duration, unless it is negative.
fn micros(value: Option<i64>) -> Option<Duration> {
    value.and_then(|v| u64::try_from(v).ok()).map(Duration::from_micros)
}

/// The version, body and age in the columns from `at`, if there is a record.
fn stored(row: &Row, at: usize) -> Result<Option<Stored>, tokio_postgres::Error> {
    let Some(version) = row.try_get(at)? else { return Ok(None) };
    Ok(Some(Stored {
        version: Version(version),
        body: row.try_get(at + 1)?,
        age: micros(row.try_get(at + 2)?),
    }))
}

/// The first text that sorts after all texts with this prefix.
fn beyond(prefix: &str) -> Option<String> {
    let mut letters: Vec<char> = prefix.chars().collect();
    while let Some(last) = letters.pop() {
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            letters.push(next);
            return Some(letters.into_iter().collect());
        }
    }
    None
}

fn foreign(error: &tokio_postgres::Error) -> Failure {
    errors::unusable(format!(
        "The table leasehold.records differs from the one this version expects ({error}). See `leasehold doctor \
         --print-sql`."
    ))
}

#[async_trait(?Send)]
impl Store for PostgresStore {
    fn facts(&self) -> StoreFacts {
        StoreFacts {
            url: self.url.clone(),
            instance: self.instance.clone(),
            clock: Clock::Server,
            resolution: Duration::from_millis(1),
            jump: Duration::from_secs(1),
            this_machine_only: false,
            lock_dir: None,
            spacing: Duration::ZERO,
            pushes: self.pushes(),
            durability: "Every acknowledged write is on the server's disk and survives a crash. A failover to \
                         a replica that was behind can lose writes, but Leasehold notices it.",
            caution: self.config.caution(),
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let rows = self.ask(sql::read, &[(&key, Type::TEXT)], Resend::Reads).await.map_err(|f| f.failure)?;
        rows.first().map_or(Ok(None), |row| stored(row, ME)).map_err(|e| foreign(&e))
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let version = write.to_string();
        let (channel, lock) = notify::names(key);
        let met = self.met();
        let notify = [(&lock as &(dyn ToSql + Sync), Type::INT8), (&channel, Type::TEXT), (&met, Type::TEXT)];
        let mut params: Vec<(&(dyn ToSql + Sync), Type)> = vec![(&key, Type::TEXT)];
        let old = expected.map(|v| v.0.as_str());
        let statement: Statement = match &old {
            Some(old) => {
                params.push((old, Type::TEXT));
                sql::update_one
            }
            None => sql::create_one,
        };
        params.extend([(&version as &(dyn ToSql + Sync), Type::TEXT), (&body, Type::BYTEA)]);
        params.extend(notify);
        self.write(statement, &params, Version(version.clone())).await
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let beyond = beyond(prefix);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params: Params =
            &[(&prefix, Type::TEXT), (&after, Type::TEXT), (&beyond, Type::TEXT), (&limit, Type::INT8)];
        let rows = self.ask(sql::list, params, Resend::Reads).await.map_err(|f| f.failure)?;
        let listed = |row: &Row| -> Result<Option<Listed>, tokio_postgres::Error> {
            let Some(key) = row.try_get(ME)? else { return Ok(None) };
            Ok(Some(Listed { key, stored: stored(row, ME + 1)? }))
        };
        rows.iter()
            .filter_map(|row| listed(row).transpose())
            .collect::<Result<_, _>>()
            .map_err(|e| foreign(&e))
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let (channel, lock) = notify::names(key);
        let met = self.met();
        let params: Params = &[
            (&key, Type::TEXT),
            (&version.0, Type::TEXT),
            (&lock, Type::INT8),
            (&channel, Type::TEXT),
            (&met, Type::TEXT),
        ];
        self.write(sql::remove, params, version.clone()).await
    }

    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        // Sorted by key, so that two processes do not deadlock.
        let mut sorted: Vec<usize> = (0..writes.len()).collect();
        sorted.sort_by(|a, b| writes[*a].key.cmp(&writes[*b].key));
        let mut answers = vec![Cas::Conflict; writes.len()];
        let mut broken = None;
        for chunk in sorted.chunks(CHUNK) {
            let some: Vec<&BatchWrite> = chunk.iter().map(|i| &writes[*i]).collect();
            let written = match &broken {
                Some(failure) => Err(Cas::Unknown(Failure::clone(failure))),
                None => self.chunk(&some).await.map_err(refused),
            };
            if let Err(Cas::Unknown(failure)) = &written {
                broken = Some(failure.clone());
            }
            for (i, write) in chunk.iter().zip(some) {
                answers[*i] = match &written {
                    Ok(written) => written.get(&write.key).map_or(Cas::Conflict, |at| Cas::Written {
                        version: Version(write.write.to_string()),
                        store_time: micros(*at),
                    }),
                    Err(answer) => answer.clone(),
                };
            }
        }
        answers
    }

    async fn cas_with(&mut self, first: &BatchWrite, with: &BatchWrite) -> Option<Cas> {
        let old = first.expected.as_ref()?.0.as_str();
        let (version, second) = (first.write.to_string(), with.write.to_string());
        let (channel, lock) = notify::names(&first.key);
        let met = self.met();
        let params: Params = &[
            (&first.key, Type::TEXT),
            (&old, Type::TEXT),
            (&version, Type::TEXT),
            (&first.body, Type::BYTEA),
            (&lock, Type::INT8),
            (&channel, Type::TEXT),
            (&met, Type::TEXT),
            (&with.key, Type::TEXT),
            (&second, Type::TEXT),
            (&with.body, Type::BYTEA),
        ];
        Some(self.write(sql::update_with, params, Version(version.clone())).await)
    }

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        notify::wait(self, key, version, at_most).await
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        std::mem::replace(&mut self.limit, each)
    }
}

#[async_trait(?Send)]
impl Examine for PostgresStore {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        examine::examine(self).await
    }
}
