//! Calls to a database.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::auth::Access;
use super::config::Config;
use super::response::{self, FirestoreAnswer};
use super::wire;
use crate::stores::{Cas, Failure, Version};

/// A connection to one database.
pub(super) struct FirestoreConnection {
    pub config: Config,
    /// Made by the first call, which may read credential files.
    access: Option<Access>,
}

impl FirestoreConnection {
    /// Contacts nothing yet.
    pub fn new(config: Config) -> Self {
        Self { config, access: None }
    }

    /// Makes one call.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<FirestoreAnswer, Failure> {
        let access = match self.access.take() {
            Some(access) => access,
            None => Access::new(&self.config)?,
        };
        // Put back before the call. If the call is dropped, the client closes its connection itself.
        let access = self.access.insert(access);
        let answer = access.call(&self.config, method, path, body).await?;
        match &answer {
            FirestoreAnswer::Refused { status, words } if status == "UNAUTHENTICATED" => {
                let refused = access.refused(&self.config, words);
                // The next call gets another token.
                self.access = None;
                refused.map_or(Ok(answer), Err)
            }
            _ => {
                access.accepted();
                Ok(answer)
            }
        }
    }

    /// A call that writes nothing.
    pub async fn ask(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        match self.call(method, path, body).await? {
            FirestoreAnswer::Good(value) => Ok(value),
            FirestoreAnswer::Refused { status, words } => {
                Err(response::failure(&self.config, &status, &words))
            }
            FirestoreAnswer::Foreign(http) => Err(response::foreign(&self.config, http)),
        }
    }

    /// Makes one write. `creates`: the document must not exist. Returns the result and the store's time.
    pub async fn commit(&mut self, write: Value, creates: bool) -> Result<(Value, Option<Duration>), Cas> {
        let (mut results, time) = self.commit_all(&[write], creates).await?;
        match (results.pop(), results.is_empty()) {
            (Some(result), true) => Ok((result, time)),
            _ => Err(Cas::Unknown(response::puzzling(&self.config))),
        }
    }

    /// Makes all writes or none. `creates`: the first document must not exist.
    pub async fn commit_all(
        &mut self,
        writes: &[Value],
        creates: bool,
    ) -> Result<(Vec<Value>, Option<Duration>), Cas> {
        let path = format!("{}/documents:commit", self.config.database);
        let answered = self.call(Method::POST, &path, Some(&json!({ "writes": writes }))).await;
        let good = match answered.map_err(Cas::Unknown)? {
            FirestoreAnswer::Good(value) => value,
            FirestoreAnswer::Refused { status, words } => {
                return Err(response::refused_write(&self.config, creates, &status, &words));
            }
            FirestoreAnswer::Foreign(http) => {
                return Err(Cas::Unknown(response::foreign(&self.config, http)));
            }
        };
        let time = wire::time(&good["commitTime"]);
        match good["writeResults"].as_array() {
            Some(results) => Ok((results.clone(), time)),
            None => Err(Cas::Unknown(response::puzzling(&self.config))),
        }
    }

    /// The outcome of an accepted write. If it has not changed `updateTime`, it changed nothing.
    pub fn written(&self, result: &Value, expected: Option<&Version>, store_time: Option<Duration>) -> Cas {
        match result["updateTime"].as_str() {
            Some(now) if expected.is_none_or(|Version(before)| before != now) => {
                Cas::Written { version: Version(now.into()), store_time }
            }
            _ => Cas::Unknown(response::puzzling(&self.config)),
        }
    }
}
