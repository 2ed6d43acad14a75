//! `acquire` on a command line.

use std::os::fd::AsFd;

use leasehold::driver::Driver;
use leasehold::manual::{self, AcquireRequest, NoJob};
use leasehold::seen_tokens::SeenTokens;
use leasehold::stores::Store;
use leasehold_core::session::{Input, NotStarted, Outcome};

use crate::runner::signals::{Signals, named};

/// Acquires a lease that nobody renews. The signals that end a process end the waiting instead.
pub fn acquire(
    ask: &AcquireRequest,
    store: Box<dyn Store>,
    memory: SeenTokens,
    signals: Signals,
) -> std::io::Result<Outcome> {
    let mut shell = manual::session(ask, store, memory)?;
    let outcome = heeding(&mut shell, signals)?;
    shell.finish(&outcome);
    Ok(outcome)
}

/// Drives the session; a signal ends the waiting, so that it can be said what was done until then, and a
/// claim that is under way is given back. The second ends it whatever is under way.
fn heeding(shell: &mut Driver, mut signals: Signals) -> std::io::Result<Outcome> {
    let mut inputs = vec![Input::Start];
    let mut heard = 0;
    loop {
        for input in inputs {
            if let Some(outcome) = shell.step(input, &mut NoJob) {
                return Ok(outcome);
            }
        }
        let (more, signalled) = shell.wait(Some(signals.as_fd()))?;
        inputs = more;
        if !signalled {
            continue;
        }
        let mut ending =
            signals.pending().forward.into_iter().filter_map(named).filter(|signal| signal.ends());
        // Those that come together (TERM and HUP, as from systemd) are one word.
        let Some(signal) = ending.next() else { continue };
        heard += 1;
        if heard > 1 {
            return Ok(Outcome::NotStarted(NotStarted::Interrupted { signal, in_doubt: true }));
        }
        inputs.push(Input::Signal(signal));
    }
}
