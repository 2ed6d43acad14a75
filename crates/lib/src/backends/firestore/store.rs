//! A store in Google's Firestore over REST, with one document for each record.
//!
//! There are no transactions. Each write is one commit with a condition on the document's `updateTime`. That is the
//! version, and it is kept as the server's text. The age of a record is `readTime - updateTime`, both by the
//! server's clock.

#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use reqwest::Method;
use serde_json::{Value, json};

use super::config::Config;
use super::connection::FirestoreConnection;
use super::response::{self, FirestoreAnswer};
use super::{emulator, wire};
use crate::stores::{
    BatchWrite, Cas, Clock, Examine, Failure, FailureKind, Listed, Remark, RemarkLevel, Store, StoreFacts,
    Stored, Version,
};

/// The largest number of writes in one batch; Firestore allows 500.
const BATCH: usize = 200;

/// A collection of a Firestore database.
pub struct FirestoreStore {
    connection: FirestoreConnection,
}

impl FirestoreStore {
    /// The collection that `firestore://PROJECT/COLLECTION` names. Contacts nothing yet.
    ///
    /// # Errors
    /// If the URL names none: a sentence that says what to write.
    pub fn new(url: &str) -> Result<Self, String> {
        Ok(Self { connection: FirestoreConnection::new(Config::parse(url, emulator().as_deref())?) })
    }

    fn name(&self, key: &str) -> Result<String, Failure> {
        match wire::document_id(key) {
            Some(id) => Ok(self.connection.config.document(&id)),
            None => Err(Failure::new(
                FailureKind::Unusable,
                "A key is too long for Firestore, which takes 1500 bytes. Use a shorter name.",
            )),
        }
    }

    fn update(&self, w: &BatchWrite) -> Result<Value, Failure> {
        Ok(wire::update(&self.name(&w.key)?, &w.key, w.expected.as_ref(), w.write, &w.body))
    }

    /// Makes several independent writes in one call.
    async fn batch(&mut self, writes: &[BatchWrite]) -> Result<Vec<Cas>, Failure> {
        let all: Vec<Value> = writes.iter().map(|w| self.update(w)).collect::<Result<_, _>>()?;
        let path = format!("{}/documents:batchWrite", self.connection.config.database);
        let good = self.connection.ask(Method::POST, &path, Some(&json!({ "writes": all }))).await?;
        let list = |name: &str| good[name].as_array().filter(|list| list.len() == writes.len());
        let (Some(results), Some(statuses)) = (list("writeResults"), list("status")) else {
            return Err(response::puzzling(&self.connection.config));
        };
        let each = writes.iter().zip(results.iter().zip(statuses));
        Ok(each.map(|(write, (result, status))| self.outcome(write, result, status)).collect())
    }

    /// The outcome of one write of a batch.
    fn outcome(&self, write: &BatchWrite, result: &Value, status: &Value) -> Cas {
        match status["code"].as_i64() {
            None | Some(0) => {
                self.connection.written(result, write.expected.as_ref(), wire::time(&result["updateTime"]))
            }
            Some(code) => {
                let words = status["message"].as_str().unwrap_or_default();
                response::refused_write(
                    &self.connection.config,
                    write.expected.is_none(),
                    response::named(code),
                    words,
                )
            }
        }
    }

    /// Remarks about the database's settings, if these credentials may read them.
    async fn examine_database(&mut self) -> Result<Vec<Remark>, Failure> {
        let path = self.connection.config.database.clone();
        let database = match self.connection.call(Method::GET, &path, None).await? {
            FirestoreAnswer::Good(database) => database,
            // Leases do not need this permission.
            FirestoreAnswer::Refused { status, .. } if status == "PERMISSION_DENIED" => return Ok(Vec::new()),
            FirestoreAnswer::Refused { status, words } => {
                return Err(response::failure(&self.connection.config, &status, &words));
            }
            FirestoreAnswer::Foreign(http) => return Err(response::foreign(&self.connection.config, http)),
        };
        let mut remarks = Vec::new();
        let place = database["locationId"].as_str().unwrap_or("a place it does not tell");
        match database["type"].as_str() {
            Some("FIRESTORE_NATIVE") => remarks.push(Remark {
                about: "database",
                verdict: RemarkLevel::Good,
                text: format!("A native Firestore database in {place}: writes are kept in several zones."),
            }),
            Some(other) => remarks.push(Remark {
                about: "database",
                verdict: RemarkLevel::Unsafe,
                text: format!("The database is of type {other}, and only FIRESTORE_NATIVE can be used. Create one in native mode."),
            }),
            None => {}
        }
        if database["deleteProtectionState"] == "DELETE_PROTECTION_DISABLED" {
            remarks.push(Remark {
                about: "deletion",
                verdict: RemarkLevel::Weak,
                text: "Anybody with the right to can delete the database and every lease in it; turn its delete protection on.".into(),
            });
        }
        Ok(remarks)
    }
}

#[async_trait(?Send)]
impl Store for FirestoreStore {
    fn facts(&self) -> StoreFacts {
        let emulator = self.connection.config.emulator;
        StoreFacts {
            url: self.connection.config.shown.clone(),
            // The database loses no acknowledged write, and a restored backup is another database.
            instance: self.connection.config.database.clone(),
            clock: Clock::Server,
            resolution: Duration::from_millis(1),
            // Many servers answer, each with its own clock.
            jump: Duration::from_secs(3),
            this_machine_only: false,
            lock_dir: None,
            spacing: Duration::ZERO,
            pushes: false,
            durability: if emulator {
                "Nothing outlives the emulator, which keeps everything in its memory."
            } else {
                "Firestore keeps every acknowledged write in several zones; deleting the database loses it."
            },
            caution: emulator.then(|| {
                "This is Firestore's emulator or something in its place: leases are gone when it stops."
                    .into()
            }),
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let name = self.name(key)?;
        let path = format!("{}/documents:batchGet", self.connection.config.database);
        // Unlike a plain get, it returns the time of the read even if there is no document.
        let good = self.connection.ask(Method::POST, &path, Some(&json!({ "documents": [name] }))).await?;
        for part in good.as_array().into_iter().flatten() {
            if let Some(found) = part.get("found") {
                return match wire::record(found, part.get("readTime")) {
                    Some((whose, stored)) if whose == key => Ok(Some(stored)),
                    _ => Err(Failure::new(
                        FailureKind::Unusable,
                        format!(
                            "The document for {key:?} in {} was written by something else, and was left as it is. Name another collection for leases.",
                            self.connection.config.shown
                        ),
                    )),
                };
            }
            if part["missing"].as_str().is_some_and(|missing| wire::within(missing) == wire::within(&name)) {
                return Ok(None);
            }
        }
        Err(response::puzzling(&self.connection.config))
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let name = match self.name(key) {
            Ok(name) => name,
            Err(failure) => return Cas::Unknown(failure),
        };
        let update = wire::update(&name, key, expected, write, body);
        match self.connection.commit(update, expected.is_none()).await {
            Ok((result, time)) => self.connection.written(&result, expected, time),
            Err(cas) => cas,
        }
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let path = format!("{}:runQuery", self.connection.config.parent);
        let query = wire::query(&self.connection.config, prefix, after, limit);
        let good = self.connection.ask(Method::POST, &path, Some(&query)).await?;
        let parts = good.as_array().ok_or_else(|| response::puzzling(&self.connection.config))?;
        let records =
            parts.iter().filter_map(|part| wire::record(part.get("document")?, part.get("readTime")));
        Ok(records.map(|(key, stored)| Listed { key, stored: Some(stored) }).collect())
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let name = match self.name(key) {
            Ok(name) => name,
            Err(failure) => return Cas::Unknown(failure),
        };
        match self.connection.commit(wire::delete(&name, version), false).await {
            Ok((_, store_time)) => Cas::Written { version: version.clone(), store_time },
            Err(cas) => cas,
        }
    }

    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        let mut answers = Vec::with_capacity(writes.len());
        for chunk in writes.chunks(BATCH) {
            match chunk {
                [w] => answers.push(self.cas(&w.key, w.expected.as_ref(), w.write, &w.body).await),
                many => match self.batch(many).await {
                    Ok(each) => answers.extend(each),
                    Err(failure) => answers.extend(many.iter().map(|_| Cas::Unknown(failure.clone()))),
                },
            }
        }
        answers
    }
}

#[async_trait(?Send)]
impl Examine for FirestoreStore {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        let mut remarks = vec![Remark {
            about: "pace",
            verdict: RemarkLevel::Good,
            text: "Firestore takes about one write per second to one document for long.".into(),
        }];
        if self.connection.config.emulator {
            remarks.push(Remark {
                about: "durability",
                verdict: RemarkLevel::Weak,
                text: "This is Firestore's emulator or a replacement for it: it keeps leases in memory and loses them when it stops.".into(),
            });
        } else {
            remarks.extend(self.examine_database().await?);
        }
        Ok(remarks)
    }
}
