//! What is due of a job now.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_core::ids::WriteId;
use leasehold_core::ledger::agenda::{
    Account, Agenda, Prospect, Range, STUCK, Turn, Way, Why, prospect, stuck, turn, waved_off, way,
};
use leasehold_core::ledger::due::{self, Due, Stands, counted, if_silent, never_begun};
use leasehold_core::ledger::{Amended, Amending, Claim, Entry, Found};
use leasehold_core::record::LeaseRecord;
use leasehold_core::rules::View;
use leasehold_core::session::lease_key;
use leasehold_core::store::{Cas, Failure, Stored};
use pollster::block_on;

use super::{
    Broken, Look, Note, Recorded, Start, Terms, Tried, change, due_at, is_settled, read, recorded, register,
};
use crate::ledger::{self, alive, amend, key_of};
use crate::schedule::Slot;
use crate::stores::Store;
use crate::{clock, host, random};

/// More are not offered to be started: the first will do, unless it has to wait.
const OFFERED: usize = 8;

/// A lease as it is stored, and how old that is.
type Seen = Option<(LeaseRecord, Option<Duration>)>;

/// One look at one job.
struct Looking<'a> {
    store: &'a mut dyn Store,
    terms: &'a Terms,
    now: i64,
    tried: Tried,
    agenda: Agenda,
    /// The leases, once they were read.
    leases: Option<Vec<Seen>>,
    look: Look,
}

/// Looks what is due of a job, settles what can be settled, and says what to start.
pub fn look(store: &mut dyn Store, terms: &Terms, now: i64, tried: Tried) -> Result<Look, Broken> {
    let broken = |failure| Broken { failure, notes: Vec::new() };
    let Some(agenda) = read(store, &terms.job).map_err(broken)? else {
        // Removed by hand: it is as if nobody had ever seen it.
        register(store, &[terms], now).map_err(broken)?;
        return Ok(Look::default());
    };
    if agenda.schedule != terms.written {
        return Ok(Look { notes: vec![Note::Elsewhere(agenda.schedule)], ..Look::default() });
    }
    let mut looking = Looking { store, terms, now, tried, agenda, leases: None, look: Look::default() };
    match looking.all() {
        Ok(()) => Ok(looking.look),
        Err(failure) => Err(Broken { failure, notes: looking.look.notes }),
    }
}

impl Looking<'_> {
    fn all(&mut self) -> Result<(), Failure> {
        self.end_pause()?;
        self.count_dropped()?;
        self.still_open()?;
        self.due_now()
    }

    /// What was due during a pause that is over is accounted for before anything else.
    fn end_pause(&mut self) -> Result<(), Failure> {
        let Some(until) = self.agenda.paused.as_ref().and_then(|paused| paused.until) else { return Ok(()) };
        let stands = self.recorded_stands(until, i64::MAX)?;
        self.account(until.min(self.now), &stands, Why::Paused)?;
        let over = |agenda: &&Agenda| agenda.paused.as_ref().is_some_and(|p| p.until == Some(until));
        let changed = change(self.store, &self.terms.job, |found, write| {
            found.filter(over).map(|agenda| agenda.with_pause(None, write))
        })?;
        self.agenda = changed.agenda.unwrap_or_else(|| self.agenda.clone());
        Ok(())
    }

    /// Slots that were not over when those around them were settled.
    fn still_open(&mut self) -> Result<(), Failure> {
        let (mut over, mut unseen) = (Vec::new(), Vec::new());
        for at in self.agenda.open.clone() {
            let Some(slot) = self.terms.slot(at) else { continue };
            match self.stands_at(&slot)? {
                // It never came as far as a record, and there are newer ones.
                None => unseen.push(never_begun(at)),
                Some(Stands::Open) if !self.agenda.is_paused() => self.advance(slot, true, true)?,
                Some(Stands::Open) => {}
                Some(Stands::Taken) => self.look.unsettled = true,
                Some(Stands::Settled) => over.push(at),
            }
        }
        over.extend(unseen.iter().map(|range: &Range| range.first));
        if over.is_empty() {
            return Ok(());
        }
        let listed = |agenda: &&Agenda| over.iter().all(|at| agenda.open.contains(at));
        let changed = change(self.store, &self.terms.job, |found, write| {
            let agenda = found.filter(listed)?.without_open(&over, write);
            let (upto, dropped) = (agenda.settled, unseen.clone());
            agenda.with_account(&Account { upto, dropped, open: Vec::new(), follows: false }, write)
        })?;
        if changed.by_us {
            self.look.notes.extend(unseen.into_iter().map(Note::Dropped));
        }
        self.agenda = changed.agenda.unwrap_or_else(|| self.agenda.clone());
        self.count_dropped()
    }

    /// How one slot stands; nothing if it has no record, and no run of ours is at it.
    fn stands_at(&mut self, slot: &Slot) -> Result<Option<Stands>, Failure> {
        let subject = self.terms.subject(slot);
        let Some(stored) = block_on(self.store.read(&key_of(&subject)))? else {
            return Ok((self.tried == Tried::Running(slot.number())).then_some(Stands::Taken));
        };
        match Entry::decode_of(&subject, &stored.body) {
            Ok(entry) => self.stands(&entry, &stored).map(Some),
            Err(bad) => {
                self.look.notes.push(Note::Bad(format!(
                    "the record of {}@{}: {bad}",
                    self.terms.job,
                    slot.due()
                )));
                Ok(Some(Stands::Settled))
            }
        }
    }

    /// What became due since everything was settled.
    fn due_now(&mut self) -> Result<(), Failure> {
        let Some(due) = Due::of(&self.terms.schedule, &self.agenda, self.terms.catch_up(), self.now) else {
            return Ok(());
        };
        let stands = self.recorded_stands(self.now, due.first_wanted())?;
        self.account(due.account_upto(self.now), &stands, due.why())?;
        for at in &due.run {
            let (Some(slot), begun) = (self.terms.slot(*at), stands.get(at).copied()) else { continue };
            match begun {
                Some(Stands::Settled) => continue,
                Some(Stands::Taken) => self.look.unsettled = true,
                Some(Stands::Open) | None => self.advance(slot, begun.is_some(), due.is_late(*at))?,
            }
            // The oldest first: where every slot counts, nothing is begun past one that a run is at.
            if !self.terms.skips && begun == Some(Stands::Taken) || self.look.start.len() >= OFFERED {
                break;
            }
        }
        Ok(())
    }

    /// How the slots stand that have a record and are not accounted for, up to a second.
    fn recorded_stands(&mut self, upto: i64, first_wanted: i64) -> Result<BTreeMap<i64, Stands>, Failure> {
        let settled = self.agenda.settled;
        let mut all = BTreeMap::new();
        // Our own run of it may not have come as far as a record.
        if let Tried::Running(at) = self.tried {
            all.extend((at > settled && at <= upto).then_some((at, Stands::Taken)));
        }
        for (entry, stored) in self.records(settled, upto)? {
            let at = due_at(&entry);
            all.insert(at, self.stands(&entry, &stored)?.while_wanted(entry.state, at, first_wanted));
        }
        Ok(all)
    }

    /// Records of slots after one second, up to and with another. Those that cannot be read are told.
    fn records(&mut self, after: i64, upto: i64) -> Result<Vec<Recorded>, Failure> {
        let (entries, bad) = recorded(self.store, &self.terms.job, after, upto)?;
        self.look.notes.extend(bad.into_iter().map(Note::Bad));
        Ok(entries)
    }

    /// Accounts for every slot up to a second.
    fn account(&mut self, upto: i64, stands: &BTreeMap<i64, Stands>, why: Why) -> Result<(), Failure> {
        match due::account(&self.terms.schedule, &self.agenda, upto, stands, why) {
            Some(account) => self.write_account(&account),
            None => Ok(()),
        }
    }

    fn write_account(&mut self, account: &Account) -> Result<(), Failure> {
        let before = self.agenda.settled;
        let changed = change(self.store, &self.terms.job, |found, write| {
            // Whoever was faster has accounted for them, and said so.
            found.filter(|agenda| agenda.settled == before)?.with_account(account, write)
        })?;
        if changed.by_us {
            self.look.notes.extend(account.dropped.iter().map(|range| Note::Dropped(*range)));
        }
        self.agenda = changed.agenda.unwrap_or_else(|| self.agenda.clone());
        self.count_dropped()
    }

    /// Counts once more what was dropped. A run that began one of them before they were settled has left a record by
    /// now; whatever is begun later is withdrawn.
    fn count_dropped(&mut self) -> Result<(), Failure> {
        let counting: Vec<Range> =
            self.agenda.dropped.iter().filter(|range| range.counting).copied().collect();
        for range in counting {
            let (entries, _) = recorded(self.store, &self.terms.job, range.first - 1, range.last)?;
            let mut stands = BTreeMap::new();
            for (entry, stored) in &entries {
                stands.insert(due_at(entry), self.stands(entry, stored)?);
            }
            let Some((count, open)) = counted(&self.terms.schedule, &range, &stands) else {
                self.look.unsettled = true;
                continue;
            };
            let listed = |agenda: &&Agenda| agenda.dropped.contains(&range);
            let changed = change(self.store, &self.terms.job, |found, write| {
                found.filter(listed).map(|agenda| agenda.with_count(&range, count, &open, write))
            })?;
            self.agenda = changed.agenda.unwrap_or_else(|| self.agenda.clone());
        }
        Ok(())
    }

    /// How a slot stands by its record. One whose run never reported is recorded so, if it is not to be run again.
    fn stands(&mut self, entry: &Entry, stored: &Stored) -> Result<Stands, Failure> {
        let found = Found { entry, age: stored.age };
        let nobody = Claim::nobody(&entry.claim, random::seed());
        let mut ask = self.terms.item(&entry.subject).ask(&entry.job, nobody);
        ask.if_unknown = if_silent(ask.if_unknown, self.terms.max_age, due_at(entry), self.now);
        let mut lives = None;
        loop {
            match prospect(found, &ask, lives, WriteId(random::seed())) {
                Prospect::AskLease(lease, grant) => lives = Some(alive(self.store, &lease, grant)?),
                Prospect::Taken => return Ok(Stands::Taken),
                Prospect::Settled => return Ok(Stands::Settled),
                Prospect::Open => return Ok(Stands::Open),
                Prospect::Silent(silent) => {
                    let amending = Amending::new(stored.version.clone(), silent.clone(), random::seed());
                    return Ok(match amend(self.store, amending) {
                        Amended::Done(..) => {
                            self.look.notes.push(Note::Silent(silent));
                            Stands::Settled
                        }
                        // Somebody else has: seen with the next look.
                        Amended::Superseded(_) => Stands::Taken,
                        Amended::Failed(failure) => return Err(failure),
                    });
                }
            }
        }
    }

    /// Offers a slot that may be begun to be started, or waves it off.
    fn advance(&mut self, slot: Slot, begun: bool, late: bool) -> Result<(), Failure> {
        let id = slot.due().to_string();
        let (mut ways, mut held) = (Vec::new(), None);
        let facts = self.store.facts();
        for (record, age) in self.leases()?.iter().flatten() {
            let view = View::at_a_glance(record, *age, facts.resolution, &facts.instance);
            ways.push(way(record, &view, &self.terms.job, &id));
            held = held.or_else(|| Some(record.clone()));
        }
        if ways.len() < self.terms.leases.len() {
            ways.push(Way::Free);
        }
        match (turn(&ways, self.tried.has(slot.number()), begun, self.terms.skips), held) {
            (Turn::Start, _) => {
                self.look.start.push(Start { slot, late });
                self.look.unsettled = true;
            }
            (Turn::WaveOff, Some(held)) => self.wave_off(&slot, &held)?,
            (Turn::Wait | Turn::WaveOff, _) => self.look.unsettled = true,
        }
        Ok(())
    }

    /// The leases as they are now. One that cannot be read counts as free: it is for the run to refuse.
    fn leases(&mut self) -> Result<Vec<Seen>, Failure> {
        if let Some(leases) = &self.leases {
            return Ok(leases.clone());
        }
        let mut leases = Vec::new();
        for lease in &self.terms.leases {
            let stored = block_on(self.store.read(&lease_key(lease)))?;
            leases.push(stored.and_then(|s| Some((LeaseRecord::decode(lease, &s.body).ok()?, s.age))));
        }
        self.leases = Some(leases.clone());
        Ok(leases)
    }

    fn wave_off(&mut self, slot: &Slot, held: &LeaseRecord) -> Result<(), Failure> {
        let subject = self.terms.subject(slot);
        let at = host::utc(clock::wall().as_secs());
        let (key, write) = (key_of(&subject), WriteId(random::seed()));
        let Some(entry) = waved_off(subject, &self.terms.job, held, at, write) else { return Ok(()) };
        let Some(body) = entry.encode() else { return Ok(()) };
        match block_on(self.store.cas(&key, None, write, &body)) {
            Cas::Written { version, .. } => {
                // Somebody may have settled it without a record, before there was one: that stands.
                if is_settled(self.store, &self.terms.job, slot.number())? {
                    block_on(self.store.remove(&key, &version));
                    return Ok(());
                }
                self.look.notes.push(Note::WavedOff(entry));
                self.tell_if_stuck(slot)
            }
            // Somebody has, or has begun it: seen with the next look.
            Cas::Conflict => {
                self.look.unsettled = true;
                Ok(())
            }
            Cas::Unknown(failure) => Err(failure),
        }
    }

    /// Tells, at the slot that makes it so, that one after the other gave way.
    fn tell_if_stuck(&mut self, slot: &Slot) -> Result<(), Failure> {
        let mut entries = Vec::new();
        // One more, to tell the first time from all others.
        for slot in self.terms.schedule.back_from(slot.due()).take(STUCK + 1) {
            match ledger::entry(self.store, &self.terms.subject(&slot))? {
                Some(entry) => entries.push(entry),
                None => break,
            }
        }
        if stuck(entries.iter()) == Some(STUCK) {
            self.look.notes.push(Note::Stuck(self.terms.subject(slot)));
        }
        Ok(())
    }
}
