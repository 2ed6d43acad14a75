//! What came back, and what it means.

use std::error::Error;
use std::time::Duration;

use reqwest::RequestBuilder;
use reqwest::header::{ETAG, HeaderMap};
use serde::Deserialize;

use crate::stores::{Failure, FailureKind, Version};

/// The protocol spoken here.
const PROTOCOL: &str = "1";

/// An answer of the store itself.
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    pub(super) instance: Option<String>,
    pub(super) age: Option<Duration>,
    pub(super) time: Option<Duration>,
    pub(super) body: Vec<u8>,
    tag: Option<String>,
}

/// How a server says no.
#[derive(Default, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    error: String,
    #[serde(default)]
    reason: String,
}

impl HttpAnswer {
    /// Sends and hears all of it. `shown` is how people know the store.
    pub(super) async fn of(request: RequestBuilder, most: usize, shown: &str) -> Result<Self, Failure> {
        let mut response = request.send().await.map_err(|e| broken(&e, shown))?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        match text(&headers, "leasehold-protocol") {
            Some(PROTOCOL) => {}
            Some(other) => {
                return Err(unusable(format!(
                    "The store at {shown} speaks protocol {other:.20} and this version {PROTOCOL}. Upgrade the older \
                     of the two."
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

    /// The version. One that a proxy weakened names another body than ours.
    pub(super) fn version(&self, shown: &str) -> Result<Version, Failure> {
        let tag = self.tag.as_deref().and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
        match tag.filter(|tag| !tag.is_empty() && !tag.contains('"')) {
            Some(tag) => Ok(Version(tag.into())),
            None => Err(garbled(shown)),
        }
    }

    /// Why the store did not do it.
    pub(super) fn refusal(&self, shown: &str, with_bearer: bool) -> Failure {
        let said: ErrorBody = serde_json::from_slice(&self.body).unwrap_or_default();
        let error: String = said.error.chars().filter(|c| !c.is_control()).take(200).collect();
        let denied = |message: String| Failure::new(FailureKind::Denied, message);
        let not_written = |message: String| Failure::not_written(FailureKind::Denied, message);
        let busy = |message: String| Failure::new(FailureKind::Unreachable, message);
        match self.status {
            401 if with_bearer => denied(format!(
                "The store at {shown} does not know this bearer token. Put the right one into the file that \
                 LEASEHOLD_AUTH_FILE names."
            )),
            401 => denied(format!(
                "The store at {shown} wants a bearer token and none was sent. Put it into a file and name that \
                 file in LEASEHOLD_AUTH_FILE."
            )),
            403 => not_written(format!(
                "The store at {shown} refused: {error}; nothing was written. Use a name that begins with this bearer's prefix, or \
                 another bearer token."
            )),
            422 if said.reason == "held" => not_written(format!(
                "The store at {shown} refused the write: {error}; nothing was written. Wait for the holder, or use an admin token."
            )),
            422 => not_written(format!(
                "The store at {shown} refused the write as one that the rules of a lease cannot make: {error}; nothing was written. \
                 Check that both sides are the same version of leasehold, and that its clock was not set back."
            )),
            408 | 425 | 429 | 500..=599 => busy(format!(
                "The store at {shown} is busy or failing (HTTP {}). Try again, and look at its log if it goes on.",
                self.status
            )),
            status => unusable(format!(
                "The store at {shown} did not understand the request (HTTP {status}: {error}). Check that both \
                 sides are the same version of leasehold."
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

/// An answer that carries our header and still makes no sense.
pub(super) fn garbled(shown: &str) -> Failure {
    unusable(format!(
        "The answer of {shown} makes no sense: it was cut or changed on the way. Look for a proxy that compresses \
         or rewrites answers."
    ))
}

/// Something else answered: a proxy, a login page, another server.
fn stranger(status: u16, shown: &str) -> Failure {
    match status {
        408 | 409 | 425 | 429 | 500..=599 => Failure::new(
            FailureKind::Unreachable,
            format!(
                "Something between here and the store at {shown} answered in its place (HTTP {status}). Try again; \
                 if it goes on, see whether the server runs."
            ),
        ),
        401 | 403 | 407 => Failure::new(
            FailureKind::Denied,
            format!(
                "Something between here and the store at {shown} asks for a login of its own (HTTP {status}). Let \
                 the request pass there, or use another way to the store."
            ),
        ),
        300..=399 => unusable(format!(
            "{shown} sends us elsewhere (HTTP {status}), and a bearer token is not taken along. Use the address \
             it leads to."
        )),
        _ => unusable(format!(
            "What answers at {shown} is not a Leasehold store (HTTP {status}, without its header). Check the URL; a \
             proxy or a login page may stand in between."
        )),
    }
}

/// No answer, or not all of it.
fn broken(error: &reqwest::Error, shown: &str) -> Failure {
    let why = root(error);
    if certificate(error) {
        return unusable(format!(
            "The certificate of {shown} is not one to trust ({why}). Check the address and this machine's clock, or \
             install the authority that signed it."
        ));
    }
    let what = if error.is_connect() { "cannot be reached" } else { "did not answer to the end" };
    Failure::new(
        FailureKind::Unreachable,
        format!("The store at {shown} {what} ({why}). See whether it runs and the network is up."),
    )
}

/// The innermost cause. Never the URL, which the outer ones repeat.
pub(super) fn root(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = next(cause) {
        cause = inner;
    }
    if cause.is::<reqwest::Error>() { "no reason given".into() } else { cause.to_string() }
}

/// What is inside. An I/O error does not count what it wraps among its causes.
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
