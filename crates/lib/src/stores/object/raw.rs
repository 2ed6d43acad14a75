//! Objects by their own names: what records are made of, and what targets use directly.

use std::time::Duration;

use bytes::Bytes;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{
    Attribute, GetOptions, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion,
};

use super::client::{self, Vars};
use super::place::{Place, Provider};
use super::verdict::{self, Put};
use super::wire::Note;
use super::{Cas, Failure, FailureKind, ObjectBucket, PAGE, Version};

/// An object that was read.
pub(crate) struct Fetched {
    /// Nothing: it is larger than was asked for.
    pub bytes: Option<Bytes>,
    pub version: Version,
    pub age: Option<Duration>,
    pub note: Note,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its whole name.
    pub name: String,
    /// How long ago it was written, by the server's clocks.
    pub age: Option<Duration>,
}

/// What is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text that changes in place.
    Record,
    /// Bytes that never change.
    Payload,
}

impl ObjectBucket {
    /// The bucket of the one object that a URL names, and the object's name. Reaches nothing.
    pub(crate) fn of_object(
        provider: Provider,
        scheme: &str,
        url: &str,
        vars: Option<Vars>,
    ) -> Result<(Self, String), String> {
        let place = Place::parse(provider, scheme, url)?;
        let name = place.base.trim_end_matches('/').to_owned();
        let path = url.split('?').next().unwrap_or(url);
        if name.is_empty() || path.ends_with('/') {
            let what = provider.bucket().to_uppercase();
            return Err(format!("This URL names no object. Write {scheme}://{what}/KEY."));
        }
        Ok((Self::new(place, vars.unwrap_or_else(client::environment)), name))
    }

    /// The URL as it may be shown.
    pub(crate) fn shown(&self) -> &str {
        &self.place.shown
    }

    /// Whose bucket it is, and where.
    pub(crate) fn server(&self) -> String {
        let Place { provider, bucket, account, endpoint, .. } = &self.place;
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}:{}/{bucket} {}", provider.title(), text(account), text(endpoint))
    }

    /// The object at `path`, if there is one; its content, if that has at most so many bytes.
    pub(crate) async fn fetch(&mut self, path: &Path, most: u64) -> Result<Option<Fetched>, Failure> {
        let client = self.client()?;
        let note = Note::default();
        let options = || GetOptions { extensions: note.extensions(), ..GetOptions::default() };
        let mut got = client.bucket.get_opts(path, options()).await;
        if got.is_err() && note.cut_short() {
            // The server hung up on a connection that had been idle. A read may be made twice.
            got = client.bucket.get_opts(path, options()).await;
        }
        let got = match got {
            Ok(got) => got,
            Err(_) if verdict::absent(&note.told()) => return Ok(None),
            Err(_) => return Err(self.failure(&note)),
        };
        let Some(version) = self.version(got.meta.e_tag.clone(), got.meta.version.clone()) else {
            return Err(self.failure(&note));
        };
        let age = |note: &Note| note.told().answer.unwrap_or_default().age();
        if got.meta.size > most {
            return Ok(Some(Fetched { bytes: None, version, age: age(&note), note }));
        }
        let Ok(bytes) = got.bytes().await else {
            return Err(Failure::new(
                FailureKind::Unreachable,
                format!("{} stopped in the middle of an object. Try again.", self.place.provider.title()),
            ));
        };
        Ok(Some(Fetched { bytes: Some(bytes), version, age: age(&note), note }))
    }

    /// One conditional put: nothing expected means create.
    pub(crate) async fn put_at(
        &mut self,
        path: &Path,
        expected: Option<&Version>,
        bytes: PutPayload,
        kind: Kind,
    ) -> Cas {
        let client = match self.client() {
            Ok(client) => client,
            Err(failure) => return Cas::Unknown(failure),
        };
        let note = Note::default();
        let mode = match expected {
            None => PutMode::Create,
            Some(Version(v)) => {
                PutMode::Update(UpdateVersion { e_tag: Some(v.clone()), version: Some(v.clone()) })
            }
        };
        let mut options = PutOptions { mode, extensions: note.extensions(), ..PutOptions::default() };
        let content_type = match kind {
            Kind::Record => "text/plain; charset=utf-8",
            Kind::Payload => "application/octet-stream",
        };
        options.attributes.insert(Attribute::ContentType, content_type.into());
        if kind == Kind::Record {
            // A bucket behind a cache would otherwise answer with what was true a while ago.
            options.attributes.insert(Attribute::CacheControl, "no-store".into());
        }
        let done = client.bucket.put_opts(path, bytes, options).await;
        let judged = verdict::put(&self.place, &note.told(), &self.credentials.told(), expected.is_none());
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

    /// Objects whose names start with `folder`, which ends in a slash; the first of them, if they are more than so
    /// many pages.
    pub(crate) async fn seen_in(&mut self, folder: &str, pages: usize) -> Result<Vec<Seen>, Failure> {
        let client = self.client()?;
        let mut found = Vec::new();
        let mut page_token = None;
        for _ in 0..pages {
            let note = Note::default();
            let options = PaginatedListOptions {
                max_keys: Some(PAGE),
                page_token: page_token.take(),
                extensions: note.extensions(),
                ..PaginatedListOptions::default()
            };
            let page =
                client.bucket.list_paginated(Some(folder), options).await.map_err(|_| self.failure(&note))?;
            let answer = note.told().answer.filter(|answer| answer.xml).ok_or_else(|| self.failure(&note))?;
            found.extend(page.result.objects.iter().map(|object| {
                let written = jiff::Timestamp::from_millisecond(object.last_modified.timestamp_millis()).ok();
                let age = answer.date.zip(written).map(|(date, written)| date.duration_since(written));
                let age = age.and_then(|age| Duration::try_from(age).ok());
                Seen { name: object.location.as_ref().into(), age }
            }));
            page_token = page.page_token;
            if page_token.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// Takes an object away, whatever it is.
    pub(crate) async fn discard(&mut self, path: &Path) -> Result<(), Failure> {
        let client = self.client()?;
        client.bucket.delete(path).await.map_err(|_| {
            Failure::new(
                FailureKind::Unreachable,
                format!("{} did not remove an object.", self.place.provider.title()),
            )
        })
    }
}
