//! One lease with its contenders, and what all lanes of a run share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use leasehold::core::ids::{Grant, WriteId};
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::session::{Granted, lease_key};
use leasehold::core::time::BootTime;
use leasehold::stores::{Store, Version};
use leasehold::{clock, random};
use pollster::block_on;

use super::report::{FaultReport, Violation};
use super::{FaultMode, fresh_name};
use crate::proxy::{HeldRequest, ProxyState, lock};

/// A run takes no longer than this, whatever happens.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often the truth is asked for once more.
const TRIES: usize = 3;

/// A write kept back, and which it is.
pub(super) struct Late {
    pub held: HeldRequest,
    pub write: WriteId,
    pub when: When,
}

/// When a write that was kept back lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before its sender looks what became of it.
    BeforeRead,
    /// After that look, before the next attempt.
    BeforeWrite,
    /// When the next attempt has landed.
    AfterWrite,
    /// When the lease has gone on to somebody else.
    AfterOthers,
}

/// What all workers of a run share.
pub(super) struct FaultRun {
    pub mode: FaultMode,
    pub proxy: Arc<ProxyState>,
    left: AtomicUsize,
    turns: AtomicUsize,
    start: BootTime,
    report: Mutex<FaultReport>,
}

impl FaultRun {
    pub fn new(mode: FaultMode, faults: usize, proxy: Arc<ProxyState>) -> Self {
        let (left, turns) = (AtomicUsize::new(faults), AtomicUsize::new(0));
        Self { mode, proxy, left, turns, start: clock::boot_time(), report: Mutex::default() }
    }

    /// One of the faults that are still to be done, by number.
    pub fn take_fault(&self) -> Option<usize> {
        let less = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        less.ok().map(|_| self.turns.fetch_add(1, Ordering::SeqCst))
    }

    /// It did not strike, so it is still to be done.
    pub fn return_fault(&self) {
        self.note(|r| r.missed += 1);
        self.left.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether to go on: not when all is done, nor when enough has gone wrong, nor when nothing is hit.
    pub fn goes_on(&self) -> bool {
        let hopeless = {
            let report = lock(&self.report);
            report.violations.len() >= 60 || report.missed > report.faults() + 50
        };
        self.left.load(Ordering::SeqCst) > 0 && !hopeless && clock::boot_time() < self.start.plus(PATIENCE)
    }

    pub fn note(&self, change: impl FnOnce(&mut FaultReport)) {
        change(&mut lock(&self.report));
    }

    pub fn violated(&self, kind: Violation, text: String) {
        self.note(|r| r.violations.push((kind, text)));
    }

    pub fn report(&self) -> FaultReport {
        FaultReport { took: clock::boot_time().since(self.start), ..lock(&self.report).clone() }
    }
}

#[derive(Default)]
struct Inside {
    holder: Option<Grant>,
    tokens: Vec<u64>,
    late: Vec<Late>,
}

/// One lease, and who is believed to hold it.
pub(super) struct Lane {
    pub name: Name,
    inside: Mutex<Inside>,
    changed: Condvar,
}

impl Lane {
    pub fn new(name: &str) -> Self {
        let name = Name::new(&fresh_name(name)).expect("a lease name");
        Self { name, inside: Mutex::default(), changed: Condvar::new() }
    }

    pub fn key(&self) -> String {
        lease_key(&self.name)
    }

    /// The truth: what is stored now, read past the proxy.
    pub fn stored(&self, run: &FaultRun, direct: &mut dyn Store) -> Option<(LeaseRecord, Version)> {
        let mut stored = block_on(direct.read(&self.key()));
        for _ in 0..TRIES {
            // A server may have closed a connection that was idle for long.
            if stored.is_err() {
                stored = block_on(direct.read(&self.key()));
            }
        }
        match stored {
            Ok(stored) => {
                stored.and_then(|s| Some((LeaseRecord::decode(&self.name, &s.body).ok()?, s.version)))
            }
            Err(failure) => {
                run.violated(Violation::Outcome, format!("the truth cannot be read: {}", failure.message));
                None
            }
        }
    }

    /// A job begins under this grant.
    pub fn enter(&self, run: &FaultRun, granted: &Granted, direct: &mut dyn Store) {
        let late = {
            let mut inside = lock(&self.inside);
            if let Some(other) = inside.holder.replace(granted.grant) {
                run.violated(
                    Violation::DoubleGrant,
                    format!("{} and {other} hold {}", granted.grant, self.name),
                );
            }
            let token = granted.token.get();
            if inside.tokens.last().is_some_and(|last| *last >= token) {
                run.violated(
                    Violation::DoubleGrant,
                    format!("token {token} after {:?}", inside.tokens.last()),
                );
            }
            inside.tokens.push(token);
            std::mem::take(&mut inside.late)
        };
        run.note(|r| r.grants += 1);
        // What earlier holders sent arrives only now.
        for late in late {
            let _ = late.held.deliver();
        }
        let stored = self.stored(run, direct);
        let ours = |r: &LeaseRecord| {
            r.token == granted.token && r.hold.as_ref().is_some_and(|h| h.grant == granted.grant)
        };
        if !stored.as_ref().is_some_and(|(record, _)| ours(record)) {
            run.violated(Violation::DoubleGrant, format!("{granted:?}, and the store says {stored:?}"));
        }
    }

    /// The job of this grant is over.
    pub fn leave(&self, grant: Grant) {
        let mut inside = lock(&self.inside);
        if inside.holder == Some(grant) {
            inside.holder = None;
        }
        self.changed.notify_all();
    }

    pub fn leave_behind(&self, late: Vec<Late>) {
        lock(&self.inside).late.extend(late);
    }

    /// For one who found it held: until the holder leaves, or a moment.
    pub fn wait_a_moment(&self) {
        let moment = Duration::from_millis(20);
        let inside = lock(&self.inside);
        drop(self.changed.wait_timeout_while(inside, moment, |inside| inside.holder.is_some()));
    }

    /// Frees the lease past the proxy if that grant still has it, so that the others can go on.
    /// Tells whether it had it.
    pub fn free(&self, run: &FaultRun, grant: Grant, direct: &mut dyn Store) -> bool {
        let Some((record, version)) = self.stored(run, direct) else { return false };
        let held = record.hold.as_ref().is_some_and(|h| h.grant == grant);
        if held {
            let write = WriteId(random::seed());
            let freed = LeaseRecord { write, hold: None, ..record };
            let _ = block_on(direct.cas(&self.key(), Some(&version), write, &freed.encode()));
        }
        held
    }

    /// The last look: what arrives after everybody left changes nothing.
    pub fn close(&self, run: &FaultRun, direct: &mut dyn Store) {
        let (late, highest) = {
            let mut inside = lock(&self.inside);
            (std::mem::take(&mut inside.late), inside.tokens.last().copied().unwrap_or(0))
        };
        let before = self.stored(run, direct);
        for late in late {
            let _ = late.held.deliver();
        }
        let after = self.stored(run, direct);
        if after.as_ref().map_or(0, |(record, _)| record.token.get()) < highest {
            run.violated(
                Violation::DoubleGrant,
                format!("token {highest} was granted, and {after:?} is stored"),
            );
        }
        if before.is_some() && after.is_none() {
            run.violated(Violation::DoubleGrant, format!("the record of {} is gone", self.name));
        }
    }
}
