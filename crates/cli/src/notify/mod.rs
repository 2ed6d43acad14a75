//! Who is told how runs go: a URL that is pinged, and alerts for what went wrong.
//!
//! Nothing waits for them: not the lease, not the command, not a renewal. Only when the run is over, its end may cost
//! two seconds for each, and changes nothing.

pub mod alerts;
pub mod ping;
#[cfg(feature = "http")]
mod post;

use std::time::Duration;

use leasehold::core::ledger::ItemState;
use leasehold::core::name::Name;
use leasehold_run::notify::{AlertSettings, Notify};

use crate::cmd::run::ReportOptions;
use crate::config::Chosen;
use crate::exit::{Failed, REFUSED};
use crate::out::Out;
use crate::report::{self, Report};

use self::ping::Pinger;

/// How long a ping or an alert by URL may take.
#[cfg(feature = "http")]
const PATIENCE: Duration = Duration::from_secs(2);

/// How a run ended, for those who are told.
pub struct RunEnd {
    pub outcome: ItemState,
    pub reason: Option<String>,
    pub exit: u8,
    pub run_id: Option<String>,
    pub job: Option<Name>,
    /// The target that refused a write of the run, and why.
    pub refused: Option<(String, String)>,
}

impl RunEnd {
    fn of(report: &Report) -> Self {
        let text = |field: &str| report.object[field].as_str().map(String::from);
        let exit = report.object["exit"].as_u64().and_then(|exit| u8::try_from(exit).ok()).unwrap_or(1);
        Self {
            outcome: report.outcome,
            reason: text("reason"),
            exit,
            run_id: text("run_id"),
            job: text("job").and_then(|job| Name::new(&job).ok()),
            refused: (exit == REFUSED).then(Default::default),
        }
    }

    /// `failed (exit 3, REASON)`.
    fn in_words(&self) -> String {
        let reason = self.reason.as_ref().map(|reason| format!(", {reason}")).unwrap_or_default();
        format!("{} (exit {}{reason})", self.outcome.word(), self.exit)
    }
}

/// Where the end of a run is told: its reports, its ping, its alerts.
pub struct Told<'a> {
    options: &'a ReportOptions<'a>,
    notify: Notify,
    out: &'a Out,
    pinger: Option<Pinger>,
}

impl<'a> Told<'a> {
    /// Nothing is sent yet. Who cannot be told is warned of, and the run goes on.
    pub fn new(options: &'a ReportOptions<'a>, out: &'a Out) -> Self {
        let notify = options.notify.clone();
        let pinger =
            notify.ping.as_ref().and_then(|url| match url.read().and_then(|url| Pinger::new(&url)) {
                Ok(pinger) => Some(pinger),
                Err(why) => {
                    out.warn(&crate::messages::notify::not_usable(why));
                    None
                }
            });
        Self { options, notify, out, pinger }
    }

    /// Alerts go there. Without a store, none can be sent.
    pub fn alert(&mut self, settings: Option<AlertSettings>) {
        self.notify.alerts = settings;
    }

    /// Tells that the run begins, without waiting.
    pub fn starter(&self) -> Option<ping::Starter> {
        self.pinger.as_ref().map(Pinger::starter)
    }

    /// The end. `chosen`: the store, if one was opened; `lasted`: how long the run was at it.
    pub fn end(&self, on: Option<(&Chosen, Duration)>, made: impl FnOnce() -> Report) {
        if self.notify.is_nobody() {
            return report::write(self.options.reports, self.out, made);
        }
        let report = made();
        let mut end = RunEnd::of(&report);
        report::write(self.options.reports, self.out, || report);
        if let Some((chosen, lasted)) = on
            && end.outcome != ItemState::Skipped
            && let Some(refused) = alerts::refused(chosen, &end, lasted)
        {
            end.refused = Some(refused);
        }
        if let Some(pinger) = &self.pinger {
            pinger.end(&end, self.out);
        }
        if let (Some(settings), Some((chosen, _))) = (&self.notify.alerts, on) {
            alerts::of_run(settings, chosen, &end, self.out);
        }
    }

    /// The end of a run that failed before it asked for a lease.
    pub fn early(&self, on: Option<&Chosen>, failed: Failed) -> Failed {
        let on = on.map(|chosen| (chosen, Duration::ZERO));
        self.end(on, || report::early(self.options, &failed));
        failed
    }
}
