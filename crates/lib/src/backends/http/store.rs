//! Our own store protocol over HTTP: the Durable Object worker, or `leasehold serve --store-api`.
//!
//! `docs/store-protocol.md` describes the protocol. An answer without its header comes from a proxy and not from the
//! store: an error page is not an absent record.

use std::time::Duration;

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD, Engine};
use leasehold_core::ids::WriteId;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use reqwest::{Client, Method, RequestBuilder, redirect};
use serde::Deserialize;

use super::config::{self, Config};
use super::response::{self, HttpAnswer};
use crate::backends::OpenError;
use crate::backends::remote::Remote;
use crate::stores::{
    Cas, Clock, Examine, Failure, FailureKind, Listed, Remark, RemarkLevel, Store, StoreFacts, Stored,
    Version,
};

/// The characters that are encoded: all but these, so that a key is one segment of the path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The longest key that servers accept.
const KEY_MAX: usize = 512;
/// The longest body that servers accept.
const BODY_MAX: usize = 64 * 1024;
/// The longest page of a list; servers send shorter ones.
const PAGE_MAX: usize = 4 * 1024 * 1024;
/// The largest number of keys in one page.
const PAGE_KEYS: usize = 500;
/// How long an idle connection is used. It is shorter than the shortest limit of common servers, five seconds, so that
/// the server does not close it during a request.
const IDLE: Duration = Duration::from_secs(3);

/// Opens the store at `url`. The bearer token comes from the file that `LEASEHOLD_AUTH_FILE` names.
pub(super) fn open(url: &str) -> Result<Box<dyn Examine>, OpenError> {
    let config = Config::parse(url).map_err(OpenError::Url)?;
    let file = std::env::var_os("LEASEHOLD_AUTH_FILE").filter(|path| !path.is_empty());
    let bearer = file.map(|path| config::bearer(path.as_ref())).transpose().map_err(OpenError::Store)?;
    Ok(Box::new(Remote::new(HttpStore::new(config, bearer))))
}

/// Opens the store at `url` with this bearer token.
pub fn open_as(url: &str, bearer: Option<&str>) -> Result<Box<dyn Store>, OpenError> {
    let config = Config::parse(url).map_err(OpenError::Url)?;
    let bearer = bearer.map(config::header).transpose().map_err(OpenError::Store)?;
    Ok(Box::new(Remote::new(HttpStore::new(config, bearer))))
}

/// A store behind HTTP.
struct HttpStore {
    config: Config,
    bearer: Option<HeaderValue>,
    /// Made by the first call. A connection is used again only after its answer was read to the end, so the rest of an
    /// unfinished answer is never read by the next call.
    client: Option<Client>,
    /// The instance in the last answer.
    instance: String,
}

/// One page of a list.
#[derive(Deserialize)]
struct ListPage {
    keys: Vec<ListEntry>,
    #[serde(default)]
    more: bool,
}

#[derive(Deserialize)]
struct ListEntry {
    key: String,
    version: Option<String>,
    age_ms: Option<u64>,
    body: Option<String>,
}

impl HttpStore {
    fn new(config: Config, bearer: Option<HeaderValue>) -> Self {
        Self { config, bearer, client: None, instance: String::new() }
    }

    fn connect(&self) -> Result<Client, Failure> {
        let mut builder = Client::builder()
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(IDLE);
        if self.config.loopback {
            builder = builder.no_proxy();
        }
        if !self.config.encrypted {
            // No TLS is used, so the system's certificates, which take time to read, are not needed.
            builder = builder.tls_certs_only([]);
        }
        builder.build().map_err(|e| {
            Failure::new(
                FailureKind::Unusable,
                format!(
                    "TLS could not be set up ({}). Check the certificates of this machine.",
                    response::root(&e)
                ),
            )
        })
    }

    /// Makes one request and reads its whole answer, so that nothing is left on the connection.
    async fn call(
        &mut self,
        method: Method,
        path: &str,
        most: usize,
        dress: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<HttpAnswer, Failure> {
        let client = match &self.client {
            Some(client) => client,
            None => self.client.insert(self.connect()?),
        };
        let mut request = client.request(method, format!("{}{path}", self.config.base));
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer.clone());
        }
        let answer = HttpAnswer::of(dress(request), most, &self.config.shown).await?;
        if let Some(instance) = &answer.instance {
            self.instance.clone_from(instance);
        }
        Ok(answer)
    }

    fn path(&self, key: &str) -> Result<String, Failure> {
        let unfit = key.is_empty() || key == "." || key == ".." || key.len() > KEY_MAX || key.contains('\0');
        if unfit {
            let message = format!(
                "A key of this store has 1 to {KEY_MAX} bytes, and {key:?} is not allowed. Use another key."
            );
            return Err(Failure::new(FailureKind::Unusable, message));
        }
        Ok(format!("/v1/k/{}", utf8_percent_encode(key, PLAIN)))
    }

    fn refused(&self, answer: &HttpAnswer) -> Failure {
        answer.refusal(&self.config.shown, self.bearer.is_some())
    }

    async fn write(
        &mut self,
        key: &str,
        expected: Option<&Version>,
        write: WriteId,
        body: &[u8],
    ) -> Result<Cas, Failure> {
        let path = self.path(key)?;
        if body.len() > BODY_MAX {
            let message = format!(
                "A record of this store can have at most {BODY_MAX} bytes, but this one has {}. Write less.",
                body.len()
            );
            return Err(Failure::new(FailureKind::Unusable, message));
        }
        let answer = self
            .call(Method::PUT, &path, BODY_MAX, |request| {
                let request = match expected {
                    Some(version) => request.header(IF_MATCH, format!("\"{}\"", version.0)),
                    None => request.header(IF_NONE_MATCH, "*"),
                };
                request.header("Leasehold-Write-Id", write.to_string()).body(body.to_vec())
            })
            .await?;
        match answer.status {
            200 => {
                let version = answer.version(&self.config.shown)?;
                Ok(Cas::Written { version, store_time: answer.time })
            }
            412 => Ok(Cas::Conflict),
            _ => Err(self.refused(&answer)),
        }
    }

    async fn page(&mut self, prefix: &str, after: &str, limit: usize) -> Result<ListPage, Failure> {
        let encode = |text| utf8_percent_encode(text, PLAIN);
        let path = format!("/v1/list?prefix={}&after={}&limit={limit}", encode(prefix), encode(after));
        let answer = self.call(Method::GET, &path, PAGE_MAX, |request| request).await?;
        if answer.status != 200 {
            return Err(self.refused(&answer));
        }
        serde_json::from_slice(&answer.body).map_err(|_| response::garbled(&self.config.shown))
    }
}

#[async_trait(?Send)]
impl Store for HttpStore {
    fn facts(&self) -> StoreFacts {
        let open = !self.config.encrypted && !self.config.loopback;
        StoreFacts {
            url: self.config.shown.clone(),
            instance: self.instance.clone(),
            clock: Clock::Server,
            resolution: leasehold_core::write_policy::RESOLUTION,
            jump: leasehold_core::write_policy::JUMP,
            this_machine_only: false,
            lock_dir: None,
            spacing: Duration::ZERO,
            pushes: false,
            durability: "the server's own store keeps acknowledged writes",
            caution: open.then(|| {
                "the connection is not encrypted, so others on the network can read the bearer token"
                    .to_owned()
            }),
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let path = self.path(key)?;
        let answer = self.call(Method::GET, &path, BODY_MAX, |request| request).await?;
        match answer.status {
            200 | 404 if answer.instance.is_none() => Err(response::garbled(&self.config.shown)),
            200 => {
                let version = answer.version(&self.config.shown)?;
                Ok(Some(Stored { version, age: answer.age, body: answer.body }))
            }
            404 => Ok(None),
            _ => Err(self.refused(&answer)),
        }
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.write(key, expected, write, body).await.unwrap_or_else(Cas::Unknown)
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let mut found: Vec<Listed> = Vec::new();
        let mut after = after.to_owned();
        while found.len() < limit {
            let page = self.page(prefix, &after, PAGE_KEYS.min(limit - found.len())).await?;
            let more = page.more;
            for entry in page.keys {
                // Keys must be in order and unique, or a list might never end.
                let body = entry.body.map(|body| BASE64_STANDARD.decode(body)).transpose();
                let sound = entry.key > after && entry.key.starts_with(prefix);
                let Some(body) = body.ok().filter(|_| sound) else {
                    return Err(response::garbled(&self.config.shown));
                };
                after.clone_from(&entry.key);
                let age = entry.age_ms.map(Duration::from_millis);
                let stored = body.zip(entry.version);
                let stored = stored.map(|(body, version)| Stored { body, version: Version(version), age });
                found.push(Listed { key: entry.key, stored });
            }
            if !more {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let path = match self.path(key) {
            Ok(path) => path,
            Err(failure) => return Cas::Unknown(failure),
        };
        let tag = format!("\"{}\"", version.0);
        let answer =
            self.call(Method::DELETE, &path, BODY_MAX, |request| request.header(IF_MATCH, tag)).await;
        match answer {
            Ok(answer) if answer.status == 204 => {
                Cas::Written { version: version.clone(), store_time: answer.time }
            }
            Ok(answer) if answer.status == 412 => Cas::Conflict,
            Ok(answer) => Cas::Unknown(self.refused(&answer)),
            Err(failure) => Cas::Unknown(failure),
        }
    }
}

#[async_trait(?Send)]
impl Examine for HttpStore {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        let wire = match (self.config.encrypted, self.config.loopback) {
            (true, _) => {
                (RemarkLevel::Good, "The connection is encrypted and the server's certificate is checked.")
            }
            (false, true) => (RemarkLevel::Good, "The connection does not leave this machine."),
            (false, false) => (
                RemarkLevel::Weak,
                "The connection is not encrypted, so others on the network can read the bearer token. Use https.",
            ),
        };
        let bearer = match self.bearer {
            Some(_) => (RemarkLevel::Good, "Requests carry the bearer token from LEASEHOLD_AUTH_FILE."),
            None => (
                RemarkLevel::Weak,
                "Requests have no bearer token, so the server accepts requests from everybody.",
            ),
        };
        let remark =
            |about, (verdict, text): (RemarkLevel, &str)| Remark { about, verdict, text: text.into() };
        Ok(vec![remark("connection", wire), remark("bearer", bearer)])
    }
}
