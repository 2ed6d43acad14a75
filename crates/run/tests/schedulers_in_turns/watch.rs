//! Sees every write that lands and every command that begins or ends, and says at once what may not be.

use std::collections::BTreeMap;

use leasehold::core::ids::Grant;
use leasehold::core::ledger::job_record::{DropReason, DroppedRange, JobRecord};
use leasehold::core::ledger::{Entry, ItemState, Subject};
use leasehold::core::name::Name;
use leasehold::core::session::Granted;
use leasehold_run::job_records::{ON_TIME, Terms};

use crate::plan::{Due, Job, Plan, dues};
use crate::turns::Role;

/// A time in which one schedule was in force.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub due: usize,
    /// Slots after this count …
    pub from: i64,
    /// … up to this: what was accounted for when the schedule was replaced.
    pub to: Option<i64>,
}

/// All that was seen of one slot.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// What its record says now.
    pub entry: Option<Entry>,
    /// Its record was created by this actor when it was settled already.
    pub ghost: Option<usize>,
    /// It had such a record at some time.
    pub haunted: bool,
    /// This actor went on with its record when it was settled already.
    pub overdone: Option<usize>,
    /// It had this record, which was removed because it was old.
    pub swept: Option<ItemState>,
    /// It was to be tried again, or not over, at some time.
    pub listed: bool,
    /// A command that was recorded as done.
    pub done: bool,
    pub begins: u32,
    /// A command of it ended well, whether or not anybody knows.
    pub ended_ok: bool,
}

#[derive(Clone, Debug, Default)]
pub struct JobWatch {
    /// What never reported is begun again.
    retry: bool,
    pub job_record: Option<JobRecord>,
    pub spans: Vec<Span>,
    pub slots: BTreeMap<i64, Slot>,
    /// Ranges that were not yet counted when the schedule was replaced.
    pub uncounted: Vec<(i64, i64)>,
}

/// A run, as it is.
#[derive(Clone, Debug)]
struct Run {
    job: usize,
    at: i64,
    grant: Option<Grant>,
    lease: Option<Name>,
    /// Its command is dead by then, whatever else.
    until: u64,
    executing: bool,
    reported: bool,
    gone: bool,
}

/// How often things happened, for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub runs: u64,
    pub begun: u64,
    pub ok: u64,
    pub overlaps: u64,
    pub withdrawn: u64,
    pub swept: u64,
    pub dropped: u64,
    pub silent: u64,
    pub retried: u64,
    pub changed: u64,
    pub paused: u64,
}

impl Counts {
    pub fn plus(&self, more: &Self) -> Self {
        Self {
            runs: self.runs + more.runs,
            begun: self.begun + more.begun,
            ok: self.ok + more.ok,
            overlaps: self.overlaps + more.overlaps,
            withdrawn: self.withdrawn + more.withdrawn,
            swept: self.swept + more.swept,
            dropped: self.dropped + more.dropped,
            silent: self.silent + more.silent,
            retried: self.retried + more.retried,
            changed: self.changed + more.changed,
            paused: self.paused + more.paused,
        }
    }
}

pub struct Watch {
    pub jobs: Vec<JobWatch>,
    pub counts: Counts,
    pub broken: Option<String>,
    runs: BTreeMap<usize, Run>,
}

impl JobWatch {
    fn is_settled(&self, at: i64) -> bool {
        self.job_record.as_ref().is_some_and(|job_record| job_record.is_settled(at))
    }

    /// Whether a slot is one of a schedule that was in force.
    pub fn counts(&self, at: i64) -> bool {
        let within = |span: &Span| at > span.from && span.to.is_none_or(|to| at <= to);
        self.spans.iter().any(|span| within(span) && dues()[span.due].is_due(at))
    }
}

impl Watch {
    pub fn new(plan: &Plan) -> Self {
        let job = |job: &Job| JobWatch { retry: job.retry, ..JobWatch::default() };
        let jobs = plan.jobs.iter().map(job).collect();
        Self { jobs, counts: Counts::default(), broken: None, runs: BTreeMap::new() }
    }

    /// The first that went wrong is what counts.
    pub fn wrong(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// A write has landed.
    #[allow(clippy::too_many_arguments)] // what, by whom and when
    pub fn landed(
        &mut self,
        actor: usize,
        clock: u64,
        key: &str,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
        plan: &Plan,
        role: Role,
    ) {
        if key.starts_with("jobs/") {
            let job_record = JobRecord::decode_any(after.unwrap_or_default());
            match job_record {
                Ok(job_record) => self.job_landed(plan.job(&job_record.job), job_record),
                Err(bad) => self.wrong(format!("{key}: {bad}")),
            }
        } else if key.starts_with("slots/") {
            let decode = |body: &[u8]| Entry::decode(body).unwrap();
            let (before, after) = (before.map(decode), after.map(decode));
            let Some(entry) = after.as_ref().or(before.as_ref()) else { return };
            let Subject::Slot { job, at, .. } = &entry.subject else { return };
            let (n, at) = (plan.job(job), *at);
            match after {
                Some(after) => self.slot_landed(actor, clock, (n, at), before.as_ref(), after, &plan.jobs[n]),
                None => self.removed(n, at, role == Role::Sweeper),
            }
        }
    }

    fn job_landed(&mut self, n: usize, next: JobRecord) {
        let job = &mut self.jobs[n];
        let due = dues().iter().position(|due| due.written == next.schedule).unwrap();
        let mut broken = None;
        let old = job.job_record.replace(next.clone());
        match &old {
            None => job.spans.push(Span { due, from: next.settled, to: None }),
            Some(old) if old.schedule != next.schedule => {
                job.spans.last_mut().unwrap().to = Some(old.settled);
                job.spans.push(Span { due, from: next.settled, to: None });
                let counting = old.dropped.iter().filter(|range| range.counting);
                job.uncounted.extend(counting.map(|range| (range.first, range.last)));
                self.counts.changed += 1;
            }
            Some(_) => {}
        }
        let known = old.as_ref().map_or(&[][..], |old| &old.dropped);
        let fresh: Vec<&DroppedRange> = next
            .dropped
            .iter()
            // Two that lie in a row become one.
            .filter(|range| {
                let begins = known.iter().any(|k| k.first == range.first);
                !(begins && known.iter().any(|k| k.last == range.last))
            })
            .collect();
        self.counts.dropped += fresh.len() as u64;
        if let Some(old) = &old {
            if next.settled < old.settled {
                broken = Some(format!("settled goes back from {} to {}", old.settled, next.settled));
            }
            if old.paused.is_none() && fresh.iter().any(|range| range.why == DropReason::Paused) {
                broken = Some("slots were dropped as paused, and it was not".into());
            }
            let until = old.paused.as_ref().and_then(|paused| paused.until);
            if let (Some(until), None) = (until, &next.paused) {
                let bare = |at: &i64| job.slots.get(at).is_none_or(|slot| slot.entry.is_none());
                if dues()[due].between(next.settled, until).any(|at| bare(&at)) {
                    broken = Some("a pause has ended before all was dropped that was due in it".into());
                }
            }
            self.counts.paused += u64::from(next.is_paused() && !old.is_paused());
            self.counts.retried += u64::from(next.open.len() > old.open.len());
        }
        for at in &next.open {
            job.slots.entry(*at).or_default().listed = true;
        }
        broken.into_iter().for_each(|what| self.wrong(what));
    }

    /// A record was removed because it is old, or withdrawn by whoever created it.
    fn removed(&mut self, n: usize, at: i64, old: bool) {
        let job = &mut self.jobs[n];
        let settled = job.is_settled(at);
        let slot = job.slots.entry(at).or_default();
        let (entry, ghost) = (slot.entry.take(), slot.ghost.take());
        match entry {
            _ if !old || ghost.is_some() => self.counts.withdrawn += 1,
            Some(entry) => {
                slot.swept = Some(entry.state);
                self.counts.swept += 1;
            }
            None => {}
        }
        // What was withdrawn may be begun by another, or is dropped.
        if !settled && old && ghost.is_none() {
            self.wrong(format!("the record of {at} was removed, and it is not settled"));
        }
    }

    fn slot_landed(
        &mut self,
        actor: usize,
        clock: u64,
        (n, at): (usize, i64),
        before: Option<&Entry>,
        after: Entry,
        terms: &Job,
    ) {
        let settled = self.jobs[n].is_settled(at);
        let what = before.and_then(|before| self.transition(actor, clock, before, &after, terms));
        if let Some(what) = what {
            self.wrong(format!("{at}: {what}"));
        }
        let slot = self.jobs[n].slots.entry(at).or_default();
        match before {
            None => (slot.ghost, slot.haunted) = (settled.then_some(actor), slot.haunted || settled),
            Some(_) if after.state != ItemState::Started => (slot.ghost, slot.overdone) = (None, None),
            Some(before) if before.claim.grant != after.claim.grant => {
                (slot.ghost, slot.overdone) = (None, settled.then_some(actor));
            }
            Some(_) => {}
        }
        slot.done |= after.state == ItemState::Ok;
        // A person said so, who may know better.
        slot.ended_ok &= after.state != ItemState::Planned;
        self.counts.ok += u64::from(after.state == ItemState::Ok);
        self.counts.overlaps += u64::from(after.state == ItemState::Skipped);
        self.counts.silent += u64::from(after.state == ItemState::Unknown);
        slot.entry = Some(after);
    }

    /// What may follow what in a record.
    fn transition(
        &self,
        actor: usize,
        clock: u64,
        before: &Entry,
        after: &Entry,
        terms: &Job,
    ) -> Option<String> {
        let at_work = |run: &Run| run.executing && !run.reported && !run.gone && clock < run.until;
        let of_grant = |run: &&Run| run.grant == Some(before.claim.grant);
        let run = self.runs.iter().find(|(_, run)| of_grant(run));
        if run.is_some_and(|(id, run)| *id != actor && at_work(run)) && before.state == ItemState::Started {
            return Some("a run that is at work was written over".into());
        }
        let same = before.claim.grant == after.claim.grant;
        // Whoever went on with it puts it back as it was.
        if before.state == ItemState::Started && self.put_back(actor, before, after) {
            return None;
        }
        let allowed = match (before.state, after.state) {
            (ItemState::Ok, _) => false,
            (ItemState::Started, ItemState::Started) if same => true,
            (ItemState::Started, ItemState::Unknown) => true,
            (ItemState::Started, ItemState::Planned) => true,
            (
                ItemState::Started | ItemState::Lost | ItemState::Killed | ItemState::Unknown,
                ItemState::Started,
            ) => terms.retry,
            (ItemState::Started, _) => same,
            // The run itself knows how it ended, and nobody has started the item since (decision 0029).
            (ItemState::Unknown, ItemState::Ok | ItemState::Failed | ItemState::Lost | ItemState::Killed) => {
                same && run.is_some_and(|(id, _)| *id == actor)
            }
            (ItemState::Failed, ItemState::Started) => before.failures < terms.attempts,
            (ItemState::Planned, ItemState::Started) => true,
            (_, ItemState::Planned) => true,
            _ => false,
        };
        (!allowed).then(|| format!("{} became {}", before.state.word(), after.state.word()))
    }

    /// Whether a run that has begun nothing puts back what it went on from.
    fn put_back(&self, actor: usize, before: &Entry, after: &Entry) -> bool {
        let ours = before.claim.holder.pid as usize == actor && after.attempt + 1 == before.attempt;
        ours && self.runs.get(&actor).is_some_and(|run| !run.executing && !run.reported)
    }

    /// A scheduler has started a run of a slot, by a look as of `now`; it has tried these before.
    pub fn starts(&mut self, plan: &Job, terms: &Terms, n: usize, at: i64, now: i64, tried: &[i64]) {
        self.counts.runs += 1;
        let job = &self.jobs[n];
        // What was begun, or is to be tried again, is no catching up.
        if job.slots.get(&at).is_some_and(|slot| slot.listed || slot.entry.is_some()) {
            return;
        }
        let due: &Due = dues().iter().find(|due| due.written == terms.named.written).unwrap();
        let newest = due.between(i64::MIN / 2, now).next_back().unwrap_or(at);
        let newer = due.between(at, now).count();
        let on_time = now - newest <= ON_TIME.as_secs().cast_signed();
        let most = plan.catch_up.max(usize::from(on_time));
        let newest_one = at == newest && on_time;
        let too_old = plan.max_age.is_some_and(|age| now - at > age.cast_signed());
        if !newest_one && (newer >= most || too_old) {
            return self.wrong(format!("{at} was started, and {newer} newer ones were due"));
        }
        // Its lease may be held on paper by a run of it that is dead.
        let at_it = |other: i64| self.runs.values().any(|run| (run.job, run.at) == (n, other));
        let older = due.between(at - due.every * most as i64, at - 1).find(|other| {
            let wanted = due.between(*other, now).count() < most
                && plan.max_age.is_none_or(|age| now - other <= age.cast_signed());
            let bare = job.slots.get(other).is_none_or(|slot| slot.entry.is_none() && slot.swept.is_none());
            wanted
                && bare
                && job.counts(*other)
                && !job.is_settled(*other)
                && !tried.contains(other)
                && !at_it(*other)
        });
        if let Some(older) = older {
            self.wrong(format!("{at} was started before {older}, which is older"));
        }
    }

    /// The same run has this number.
    pub fn run(&mut self, id: usize, job: usize, at: i64) {
        let (grant, lease, until) = (None, None, 0);
        let (executing, reported, gone) = (false, false, false);
        self.runs.insert(id, Run { job, at, grant, lease, until, executing, reported, gone });
    }

    /// A command begins.
    pub fn begins(&mut self, id: usize, n: usize, at: i64, granted: &Granted, until: u64, clock: u64) {
        self.counts.begun += 1;
        let works = |run: &Run| run.executing && !run.gone && clock < run.until;
        let beside = self.runs.values().any(|run| (run.job, run.at) == (n, at) && works(run));
        let of_lease = |run: &Run| run.lease.as_ref() == Some(&granted.lease) && works(run);
        let under = self.runs.values().any(of_lease);
        let (retry, settled) = (self.jobs[n].retry, self.jobs[n].is_settled(at));
        let slot = self.jobs[n].slots.entry(at).or_default();
        slot.begins += 1;
        // Somebody took it for silent, and has listed it: then it may be begun after all.
        if !settled {
            slot.ghost = None;
        }
        let what = match slot {
            _ if beside => Some("two commands at once"),
            _ if under => Some("begun while another held its lease"),
            Slot { ended_ok: true, .. } if !retry => Some("begun again after a command that ended well"),
            Slot { done: true, .. } => Some("begun again, and it was done"),
            Slot { ghost: Some(_), .. } => Some("begun, and it was settled before"),
            Slot { overdone: Some(_), .. } => Some("begun again, and it was settled before"),
            _ => None,
        };
        if let Some(what) = what {
            self.wrong(format!("{at}: {what}"));
        }
        if let Some(run) = self.runs.get_mut(&id) {
            (run.grant, run.lease) = (Some(granted.grant), Some(granted.lease.clone()));
            (run.until, run.executing) = (until, true);
        }
    }

    pub fn renewed(&mut self, id: usize, until: u64) {
        self.runs.entry(id).and_modify(|run| run.until = until);
    }

    /// The command has ended; it is about to be recorded.
    pub fn ends(&mut self, id: usize, state: ItemState) {
        let Some(run) = self.runs.get(&id).cloned() else { return };
        let slot = self.jobs[run.job].slots.entry(run.at).or_default();
        slot.ended_ok |= state == ItemState::Ok;
    }

    pub fn reported(&mut self, id: usize) {
        self.runs.entry(id).and_modify(|run| (run.reported, run.executing) = (true, false));
    }

    /// An actor has ended, or was killed: if it was a run, its command is dead with it.
    pub fn gone(&mut self, id: usize) {
        self.runs.entry(id).and_modify(|run| run.gone = true);
    }

    /// Slots that somebody said may be tried again.
    pub fn planned(&self, n: usize) -> Vec<i64> {
        self.with_state(n, &[ItemState::Planned])
    }

    /// Slots that a person may want to be tried again.
    pub fn retryable(&self, n: usize) -> Vec<i64> {
        self.with_state(
            n,
            &[
                ItemState::Failed,
                ItemState::Skipped,
                ItemState::Lost,
                ItemState::Killed,
                ItemState::Unknown,
                ItemState::Planned,
            ],
        )
    }

    fn with_state(&self, n: usize, states: &[ItemState]) -> Vec<i64> {
        // Not what was dropped, and has a record all the same: it would be told as both.
        let of = |slot: &Slot| {
            !slot.haunted && slot.entry.as_ref().is_some_and(|entry| states.contains(&entry.state))
        };
        self.jobs[n].slots.iter().filter(|(_, slot)| of(slot)).map(|(at, _)| *at).collect()
    }
}
