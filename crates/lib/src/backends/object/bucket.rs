//! Objects by their names, for the store and for targets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::list::{PaginatedListOptions, PaginatedListResult};
use object_store::path::Path;
use object_store::{
    Attribute, GetOptions, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion,
};

use super::client::{self, Client, Vars};
use super::config::{Config, Provider};
use super::response::{self, Put};
use super::wire::{CallNote, ObjectAnswer};
use crate::stores::{Cas, Failure, FailureKind, Version};

/// The number of names in one page.
const PAGE: usize = 1_000;

/// A bucket, and a client for it.
pub(super) struct Bucket {
    pub config: Config,
    vars: Vars,
    /// The note of the last request for credentials.
    credentials: CallNote,
    /// Made by the first call.
    client: Option<Arc<Client>>,
}

/// An object that was read.
pub(super) struct Fetched {
    /// None if it is larger than the limit.
    pub bytes: Option<Bytes>,
    pub version: Version,
    pub age: Option<Duration>,
    pub note: CallNote,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedObject {
    /// Its full name.
    pub name: String,
    /// How long ago it was written, by the server's clocks.
    pub age: Option<Duration>,
}

/// The kind of object that is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutKind {
    /// Text that is replaced.
    Record,
    /// Bytes that never change.
    Payload,
}

impl Bucket {
    /// Contacts nothing yet.
    pub fn new(config: Config, vars: Vars) -> Self {
        Self { config, vars, credentials: CallNote::default(), client: None }
    }

    pub fn client(&mut self) -> Result<Arc<Client>, Failure> {
        if let Some(client) = &self.client {
            return Ok(Arc::clone(client));
        }
        let client = client::connect(&self.config, &self.vars, &self.credentials)?;
        Ok(Arc::clone(self.client.insert(Arc::new(client))))
    }

    pub fn failure(&self, note: &CallNote) -> Failure {
        response::failure(&self.config, &note.report(), &self.credentials.report())
    }

    /// The field that the provider compares.
    fn version(&self, e_tag: Option<String>, version: Option<String>) -> Option<Version> {
        let field = if self.config.provider == Provider::Google { version } else { e_tag };
        field.map(Version)
    }

    /// The bucket of the object that a URL names, and the object's name. Contacts nothing.
    pub(super) fn of_object(
        provider: Provider,
        url: &str,
        vars: Option<Vars>,
    ) -> Result<(Self, String), String> {
        let config = Config::parse(provider, url)?;
        let name = config.base.trim_end_matches('/').to_owned();
        let path = url.split('?').next().unwrap_or(url);
        if name.is_empty() || path.ends_with('/') {
            let what = provider.bucket().to_uppercase();
            return Err(format!("This URL names no object. Write {}://{what}/KEY.", provider.scheme()));
        }
        Ok((Self::new(config, vars.unwrap_or_else(client::environment)), name))
    }

    /// The name of its server, with the account.
    pub(super) fn server(&self) -> String {
        let Config { provider, bucket, account, endpoint, .. } = &self.config;
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}:{}/{bucket} {}", provider.title(), text(account), text(endpoint))
    }

    /// The object at `path`, if there is one, with its content, if that has at most `most` bytes.
    pub(super) async fn fetch(&mut self, path: &Path, most: u64) -> Result<Option<Fetched>, Failure> {
        let client = self.client()?;
        let note = CallNote::default();
        let options = || GetOptions { extensions: note.extensions(), ..GetOptions::default() };
        let mut got = client.bucket.get_opts(path, options()).await;
        if got.is_err() && note.cut_short() {
            // The server closed an idle connection. A read may be repeated.
            got = client.bucket.get_opts(path, options()).await;
        }
        let got = match got {
            Ok(got) => got,
            Err(_) if response::absent(&note.report()) => return Ok(None),
            Err(_) => return Err(self.failure(&note)),
        };
        let Some(version) = self.version(got.meta.e_tag.clone(), got.meta.version.clone()) else {
            return Err(self.failure(&note));
        };
        let age = |note: &CallNote| note.report().answer.unwrap_or_default().age();
        if got.meta.size > most {
            return Ok(Some(Fetched { bytes: None, version, age: age(&note), note }));
        }
        let Ok(bytes) = got.bytes().await else {
            return Err(Failure::new(
                FailureKind::Unreachable,
                format!("{} stopped in the middle of an object. Try again.", self.config.provider.title()),
            ));
        };
        Ok(Some(Fetched { bytes: Some(bytes), version, age: age(&note), note }))
    }

    /// A conditional put. Without an expected version it creates the object.
    pub(super) async fn put_at(
        &mut self,
        path: &Path,
        expected: Option<&Version>,
        bytes: PutPayload,
        kind: PutKind,
    ) -> Cas {
        let client = match self.client() {
            Ok(client) => client,
            Err(failure) => return Cas::Unknown(failure),
        };
        let note = CallNote::default();
        let mode = match expected {
            None => PutMode::Create,
            Some(Version(v)) => {
                PutMode::Update(UpdateVersion { e_tag: Some(v.clone()), version: Some(v.clone()) })
            }
        };
        let mut options = PutOptions { mode, extensions: note.extensions(), ..PutOptions::default() };
        let content_type = match kind {
            PutKind::Record => "text/plain; charset=utf-8",
            PutKind::Payload => "application/octet-stream",
        };
        options.attributes.insert(Attribute::ContentType, content_type.into());
        if kind == PutKind::Record {
            // So that a cache in front of the bucket does not answer with an old version.
            options.attributes.insert(Attribute::CacheControl, "no-store".into());
        }
        let done = client.bucket.put_opts(path, bytes, options).await;
        let judged =
            response::put(&self.config, &note.report(), &self.credentials.report(), expected.is_none());
        match (judged, done) {
            (Put::Refused, _) => Cas::Conflict,
            (Put::Open(failure), _) => Cas::Unknown(failure),
            (Put::Taken, Ok(PutResult { e_tag, version, .. })) => match self.version(e_tag, version) {
                Some(version) => Cas::Written { version, store_time: None },
                None => Cas::Unknown(self.failure(&note)),
            },
            (Put::Taken, Err(_)) => Cas::Unknown(self.failure(&note)),
        }
    }

    /// The objects whose names start with `folder`, which ends in a slash; at most `pages` pages.
    pub(super) async fn seen_in(&mut self, folder: &str, pages: usize) -> Result<Vec<ListedObject>, Failure> {
        let mut found = Vec::new();
        let mut page_token = None;
        for _ in 0..pages {
            let (page, answer) = self.page(folder, None, page_token.take()).await?;
            found.extend(page.result.objects.iter().map(|object| {
                let written = jiff::Timestamp::from_millisecond(object.last_modified.timestamp_millis()).ok();
                let age = answer.date.zip(written).map(|(date, written)| date.duration_since(written));
                let age = age.and_then(|age| Duration::try_from(age).ok());
                ListedObject { name: object.location.as_ref().into(), age }
            }));
            page_token = page.page_token;
            if page_token.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// One page of the names that start with `start`, after `offset`; and the note of the call.
    pub(super) async fn page(
        &mut self,
        start: &str,
        offset: Option<String>,
        page_token: Option<String>,
    ) -> Result<(PaginatedListResult, ObjectAnswer), Failure> {
        let client = self.client()?;
        let note = CallNote::default();
        let options = PaginatedListOptions {
            offset,
            max_keys: Some(PAGE),
            page_token,
            extensions: note.extensions(),
            ..PaginatedListOptions::default()
        };
        let page = client.bucket.list_paginated(Some(start), options).await;
        let answer = note.report().answer.filter(|answer| answer.xml);
        page.ok().zip(answer).ok_or_else(|| self.failure(&note))
    }

    /// Removes an object.
    pub(super) async fn discard(&mut self, path: &Path) -> Result<(), Failure> {
        let client = self.client()?;
        client.bucket.delete(path).await.map_err(|_| {
            Failure::new(
                FailureKind::Unreachable,
                format!("{} did not remove an object.", self.config.provider.title()),
            )
        })
    }
}
