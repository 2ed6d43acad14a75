//! What was really said on the wire, noted for each call.
//!
//! object_store folds answers into its own errors, and some of them mislead: a 409 on a create, for
//! one, becomes "already exists". So the HTTP client is wrapped, and every call carries a note that
//! comes back with the status, the error code and the times of the one response it got.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions, Extensions};
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, LAST_MODIFIED};
use reqwest::{redirect, retry};

/// How long a connection may take to come about, to a store and to a machine's metadata service.
const CONNECT: Duration = Duration::from_secs(5);
const CONNECT_NEAR: Duration = Duration::from_secs(1);
/// Many servers hang up on a connection that was idle for five seconds; one that is older is not used again.
const IDLE: Duration = Duration::from_secs(4);

/// The note that travels with one call.
#[derive(Clone, Debug, Default)]
pub struct CallNote(Arc<Mutex<CallReport>>);

/// What a note says when the call is over.
#[derive(Clone, Debug, Default)]
pub struct CallReport {
    /// The request was made; otherwise there were no credentials to make it with.
    pub asked: bool,
    /// The answer, if there was one.
    pub answer: Option<ObjectAnswer>,
    /// What cut the call short.
    pub broken: Option<BrokenCall>,
}

/// The parts of a response that decide.
#[derive(Clone, Debug, Default)]
pub struct ObjectAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The provider's word for an error.
    pub code: String,
    /// A web page, which no object store sends.
    pub html: bool,
    /// A document, which listings are. The client library takes any text for an empty one.
    pub xml: bool,
    /// When it was sent, by the server's clock.
    pub date: Option<Timestamp>,
    /// When the object was written, by the same.
    pub modified: Option<Timestamp>,
}

/// A call without an answer.
#[derive(Clone, Debug)]
pub struct BrokenCall {
    /// TLS failed: trying again will not help.
    pub tls: bool,
    /// The innermost reason; never contains an address with credentials.
    pub why: String,
}

impl CallNote {
    /// Extensions that carry this note through the client library.
    pub fn extensions(&self) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(self.clone());
        extensions
    }

    /// What has been noted.
    pub fn told(&self) -> CallReport {
        self.lock().clone()
    }

    /// There was no answer, and there may be one on another connection.
    pub fn cut_short(&self) -> bool {
        let told = self.lock();
        told.answer.is_none() && told.broken.as_ref().is_some_and(|broken| !broken.tls)
    }

    fn lock(&self) -> MutexGuard<'_, CallReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectAnswer {
    fn new(status: u16, headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let time = |name: &str| jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text(name)).ok();
        Self {
            status,
            code: word(text("x-ms-error-code")),
            html: text(CONTENT_TYPE.as_str()).starts_with("text/html"),
            xml: text(CONTENT_TYPE.as_str()).contains("xml"),
            date: time(DATE.as_str()),
            modified: time(LAST_MODIFIED.as_str()),
        }
    }

    /// How old the object was when this was sent; nothing if the server's clocks disagree.
    pub fn age(&self) -> Option<Duration> {
        Duration::try_from(self.date?.duration_since(self.modified?)).ok()
    }

    /// Whether the call did what it was for.
    pub fn good(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// An error code as it may be shown: a word, and not whatever a server put there.
fn word(text: &str) -> String {
    text.chars().take_while(char::is_ascii_alphanumeric).take(60).collect()
}

/// The `<Code>` of an error document.
fn code(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    text.split_once("<Code>").map_or(String::new(), |(_, rest)| word(rest))
}

impl BrokenCall {
    fn new(error: &HttpError) -> Self {
        let mut innermost: &(dyn Error + 'static) = error;
        let mut tls = false;
        // Bounded, should an error ever be its own source.
        for _ in 0..32 {
            tls |= innermost.is::<rustls::Error>() || io_tls(innermost);
            match innermost.source() {
                Some(source) => innermost = source,
                None => break,
            }
        }
        Self { tls, why: innermost.to_string() }
    }
}

/// rustls hides in an I/O error, which does not name it as its source.
fn io_tls(error: &(dyn Error + 'static)) -> bool {
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    inner.is_some_and(|inner| inner.is::<rustls::Error>() || io_tls(inner))
}

/// Makes clients that fill in notes.
#[derive(Clone, Debug, Default)]
pub struct Connector {
    /// The endpoint was given as http.
    pub http: bool,
    /// Where calls for credentials are noted.
    pub credentials: CallNote,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let http = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        // Without leave to use http only a machine's metadata service gets it.
        let near = http && !self.http;
        let credentials = self.credentials.clone();
        let (plain, secure) = (OnceLock::new(), OnceLock::new());
        Ok(HttpClient::new(Noting { http, near, plain, secure, credentials }))
    }
}

/// A client that fills in the note of each call.
#[derive(Debug)]
struct Noting {
    http: bool,
    near: bool,
    /// For http, made when first used.
    plain: OnceLock<reqwest::Client>,
    /// For https, likewise: reading all the authorities a machine trusts takes a while.
    secure: OnceLock<reqwest::Client>,
    credentials: CallNote,
}

impl Noting {
    fn client(&self, request: &HttpRequest) -> reqwest::Result<&reqwest::Client> {
        let http = self.http && request.uri().scheme_str() == Some("http");
        let slot = if http { &self.plain } else { &self.secure };
        if slot.get().is_none() {
            let client = reqwest::Client::builder()
                .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
                // Neither is a repeated write ever the same write.
                .redirect(redirect::Policy::none())
                .retry(retry::never())
                .connect_timeout(if self.near { CONNECT_NEAR } else { CONNECT })
                .pool_idle_timeout(IDLE)
                .https_only(!http);
            let client = if http { client.tls_certs_only([]) } else { client };
            // A proxy would ask its own machine, not this one, who it is.
            let client = if self.near { client.no_proxy() } else { client };
            drop(slot.set(client.build()?));
        }
        Ok(slot.get_or_init(reqwest::Client::new))
    }
}

#[async_trait]
impl HttpService for Noting {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let note = request.extensions().get::<CallNote>().unwrap_or(&self.credentials).clone();
        *note.lock() = CallReport { asked: true, ..CallReport::default() };
        let client = self.client(&request).map_err(|e| {
            note.lock().broken =
                Some(BrokenCall { tls: true, why: "no certificates to trust can be loaded".into() });
            HttpError::new(HttpErrorKind::Unknown, e)
        })?;
        let response = client.call(request).await.inspect_err(|e| {
            note.lock().broken = Some(BrokenCall::new(e));
        })?;
        let (parts, body) = response.into_parts();
        let mut answer = ObjectAnswer::new(parts.status.as_u16(), &parts.headers);
        if answer.good() {
            note.lock().answer = Some(answer);
            return Ok(HttpResponse::from_parts(parts, body));
        }
        // Noted even if the rest of it never comes: the status has been said.
        note.lock().answer = Some(answer.clone());
        let body = body.bytes().await?;
        if answer.code.is_empty() {
            answer.code = code(&body);
            note.lock().answer = Some(answer);
        }
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_never_negative() {
        let headers = |date: &str, modified: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(DATE, date.parse().unwrap());
            headers.insert(LAST_MODIFIED, modified.parse().unwrap());
            ObjectAnswer::new(200, &headers).age()
        };
        let (early, late) = ("Sun, 15 Nov 2026 23:59:58 GMT", "Mon, 16 Nov 2026 00:00:03 GMT");
        assert_eq!(headers(late, early), Some(Duration::from_secs(5)));
        assert_eq!(headers(late, late), Some(Duration::ZERO));
        assert_eq!(headers(early, late), None);
        assert_eq!(headers(early, "yesterday"), None);
    }

    #[test]
    fn only_a_word_is_taken_from_an_error() {
        assert_eq!(code(b"<?xml?><Error><Code>NoSuchKey</Code><Key>s3cret</Key>"), "NoSuchKey");
        assert_eq!(code(b"<Code>bad \x1b[31m</Code>"), "bad");
        assert_eq!(code(b"<html>"), "");
        assert_eq!(code(&[0xff, 0xfe]), "");
    }
}
