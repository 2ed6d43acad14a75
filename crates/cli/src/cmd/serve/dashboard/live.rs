//! What viewers see change: one look at the store for all of them, and only while somebody looks.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::Uri;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, unfold};
use leasehold::clock;
use leasehold::core::time::BootTime;
use leasehold::stores::Failure;
use leasehold::text::one_line;
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::asked::Asked;
use super::look::{Look, Looker};
use super::reader::{Reader, Trouble};
use super::{Refusal, Shared, pages};
use crate::cmd::serve::web::Stopping;
use crate::messages::{dashboard as say, serve};
use crate::out::Out;

/// The most pages that are open at once.
const VIEWERS: usize = 64;
/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// The same where a look costs a call for each lease.
const COSTLY_PAUSE: Duration = Duration::from_secs(4);
/// A page that hears nothing for longer has lost its server.
const BEAT: Duration = Duration::from_secs(5);

/// What the last look found.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The last look that the store answered.
    pub look: Option<Arc<Look>>,
    /// Since when the store has not answered, by this machine's clock, and why.
    pub failing: Option<(Duration, String)>,
    at: Option<BootTime>,
}

/// Looks, and tells of it.
pub struct Live {
    reader: Reader,
    out: Out,
    looker: Arc<std::sync::Mutex<Looker>>,
    /// Only one looks at a time.
    looking: Mutex<()>,
    seen: watch::Sender<Seen>,
    places: Arc<Semaphore>,
    somebody: Notify,
    stopping: Stopping,
}

impl Live {
    /// Nobody looks yet.
    pub fn start(reader: Reader, elsewhere: bool, out: Out, stopping: Stopping) -> Self {
        let (seen, _) = watch::channel(Seen::default());
        Self {
            reader,
            out,
            looker: Arc::new(std::sync::Mutex::new(Looker::new(elsewhere))),
            looking: Mutex::default(),
            seen,
            places: Arc::new(Semaphore::new(VIEWERS)),
            somebody: Notify::new(),
            stopping,
        }
    }

    /// What is known now: of a look that is at most a second old, or of a new one.
    pub async fn now(&self) -> Seen {
        let _one = self.looking.lock().await;
        let seen = self.seen.borrow().clone();
        if seen.at.is_some_and(|at| clock::boot_time().since(at) < PAUSE) {
            return seen;
        }
        let looker = Arc::clone(&self.looker);
        let looked = self.reader.ask(move |store| {
            // Only this thread uses it.
            looker.lock().unwrap_or_else(std::sync::PoisonError::into_inner).look(store)
        });
        match looked.await {
            Ok(look) => self.found(seen, look),
            Err(Trouble::Failed(failure)) => self.failed(seen, &failure),
            Err(Trouble::Busy) => seen,
        }
    }

    fn found(&self, before: Seen, look: Look) -> Seen {
        if before.failing.is_some() {
            self.out.warn(&say::answers_again());
        }
        let seen = Seen { look: Some(Arc::new(look)), failing: None, at: Some(clock::boot_time()) };
        self.seen.send_replace(seen.clone());
        seen
    }

    fn failed(&self, before: Seen, failure: &Failure) -> Seen {
        let why = one_line(&failure.message);
        if before.failing.is_none() {
            self.out.warn(&serve::store_failed(&why));
        }
        let since = before.failing.map_or_else(clock::wall, |(since, _)| since);
        let seen = Seen { look: before.look, failing: Some((since, why)), at: Some(clock::boot_time()) };
        self.seen.send_replace(seen.clone());
        seen
    }

    /// What is known already.
    pub fn known(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Looks again and again while somebody is there.
    pub async fn look_on(&self) {
        loop {
            if self.places.available_permits() == VIEWERS {
                self.somebody.notified().await;
                continue;
            }
            let begun = clock::boot_time();
            let seen = self.now().await;
            let took = clock::boot_time().since(begun);
            let costly = seen.look.is_some_and(|look| look.costly);
            // A slow store is asked less often, and yet often enough to notice that it is away.
            let pause = (took * 2).clamp(PAUSE, COSTLY_PAUSE);
            tokio::time::sleep(if costly { COSTLY_PAUSE } else { pause }).await;
        }
    }
}

/// One page that is open.
struct Viewer {
    seen: watch::Receiver<Seen>,
    stopping: Stopping,
    page: String,
    /// What the page shows.
    mark: Option<u64>,
    failing: Option<bool>,
    _place: OwnedSemaphorePermit,
}

/// Events for a page that is open.
pub async fn events(State(shared): Shared, uri: Uri) -> Response {
    let asked = match Asked::of(&uri) {
        Ok(asked) => asked,
        Err(refusal) => return refusal.answer("/events"),
    };
    let Ok(place) = Arc::clone(&shared.live.places).try_acquire_owned() else {
        return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", say::too_many_viewers(VIEWERS))
            .answer("/events");
    };
    let (seen, stopping) = (shared.live.seen.subscribe(), shared.live.stopping.clone());
    shared.live.somebody.notify_one();
    let mark = asked.mark.parse().ok();
    let viewer = Viewer { seen, stopping, page: asked.page, mark, failing: None, _place: place };
    Sse::new(told(viewer)).into_response()
}

fn told(viewer: Viewer) -> impl Stream<Item = Result<Event, Infallible>> + Send {
    unfold(viewer, |mut viewer| async move { Some((Ok(viewer.next().await?), viewer)) })
}

impl Viewer {
    /// The next event; none when the server stops.
    async fn next(&mut self) -> Option<Event> {
        let beat = tokio::time::sleep(BEAT);
        tokio::pin!(beat);
        loop {
            if *self.stopping.borrow() {
                return None;
            }
            if let Some(event) = self.news() {
                return Some(event);
            }
            tokio::select! {
                _ = self.stopping.changed() => {}
                changed = self.seen.changed() => changed.ok()?,
                () = &mut beat => return Some(Event::default().event("beat").data("")),
            }
        }
    }

    /// What the page does not show yet: whether the store answers, and what changed.
    fn news(&mut self) -> Option<Event> {
        let seen = self.seen.borrow_and_update().clone();
        seen.at?;
        let fails = seen.failing.is_some();
        if self.failing.replace(fails) != Some(fails) {
            let state = pages::state(&seen);
            return Some(Event::default().event("state").data(pages::text(state)));
        }
        let look = seen.look.as_ref().filter(|_| !fails)?;
        let is_now = self.page == "now";
        let mark = if is_now { look.mark } else { look.recent.mark };
        match self.mark.replace(mark) {
            Some(before) if before == mark => None,
            _ if is_now => Some(Event::default().event("now").data(pages::text(pages::now_content(&seen)))),
            // It has just been loaded.
            None => None,
            Some(_) => Some(Event::default().event("newer").data("")),
        }
    }
}
