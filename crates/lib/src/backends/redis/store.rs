//! A store in Redis, Valkey or a compatible server.
//!
//! A record is a hash of version, body and time, and a sorted set has all names. Each verb is one script, so it
//! is one atomic step and one round trip. The time is the server's. All keys of a store have the same hash tag, so
//! in a cluster a store is in one slot.

mod examine;
mod notify;

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use redis::Value;

use self::notify::KeyListener;
use super::config::Config;
use super::connection::{CallKind, RedisConnection};
use super::errors;
use super::identity::ServerIdentity;
use super::scripts::{self, Dependence, ScriptWrite};
use crate::backends::OpenError;
use crate::backends::remote::Remote;
use crate::stores::{
    BatchWrite, Cas, Clock, Examine, Failure, Listed, Remark, Store, StoreFacts, Stored, Version,
};

/// The default time limit of a call, as in [`Remote`].
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest number of writes in one command: ten commands renew ten thousand leases.
const MOST_WRITES: usize = 1000;
/// The approximate largest size of the bodies in one command.
const MOST_BYTES: usize = 8 << 20;
/// Records in one page of a listing.
const PAGE: usize = 500;

/// A store on one Redis primary.
pub struct RedisStore {
    connection: RedisConnection,
    subscriber: KeyListener,
}

impl RedisStore {
    /// Reads `url`, which begins with `redis:` or `rediss:`. Contacts nothing yet.
    pub fn open(url: &str) -> Result<Remote<Self>, OpenError> {
        let config = Config::parse(url).map_err(OpenError::Url)?;
        Ok(Remote::new(Self {
            connection: RedisConnection::new(config, PATIENCE),
            subscriber: KeyListener::default(),
        }))
    }

    /// Makes conditional writes in one command. Returns one answer for each.
    async fn cas_some<'a>(
        &mut self,
        writes: impl ExactSizeIterator<Item = ScriptWrite<'a>> + Clone,
        dependence: Dependence,
    ) -> Result<Vec<Cas>, Failure> {
        let script = scripts::cas(&self.connection.config, writes.clone(), dependence);
        let value = self.connection.call(&script, CallKind::Write).await?;
        let answer = self.connection.understood(value)?;
        if answer.rest.len() != writes.len() {
            return Err(errors::not_redis(&self.connection.config));
        }
        let verdict = |(write, value): (ScriptWrite<'_>, Value)| match value {
            Value::Int(1) => Cas::Written { version: Version(write.version), store_time: Some(answer.now) },
            Value::Int(0) => Cas::Conflict,
            Value::Int(2) => Cas::Unknown(errors::foreign(&self.connection.config)),
            _ => Cas::Unknown(errors::not_redis(&self.connection.config)),
        };
        let answers: Vec<Cas> = writes.zip(answer.rest).map(verdict).collect();
        if answers.iter().any(|answer| matches!(answer, Cas::Written { .. })) {
            // A process that writes does not wait any more, and would only get its own notifications.
            self.subscriber.close();
        }
        Ok(answers)
    }

    /// One page of names in order, with the records that still exist.
    async fn page(
        &mut self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, Option<Stored>)>, Failure> {
        let script = scripts::list(&self.connection.config, prefix, after, limit);
        let value = self.connection.call(&script, CallKind::Look).await?;
        let answer = self.connection.understood(value)?;
        let now = answer.now;
        let entry = |value: Value| {
            let Value::Array(items) = value else { return None };
            let mut items = items.into_iter();
            Some((scripts::take(&mut items)?, scripts::stored(now, &mut items)?))
        };
        let entries: Option<Vec<_>> = answer.rest.into_iter().map(entry).collect();
        entries.ok_or_else(|| errors::foreign(&self.connection.config))
    }
}

#[async_trait(?Send)]
impl Store for RedisStore {
    fn facts(&self) -> StoreFacts {
        let identity = self.connection.identity.as_ref();
        StoreFacts {
            url: self.connection.config.url.clone(),
            instance: identity.map_or_else(String::new, ServerIdentity::instance),
            clock: Clock::Server,
            resolution: Duration::from_micros(1),
            jump: Duration::from_secs(1),
            this_machine_only: false,
            lock_dir: None,
            spacing: Duration::ZERO,
            pushes: !self.subscriber.must_poll(),
            durability: "As durable as its server: every write only with appendonly yes and appendfsync always, and on one \
                         primary only.",
            caution: identity.and_then(ServerIdentity::caution),
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let value =
            self.connection.call(&scripts::read(&self.connection.config, key), CallKind::Look).await?;
        let answer = self.connection.understood(value)?;
        let stored = scripts::stored(answer.now, &mut answer.rest.into_iter());
        stored.ok_or_else(|| errors::foreign(&self.connection.config))
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        if expected.is_some_and(|version| version.0.is_empty()) {
            return Cas::Conflict;
        }
        let one =
            || ScriptWrite { key, expected: scripts::expected(expected), version: write.to_string(), body };
        let answers = self.cas_some([()].iter().map(|()| one()), Dependence::None).await;
        match answers.map(|mut answers| answers.pop()) {
            Ok(Some(answer)) => answer,
            Ok(None) => Cas::Unknown(errors::not_redis(&self.connection.config)),
            Err(failure) => Cas::Unknown(failure),
        }
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let mut found = Vec::new();
        let mut after = after.to_owned();
        while found.len() < limit {
            let asked = PAGE.min(limit - found.len());
            let page = self.page(prefix, &after, asked).await?;
            let last = page.len() < asked;
            if let Some((name, _)) = page.last() {
                after.clone_from(name);
            }
            // The record of this name was evicted or removed by hand.
            let there = |(key, stored): (String, Option<Stored>)| {
                stored.map(|stored| Listed { key, stored: Some(stored) })
            };
            found.extend(page.into_iter().filter_map(there));
            if last {
                break;
            }
        }
        Ok(found)
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let script = scripts::remove(&self.connection.config, key, version);
        let answer = match self.connection.call(&script, CallKind::Write).await {
            Ok(value) => self.connection.understood(value),
            Err(failure) => Err(failure),
        };
        match answer.map(|answer| (answer.now, answer.rest)) {
            Ok((now, rest)) if rest == [Value::Int(1)] => {
                Cas::Written { version: version.clone(), store_time: Some(now) }
            }
            Ok((_, rest)) if rest == [Value::Int(0)] => Cas::Conflict,
            Ok(_) => Cas::Unknown(errors::not_redis(&self.connection.config)),
            Err(failure) => Cas::Unknown(failure),
        }
    }

    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        let mut answers = Vec::with_capacity(writes.len());
        while answers.len() < writes.len() {
            let some = first_batch(&writes[answers.len()..]);
            match self.cas_some(some.iter().map(ScriptWrite::from), Dependence::None).await {
                Ok(some) => answers.extend(some),
                // The remaining writes are not sent, because each would fail again.
                Err(failure) => answers.resize(writes.len(), Cas::Unknown(failure)),
            }
        }
        answers
    }

    async fn cas_with(&mut self, first: &BatchWrite, with: &BatchWrite) -> Option<Cas> {
        let both = [first, with];
        let writes = both.iter().map(|write| ScriptWrite::from(*write));
        let answers = self.cas_some(writes, Dependence::OnTheOneBefore).await;
        Some(match answers.map(|answers| answers.into_iter().next()) {
            Ok(Some(answer)) => answer,
            Ok(None) => Cas::Unknown(errors::not_redis(&self.connection.config)),
            Err(failure) => Cas::Unknown(failure),
        })
    }

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        self.wait(key, version, at_most).await
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        self.connection.limit_calls(each)
    }
}

#[async_trait(?Send)]
impl Examine for RedisStore {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        self.look_closely().await
    }
}

/// The first writes, as many as fit in one command; at least one.
fn first_batch(writes: &[BatchWrite]) -> &[BatchWrite] {
    let mut bytes = 0;
    let fits = |write: &&BatchWrite| {
        bytes += write.body.len();
        bytes <= MOST_BYTES
    };
    let count = writes.iter().take(MOST_WRITES).take_while(fits).count();
    &writes[..count.max(1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_renewals_are_ten_commands() {
        let write = |n: u128, size| BatchWrite {
            key: format!("leases/{n}"),
            expected: None,
            write: WriteId(n),
            body: vec![0; size],
        };
        let count = |writes: &[BatchWrite]| {
            let (mut rest, mut commands) = (writes, 0);
            while !rest.is_empty() {
                rest = &rest[first_batch(rest).len()..];
                commands += 1;
            }
            commands
        };
        assert_eq!(count(&(0..10_000).map(|n| write(n, 500)).collect::<Vec<_>>()), 10);
        assert_eq!(count(&[write(1, MOST_BYTES), write(2, MOST_BYTES + 1), write(3, 1)]), 3);
        assert_eq!(count(&[]), 0);
    }
}
