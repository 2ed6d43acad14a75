//! Looks at one job: which slots may start now.

use std::collections::BTreeMap;

use leasehold::ledger::{self, alive, amend, key_of};
use leasehold::stores::Store;
use leasehold::update::{NextCall, StoreAnswer, drive};
use leasehold::{clock, host, random};
use leasehold_core::ids::WriteId;
use leasehold_core::ledger::catch_up::{self, DueSlots, SlotStanding, counted, never_started};
use leasehold_core::ledger::job_record::{
    Account, DropReason, DroppedRange, JobRecord, LeaseForSlot, Prospect, STUCK, SlotAction,
    is_skipped_unstarted, lease_for_slot, prospect, skipped_slot, slot_action, stuck, takes_turns,
};
use leasehold_core::ledger::{Amended, Amending, Entry, FoundEntry, LeaseSeen};
use leasehold_core::record::LeaseRecord;
use leasehold_core::store::{Failure, Stored};
use leasehold_core::update::{self, Update, UpdateDecision, UpdateOutcome};
use pollster::block_on;

use super::{
    Changed, DueNow, JobNote, LookFailed, SlotToStart, Terms, Tried, change, due_at, read, recorded, register,
};
use crate::schedule::Slot;

/// The most slots without a record that are offered. Only one is started; the others are tried if it has to wait.
const OFFERED: usize = 8;

/// One look at one job.
struct Looking<'a> {
    store: &'a mut dyn Store,
    terms: &'a Terms,
    now: i64,
    tried: Tried,
    job_record: JobRecord,
    /// The leases, once they were read.
    leases: Option<Vec<LeaseSeen>>,
    look: DueNow,
}

/// Settles the slots that can be settled, and offers those that may start.
pub fn due_now(store: &mut dyn Store, terms: &Terms, now: i64, tried: Tried) -> Result<DueNow, LookFailed> {
    let broken = |failure| LookFailed { failure, notes: Vec::new() };
    let Some(job_record) = read(store, &terms.job).map_err(broken)? else {
        // A person removed it, so the job is new.
        register(store, &[terms], now).map_err(broken)?;
        return Ok(DueNow::default());
    };
    if !job_record.goes_by(&terms.named) {
        return Ok(DueNow { notes: vec![JobNote::Elsewhere(job_record.schedule)], ..DueNow::default() });
    }
    let mut looking = Looking { store, terms, now, tried, job_record, leases: None, look: DueNow::default() };
    match looking.all() {
        Ok(()) => Ok(looking.look),
        Err(failure) => Err(LookFailed { failure, notes: looking.look.notes }),
    }
}

impl Looking<'_> {
    fn all(&mut self) -> Result<(), Failure> {
        if let Some(upto) = self.job_record.ahead(self.now, self.terms.stagger) {
            self.look.notes.push(JobNote::Ahead(upto));
            // Nothing is due until then.
            return self.still_open();
        }
        if !self.pause_is_over()? {
            self.look.unsettled = true;
            return Ok(());
        }
        self.count_dropped()?;
        let due = DueSlots::of(&self.terms.schedule, &self.job_record, self.terms.catch_up(), self.now);
        let stands = match &due {
            Some(due) => self.settle(due)?,
            None => BTreeMap::new(),
        };
        self.still_open()?;
        due.map_or(Ok(()), |due| self.offer(&due, &stands))
    }

    /// Drops the slots of a pause that is over, before anything else. False if another process changed the record.
    fn pause_is_over(&mut self) -> Result<bool, Failure> {
        let Some(until) = self.job_record.paused.as_ref().and_then(|paused| paused.until) else {
            return Ok(true);
        };
        let stands = self.recorded_stands(until)?;
        let account =
            catch_up::account(&self.terms.schedule, &self.job_record, until, &stands, DropReason::Paused);
        let (before, paused) = (self.job_record.settled, self.job_record.paused.clone());
        let as_seen = |job_record: &&JobRecord| job_record.settled == before && job_record.paused == paused;
        let changed =
            self.change(|found, write| Some(found.filter(as_seen)?.without_pause(account.as_ref(), write)))?;
        self.changed(&changed, account.iter().flat_map(|account| &account.dropped));
        Ok(changed.by_us)
    }

    /// Changes the record of the job, unless its schedule was changed meanwhile. Then the next look starts afresh.
    fn change(
        &mut self,
        rule: impl Fn(Option<&JobRecord>, WriteId) -> Option<JobRecord>,
    ) -> Result<Changed, Failure> {
        let ours = |job_record: &&JobRecord| job_record.goes_by(&self.terms.named);
        change(self.store, &self.terms.job, |found, write| rule(found.filter(ours), write))
    }

    /// Takes over the record as it is now, and adds a note for each range that this process has dropped.
    fn changed<'r>(&mut self, changed: &Changed, dropped: impl Iterator<Item = &'r DroppedRange>) {
        if changed.by_us {
            self.look.notes.extend(dropped.map(|range| JobNote::Dropped(*range)));
        }
        if let Some(job_record) = &changed.job_record {
            self.job_record = job_record.clone();
        }
    }

    /// Slots that were not over when those around them were settled.
    fn still_open(&mut self) -> Result<(), Failure> {
        let (mut over, mut unseen) = (Vec::new(), Vec::new());
        for at in self.job_record.open.clone() {
            let Some(slot) = self.terms.slot(at) else { continue };
            match self.stands_at(&slot)? {
                // No run of it made a record, and there are newer slots.
                None => {
                    over.push(at);
                    unseen.push(never_started(at));
                }
                Some(SlotStanding::Open) if !self.job_record.is_paused() => self.advance(slot, true, true)?,
                Some(SlotStanding::Open) => {}
                Some(SlotStanding::Taken | SlotStanding::Starting) => self.look.unsettled = true,
                Some(SlotStanding::Settled) => over.push(at),
            }
        }
        if over.is_empty() {
            return Ok(());
        }
        let listed = |job_record: &&JobRecord| over.iter().all(|at| job_record.open.contains(at));
        let changed = self.change(|found, write| {
            let job_record = found.filter(listed)?.without_open(&over, write);
            let account = Account { upto: job_record.settled, dropped: unseen.clone(), open: Vec::new() };
            Some(job_record.with_account(&account, write))
        })?;
        self.changed(&changed, unseen.iter());
        self.count_dropped()
    }

    /// How one slot stands; `None` if it has no record and no run of this process is starting it.
    fn stands_at(&mut self, slot: &Slot) -> Result<Option<SlotStanding>, Failure> {
        let subject = self.terms.subject(slot);
        let Some(stored) = block_on(self.store.read(&key_of(&subject)))? else {
            return Ok((self.tried == Tried::Running(slot.number())).then_some(SlotStanding::Starting));
        };
        match Entry::decode_of(&subject, &stored.body) {
            Ok(entry) => self.stands(&entry, &stored).map(Some),
            Err(bad) => {
                let why = format!("the record of {}@{}: {bad}", self.terms.job, slot.due());
                self.look.notes.push(JobNote::Bad(slot.number(), why));
                Ok(Some(SlotStanding::Settled))
            }
        }
    }

    /// Drops the slots that are not run any more. Gives how the slots with a record stand.
    fn settle(&mut self, due: &DueSlots) -> Result<BTreeMap<i64, SlotStanding>, Failure> {
        let stands = self.recorded_stands(self.now)?;
        let upto = due.account_upto(self.now);
        if let Some(account) =
            catch_up::account(&self.terms.schedule, &self.job_record, upto, &stands, due.why())
        {
            let (before, paused) = (self.job_record.settled, self.job_record.paused.clone());
            // Otherwise another process has dropped them, or has paused or resumed the job.
            let as_seen =
                |job_record: &&JobRecord| job_record.settled == before && job_record.paused == paused;
            let changed =
                self.change(|found, write| Some(found.filter(as_seen)?.with_account(&account, write)))?;
            self.look.unsettled |= !changed.by_us;
            self.changed(&changed, account.dropped.iter());
            self.count_dropped()?;
        }
        Ok(stands)
    }

    /// Offers the slots that are due, or skips them.
    fn offer(&mut self, due: &DueSlots, stands: &BTreeMap<i64, SlotStanding>) -> Result<(), Failure> {
        for at in &due.run {
            let (Some(slot), begun) = (self.terms.slot(*at), stands.get(at).copied()) else { continue };
            match begun {
                Some(SlotStanding::Settled) => continue,
                Some(SlotStanding::Open) | None => self.advance(slot, begun.is_some(), due.is_late(*at))?,
                Some(SlotStanding::Taken | SlotStanding::Starting) => self.look.unsettled = true,
            }
            let fresh = self.look.start.iter().filter(|start| !start.again).count();
            if begun.is_some_and(|begun| !begun.may_be_passed(self.terms.skips)) || fresh >= OFFERED {
                break;
            }
        }
        Ok(())
    }

    /// How the slots with a record stand that are not settled, up to a second.
    fn recorded_stands(&mut self, upto: i64) -> Result<BTreeMap<i64, SlotStanding>, Failure> {
        let settled = self.job_record.settled;
        let mut all = self.all_stands(settled, upto, false)?;
        if let Tried::Running(at) = self.tried
            && at > settled
            && at <= upto
        {
            all.entry(at).or_insert(SlotStanding::Starting);
        }
        Ok(all)
    }

    /// How the slots with a record stand, after `after` and up to `upto`. A record that cannot be read is left alone. With
    /// `dropped`, records of skipped slots are removed: a scheduler died before it could do so.
    fn all_stands(
        &mut self,
        after: i64,
        upto: i64,
        dropped: bool,
    ) -> Result<BTreeMap<i64, SlotStanding>, Failure> {
        let (entries, bad) = recorded(self.store, &self.terms.job, after, upto)?;
        let mut all: BTreeMap<i64, SlotStanding> =
            bad.iter().map(|(at, _)| (*at, SlotStanding::Settled)).collect();
        self.look.notes.extend(bad.into_iter().map(|(at, why)| JobNote::Bad(at, why)));
        for (entry, stored) in &entries {
            let stands = if dropped && is_skipped_unstarted(entry) {
                block_on(self.store.remove(&key_of(&entry.subject), &stored.version));
                // It counts once its record is gone.
                SlotStanding::Taken
            } else {
                self.stands(entry, stored)?
            };
            all.insert(due_at(entry), stands);
        }
        Ok(all)
    }

    /// Counts dropped slots again. A run that started one before they were settled has made its record by now; a run that
    /// starts one later removes its record.
    fn count_dropped(&mut self) -> Result<(), Failure> {
        let counting: Vec<DroppedRange> =
            self.job_record.dropped.iter().filter(|range| range.counting).copied().collect();
        for range in counting {
            let stands = self.all_stands(range.first - 1, range.last, true)?;
            let Some(counted) = counted(&range, &stands) else {
                self.look.unsettled = true;
                continue;
            };
            let changed =
                self.change(|found, write| found?.with_count(&self.terms.schedule, &range, &counted, write))?;
            self.changed(&changed, [].iter());
        }
        Ok(())
    }

    fn stands(&mut self, entry: &Entry, stored: &Stored) -> Result<SlotStanding, Failure> {
        stands(self.store, self.terms, self.now, entry, stored, &mut self.look.notes)
    }

    /// Offers a slot to be started, or skips it.
    fn advance(&mut self, slot: Slot, begun: bool, late: bool) -> Result<(), Failure> {
        let id = slot.due().to_string();
        let (mut ways, mut held) = (Vec::new(), None);
        for lease in self.leases()? {
            ways.push(lease_for_slot(&lease, &self.terms.job, &id));
            if let (LeaseSeen::Stands(record, _), None) = (lease, &held) {
                held = Some(record);
            }
        }
        match (slot_action(&ways, self.tried.has(slot.number()), begun, self.terms.skips), held) {
            (SlotAction::Start, _) => {
                let free = ways.contains(&LeaseForSlot::Free);
                self.look.start.push(SlotToStart { slot, late, again: begun, free });
                self.look.unsettled = true;
            }
            (SlotAction::Skip, Some(held)) if self.is_made_up(&held)? => self.look.unsettled = true,
            (SlotAction::Skip, Some(held)) => self.skip(&slot, &held)?,
            (SlotAction::Wait | SlotAction::Skip, _) => self.look.unsettled = true,
        }
        Ok(())
    }

    /// Whether an earlier slot of this job, which is tried again, holds the lease.
    fn is_made_up(&mut self, held: &LeaseRecord) -> Result<bool, Failure> {
        let slot = held.holder.slot.as_deref().and_then(|id| self.terms.slot_called(id));
        let Some(slot) = slot else { return Ok(false) };
        let entry = ledger::entry(self.store, &self.terms.subject(&slot))?;
        Ok(takes_turns(held, &self.terms.job, entry.as_ref()))
    }

    /// The leases as they are now.
    fn leases(&mut self) -> Result<Vec<LeaseSeen>, Failure> {
        if let Some(leases) = &self.leases {
            return Ok(leases.clone());
        }
        let mut leases = Vec::new();
        for lease in &self.terms.leases {
            leases.push(ledger::seen(self.store, lease)?);
        }
        self.leases = Some(leases.clone());
        Ok(leases)
    }

    fn skip(&mut self, slot: &Slot, held: &LeaseRecord) -> Result<(), Failure> {
        let subject = self.terms.subject(slot);
        let at = host::utc(clock::wall().as_secs());
        let (key, mut update) = (key_of(&subject), Update::new(random::seed()));
        let entry = skipped_slot(subject, &self.terms.job, held, at, update.fresh());
        let Some(entry) = entry.filter(|entry| entry.encode().is_some()) else { return Ok(()) };
        let first = NextCall::of(update.offer(None, entry.clone()), Entry::encode);
        let done = drive(self.store, &key, first, None, |_, answer| {
            let decode =
                |stored| update::FoundRecord::of(stored, |body| Entry::decode_of(&entry.subject, body));
            let next = match answer {
                StoreAnswer::Read(read) => {
                    update.on_read(read.map(|stored| stored.map(decode)), |found, write| match found {
                        Some(_) => UpdateDecision::Stop(()),
                        None => UpdateDecision::Write(Entry { write, ..entry.clone() }),
                    })
                }
                StoreAnswer::Cas(cas) => update.on_cas(cas),
            };
            NextCall::of(next, Entry::encode)
        })?;
        let (entry, version) = match done {
            UpdateOutcome::Landed { record, version, .. } => (record, version),
            // Another process has made a record of the slot. The next look sees it.
            UpdateOutcome::Stopped(()) => {
                self.look.unsettled = true;
                return Ok(());
            }
            UpdateOutcome::Failed { failure, .. } => return Err(failure),
        };
        // If another process dropped the slot before there was a record, that stands. If the store does not say so, the
        // record stays.
        let dropped = |job_record: JobRecord| job_record.is_dropped(slot.number());
        if read(self.store, &self.terms.job)?.is_some_and(dropped) {
            block_on(self.store.remove(&key, &version));
            return Ok(());
        }
        self.look.notes.push(JobNote::SlotSkipped(entry));
        self.note_if_stuck(slot)
    }

    /// Adds a note if with this slot too many in a row were skipped. Only with the first one that makes it so.
    fn note_if_stuck(&mut self, slot: &Slot) -> Result<(), Failure> {
        let mut entries = Vec::new();
        // One more slot: then it is not the first time.
        let told = |slot: &Slot| !self.job_record.is_void(slot.number());
        for slot in self.terms.schedule.back_from(slot.due()).take(STUCK + 1).take_while(told) {
            match ledger::entry(self.store, &self.terms.subject(&slot))? {
                Some(entry) => entries.push(entry),
                None => break,
            }
        }
        if stuck(entries.iter()) == Some(STUCK) {
            self.look.notes.push(JobNote::Stuck(self.terms.subject(slot)));
        }
        Ok(())
    }
}

/// How a slot stands by its record. If its run never recorded how it ended, and it is not run again, that is recorded.
pub(super) fn stands(
    store: &mut dyn Store,
    terms: &Terms,
    now: i64,
    entry: &Entry,
    stored: &Stored,
    notes: &mut Vec<JobNote>,
) -> Result<SlotStanding, Failure> {
    let found = FoundEntry { entry, age: stored.age };
    let ask = terms.ask(entry, now);
    let mut lives = None;
    loop {
        match prospect(found, &ask, lives, WriteId(random::seed())) {
            Prospect::AskLease(lease, grant) => lives = Some(alive(store, &lease, grant)?),
            Prospect::Taken => return Ok(SlotStanding::Taken),
            Prospect::Settled => return Ok(SlotStanding::Settled),
            Prospect::Open => return Ok(SlotStanding::Open),
            Prospect::Unknown(silent) => {
                let amending = Amending::new(stored.version.clone(), silent.clone(), random::seed());
                return Ok(match amend(store, amending) {
                    Amended::Done(..) => {
                        notes.push(JobNote::Silent(silent));
                        SlotStanding::Settled
                    }
                    // Another process did. The next look sees it.
                    Amended::Superseded(_) => SlotStanding::Taken,
                    Amended::Failed(failure) => return Err(failure),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
