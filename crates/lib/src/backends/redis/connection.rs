//! The connection to a server, and the server's identity.

use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};

use super::config::Config;
use super::errors;
use super::identity::{self, ServerIdentity};
use super::scripts::{CHANGED, Script, ScriptAnswer};
use crate::stores::Failure;

/// A connection to one Redis primary.
pub(super) struct RedisConnection {
    pub config: Config,
    limit: Duration,
    /// None during a call, so that a call that is dropped closes its connection, and no late reply is read.
    link: Option<MultiplexedConnection>,
    /// The server that answered last.
    pub identity: Option<ServerIdentity>,
}

/// Whether a call may change data.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum CallKind {
    Look,
    Write,
}

impl RedisConnection {
    /// Contacts nothing yet.
    pub fn new(config: Config, limit: Duration) -> Self {
        Self { config, limit, link: None, identity: None }
    }

    /// Sets the time limit of each call.
    pub fn limit_calls(&mut self, each: Duration) -> Duration {
        if let Some(link) = &mut self.link {
            link.set_response_timeout(each);
        }
        std::mem::replace(&mut self.limit, each)
    }

    /// Sends several commands at once, all to the same server.
    pub async fn ask(&mut self, questions: &[Cmd]) -> Result<Vec<Value>, Failure> {
        let link = match self.link.take() {
            Some(link) => link,
            None => self.connect().await?,
        };
        let answers = self.send(&link, questions).await?;
        self.meet(&answers[..identity::QUESTIONS])?;
        self.link = Some(link);
        Ok(answers)
    }

    fn failure(&self, error: &redis::RedisError) -> Failure {
        errors::failure(&self.config, error, self.limit)
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            .set_response_timeout(Some(self.limit));
        let client = &self.config.client;
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(|e| self.failure(&e))
    }

    /// Sends commands at once and returns their answers, which may be errors of the server.
    async fn send(&self, link: &MultiplexedConnection, commands: &[Cmd]) -> Result<Vec<Value>, Failure> {
        // Not a pipeline of the library, in which an answer that is not Redis looks like a lost connection.
        let sent = commands.iter().map(|command| {
            let mut link = link.clone();
            async move { link.send_packed_command(command).await }
        });
        let answers = join_all(sent).await.into_iter();
        answers.collect::<Result<_, _>>().map_err(|e| self.failure(&e))
    }

    /// Makes one call. On a new connection the same round trip asks for the server's identity.
    ///
    /// A write is made only on the server that answered last. Another server, or the same one after it was a
    /// replica, may have lost writes, and have the expected version again. A read is repeated once on the new
    /// server.
    pub async fn call(&mut self, script: &Script, does: CallKind) -> Result<Value, Failure> {
        loop {
            let (link, met) = match self.link.take() {
                Some(link) => (link, true),
                None => (self.connect().await?, false),
            };
            let known = self.identity.as_ref().filter(|_| met || does == CallKind::Write);
            let mut commands = if met { Vec::new() } else { identity::questions() };
            commands.push(script.for_server(known.and_then(ServerIdentity::replication)));
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
                Err(e) if met && does == CallKind::Look && e.code() == Some(CHANGED) => {}
                Err(e) => return Err(self.failure(&e)),
            }
        }
    }

    /// Records the server's identity.
    fn meet(&mut self, answers: &[Value]) -> Result<(), Failure> {
        let identity = ServerIdentity::of(answers);
        identity.usable(&self.config)?;
        self.identity = Some(identity);
        Ok(())
    }

    pub fn understood(&mut self, value: Value) -> Result<ScriptAnswer, Failure> {
        ScriptAnswer::of(value).ok_or_else(|| {
            self.link = None;
            errors::not_redis(&self.config)
        })
    }
}
