//! Redis, Valkey, and what speaks their language.
//!
//! A record is a hash of version, body and time; a sorted set next to it holds all names. Every verb
//! is one script, so it is one step for the server, and one round trip. The time is the server's.
//! All keys of one store carry one hash tag: in a cluster, one lease store lives in one slot.

mod examine;
mod identity;
mod place;
#[macro_use]
mod scripts;
mod target;
mod trouble;
mod waiting;

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold_core::ids::WriteId;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};

use self::identity::Identity;
use self::place::Place;
use self::scripts::{Answer, CHANGED, One, Script};
pub(crate) use self::target::{Keys, Looked, Swapped, Wanted};
use self::waiting::Ear;
use super::open::OpenError;
use super::remote::Remote;
use super::{Cas, Clock, Facts, Failure, Listed, Remark, Store, Stored, Version, Write};

/// How long a call may take until somebody says otherwise; [`Remote`] ends it no later.
const PATIENCE: Duration = Duration::from_secs(10);
/// Writes in one command: enough that ten commands renew ten thousand leases, and a moment's work.
const MOST_WRITES: usize = 1000;
/// Bytes of bodies in one command, about.
const MOST_BYTES: usize = 8 << 20;
/// Records in one page of a listing.
const PAGE: usize = 500;

/// A store on one Redis primary.
pub struct RedisStore {
    place: Place,
    limit: Duration,
    /// Out of here while a call is under way: one that is given up takes its connection with it, and
    /// a late reply finds nobody.
    link: Option<MultiplexedConnection>,
    /// Who answered last.
    identity: Option<Identity>,
    ear: Ear,
}

/// Whether a call may change anything.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Look,
    Write,
}

impl RedisStore {
    /// Reads `url`, which begins with `redis:` or `rediss:`, and reaches nothing yet.
    pub fn open(url: &str) -> Result<Remote<Self>, OpenError> {
        Ok(Remote::new(Self::new(Place::parse(url).map_err(OpenError::Url)?)))
    }

    fn new(place: Place) -> Self {
        Self { place, limit: PATIENCE, link: None, identity: None, ear: Ear::default() }
    }

    fn failure(&self, error: &redis::RedisError) -> Failure {
        trouble::failure(&self.place, error, self.limit)
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            .set_response_timeout(Some(self.limit));
        let client = &self.place.client;
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(|e| self.failure(&e))
    }

    /// Sends commands in one go and gives their answers, errors of the server among them.
    async fn send(&self, link: &MultiplexedConnection, commands: &[Cmd]) -> Result<Vec<Value>, Failure> {
        // Not as a pipeline of the library: there, an answer that is no Redis looks like a lost connection.
        let sent = commands.iter().map(|command| {
            let mut link = link.clone();
            async move { link.send_packed_command(command).await }
        });
        let answers = join_all(sent).await.into_iter();
        answers.collect::<Result<_, _>>().map_err(|e| self.failure(&e))
    }

    /// Makes one call. On a new connection, the server is asked in the same breath who it is.
    ///
    /// A write is made only by the server that was met last: another, or the same one after it was a
    /// replica, may have forgotten what others were told since, and what the write expects may be
    /// back. One that only looks is sent again, once, to whoever it is now.
    async fn call(&mut self, script: &Script, does: Does) -> Result<Value, Failure> {
        loop {
            let (link, met) = match self.link.take() {
                Some(link) => (link, true),
                None => (self.connect().await?, false),
            };
            let known = self.identity.as_ref().filter(|_| met || does == Does::Write);
            let mut commands = if met { Vec::new() } else { identity::questions() };
            commands.push(script.for_server(known.and_then(Identity::replication)));
            let mut answers = self.send(&link, &commands).await?;
            let answer = answers.pop().unwrap_or(Value::Nil);
            if !met {
                self.meet(&answers)?;
            }
            match answer.extract_error() {
                Ok(answer) => {
                    self.link = Some(link);
                    return Ok(answer);
                }
                Err(e) if met && does == Does::Look && e.code() == Some(CHANGED) => {}
                Err(e) => return Err(self.failure(&e)),
            }
        }
    }

    /// Takes note of who answers.
    fn meet(&mut self, answers: &[Value]) -> Result<(), Failure> {
        let identity = Identity::of(answers);
        identity.usable(&self.place)?;
        self.identity = Some(identity);
        Ok(())
    }

    fn understood(&mut self, value: Value) -> Result<Answer, Failure> {
        Answer::of(value).ok_or_else(|| {
            self.link = None;
            trouble::not_redis(&self.place)
        })
    }

    /// Makes conditional writes in one command; as many answers as writes.
    async fn cas_some<'a>(
        &mut self,
        writes: impl ExactSizeIterator<Item = One<'a>> + Clone,
    ) -> Result<Vec<Cas>, Failure> {
        let script = scripts::cas(&self.place, writes.clone());
        let value = self.call(&script, Does::Write).await?;
        let answer = self.understood(value)?;
        if answer.rest.len() != writes.len() {
            return Err(trouble::not_redis(&self.place));
        }
        let verdict = |(write, value): (One<'_>, Value)| match value {
            Value::Int(1) => Cas::Written { version: Version(write.version), store_time: Some(answer.now) },
            Value::Int(0) => Cas::Conflict,
            Value::Int(2) => Cas::Unknown(trouble::foreign(&self.place)),
            _ => Cas::Unknown(trouble::not_redis(&self.place)),
        };
        let answers: Vec<Cas> = writes.zip(answer.rest).map(verdict).collect();
        if answers.iter().any(|answer| matches!(answer, Cas::Written { .. })) {
            // Whoever writes has ceased to wait, and would only hear of itself.
            self.ear.close();
        }
        Ok(answers)
    }

    /// One page of names in order, with the records that are still there.
    async fn page(
        &mut self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, Option<Stored>)>, Failure> {
        let script = scripts::list(&self.place, prefix, after, limit);
        let value = self.call(&script, Does::Look).await?;
        let answer = self.understood(value)?;
        let now = answer.now;
        let entry = |value: Value| {
            let Value::Array(items) = value else { return None };
            let mut items = items.into_iter();
            Some((scripts::take(&mut items)?, scripts::stored(now, &mut items)?))
        };
        let entries: Option<Vec<_>> = answer.rest.into_iter().map(entry).collect();
        entries.ok_or_else(|| trouble::foreign(&self.place))
    }
}

#[async_trait(?Send)]
impl Store for RedisStore {
    fn facts(&self) -> Facts {
        let identity = self.identity.as_ref();
        Facts {
            url: self.place.url.clone(),
            instance: identity.map_or_else(String::new, Identity::instance),
            clock: Clock::Server,
            resolution: Duration::from_micros(1),
            jump: Duration::from_secs(1),
            this_machine_only: false,
            lock_dir: None,
            pushes: !self.ear.deaf(),
            durability: "What its server keeps: every write only with appendonly yes and appendfsync always, and on one \
                         primary only.",
            caution: identity.and_then(Identity::caution),
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let value = self.call(&scripts::read(&self.place, key), Does::Look).await?;
        let answer = self.understood(value)?;
        let stored = scripts::stored(answer.now, &mut answer.rest.into_iter());
        stored.ok_or_else(|| trouble::foreign(&self.place))
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        if expected.is_some_and(|version| version.0.is_empty()) {
            return Cas::Conflict;
        }
        let one = || One { key, expected: scripts::expected(expected), version: write.to_string(), body };
        let answers = self.cas_some([()].iter().map(|()| one())).await;
        match answers.map(|mut answers| answers.pop()) {
            Ok(Some(answer)) => answer,
            Ok(None) => Cas::Unknown(trouble::not_redis(&self.place)),
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
            // A name without a record was evicted or removed by hand: it is not there.
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
        let script = scripts::remove(&self.place, key, version);
        let answer = match self.call(&script, Does::Write).await {
            Ok(value) => self.understood(value),
            Err(failure) => Err(failure),
        };
        match answer.map(|answer| (answer.now, answer.rest)) {
            Ok((now, rest)) if rest == [Value::Int(1)] => {
                Cas::Written { version: version.clone(), store_time: Some(now) }
            }
            Ok((_, rest)) if rest == [Value::Int(0)] => Cas::Conflict,
            Ok(_) => Cas::Unknown(trouble::not_redis(&self.place)),
            Err(failure) => Cas::Unknown(failure),
        }
    }

    async fn cas_many(&mut self, writes: &[Write]) -> Vec<Cas> {
        let mut answers = Vec::with_capacity(writes.len());
        while answers.len() < writes.len() {
            let some = handful(&writes[answers.len()..]);
            match self.cas_some(some.iter().map(One::from)).await {
                Ok(some) => answers.extend(some),
                // What follows is not sent at all: the server would be asked again and again.
                Err(failure) => answers.resize(writes.len(), Cas::Unknown(failure)),
            }
        }
        answers
    }

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        self.wait(key, version, at_most).await
    }

    fn limit_calls(&mut self, each: Duration) {
        self.limit = each;
        if let Some(link) = &mut self.link {
            link.set_response_timeout(each);
        }
    }

    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        self.look_closely().await
    }
}

/// As many of the first writes as one command takes; at least one.
fn handful(writes: &[Write]) -> &[Write] {
    let mut bytes = 0;
    let fits = |write: &&Write| {
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
        let write = |n: u128, size| Write {
            key: format!("leases/{n}"),
            expected: None,
            write: WriteId(n),
            body: vec![0; size],
        };
        let count = |writes: &[Write]| {
            let (mut rest, mut commands) = (writes, 0);
            while !rest.is_empty() {
                rest = &rest[handful(rest).len()..];
                commands += 1;
            }
            commands
        };
        assert_eq!(count(&(0..10_000).map(|n| write(n, 500)).collect::<Vec<_>>()), 10);
        assert_eq!(count(&[write(1, MOST_BYTES), write(2, MOST_BYTES + 1), write(3, 1)]), 3);
        assert_eq!(count(&[]), 0);
    }
}
