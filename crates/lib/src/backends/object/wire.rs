//! Notes the HTTP response of each call.
//!
//! object_store turns answers into its own errors, and some of them are wrong here: a 409 on a create, for example,
//! becomes "already exists". So the HTTP client is wrapped, and each call has a note that gets the status, the error
//! code and the times of its response.

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

/// How long connecting may take, to a store and to a machine's metadata service.
const CONNECT: Duration = Duration::from_secs(5);
const CONNECT_NEAR: Duration = Duration::from_secs(1);
/// How long an idle connection is used: many servers close it after five seconds.
const IDLE: Duration = Duration::from_secs(4);

/// The note of one call.
#[derive(Clone, Debug, Default)]
pub struct CallNote(Arc<Mutex<CallReport>>);

/// The content of a note after the call.
#[derive(Clone, Debug, Default)]
pub struct CallReport {
    /// The request was sent. If not, there were no credentials.
    pub asked: bool,
    /// The answer, if there was one.
    pub answer: Option<ObjectAnswer>,
    /// Why there is no answer.
    pub broken: Option<BrokenCall>,
}

/// The parts of a response that are used.
#[derive(Clone, Debug, Default)]
pub struct ObjectAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The provider's error code.
    pub code: String,
    /// It is a web page, which no object store sends.
    pub html: bool,
    /// It is XML, as listings are. The client library takes any other text for an empty listing.
    pub xml: bool,
    /// When it was sent, by the server's clock.
    pub date: Option<Timestamp>,
    /// When the object was written, by the same clock.
    pub modified: Option<Timestamp>,
}

/// A call without an answer.
#[derive(Clone, Debug)]
pub struct BrokenCall {
    /// TLS failed, so a second try does not help.
    pub tls: bool,
    /// The innermost error, which contains no address with credentials.
    pub why: String,
}

impl CallNote {
    /// Extensions that take this note through the client library.
    pub fn extensions(&self) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(self.clone());
        extensions
    }

    /// The content of the note.
    pub fn report(&self) -> CallReport {
        self.lock().clone()
    }

    /// Whether there was no answer, and another connection may give one.
    pub fn cut_short(&self) -> bool {
        let report = self.lock();
        report.answer.is_none() && report.broken.as_ref().is_some_and(|broken| !broken.tls)
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

    /// The age of the object when the response was sent; None if the server's clocks disagree.
    pub fn age(&self) -> Option<Duration> {
        Duration::try_from(self.date?.duration_since(self.modified?)).ok()
    }

    /// Whether the call succeeded.
    pub fn good(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// An error code as it may be shown: only if it is a word.
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
        // Bounded, in case an error is its own source.
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

/// Whether an I/O error wraps a rustls error, which it does not list as its source.
fn io_tls(error: &(dyn Error + 'static)) -> bool {
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    inner.is_some_and(|inner| inner.is::<rustls::Error>() || io_tls(inner))
}

/// Makes clients that fill in notes.
#[derive(Clone, Debug, Default)]
pub struct Connector {
    /// The endpoint uses http.
    pub http: bool,
    /// The note for requests for credentials.
    pub credentials: CallNote,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let http = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        // If the endpoint does not use http, only a machine's metadata service is called over http.
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
    /// The client for http, made when first used.
    plain: OnceLock<reqwest::Client>,
    /// The client for https, made when first used, because reading the machine's certificates takes time.
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
                // No redirects and no retries, because a repeated write is another write.
                .redirect(redirect::Policy::none())
                .retry(retry::never())
                .connect_timeout(if self.near { CONNECT_NEAR } else { CONNECT })
                .pool_idle_timeout(IDLE)
                .https_only(!http);
            let client = if http { client.tls_certs_only([]) } else { client };
            // A proxy would reach its own machine's metadata service.
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
                Some(BrokenCall { tls: true, why: "the trusted certificates cannot be loaded".into() });
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
        // Noted even if the body does not come.
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
