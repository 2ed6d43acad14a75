//! The dashboard: pages about the store that change nothing in it.

mod api;
mod asked;
mod guard;
mod live;
mod look;
mod metrics;
mod pages;
mod reader;
mod stats;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use leasehold::stores::Store;

use self::live::Live;
use self::metrics::Metrics;
use self::reader::{Reader, Trouble};
use super::tokens::Tokens;
use super::web::Stopping;
use crate::exit::Failed;
use crate::messages::dashboard as say;
use crate::out::Out;

/// For the whole of one request, the wait for the store included. Not for events, which go on.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);

const STYLE: &str = concat!(include_str!("style.css"), include_str!("../../../timeline/svg/style.css"));
const SCRIPT: &str = include_str!("app.js");
const ICON: &str = include_str!("icon.svg");
const OPENAPI: &str = include_str!("openapi.json");

/// What all requests share.
pub struct Dashboard {
    tokens: Arc<Tokens>,
    /// Where it listens.
    address: SocketAddr,
    /// The store, as people may see it.
    store: String,
    elsewhere: bool,
    /// The leasehold.toml here, if there is one.
    file: PathBuf,
    reader: Reader,
    live: Live,
    metrics: Metrics,
    kept: pages::Kept,
}

type Shared = State<Arc<Dashboard>>;

/// What it needs.
pub struct Setup {
    pub tokens: Arc<Tokens>,
    pub address: SocketAddr,
    pub store: String,
    /// Holders may be on other machines, because this server writes for them.
    pub elsewhere: bool,
    /// The leasehold.toml here, if there is one.
    pub file: PathBuf,
    /// How far back metrics are counted.
    pub reach: Duration,
    pub out: Out,
}

/// Starts the thread that reads the store.
pub fn reader(store: Box<dyn Store>) -> Result<Reader, Failed> {
    Reader::start(store)
}

/// Its routes.
pub struct Pages {
    routes: Router<Arc<Dashboard>>,
    shared: Arc<Dashboard>,
}

impl Pages {
    /// There is nothing else.
    pub fn alone(self) -> Router {
        Self { routes: self.routes.fallback(pages::nothing_here), ..self }.guarded()
    }

    /// Whatever is no page of ours gets this answer.
    pub fn beside<H: Handler<T, ()>, T: 'static>(self, other: H) -> Router {
        self.guarded().fallback(other)
    }

    fn guarded(self) -> Router {
        let Self { routes, shared } = self;
        let guard = middleware::from_fn_with_state(Arc::clone(&shared), guarded);
        routes.layer(middleware::from_fn(in_time)).layer(guard).with_state(shared)
    }
}

/// The routes, and what is behind them.
pub fn routes(setup: Setup, reader: Reader, stopping: Stopping) -> Pages {
    let Setup { tokens, address, store, elsewhere, file, reach, out } = setup;
    let live = Live::start(reader.clone(), elsewhere, out, stopping);
    let kept = pages::Kept::default();
    let metrics = Metrics::new(reach);
    let shared = Arc::new(Dashboard { tokens, address, store, elsewhere, file, reader, live, metrics, kept });
    let looking = Arc::clone(&shared);
    tokio::spawn(async move { looking.live.look_on().await });
    let file = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
    };
    let routes = Router::new()
        .route("/", get(pages::now))
        .route("/timeline", get(pages::timeline))
        .route("/jobs", get(pages::jobs))
        .route("/job/{*name}", get(pages::job))
        .route("/log", get(pages::log))
        .route("/events", get(live::events))
        .route("/api/v1/now", get(api::now))
        .route("/api/v1/jobs", get(api::jobs))
        .route("/api/v1/jobs/{*name}", get(api::job))
        .route("/api/v1/log", get(api::log))
        .route("/api/v1/timeline", get(api::timeline))
        .route("/api/openapi.json", file("application/json", OPENAPI))
        .route("/metrics", get(metrics::metrics))
        .route("/style.css", file("text/css; charset=utf-8", STYLE))
        .route("/app.js", file("text/javascript; charset=utf-8", SCRIPT))
        .route("/icon.svg", file("image/svg+xml", ICON));
    Pages { routes, shared }
}

async fn in_time(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    match tokio::time::timeout(REQUEST_LIMIT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", say::late()).answer(&path),
    }
}

/// Refuses what must not be answered, and adds the headers that all answers have.
async fn guarded(State(shared): Shared, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let mut response = match guard::check(&request, &shared.tokens, shared.address) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.answer(&path),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Nothing is loaded from elsewhere, nothing runs that the server did not send as a file, and no other page can frame it.
const HEADERS: [(&str, &str); 7] = [
    ("cache-control", "no-store"),
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// Why a request is not answered.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    reason: &'static str,
    text: String,
}

impl Refusal {
    fn new(status: StatusCode, reason: &'static str, text: String) -> Self {
        Self { status, reason, text }
    }

    fn bad(reason: &'static str, text: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason, text)
    }

    fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "absent", say::unknown_job())
    }

    /// JSON for programs, a line for people.
    fn answer(self, path: &str) -> Response {
        let Self { status, reason, text } = self;
        let mut response = match path.starts_with("/api/") {
            true => {
                (status, api::json(&serde_json::json!({"error": text, "reason": reason}))).into_response()
            }
            false => (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], format!("{text}\n"))
                .into_response(),
        };
        let headers = response.headers_mut();
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            }
            StatusCode::PAYLOAD_TOO_LARGE => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

impl From<Trouble> for Refusal {
    fn from(trouble: Trouble) -> Self {
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        match trouble {
            Trouble::Busy => Self::new(unavailable, "busy", say::busy()),
            Trouble::Failed(failure) => {
                Self::new(unavailable, "failed", say::no_answer(leasehold::text::one_line(&failure.message)))
            }
        }
    }
}

/// A header that is text.
fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
