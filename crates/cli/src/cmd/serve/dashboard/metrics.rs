//! `GET /metrics`: what `leasehold metrics` prints.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use leasehold::clock;
use leasehold::core::time::BootTime;
use leasehold::run_log::Window;
use leasehold::stores::{Failure, Store};

use super::{Refusal, Shared};
use crate::cmd::metrics;

/// The whole log is read for it: no more often than this, however many ask.
const PAUSE: Duration = Duration::from_secs(10);
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the store said last, and when.
type Kept = Option<(BootTime, Result<String, Failure>)>;

/// Reads them again when they are old.
#[derive(Clone)]
pub struct Metrics {
    /// How far back the log is kept.
    reach: Duration,
    kept: Arc<Mutex<Kept>>,
}

impl Metrics {
    /// Nothing is known yet.
    pub fn new(reach: Duration) -> Self {
        Self { reach, kept: Arc::default() }
    }

    /// The text; if it is new enough, without the store.
    fn text(&self, store: &mut dyn Store) -> Result<String, Failure> {
        // Only the thread that reads the store uses it.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.as_ref().filter(|(at, _)| clock::boot_time().since(*at) < PAUSE) {
            Some((_, text)) => text.clone(),
            None => {
                let text = metrics::text(store, Window::last(self.reach));
                kept.insert((clock::boot_time(), text)).1.clone()
            }
        }
    }
}

/// The text.
pub async fn metrics(State(shared): Shared, uri: Uri) -> Response {
    let metrics = shared.metrics.clone();
    match shared.reader.ask(move |store| metrics.text(store)).await {
        Ok(text) => ([(header::CONTENT_TYPE, KIND)], text).into_response(),
        Err(trouble) => Refusal::from(trouble).answer(uri.path()),
    }
}
