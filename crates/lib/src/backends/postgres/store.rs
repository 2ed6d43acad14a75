//! PostgreSQL: one table in a schema of its own, one statement for each verb, the server's clock.
//!
//! Statements have no names, and nothing outlives a transaction except a waiter's `LISTEN`: it works behind
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
/// How often one call may be asked again because something had to be made or found out first.
const ROUNDS: usize = 8;
/// Columns of every answer that tell who answered.
const ME: usize = 3;

/// The statements that create what this store keeps; it does so by itself where it may.
pub const SCHEMA_SQL: &str = sql::SCHEMA;

/// A PostgreSQL database.
pub struct PostgresStore {
    config: Config,
    url: String,
    limit: Duration,
    /// Taken out while a call is under way, so that one that is given up takes the connection with it.
    link: Option<PgConnection>,
    identity: IdentityDetail,
    /// Which one was read last; a write is for that one only.
    instance: String,
    /// A pooler is in between; unknown before the first answer.
    pooled: Option<bool>,
    /// A notification of our own did not come back.
    deaf: bool,
    /// How often a connection broke while it began to listen.
    unheard: u32,
}

/// A call that gave no answer.
struct FailedCall {
    failure: Failure,
    code: Option<SqlState>,
}

impl From<Failure> for FailedCall {
    fn from(failure: Failure) -> Self {
        Self { failure, code: None }
    }
}

/// Parameters with their types, which spares the server's advice on them.
type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// May the statement be sent a second time if the connection turns out to be dead?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Resend {
    Reads,
    Writes,
}

impl PostgresStore {
    /// Reads the URL; connects with the first call. A wrong URL gives a sentence about it.
    pub fn open(url: &str) -> Result<Self, String> {
        Ok(Self {
            config: Config::parse(url, &env)?,
            url: shown(url),
            limit: Duration::from_secs(10),
            link: None,
            identity: IdentityDetail::Full,
            instance: String::new(),
            pooled: None,
            deaf: false,
            unheard: 0,
        })
    }

    fn user(&self) -> &str {
        self.config.user.as_deref().unwrap_or("this user")
    }

    fn pushes(&self) -> bool {
        !self.deaf && self.pooled != Some(true)
    }

    /// A connection that is whole and does not hear never will; one that broke proves nothing, once or twice.
    fn could_not_listen(&mut self, link: &PgConnection) {
        self.unheard += 1;
        self.deaf = self.deaf || !link.client.is_closed() || self.unheard >= 3;
    }

    /// Takes the connection, or makes one. True: it has been used before.
    async fn link(&mut self) -> Result<(PgConnection, bool), Failure> {
        match self.link.take().filter(|l| !l.client.is_closed()) {
            Some(link) => Ok((link, true)),
            None => Ok((connection::connect(&self.config, self.limit).await?, false)),
        }
    }

    /// One statement, one answer. The table is made if it is missing.
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
            // Each of these was refused before anything was done.
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
        Err(error.unwrap_or_else(|| errors::unusable("PostgreSQL was not asked.".into()).into()))
    }

    /// Keeps what an answer says about who gave it.
    fn learn(&mut self, link: &PgConnection, rows: &[Row], kind: Resend) -> Result<(), FailedCall> {
        let Some(row) = rows.first() else { return Ok(()) };
        let strange =
            |_| errors::unusable(format!("PostgreSQL at {} gave a strange answer.", link.host.shown()));
        if row.try_get(1).map_err(strange)? {
            return Err(errors::replica(&link.host).into());
        }
        let instance: String = row.try_get(0).map_err(strange)?;
        // Not kept either: whoever wants to write must read there first.
        if kind == Resend::Writes && self.met().is_some_and(|met| met != instance) {
            return Err(errors::another(&link.host).into());
        }
        self.instance = instance;
        let pid: i32 = row.try_get(2).map_err(strange)?;
        self.pooled = Some(link.promised.is_some_and(|promised| promised != pid));
        Ok(())
    }

    /// Which instance was read last, if any was.
    fn met(&self) -> Option<String> {
        (!self.instance.is_empty()).then(|| self.instance.clone())
    }

    /// Makes the table; somebody else may be making it at the same time.
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
                     what `leasehold doctor --print-sql` prints as a role that may.",
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
                Some(Err(_)) | None => {
                    Cas::Unknown(errors::unusable("PostgreSQL gave a strange answer to a write.".into()))
                }
            },
            Err(fault) => refused(fault),
        }
    }

    /// One statement of [`Store::cas_many`]: when each key was written, if it was.
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

/// A write that certainly was undone is a conflict; the caller looks and tries again.
fn refused(fault: FailedCall) -> Cas {
    match fault.code {
        Some(code) if code == SqlState::T_R_SERIALIZATION_FAILURE => Cas::Conflict,
        _ => Cas::Unknown(fault.failure),
    }
}

/// The functions that tell the instance, not the table.
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

/// It may be gone on the next connection: the server ended this one, a pooler lost its own, or the
/// database's default is a stricter isolation than a single statement needs.
fn is_passing(code: &SqlState) -> bool {
    code.code().starts_with("57P")
        || code.code().starts_with("08")
        || *code == SqlState::T_R_SERIALIZATION_FAILURE
}

/// What the loser of a race to create something is told.
fn is_there_already(code: &SqlState) -> bool {
    [
        &SqlState::UNIQUE_VIOLATION,
        &SqlState::DUPLICATE_SCHEMA,
        &SqlState::DUPLICATE_TABLE,
        &SqlState::DUPLICATE_OBJECT,
    ]
    .contains(&code)
}

/// Not if it is negative.
fn micros(value: Option<i64>) -> Option<Duration> {
    value.and_then(|v| u64::try_from(v).ok()).map(Duration::from_micros)
}

/// The body, version and age from `at` on, if there is a record.
fn stored(row: &Row, at: usize) -> Result<Option<Stored>, tokio_postgres::Error> {
    let Some(version) = row.try_get(at)? else { return Ok(None) };
    Ok(Some(Stored {
        version: Version(version),
        body: row.try_get(at + 1)?,
        age: micros(row.try_get(at + 2)?),
    }))
}

/// The first text that sorts after every text with this prefix.
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
        "The table leasehold.records is not as this program makes it ({error}). See `leasehold doctor \
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
            durability: "What was acknowledged is on the server's disk and survives its crash; a failover to a \
                         replica that was behind can lose it, and is noticed.",
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
        let told = [(&lock as &(dyn ToSql + Sync), Type::INT8), (&channel, Type::TEXT), (&met, Type::TEXT)];
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
        params.extend(told);
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
        // In the order of the keys: two of us never wait for each other in a circle.
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

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        notify::wait(self, key, version, at_most).await
    }

    fn limit_calls(&mut self, each: Duration) {
        self.limit = each;
    }
}

#[async_trait(?Send)]
impl Examine for PostgresStore {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        examine::examine(self).await
    }
}
