//! Reads the answers of a server.

use std::error::Error;
use std::time::Duration;

use reqwest::RequestBuilder;
use reqwest::header::{ETAG, HeaderMap};
use serde::Deserialize;

use crate::stores::{Failure, FailureKind, Version};

/// The version of the protocol.
const PROTOCOL: &str = "1";

/// An answer from the store itself.
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    pub(super) instance: Option<String>,
    pub(super) age: Option<Duration>,
    pub(super) time: Option<Duration>,
    pub(super) body: Vec<u8>,
    tag: Option<String>,
}

/// The body of a refusal.
#[derive(Default, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    error: String,
    #[serde(default)]
    reason: String,
}

impl HttpAnswer {
    /// Sends a request and reads the whole answer. `shown` is the store's URL for messages.
    pub(super) async fn of(request: RequestBuilder, most: usize, shown: &str) -> Result<Self, Failure> {
        let mut response = request.send().await.map_err(|e| broken(&e, shown))?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        match text(&headers, "leasehold-protocol") {
            Some(PROTOCOL) => {}
            Some(other) => {
                return Err(unusable(format!(
                    "The store at {shown} uses version {other:.20} of the protocol, but this program uses \
                     version {PROTOCOL}. Upgrade the older of the two."
                )));
            }
            None => return Err(stranger(status, shown)),
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| broken(&e, shown))? {
            if body.len() + chunk.len() > most {
                return Err(garbled(shown));
            }
            body.extend_from_slice(&chunk);
        }
        let ms = |name| text(&headers, name)?.parse().ok().map(Duration::from_millis);
        Ok(Self {
            status,
            instance: text(&headers, "leasehold-instance").filter(|i| !i.is_empty()).map(Into::into),
            age: ms("leasehold-age-ms"),
            time: ms("leasehold-time-ms"),
            tag: text(&headers, ETAG.as_str()).map(Into::into),
            body,
        })
    }

    /// The version. A weak ETag comes from a proxy, which may have changed the body.
    pub(super) fn version(&self, shown: &str) -> Result<Version, Failure> {
        let tag = self.tag.as_deref().and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
        match tag.filter(|tag| !tag.is_empty() && !tag.contains('"')) {
            Some(tag) => Ok(Version(tag.into())),
            None => Err(garbled(shown)),
        }
    }

    /// The failure for a refusal.
    pub(super) fn refusal(&self, shown: &str, with_bearer: bool) -> Failure {
        let said: ErrorBody = serde_json::from_slice(&self.body).unwrap_or_default();
        let error: String = said.error.chars().filter(|c| !c.is_control()).take(200).collect();
        let denied = |message: String| Failure::not_written(FailureKind::Denied, message);
        let busy = |message: String| Failure::new(FailureKind::Unreachable, message);
        match self.status {
            401 if with_bearer => denied(format!(
                "The store at {shown} does not know this bearer token. Put the right one into the file that \
                 LEASEHOLD_AUTH_FILE names."
            )),
            401 => denied(format!(
                "The store at {shown} requires a bearer token, and none was sent. Put it into a file, and name that \
                 file in LEASEHOLD_AUTH_FILE."
            )),
            403 => denied(format!(
                "The store at {shown} refused: {error}; nothing was written. Use a name that begins with this bearer's prefix, or \
                 another bearer token."
            )),
            422 if said.reason == "held" => denied(format!(
                "The store at {shown} refused the write: {error}; nothing was written. Wait for the holder, or use an admin token."
            )),
            422 => denied(format!(
                "The store at {shown} refused the write because it breaks the rules of a lease: {error}; nothing was written. \
                 Check that both sides have the same version of leasehold, and that the server's clock was not set back."
            )),
            408 | 425 | 429 | 500..=599 => busy(format!(
                "The store at {shown} is busy or failing (HTTP {}). Try again; if that does not help, look at its log.",
                self.status
            )),
            status => unusable(format!(
                "The store at {shown} did not understand the request (HTTP {status}: {error}). Check that both \
                 sides have the same version of leasehold."
            )),
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn unusable(message: String) -> Failure {
    Failure::new(FailureKind::Unusable, message)
}

/// An answer with our header that cannot be read.
pub(super) fn garbled(shown: &str) -> Failure {
    unusable(format!(
        "The answer from {shown} cannot be read: it was cut off or changed in transit. Look for a proxy that \
         compresses or rewrites answers."
    ))
}

/// An answer of a proxy, a login page or another server.
fn stranger(status: u16, shown: &str) -> Failure {
    match status {
        408 | 409 | 425 | 429 | 500..=599 => Failure::new(
            FailureKind::Unreachable,
            format!(
                "A proxy in front of the store at {shown} answered in its place (HTTP {status}). Try again; if \
                 that does not help, check that the server runs."
            ),
        ),
        401 | 403 | 407 => Failure::new(
            FailureKind::Denied,
            format!(
                "A proxy in front of the store at {shown} asks for a login (HTTP {status}). Configure it to \
                 pass the request on, or reach the store without it."
            ),
        ),
        300..=399 => unusable(format!(
            "{shown} redirects to another address (HTTP {status}), and the bearer token is not sent there. Use that \
             address directly."
        )),
        _ => unusable(format!(
            "The server at {shown} is not a Leasehold store (HTTP {status}, without its header). Check the URL; a \
             proxy or a login page may be in between."
        )),
    }
}

/// No answer, or an incomplete one.
fn broken(error: &reqwest::Error, shown: &str) -> Failure {
    let why = root(error);
    if certificate(error) {
        return unusable(format!(
            "The certificate of {shown} is not trusted ({why}). Check the address and this machine's clock, or \
             install the authority that signed it."
        ));
    }
    let what = if error.is_connect() { "cannot be reached" } else { "did not finish its answer" };
    Failure::new(
        FailureKind::Unreachable,
        format!("The store at {shown} {what} ({why}). Check that it runs and that the network is up."),
    )
}

/// The innermost error. The outer ones repeat the URL.
pub(super) fn root(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = next(cause) {
        cause = inner;
    }
    if cause.is::<reqwest::Error>() { "no reason given".into() } else { cause.to_string() }
}

/// The wrapped error. An I/O error does not list the error that it wraps as its source.
fn next<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match wrapped {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

fn certificate(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if matches!(inner.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        cause = next(inner);
    }
    false
}
