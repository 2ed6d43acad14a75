//! One lease with its contenders (a lane), and the state that all lanes of a run share.

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

/// Longest time for a run.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a read past the proxy is tried again.
const TRIES: usize = 3;

/// A held write, and its id.
pub(super) struct Late {
    pub held: HeldRequest,
    pub write: WriteId,
    pub when: When,
}

/// When a held write lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before its sender reads it back.
    BeforeRead,
    /// After that read, before the next attempt.
    BeforeWrite,
    /// After the next attempt has landed.
    AfterWrite,
    /// After another run took the lease.
    AfterOthers,
}

/// The state that all workers of a run share.
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

    /// Takes one of the faults that are left; gives its number.
    pub fn take_fault(&self) -> Option<usize> {
        let less = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        less.ok().map(|_| self.turns.fetch_add(1, Ordering::SeqCst))
    }

    /// Puts back a fault that did not strike.
    pub fn return_fault(&self) {
        self.note(|r| r.missed += 1);
        self.left.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether to go on. Ends if no faults are left, if there are many violations, or if faults keep missing.
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

/// One lease, and its holder as the sessions say.
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

    /// The record that is stored now, read past the proxy.
    pub fn stored(&self, run: &FaultRun, direct: &mut dyn Store) -> Option<(LeaseRecord, Version)> {
        let mut stored = block_on(direct.read(&self.key()));
        for _ in 0..TRIES {
            // The server may have closed an idle connection.
            if stored.is_err() {
                stored = block_on(direct.read(&self.key()));
            }
        }
        match stored {
            Ok(stored) => {
                stored.and_then(|s| Some((LeaseRecord::decode(&self.name, &s.body).ok()?, s.version)))
            }
            Err(failure) => {
                run.violated(
                    Violation::Outcome,
                    format!("the record cannot be read past the proxy: {}", failure.message),
                );
                None
            }
        }
    }

    /// A job starts under this grant.
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
        // Held writes of earlier holders land now.
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

    /// The job of this grant has ended.
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

    /// Waits until the holder leaves, or for a moment.
    pub fn wait_a_moment(&self) {
        let moment = Duration::from_millis(20);
        let inside = lock(&self.inside);
        drop(self.changed.wait_timeout_while(inside, moment, |inside| inside.holder.is_some()));
    }

    /// Frees the lease past the proxy if this grant holds it, so that the others can go on. Gives whether it held
    /// it.
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

    /// The last check: writes that land after all sessions ended change nothing.
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
