//! The protocol itself: `docs/store-protocol.md`.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine};
use http_body_util::LengthLimitError;
use leasehold::core::ids::WriteId;
use leasehold::core::store::FailureKind;
use leasehold::core::write_policy::{self, AllowedListing, Illegal, Rights};
use leasehold::stores::{Listed, Version};
use leasehold::text::percent_decoded;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::store_worker::{StoreCall, StoreReply, StoreRequest, StoreResult};
use super::tokens::Tokens;
use crate::messages::serve as say;
use crate::out::Out;

const KEY_MAX: usize = 512;
const BODY_MAX: usize = 64 * 1024;
const PAGE_KEYS: usize = 500;
const PAGE_BYTES: usize = 1024 * 1024;
/// For the whole of one request, the wait for the store included.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// Characters that an entity tag may have as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// State that all requests share.
pub struct StoreApi {
    pub tokens: std::sync::Arc<Tokens>,
    pub store: SyncSender<StoreRequest>,
    pub out: Out,
}

/// Why a request is refused.
struct HttpRefusal {
    status: u16,
    error: String,
    reason: &'static str,
}

fn refuse(status: u16, reason: &'static str, error: String) -> HttpRefusal {
    HttpRefusal { status, error, reason }
}

/// The answer to any request.
pub async fn answer(request: Request, shared: &StoreApi) -> Response {
    let done = tokio::time::timeout(REQUEST_LIMIT, handle(request, shared)).await;
    let late = || refuse(503, "busy", say::late());
    match done.unwrap_or_else(|_| Err(late())) {
        Ok(answer) => answer,
        Err(HttpRefusal { status, error, reason }) => {
            json_reply(status, None, &[], json!({"error": error, "reason": reason}))
        }
    }
}

/// An answer with the headers that all answers have.
fn reply(
    status: u16,
    instance: Option<&str>,
    headers: &[(&str, String)],
    kind: &str,
    body: Vec<u8>,
) -> Response {
    let mut builder = Response::builder()
        .status(status)
        .header("leasehold-protocol", "1")
        .header("cache-control", "no-store, no-transform")
        .header("content-type", kind);
    let instance = instance.map(|instance| ("leasehold-instance", instance.to_owned()));
    for (name, value) in headers.iter().cloned().chain(instance) {
        builder = builder.header(name, value);
    }
    // Numbers, fixed words and encoded versions fit into headers. The name of an instance might not.
    builder.body(Body::from(body)).unwrap_or_else(|_| {
        let mut plain = Response::new(Body::empty());
        *plain.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        plain
    })
}

fn json_reply(status: u16, instance: Option<&str>, headers: &[(&str, String)], value: Value) -> Response {
    reply(status, instance, headers, "application/json", value.to_string().into_bytes())
}

async fn handle(request: Request, shared: &StoreApi) -> Result<Response, HttpRefusal> {
    let authorization = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    let rights = shared.tokens.rights(authorization).ok_or_else(|| match authorization {
        None => refuse(401, "bearer", say::bearer_needed()),
        Some(_) => refuse(401, "bearer", say::bearer_unknown()),
    })?;
    if request.uri().path() == "/v1/list" && request.method() == Method::GET {
        return list(request.uri().query().unwrap_or(""), rights, shared).await;
    }
    let not_its_own = || refuse(403, "prefix", say::outside_prefix());
    let key = rights.place(&key(request.uri().path())?).ok_or_else(not_its_own)?;
    let call = match *request.method() {
        Method::GET => StoreCall::Read { key: key.clone() },
        Method::DELETE => {
            if !rights.admin && !write_policy::removable(&key) {
                return Err(refuse(422, "kept", say::lease_stays()));
            }
            let version = version(request.headers())?;
            StoreCall::Remove { key: key.clone(), version, admin: rights.admin }
        }
        Method::PUT => write(request, key.clone(), rights.admin).await?,
        _ => return Err(refuse(405, "method", say::no_such_method())),
    };
    let StoreReply { instance, result } = ask(call, shared).await?;
    let at = Some(instance.as_str());
    let tag = |version: &Version| ("etag", format!("\"{}\"", utf8_percent_encode(&version.0, PLAIN)));
    Ok(match result {
        StoreResult::Found(None) => {
            json_reply(404, at, &[], json!({"error": say::no_such_key(), "reason": "absent"}))
        }
        StoreResult::Found(Some(stored)) => {
            let age = stored.age.map(|age| ("leasehold-age-ms", age.as_millis().to_string()));
            let headers: Vec<_> = [Some(tag(&stored.version)), age].into_iter().flatten().collect();
            reply(200, at, &headers, "application/octet-stream", stored.body)
        }
        StoreResult::Written { version, time } => {
            let time = time.map(|time| ("leasehold-time-ms", time.as_millis().to_string()));
            let headers: Vec<_> = [Some(tag(&version)), time].into_iter().flatten().collect();
            reply(200, at, &headers, "application/octet-stream", Vec::new())
        }
        StoreResult::Removed => reply(204, at, &[], "application/octet-stream", Vec::new()),
        StoreResult::Conflict => {
            json_reply(412, at, &[], json!({"error": say::other_version(), "reason": "conflict"}))
        }
        StoreResult::Illegal(why) => {
            // Clients try to remove the leases of finished keys by themselves.
            if why != Illegal::Admin {
                shared.out.warn(&say::write_refused(format!("{key:?}"), why));
            }
            json_reply(422, at, &[], json!({"error": why.to_string(), "reason": why.word()}))
        }
        StoreResult::Listed(_) | StoreResult::Failed(_) => {
            return Err(refuse(500, "failed", say::failed()));
        }
    })
}

/// The store's reply. A failure of the store is logged here in full. The client gets one sentence.
async fn ask(call: StoreCall, shared: &StoreApi) -> Result<StoreReply, HttpRefusal> {
    let (answer, reply) = oneshot::channel();
    let busy = |_| refuse(503, "busy", say::too_many());
    shared.store.try_send(StoreRequest { call, answer }).map_err(busy)?;
    let reply = reply.await.map_err(|_| refuse(500, "failed", say::failed()))?;
    match reply.result {
        StoreResult::Failed(failure) => {
            shared.out.warn(&say::store_failed(failure.message));
            let status = if failure.kind == FailureKind::Unreachable { 503 } else { 500 };
            Err(refuse(status, "failed", say::failed_see_log()))
        }
        result => Ok(StoreReply { result, ..reply }),
    }
}

fn key(path: &str) -> Result<String, HttpRefusal> {
    let segment = path.strip_prefix("/v1/k/").filter(|rest| !rest.is_empty() && !rest.contains('/'));
    let segment = segment.ok_or_else(|| refuse(400, "path", say::no_such_path()))?;
    let key = decoded(segment)?;
    match key.len() {
        _ if key.contains('\0') => Err(refuse(400, "key", say::zero_byte())),
        0..=KEY_MAX => Ok(key),
        _ => Err(refuse(414, "key", say::long_key(KEY_MAX))),
    }
}

fn decoded(text: &str) -> Result<String, HttpRefusal> {
    percent_decoded(text).ok_or_else(|| refuse(400, "encoding", say::bad_encoding()))
}

fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn version(headers: &HeaderMap) -> Result<Version, HttpRefusal> {
    let tag = header(headers, IF_MATCH).filter(|_| !headers.contains_key(IF_NONE_MATCH));
    let tag = tag.and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
    match tag.filter(|tag| !tag.is_empty() && !tag.contains('"')) {
        Some(tag) => decoded(tag).map(Version),
        None => Err(refuse(428, "condition", say::no_condition())),
    }
}

async fn write(request: Request, key: String, admin: bool) -> Result<StoreCall, HttpRefusal> {
    let headers = request.headers();
    let id = header(headers, HeaderName::from_static("leasehold-write-id")).and_then(WriteId::parse);
    let write = id.ok_or_else(|| refuse(400, "write", say::bad_write_id()))?;
    let create = header(headers, IF_NONE_MATCH) == Some("*") && !headers.contains_key(IF_MATCH);
    let expected = if create { None } else { Some(version(headers)?) };
    let body =
        to_bytes(request.into_body(), BODY_MAX).await.map_err(|e| {
            match std::error::Error::source(&e).is_some_and(|why| why.is::<LengthLimitError>()) {
                true => refuse(413, "body", say::long_body(BODY_MAX)),
                false => refuse(400, "body", say::short_body()),
            }
        })?;
    Ok(StoreCall::Write { key, expected, write, body: body.to_vec(), admin })
}

async fn list(query: &str, rights: &Rights, shared: &StoreApi) -> Result<Response, HttpRefusal> {
    let asked = |name: &str| -> Result<String, HttpRefusal> {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        decoded(&value.unwrap_or("").replace('+', "%20"))
    };
    let limit = asked("limit")?.parse().unwrap_or(PAGE_KEYS).min(PAGE_KEYS);
    let (prefix, limit) = match rights.listing(&asked("prefix")?) {
        AllowedListing::Prefix(prefix) => (prefix, limit),
        AllowedListing::Nothing => ("\u{1}".into(), 0),
        AllowedListing::Refused => {
            return Err(refuse(403, "prefix", say::list_too_wide()));
        }
    };
    // One more than the answer holds: it says whether there are more.
    let wanted = if limit == 0 { 0 } else { limit + 1 };
    let after = asked("after")?;
    let after = rights.place(&after).unwrap_or(after);
    let StoreReply { instance, result } =
        ask(StoreCall::List { prefix, after, limit: wanted }, shared).await?;
    let StoreResult::Listed(mut found) = result else { return Err(refuse(500, "failed", say::failed())) };
    found.iter_mut().for_each(|listed| listed.key = rights.called(&listed.key));
    Ok(json_reply(200, Some(&instance), &[], page(found, limit)))
}

fn page(found: Vec<Listed>, limit: usize) -> Value {
    let (mut keys, mut bytes, mut more) = (Vec::new(), 0, false);
    for listed in found {
        if keys.len() >= limit || bytes >= PAGE_BYTES {
            more = true;
            break;
        }
        keys.push(match listed.stored {
            None => json!({"key": listed.key}),
            Some(stored) => {
                bytes += stored.body.len();
                json!({
                    "key": listed.key,
                    "version": utf8_percent_encode(&stored.version.0, PLAIN).to_string(),
                    "age_ms": stored.age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                    "body": BASE64_STANDARD.encode(&stored.body),
                })
            }
        });
    }
    json!({"keys": keys, "more": more})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stray_percent_sign_names_no_key() {
        assert_eq!(key("/v1/k/leases%2Fsite").ok().as_deref(), Some("leases/site"));
        for stray in ["/v1/k/50%", "/v1/k/%2", "/v1/k/%zz", "/v1/k/%ff"] {
            assert_eq!(key(stray).err().map(|refusal| refusal.status), Some(400), "{stray}");
        }
    }
}
