//! Signals as a descriptor: handlers only note a signal, and the main thread reads it in its loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use leasehold_core::session;
use rustix::process::Signal;
use signal_hook::flag;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// The signals that arrived since the last look, without order; repeats count once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrivedSignals {
    /// A child ended, stopped or went on: time to reap.
    pub child: bool,
    /// Signals meant for the job.
    pub forward: Vec<Signal>,
}

/// Installed handlers and the pipe they write to.
///
/// A signal that was ignored at the start (HUP under `nohup`, INT in a shell's background job) stays ignored, here and in
/// the job, which inherits it. The handlers do not reach the job: exec resets them.
#[derive(Debug)]
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    deaf: bool,
}

impl Signals {
    /// Installs the handlers. Call before the job is started.
    pub fn install() -> io::Result<Self> {
        let (blocked, ignored) = inherited();
        let (read, write) = UnixStream::pair()?;
        // CHLD always gets a handler: while it is ignored, the kernel throws exit statuses away.
        let forwarded = FORWARDED.into_iter().map(os).filter(|signal| !contains(ignored, *signal));
        let wanted = forwarded.chain([Signal::CHILD]).map(Signal::as_raw);
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, wanted)?;
        let deaf = contains(blocked, Signal::CHILD) || contains(blocked, Signal::TERM);
        Ok(Self { delivery, deaf })
    }

    /// CHLD or TERM was blocked at the start, which cannot be undone without `unsafe`. A caller that waits for them would
    /// wait without end: it must refuse to run, or look at regular intervals.
    pub fn deaf(&self) -> bool {
        self.deaf
    }

    /// The signals since the last call. Never blocks; the descriptor is quiet afterwards.
    pub fn pending(&mut self) -> ArrivedSignals {
        let mut pending = ArrivedSignals::default();
        for raw in self.delivery.pending() {
            match Signal::from_named_raw(raw) {
                Some(Signal::CHILD) => pending.child = true,
                Some(signal) => pending.forward.push(signal),
                None => {}
            }
        }
        pending
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

/// Notes the first signal that ends a process. The second one ends this process at once.
#[derive(Debug)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Installs the handlers. A signal that was ignored at the start stays ignored.
    pub fn install() -> io::Result<Self> {
        let (_, ignored) = inherited();
        let this = Self { flag: Arc::default(), signal: Arc::default() };
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
            if contains(ignored, signal) {
                continue;
            }
            let raw = signal.as_raw();
            // In this order: the flag must not be set yet at the first signal.
            flag::register_conditional_default(raw, Arc::clone(&this.flag))?;
            flag::register_usize(raw, Arc::clone(&this.signal), usize::try_from(raw).unwrap_or(0))?;
            flag::register(raw, Arc::clone(&this.flag))?;
        }
        Ok(this)
    }

    /// True once a signal came.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// The number of the signal that came.
    pub fn signal(&self) -> usize {
        self.signal.load(Ordering::SeqCst)
    }
}

/// The signals that were blocked and ignored at the start: bit `n - 1` for signal `n`.
///
/// Read from `/proc`, because the system call needs `unsafe`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn inherited() -> (u64, u64) {
    leasehold::liveness::proc::signal_state().unwrap_or((0, 0))
}

/// Other systems tell it only to `unsafe` code.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn inherited() -> (u64, u64) {
    (0, 0)
}

fn contains(set: u64, signal: Signal) -> bool {
    set & (1 << (signal.as_raw() - 1)) != 0
}

/// The signals that are passed on to the job.
const FORWARDED: [session::Signal; 6] = [
    session::Signal::Int,
    session::Signal::Term,
    session::Signal::Hup,
    session::Signal::Quit,
    session::Signal::Usr1,
    session::Signal::Usr2,
];

/// A session's signal, for the system.
pub(super) fn os(signal: session::Signal) -> Signal {
    match signal {
        session::Signal::Int => Signal::INT,
        session::Signal::Term => Signal::TERM,
        session::Signal::Hup => Signal::HUP,
        session::Signal::Quit => Signal::QUIT,
        session::Signal::Usr1 => Signal::USR1,
        session::Signal::Usr2 => Signal::USR2,
    }
}

/// The system's signal, for a session.
pub(crate) fn named(signal: Signal) -> Option<session::Signal> {
    FORWARDED.into_iter().find(|forwarded| os(*forwarded) == signal)
}

/// The number of a signal, for exit codes.
pub fn signal_number(signal: session::Signal) -> u8 {
    u8::try_from(os(signal).as_raw()).unwrap_or(0)
}
