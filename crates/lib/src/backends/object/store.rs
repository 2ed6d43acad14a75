//! A store in S3 and compatible servers, Google Cloud Storage or Azure Blob Storage: one object for each record.
//!
//! A record is replaced by a conditional put (`If-Match`, or the generation on Google), and created by a put with the
//! condition that there is no object. [`super::response`] reads the answer from the status that [`super::wire`] saw.
//! An age is `Date` minus `Last-Modified` of one response. Not all servers can remove under a condition. So a removed
//! record first becomes a short mark that reads as absent, and the mark is removed where that is safe
//! (docs/decisions/0011).

mod name;

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use leasehold_core::run_log::is_job_prefix;
use object_store::path::Path;

use super::bucket::{Bucket, Fetched, PutKind};
use super::client;
use super::config::{Config, Provider};
use super::envelope::{self, ObjectContent};
use crate::backends::remote::Remote;
use crate::random;
use crate::stores::{
    Cas, Clock, Examine, Failure, FailureKind, Listed, Remark, RemarkLevel, Store, StoreFacts, Stored,
    Version,
};

/// `Date` and `Last-Modified` are both rounded down to seconds.
const RESOLUTION: Duration = Duration::from_secs(2);
/// Many servers write and answer, each with its own clock.
const JUMP: Duration = Duration::from_secs(3);
/// Much larger than any record, so a larger object is not fetched.
const LARGEST: u64 = 4 << 20;
/// How many pages a listing may have.
const PAGES: usize = 10_000;

/// Records in a bucket.
pub struct ObjectBucket {
    bucket: Bucket,
    /// Whether the server refuses a DELETE whose condition does not hold; None before the first.
    erases: Option<bool>,
    /// Keys whose marks could not be removed.
    marked: Vec<String>,
}

/// Opens a bucket by URL, with the variables of this process. Contacts nothing.
pub fn open(provider: Provider, url: &str) -> Result<Remote<ObjectBucket>, String> {
    with_vars(provider, url, client::environment())
}

/// As [`open`], with the variables given: `AWS_*`, `GOOGLE_*` or `AZURE_*`.
pub fn with_vars(
    provider: Provider,
    url: &str,
    vars: Vec<(String, String)>,
) -> Result<Remote<ObjectBucket>, String> {
    let config = Config::parse(provider, url)?.with_endpoint_of(&vars);
    Ok(Remote::new(ObjectBucket { bucket: Bucket::new(config, vars), erases: None, marked: Vec::new() }))
}

/// An object that was read.
struct ReadObject {
    content: ObjectContent,
    version: Version,
    age: Option<Duration>,
}

impl ObjectBucket {
    fn path(&self, key: &str) -> Result<Path, Failure> {
        let name = name::of(&self.bucket.config.base, key);
        Path::parse(name).map_err(|_| unusable(format!("{key:?} cannot be the name of an object.")))
    }

    async fn get(&mut self, key: &str) -> Result<Option<ReadObject>, Failure> {
        let path = self.path(key)?;
        let Some(Fetched { bytes, version, age, note }) = self.bucket.fetch(&path, LARGEST).await? else {
            return Ok(None);
        };
        let content = bytes.map_or(ObjectContent::Foreign, |bytes| envelope::open(&bytes));
        if content == ObjectContent::Foreign {
            let html = note.report().answer.is_some_and(|answer| answer.html);
            return Err(if html { self.bucket.failure(&note) } else { foreign(&path) });
        }
        Ok(Some(ReadObject { content, version, age }))
    }

    /// A conditional put of a record. Without an expected version it creates the record.
    async fn put(&mut self, key: &str, expected: Option<&Version>, bytes: Vec<u8>) -> Cas {
        match self.path(key) {
            Ok(path) => self.bucket.put_at(&path, expected, bytes.into(), PutKind::Record).await,
            Err(failure) => Cas::Unknown(failure),
        }
    }

    /// Removes a mark, if this server checks the condition of a DELETE. Otherwise the mark stays.
    async fn erase(&mut self, key: &str, mark: &Version) {
        if self.erases.is_none() {
            self.erases = Some(self.heeds_conditions().await);
        }
        let (Ok(client), Ok(path)) = (self.bucket.client(), self.path(key)) else { return };
        if self.erases != Some(true) || !client.eraser.erase(&path, mark).await {
            self.marked.push(key.into());
        }
    }

    /// Whether the server checks the condition of a DELETE; tested with an object of our own.
    async fn heeds_conditions(&mut self) -> bool {
        if self.bucket.config.provider != Provider::S3 {
            return true;
        }
        let id = WriteId(random::seed());
        let key = format!("doctor/erase-{id}");
        let mark = envelope::removed(id);
        let Cas::Written { version, .. } = self.put(&key, None, mark).await else { return false };
        let (Ok(client), Ok(path)) = (self.bucket.client(), self.path(&key)) else { return false };
        let heeds = client.eraser.refuses_another(&path).await;
        if !client.eraser.erase(&path, &version).await {
            self.marked.push(key);
        }
        heeds
    }

    /// The keys of names that start with `start`, after `after`, in order, as many as are wanted.
    async fn names(
        &mut self,
        start: &str,
        after: Option<String>,
        want: &Want<'_>,
    ) -> Result<Vec<String>, Failure> {
        // Azure lists in no fixed order.
        let ordered = self.bucket.config.provider != Provider::Azure;
        // And its client does not list an object whose full name is the prefix, so the folder is listed.
        let start = if ordered { start } else { &start[..start.rfind('/').map_or(0, |i| i + 1)] };
        let mut found = Vec::new();
        let mut page_token = None;
        for _ in 0..PAGES {
            let after = after.clone().filter(|_| ordered);
            let (page, _) = self.bucket.page(start, after, page_token.take()).await?;
            let records = page.result.objects.iter().filter(|o| o.size >= envelope::LEAST);
            let keys = records.filter_map(|o| name::key(&self.bucket.config.base, o.location.as_ref()));
            found.extend(keys.filter(|key| want.takes(key)));
            page_token = page.page_token;
            if page_token.is_none() || (ordered && found.len() >= want.limit) {
                return Ok(found);
            }
        }
        Err(unusable("The listing is too long. Use a separate prefix for this store.".into()))
    }
}

/// The request for a listing.
struct Want<'a> {
    prefix: &'a str,
    after: &'a str,
    limit: usize,
}

impl Want<'_> {
    fn takes(&self, key: &str) -> bool {
        key.starts_with(self.prefix) && key > self.after
    }
}

fn unusable(message: String) -> Failure {
    Failure::new(FailureKind::Unusable, message)
}

fn foreign(path: &Path) -> Failure {
    unusable(format!(
        "The object {path} was not written by Leasehold. Nothing was changed. Remove it, or use another prefix."
    ))
}

#[async_trait(?Send)]
impl Store for ObjectBucket {
    fn facts(&self) -> StoreFacts {
        let Config { provider, bucket, account, .. } = &self.bucket.config;
        let owner = account.as_deref().unwrap_or_default();
        StoreFacts {
            url: self.bucket.config.shown.clone(),
            // Without the endpoint, so that it is the same through every endpoint.
            instance: format!("{}:{owner}/{bucket}", provider.title()),
            clock: Clock::Server,
            resolution: RESOLUTION,
            jump: JUMP,
            this_machine_only: false,
            lock_dir: None,
            spacing: self.bucket.config.provider.spacing(),
            pushes: false,
            durability: "The provider keeps acknowledged writes as its contract says.",
            caution: None,
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        Ok(match self.get(key).await? {
            Some(ReadObject { content: ObjectContent::Record(body), version, age }) => {
                Some(Stored { body, version, age })
            }
            _ => None,
        })
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let done = self.put(key, expected, envelope::record(write, body)).await;
        if expected.is_some() || done != Cas::Conflict {
            return done;
        }
        // The create was refused. The object may be the mark of a removed record.
        match self.get(key).await {
            Ok(Some(ReadObject { content: ObjectContent::Removed, version, .. })) => {
                self.put(key, Some(&version), envelope::record(write, body)).await
            }
            _ => Cas::Conflict,
        }
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let want = Want { prefix, after, limit };
        if limit == 0 {
            return Ok(Vec::new());
        }
        let base = self.bucket.config.base.clone();
        let mut keys = Vec::new();
        if name::plain_start(prefix) == prefix {
            let from = format!("{base}{}", name::plain_start(after));
            keys = self
                .names(&format!("{base}{prefix}"), Some(from).filter(|_| !after.is_empty()), &want)
                .await?;
        }
        // Such a prefix is allowed as a name, and so is every key with it.
        if is_job_prefix(prefix) && name::of("", prefix) == prefix {
            return Ok(keys.into_iter().map(|key| Listed { key, stored: None }).collect());
        }
        let odd = format!("{base}{}", name::ODD);
        let start = if prefix.is_empty() { odd.clone() } else { format!("{odd}{}", name::hex(prefix)) };
        let from = Some(format!("{odd}{}", name::hex(after))).filter(|_| !after.is_empty());
        keys.extend(self.names(&start, from, &want).await?);
        keys.sort_unstable();
        keys.dedup();
        keys.truncate(limit);
        Ok(keys.into_iter().map(|key| Listed { key, stored: None }).collect())
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let mark = envelope::removed(WriteId(random::seed()));
        match self.put(key, Some(version), mark).await {
            Cas::Written { version: mark, store_time } => {
                self.erase(key, &mark).await;
                Cas::Written { version: version.clone(), store_time }
            }
            other => other,
        }
    }
}

#[async_trait(?Send)]
impl Examine for ObjectBucket {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        let title = self.bucket.config.provider.title();
        let about = match &self.bucket.config.endpoint {
            Some(endpoint) => format!("{endpoint} keeps acknowledged writes on its own disks"),
            None => format!("{title} keeps acknowledged writes on several machines"),
        };
        let text = format!("{about}; a bucket restored from a copy is noticed by its tokens.");
        Ok(vec![Remark { about: "durability", verdict: RemarkLevel::Good, text }])
    }

    fn traces(&self) -> Vec<String> {
        self.marked.clone()
    }
}
