//! Pings as Healthchecks takes them: URL/start, then URL/EXITCODE, URL/fail or URL/log.

use leasehold::core::ledger::ItemState;

use super::RunEnd;
use crate::messages::notify as say;
use crate::out::Out;

/// The part of the URL for an end, and the text that goes with it.
fn of_end(end: &RunEnd) -> (String, String) {
    let about = end.in_words();
    match end.outcome {
        // A skip is no failure.
        ItemState::Skipped => ("log".into(), about),
        ItemState::Lost | ItemState::Unknown => ("fail".into(), about),
        _ if end.refused.is_some() => ("fail".into(), format!("{about}: a write was refused")),
        // The command was not executed.
        ItemState::Failed if end.reason.is_some() => ("fail".into(), about),
        _ => (end.exit.to_string(), about),
    }
}

#[cfg(feature = "http")]
pub use with_http::{Pinger, Starter};
#[cfg(not(feature = "http"))]
pub use without_http::{Pinger, Starter};

#[cfg(feature = "http")]
mod with_http {
    use std::sync::mpsc;
    use std::time::Duration;

    use reqwest::Url;
    use sha2::{Digest, Sha256};
    use tokio::runtime::Builder;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::time::timeout;

    use super::super::PATIENCE;
    use super::super::post::{self, Post};
    use super::{Out, RunEnd, of_end, say};

    /// How much longer a ping about the start may take, once the run is over.
    const START_LEFT: Duration = Duration::from_secs(1);

    /// One ping.
    struct Ping {
        /// The last part of its URL.
        part: String,
        body: String,
        run_id: Option<String>,
    }

    /// Sends pings in a thread of its own, one after the other.
    pub struct Pinger {
        host: String,
        pings: UnboundedSender<Ping>,
        done: mpsc::Receiver<Result<(), String>>,
    }

    /// Sends the ping about a start.
    #[derive(Clone)]
    pub struct Starter(UnboundedSender<Ping>);

    impl Starter {
        /// Returns at once.
        pub fn start(&self, run_id: &str) {
            // Never empty: some servers refuse a request without a length.
            let ping = Ping { part: "start".into(), body: run_id.into(), run_id: Some(run_id.into()) };
            let _ = self.0.send(ping);
        }
    }

    impl Pinger {
        /// For this URL, which the error does not have.
        pub fn new(url: &str) -> Result<Self, String> {
            let (base, host) = post::url(url)?;
            let (pings, rest) = unbounded_channel();
            let (tell, done) = mpsc::channel();
            let spawned =
                std::thread::Builder::new().name("ping".into()).spawn(move || talk(&base, rest, &tell));
            spawned.map_err(|e| e.to_string())?;
            Ok(Self { host, pings, done })
        }

        pub fn starter(&self) -> Starter {
            Starter(self.pings.clone())
        }

        /// Sends the last ping, and waits for it no longer than allowed.
        pub fn end(&self, end: &RunEnd, out: &Out) {
            let (part, body) = of_end(end);
            let _ = self.pings.send(Ping { part, body, run_id: end.run_id.clone() });
            let sent = self.done.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(say::no_answer_in_time()));
            if let Err(why) = sent {
                out.note(&say::not_pinged(&self.host, why));
            }
        }
    }

    fn talk(base: &Url, mut pings: UnboundedReceiver<Ping>, done: &mpsc::Sender<Result<(), String>>) {
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
        let ended = runtime.block_on(async {
            // Before the first ping is asked for: this may take a moment.
            let client = match post::client(base) {
                Ok(client) => client,
                Err(why) => return Some(Err(why)),
            };
            let mut ping = pings.recv().await?;
            if ping.part == "start" {
                let started = post::send(&client, of(base, &ping));
                tokio::pin!(started);
                let last = tokio::select! {
                    _ = &mut started => pings.recv().await,
                    last = pings.recv() => {
                        // In order, if it is quick.
                        let _ = timeout(START_LEFT, &mut started).await;
                        last
                    }
                };
                ping = last?;
            }
            Some(post::send(&client, of(base, &ping)).await)
        });
        if let Some(ended) = ended {
            let _ = done.send(ended);
        }
    }

    fn of(base: &Url, ping: &Ping) -> Post {
        let mut url = base.clone();
        if let Ok(mut parts) = url.path_segments_mut() {
            parts.pop_if_empty().push(&ping.part);
        }
        if let Some(run_id) = &ping.run_id {
            url.query_pairs_mut().append_pair("rid", &uuid(run_id));
        }
        Post { url, kind: "text/plain; charset=utf-8", body: ping.body.clone() }
    }

    /// The id of a run as a UUID, of version 8: made of a digest.
    fn uuid(run_id: &str) -> String {
        let digest = Sha256::digest(run_id.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        bytes[6] = bytes[6] & 0x0f | 0x80;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_ping_has_the_part_and_the_run_in_its_url() {
            let (base, host) = post::url("https://hc.example:8443/u/?create=1").unwrap();
            assert_eq!(host, "hc.example");
            let ping = Ping { part: "3".into(), body: "b".into(), run_id: Some("vm-1".into()) };
            let url = of(&base, &ping).url;
            assert_eq!(url.path(), "/u/3");
            assert_eq!(url.query().unwrap(), format!("create=1&rid={}", uuid("vm-1")));
            assert_eq!((uuid("vm-1").len(), uuid("vm-1").as_bytes()[14]), (36, b'8'));
            assert_ne!(uuid("vm-1"), uuid("vm-2"));
        }
    }
}

#[cfg(not(feature = "http"))]
mod without_http {
    use super::{Out, RunEnd, of_end, say};

    /// There is none in this build.
    pub enum Pinger {}

    /// There is none in this build.
    #[derive(Clone)]
    pub enum Starter {}

    impl Starter {
        pub fn start(&self, _run_id: &str) {
            match *self {}
        }
    }

    impl Pinger {
        pub fn new(_url: &str) -> Result<Self, String> {
            Err(say::no_http())
        }

        pub fn starter(&self) -> Starter {
            match *self {}
        }

        pub fn end(&self, end: &RunEnd, _out: &Out) {
            let _ = of_end(end);
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(outcome: ItemState, exit: u8, reason: Option<&str>) -> RunEnd {
        let reason = reason.map(String::from);
        RunEnd { outcome, reason, exit, run_id: None, job: None, refused: None }
    }

    #[test]
    fn a_skip_is_a_log_and_a_lost_lease_a_failure() {
        let part = |end: RunEnd| of_end(&end).0;
        assert_eq!(part(end(ItemState::Ok, 0, None)), "0");
        assert_eq!(part(end(ItemState::Failed, 3, None)), "3");
        assert_eq!(part(end(ItemState::Killed, 143, Some("interrupted"))), "143");
        assert_eq!(part(end(ItemState::Skipped, 0, Some("overlap"))), "log");
        assert_eq!(part(end(ItemState::Skipped, 7, Some("overlap"))), "log");
        assert_eq!(part(end(ItemState::Lost, 75, Some("deadline"))), "fail");
        assert_eq!(part(end(ItemState::Failed, 69, Some("store_unreachable"))), "fail");
        let refused = RunEnd { refused: Some(Default::default()), ..end(ItemState::Ok, 0, None) };
        assert_eq!(part(refused), "fail");
        assert!(of_end(&end(ItemState::Lost, 75, Some("deadline"))).1.contains("deadline"));
    }
}
