//! What is due of a job now.

use std::collections::BTreeMap;

use jiff::Timestamp;
use leasehold_core::ids::WriteId;
use leasehold_core::ledger::agenda::{
    Agenda, Prospect, Range, STUCK, Turn, Way, Why, prospect, stuck, turn, wanted, waved_off, way,
};
use leasehold_core::ledger::{Amended, Amending, Claim, Entry, Found, IfUnknown};
use leasehold_core::record::LeaseRecord;
use leasehold_core::rules::View;
use leasehold_core::session::lease_key;
use leasehold_core::store::{Cas, Failure, Stored};
use pollster::block_on;

use super::{Look, Note, ON_TIME, Terms, Tried, change, due, read, recorded, register, settled};
use crate::ledger::{self, alive, amend, key_of};
use crate::schedule::{Dropped, Slot};
use crate::stores::Store;
use crate::{clock, host, random};

/// Settled slots in a row before it is written down that they are: their records say so as well.
const ROW: usize = 8;

/// How a slot stands that has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// It may be begun.
    Open,
    /// A run is at it.
    Taken,
    Settled,
}

/// One look at one job.
struct Looking<'a> {
    store: &'a mut dyn Store,
    terms: &'a Terms,
    now: i64,
    agenda: Agenda,
    stands: BTreeMap<i64, Stands>,
    look: Look,
}

/// Looks what is due of a job, settles what can be settled, and says what to start.
pub fn look(store: &mut dyn Store, terms: &Terms, now: i64, tried: Tried) -> Result<Look, Failure> {
    let Some(agenda) = read(store, &terms.job)? else {
        // Removed by hand: it is as if nobody had ever seen it.
        register(store, &[terms], now)?;
        return Ok(Look::default());
    };
    if agenda.schedule != terms.written {
        return Ok(Look { notes: vec![Note::Elsewhere(agenda.schedule)], ..Look::default() });
    }
    let (stands, look) = (BTreeMap::new(), Look::default());
    let mut looking = Looking { store, terms, now, agenda, stands, look };
    looking.asked_for_again(tried)?;
    looking.count_dropped()?;
    if looking.look.start.is_none() {
        looking.due_now(tried)?;
    }
    Ok(looking.look)
}

fn instant(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

impl Looking<'_> {
    /// Settled slots that somebody wants to be tried again.
    fn asked_for_again(&mut self, tried: Tried) -> Result<(), Failure> {
        let mut over = Vec::new();
        for at in self.agenda.again.clone() {
            if self.agenda.paused.is_some() {
                continue;
            }
            let slot = self.terms.schedule.prev_at_or_before(instant(at)).filter(|slot| slot.number() == at);
            let Some(slot) = slot else {
                // The schedule was changed since.
                over.push(at);
                continue;
            };
            let stored = block_on(self.store.read(&key_of(&self.terms.subject(&slot))))?;
            let entry = stored.and_then(|stored| Some((Entry::decode(&stored.body).ok()?, stored)));
            match entry.map(|(entry, stored)| self.stands(&entry, &stored, true)).transpose()? {
                Some(Stands::Open) => {
                    self.look.unsettled |= self.advance(slot, true, tried)?;
                    self.look.late = true;
                }
                Some(Stands::Taken) => self.look.unsettled = true,
                Some(Stands::Settled) | None => over.push(at),
            }
        }
        if !over.is_empty() {
            let listed = |agenda: &Agenda| agenda.again.iter().any(|at| over.contains(at));
            change(self.store, &self.terms.job, |found, write| {
                found.filter(|agenda| listed(agenda)).map(|agenda| agenda.without_again(&over, write))
            })?;
        }
        Ok(())
    }

    /// What became due since everything was settled.
    fn due_now(&mut self, tried: Tried) -> Result<(), Failure> {
        let terms = self.terms;
        let newest = terms.schedule.prev_at_or_before(instant(self.now));
        let Some(newest) = newest.filter(|slot| slot.number() > self.agenda.settled) else { return Ok(()) };
        let on_time = self.now - newest.number() <= ON_TIME.as_secs().cast_signed();
        let newest_wanted = if self.agenda.paused.is_some() { 0 } else { wanted(terms.catch_up, on_time) };
        let max_age = terms.max_age.map(|age| age.max(ON_TIME));
        let from = instant(self.agenda.settled);
        let run = terms.schedule.missed(from, instant(self.now), newest_wanted, max_age).run;
        let first_wanted = run.first().map_or(i64::MAX, Slot::number);

        let (entries, bad) = recorded(self.store, &terms.job, self.agenda.settled, self.now)?;
        self.look.notes.extend(bad.into_iter().map(Note::Bad));
        for (entry, stored) in &entries {
            let stands = self.stands(entry, stored, due(entry) >= first_wanted)?;
            self.stands.insert(due(entry), stands);
        }
        self.settle_before(first_wanted)?;
        for slot in run {
            let begun = self.stands.get(&slot.number()).copied();
            if begun == Some(Stands::Settled) {
                continue;
            }
            if begun != Some(Stands::Taken) && !self.advance(slot, begun.is_some(), tried)? {
                continue;
            }
            // The oldest first: nothing is begun past one that waits.
            self.look.unsettled = true;
            self.look.late = slot != newest || !on_time;
            return Ok(());
        }
        Ok(())
    }

    /// Writes down that everything before the first wanted slot is settled: those without a record are dropped. Not
    /// past a slot that a run is at.
    fn settle_before(&mut self, first_wanted: i64) -> Result<(), Failure> {
        let taken = self.stands.iter().find(|(_, stands)| **stands == Stands::Taken).map(|(at, _)| *at);
        self.look.unsettled |= taken.is_some();
        let end = first_wanted.min(taken.unwrap_or(i64::MAX)).saturating_sub(1).min(self.now);
        let from = instant(self.agenda.settled);
        if let Some(range) = self.terms.schedule.missed(from, instant(end), 0, None).dropped {
            return self.drop_range(range);
        }
        let settled = |slot: &Slot| self.stands.get(&slot.number()) == Some(&Stands::Settled);
        let row: Vec<Slot> = self.terms.schedule.after(from).take_while(settled).take(10 * ROW).collect();
        if let Some(last) = row.last().filter(|_| row.len() >= ROW) {
            let upto = last.number();
            change(self.store, &self.terms.job, |found, write| {
                found.filter(|agenda| agenda.settled < upto).map(|agenda| agenda.with_settled(upto, write))
            })?;
        }
        Ok(())
    }

    fn drop_range(&mut self, Dropped { first, last, count }: Dropped) -> Result<(), Failure> {
        let (first, last) = (first.number(), last.number());
        let own = self.stands.range(first..=last).count();
        let why = if self.agenda.paused.is_some() { Why::Paused } else { Why::Missed };
        let range = Range { first, last, count: count.saturating_sub(own as u64), why, open: true };
        let before = self.agenda.settled;
        let changed = change(self.store, &self.terms.job, |found, write| {
            // Whoever was faster has dropped them, and said so.
            let agenda = found.filter(|agenda| agenda.settled == before)?;
            Some(match range.count {
                0 => agenda.with_settled(last, write),
                _ => agenda.with_dropped(range, write),
            })
        })?;
        if let Some(agenda) = changed.agenda {
            self.agenda = agenda;
            self.count_dropped()?;
        }
        Ok(())
    }

    /// Counts once more what was dropped last. A run that began one of them before they were settled has left a record
    /// by now; whatever is begun later is withdrawn.
    fn count_dropped(&mut self) -> Result<(), Failure> {
        let Some(range) = self.agenda.dropped.last().copied().filter(|range| range.open) else {
            return Ok(());
        };
        let (entries, _) = recorded(self.store, &self.terms.job, range.first - 1, range.last)?;
        for (entry, stored) in &entries {
            if self.stands(entry, stored, false)? == Stands::Taken {
                self.look.unsettled = true;
                return Ok(());
            }
        }
        let slots = self.terms.schedule.count(instant(range.first - 1), instant(range.last));
        let count = slots.saturating_sub(entries.len() as u64);
        let open = |agenda: &Agenda| agenda.dropped.last().is_some_and(|last| *last == range);
        let changed = change(self.store, &self.terms.job, |found, write| {
            found.filter(|agenda| open(agenda)).map(|agenda| agenda.with_count(&range, count, write))
        })?;
        if changed.by_us && count > 0 {
            self.look.notes.push(Note::Dropped(Range { count, open: false, ..range }));
        }
        Ok(())
    }

    /// How a slot stands by its record. One whose run never reported is recorded so, if it is not to be run again.
    fn stands(&mut self, entry: &Entry, stored: &Stored, wanted: bool) -> Result<Stands, Failure> {
        let found = Found { entry, age: stored.age };
        let nobody = Claim::nobody(&entry.claim, random::seed());
        let mut ask = self.terms.item(&entry.subject).ask(&entry.job, nobody);
        if !wanted {
            ask.if_unknown = IfUnknown::Refuse;
        }
        let mut lives = None;
        loop {
            match prospect(found, &ask, lives, WriteId(random::seed())) {
                Prospect::AskLease(lease, grant) => lives = Some(alive(self.store, &lease, grant)?),
                Prospect::Taken => return Ok(Stands::Taken),
                Prospect::Settled => return Ok(Stands::Settled),
                Prospect::Open => return Ok(if wanted { Stands::Open } else { Stands::Settled }),
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

    /// Starts a slot that may be begun, or waves it off. Whether it is still to be settled.
    fn advance(&mut self, slot: Slot, begun: bool, tried: Tried) -> Result<bool, Failure> {
        let (terms, id) = (self.terms, slot.due().to_string());
        let (mut ways, mut holds) = (Vec::new(), None);
        for lease in &terms.leases {
            let stored = block_on(self.store.read(&lease_key(lease)))?;
            let facts = self.store.facts();
            // A record that cannot be read is for the run to refuse.
            let record = stored.and_then(|s| Some((LeaseRecord::decode(lease, &s.body).ok()?, s.age)));
            let Some((record, age)) = record else {
                ways.push(Way::Free);
                continue;
            };
            let view = View::at_a_glance(&record, age, facts.resolution, &facts.instance);
            ways.push(way(&record, &view, &terms.job, &id));
            holds.get_or_insert(record);
        }
        match (turn(&ways, tried.has(slot.number()), begun, terms.skips), holds) {
            (Turn::Start, _) => self.look.start = Some(slot),
            (Turn::WaveOff, Some(held)) => return self.wave_off(&slot, &held),
            (Turn::Wait | Turn::WaveOff, _) => {}
        }
        Ok(true)
    }

    fn wave_off(&mut self, slot: &Slot, held: &LeaseRecord) -> Result<bool, Failure> {
        let subject = self.terms.subject(slot);
        let at = host::utc(clock::wall().as_secs());
        let (key, write) = (key_of(&subject), WriteId(random::seed()));
        let Some(entry) = waved_off(subject, &self.terms.job, held, at, write) else { return Ok(true) };
        let Some(body) = entry.encode() else { return Ok(true) };
        match block_on(self.store.cas(&key, None, write, &body)) {
            Cas::Written { version, .. } => {
                // Somebody may have settled it without a record, before there was one: that stands.
                if settled(self.store, &self.terms.job)?.is_some_and(|settled| slot.number() <= settled) {
                    block_on(self.store.remove(&key, &version));
                } else {
                    self.look.notes.push(Note::WavedOff(entry));
                    self.tell_if_stuck(slot)?;
                }
                Ok(false)
            }
            // Somebody has, or has begun it: seen with the next look.
            Cas::Conflict => Ok(true),
            Cas::Unknown(failure) => Err(failure),
        }
    }

    /// Tells, at the slot that makes it so, that one after the other gave way.
    fn tell_if_stuck(&mut self, slot: &Slot) -> Result<(), Failure> {
        let mut newest = Vec::new();
        // One more, to tell the first time from all others.
        for slot in self.terms.schedule.back_from(slot.due()).take(STUCK + 1) {
            match ledger::entry(self.store, &self.terms.subject(&slot))? {
                Some(entry) => newest.push(entry),
                None => break,
            }
        }
        if stuck(newest.iter()) == Some(STUCK) {
            self.look.notes.push(Note::Stuck(self.terms.subject(slot)));
        }
        Ok(())
    }
}
