//! A line on a terminal while a store is slow to answer.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use crate::config::Chosen;
use crate::messages::store as say;
use crate::out::Out;

/// How long a store may take before a line says so.
const LONG: Duration = Duration::from_secs(3);

/// Says once that the store is slow, unless it is dropped before.
pub struct SlowStoreNotice {
    /// Nothing is sent: dropping it ends the thread.
    _end: Option<Sender<()>>,
}

impl SlowStoreNotice {
    pub fn begin(out: &Out, chosen: &Chosen) -> Self {
        if !out.chatty() {
            return Self { _end: None };
        }
        let (end, ended) = mpsc::channel::<()>();
        let (out, text) = (out.hurried(), say::slow(&chosen.shown));
        let wait = move || {
            if ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                out.chat(&text);
            }
        };
        // Without the thread the line is missing, nothing else.
        let _ = std::thread::Builder::new().name("notice".into()).spawn(wait);
        Self { _end: Some(end) }
    }
}
