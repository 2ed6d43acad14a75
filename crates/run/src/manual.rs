//! `acquire` on a command line.

use std::os::fd::AsFd;

use leasehold::driver::Driver;
use leasehold::manual::{self, AcquireRequest, NoJob};
use leasehold::seen_tokens::SeenTokens;
use leasehold::stores::Store;
use leasehold_core::session::{Input, NotStarted, Outcome};

use crate::runner::signals::{Signals, named};

/// Acquires a lease that is not renewed. A signal that ends a process ends the waiting instead.
pub fn acquire(
    ask: &AcquireRequest,
    store: Box<dyn Store>,
    memory: SeenTokens,
    signals: Signals,
) -> std::io::Result<Outcome> {
    let mut driver = manual::session(ask, store, memory)?;
    let outcome = drive(&mut driver, signals)?;
    driver.finish(&outcome);
    Ok(outcome)
}

/// Drives the session. The first signal ends the waiting in order: a claim that was sent is given back, and the outcome is
/// told. The second ends it at once.
fn drive(driver: &mut Driver, mut signals: Signals) -> std::io::Result<Outcome> {
    let mut inputs = vec![Input::Start];
    let mut signals_seen = 0;
    loop {
        for input in inputs {
            if let Some(outcome) = driver.step(input, &mut NoJob) {
                return Ok(outcome);
            }
        }
        let (more, signalled) = driver.wait(Some(signals.as_fd()))?;
        inputs = more;
        if !signalled {
            continue;
        }
        let mut ending =
            signals.pending().forward.into_iter().filter_map(named).filter(|signal| signal.ends());
        // Signals that come together (TERM and HUP, as from systemd) count as one.
        let Some(signal) = ending.next() else { continue };
        signals_seen += 1;
        if signals_seen > 1 {
            return Ok(Outcome::NotStarted(NotStarted::Interrupted { signal, in_doubt: true }));
        }
        inputs.push(Input::Signal(signal));
    }
}
