//! Many runs of one item. The store loses answers and lets writes land late, and a run may die at any call.
//! The same checks catch a broken store and broken rules.

mod due;
mod job_record;
mod rules;
mod steps;

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_core::ids::{Epoch, Grant, Ids, Token};
use leasehold_core::ledger::job_record::{JobSchedule, ScheduleKey};
use leasehold_core::ledger::{
    Alive, Amended, Amending, Ending, Entry, IfUnknown, ItemCall, ItemClaim, ItemNext, ItemRequest,
    ItemState, Opened, Opening, StepRecord, Subject, finish,
};
use leasehold_core::name::Name;
use leasehold_core::record::Holder;
use leasehold_core::store::{Cas, Failure, FailureKind, Stored, Version};
use steps::{Own, execute};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The store accepts every write.
    NoCompare,
    /// A run at work counts as dead.
    NobodyLives,
    /// The command is executed before the record says so.
    StartsFirst,
    /// An item with an unknown outcome is run again.
    SilenceIsFailure,
    /// An item that is done is run again.
    ForgetsDone,
    /// Records are removed before the job's record says that their slots are settled.
    SweepsFirst,
    /// No run asks whether its slot is settled.
    NeverLooksTwice,
    /// A run that has lost its lease counts as its holder.
    IgnoresTokens,
    /// A run takes its own write, whose answer was lost, for the write of another run.
    TakesItselfForAnother,
    /// A run does a step again that may be recorded.
    ForgetsItsSteps,
}

/// Writes that may land later.
struct Late {
    expected: Option<Version>,
    body: Vec<u8>,
}

struct World {
    ids: Ids,
    dice: u64,
    flaw: Flaw,
    cell: Option<(Version, Vec<u8>)>,
    versions: u64,
    late: Vec<Late>,
    /// The holder of each lease; no run takes one from a living run.
    leases: Vec<Option<Grant>>,
    executing: Vec<Grant>,
    /// The run that started the item last.
    last: Option<Grant>,
    /// Steps that the record has shown as done.
    steps: BTreeSet<String>,
    steps_done: u32,
    /// An execution that started and whose end is not recorded.
    silent: bool,
    succeeded: bool,
    begun: u32,
    tokens: u64,
    /// The item is a slot: its record may be removed.
    slot: bool,
    settled: bool,
    /// Its record was created after it was settled.
    ghost: bool,
    removed: u32,
    faults: u64,
    broken: Option<String>,
}

#[allow(clippy::large_enum_variant)] // there are a handful of them
enum Stage {
    Opening(Opening, ItemCall),
    Executing(Own),
    Stepping(Own, StepRecord, Amending, ItemCall),
    Closing(Amending, ItemCall),
}

struct Run {
    grant: Grant,
    lease: usize,
    stage: Stage,
    /// Its lease has expired, and another run may hold it.
    stale: bool,
}

const LEASES: usize = 2;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn claim(grant: Grant, lease: usize) -> ItemClaim {
    let holder = Holder {
        host: "h".into(),
        pid: 1,
        run: grant.to_string(),
        job: "j".into(),
        since: String::new(),
        slot: None,
    };
    // In the tests of the rules, tokens follow the order of the grants.
    let token = u64::try_from(grant.0).ok().and_then(Token::new).unwrap_or(Token::FIRST);
    let epoch = Epoch::first(7);
    ItemClaim { lease: name(&format!("l{lease}")), epoch, token, grant, holder }
}

fn subject(slot: bool) -> Subject {
    match slot {
        true => Subject::Slot { job: name("j"), at: AT, id: "then".into() },
        false => Subject::Key("k".into()),
    }
}

fn ask(grant: Grant, lease: usize, if_unknown: IfUnknown) -> ItemRequest {
    ItemRequest {
        subject: subject(false),
        job: name("j"),
        claim: claim(grant, lease),
        if_unknown,
        attempts: 3,
        keep: None,
    }
}

/// A schedule of an interval, in minutes.
fn every(minutes: i64) -> JobSchedule {
    let key = ScheduleKey::Every { seconds: minutes * 60, offset: 0 };
    JobSchedule { key, written: format!("every {minutes}m") }
}

fn ending(exit: i32) -> Ending {
    Ending { exit: Some(exit), took_ms: 1, at: "then".into(), reason: None, said: String::new() }
}

impl World {
    fn new(seed: u64, flaw: Flaw) -> Self {
        Self {
            ids: Ids::new(u128::from(seed)),
            dice: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            flaw,
            cell: None,
            versions: 0,
            late: Vec::new(),
            leases: vec![None; LEASES],
            executing: Vec::new(),
            last: None,
            steps: BTreeSet::new(),
            steps_done: 0,
            silent: false,
            succeeded: false,
            begun: 0,
            tokens: 0,
            slot: false,
            settled: false,
            ghost: false,
            removed: 0,
            faults: 250,
            broken: None,
        }
    }

    /// Far from every other, as random ones are.
    fn seed(&mut self) -> u128 {
        self.ids.fresh() << 64
    }

    fn below(&mut self, n: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    fn write(&mut self, expected: Option<&Version>, body: &[u8]) -> Cas {
        let now = self.cell.as_ref().map(|(version, _)| version);
        if now != expected && self.flaw != Flaw::NoCompare {
            return Cas::Conflict;
        }
        // The stored record counts, whether or not the run gets the answer.
        let entry = Entry::decode(body);
        if let Ok(entry) = &entry {
            self.check_steps(entry);
            self.check_owner(entry);
            // Another run started it, and may never execute its command.
            self.last =
                self.last.filter(|last| entry.state != ItemState::Started || entry.claim.grant == *last);
        }
        match entry.map(|entry| entry.state) {
            Ok(ItemState::Failed) => self.silent = false,
            Ok(ItemState::Ok) => (self.silent, self.succeeded) = (false, true),
            _ => {}
        }
        self.ghost = if self.cell.is_none() { self.settled } else { self.ghost };
        self.versions += 1;
        let version = Version(self.versions.to_string());
        self.cell = Some((version.clone(), body.to_vec()));
        Cas::Written { version, store_time: None }
    }

    /// One conditional write, with every fault that may hit it.
    fn cas(&mut self, expected: Option<&Version>, entry: &Entry) -> Cas {
        let body = entry.encode().unwrap();
        if !self.chance(self.faults) {
            return self.write(expected, &body);
        }
        match self.below(3) {
            0 => drop(self.write(expected, &body)),
            1 => self.late.push(Late { expected: expected.cloned(), body }),
            _ => {}
        }
        Cas::Unknown(unreachable())
    }

    fn read(&mut self) -> Result<Option<Stored>, Failure> {
        if self.chance(self.faults / 4) {
            return Err(unreachable());
        }
        let age = Some(Duration::from_secs(1));
        Ok(self.cell.clone().map(|(version, body)| Stored { body, version, age }))
    }

    fn begin(&mut self, grant: Grant, if_unknown: IfUnknown) {
        if !self.executing.is_empty() {
            self.broken.get_or_insert("two at once".into());
        }
        if self.succeeded {
            self.broken.get_or_insert("done again".into());
        }
        if self.ghost {
            self.broken.get_or_insert("begun although it is settled".into());
        }
        if self.silent && if_unknown == IfUnknown::Refuse {
            self.broken.get_or_insert("begun again after one that never reported".into());
        }
        (self.silent, self.begun, self.last) = (true, self.begun + 1, Some(grant));
        self.executing.push(grant);
    }

    fn answer(&mut self, call: &ItemCall) -> Answer {
        match call {
            ItemCall::Read => Answer::Read(self.read()),
            ItemCall::ReadLease(lease, grant) => {
                let at = usize::from(lease.as_str() == "l1");
                let lives = self.flaw != Flaw::NobodyLives && self.leases[at] == Some(*grant);
                Answer::Lease(Ok(if lives { Alive::Yes } else { Alive::No }))
            }
            ItemCall::Cas { expected, entry } => Answer::Cas(self.cas(expected.as_ref(), entry)),
            ItemCall::ReadSettled(..) if self.flaw == Flaw::NeverLooksTwice => Answer::Settled(Ok(false)),
            ItemCall::ReadSettled(..) if self.chance(self.faults / 4) => Answer::Settled(Err(unreachable())),
            ItemCall::ReadSettled(..) => Answer::Settled(Ok(self.settled)),
            ItemCall::Remove(version) => {
                self.remove(&version.clone());
                Answer::Removed
            }
        }
    }

    fn remove(&mut self, version: &Version) {
        let there = self.cell.as_ref().is_some_and(|(now, _)| now == version);
        if there && !self.chance(self.faults) {
            (self.cell, self.removed) = (None, self.removed + 1);
        }
    }

    /// One step of a scheduler, which decides the slot or removes the record of a settled one.
    fn sweep(&mut self) {
        let over = |body: &[u8]| {
            let entry = Entry::decode(body).unwrap();
            entry.state == ItemState::Ok || entry.state == ItemState::Failed && entry.failures >= 3
        };
        match self.cell.clone() {
            // No run started it: it is dropped.
            None => self.settled |= self.chance(100),
            Some((version, body)) if over(&body) && (self.settled || self.flaw == Flaw::SweepsFirst) => {
                self.remove(&version);
            }
            Some((_, body)) => self.settled |= over(&body),
        }
    }
}

/// When the slot is due.
const AT: i64 = 10;

enum Answer {
    Read(Result<Option<Stored>, Failure>),
    Lease(Result<Alive, Failure>),
    Cas(Cas),
    Settled(Result<bool, Failure>),
    Removed,
}

fn unreachable() -> Failure {
    Failure::new(FailureKind::Unreachable, "lost")
}

/// None: the run is over.
fn step(world: &mut World, mut run: Run, if_unknown: IfUnknown) -> Option<Run> {
    run.stage = match run.stage {
        Stage::Opening(mut opening, call) => {
            if world.flaw == Flaw::StartsFirst && matches!(call, ItemCall::Cas { .. }) {
                world.begin(run.grant, if_unknown);
            }
            let next = match world.answer(&call) {
                Answer::Read(result) => opening.on_read(result),
                Answer::Lease(alive) => opening.on_lease(alive),
                Answer::Cas(result) => opening.on_cas(result),
                Answer::Settled(result) => opening.on_settled(result),
                Answer::Removed => opening.on_removed(),
            };
            match next {
                ItemNext::Call(call) => Stage::Opening(opening, call),
                // By the clock of its session it is too late to start the command.
                ItemNext::Done(Opened::Begun(..)) if run.stale => return None,
                ItemNext::Done(Opened::Begun(entry, version)) => {
                    if world.flaw != Flaw::StartsFirst {
                        world.begin(run.grant, if_unknown);
                    }
                    Stage::Executing(Own { entry, version, unrecorded: Vec::new() })
                }
                ItemNext::Done(_) => return None,
            }
        }
        Stage::Executing(own) => execute(world, own, run.grant),
        Stage::Stepping(mut own, step, mut amending, call) => {
            match world.amend(&mut amending, &call, run.grant) {
                ItemNext::Call(call) => Stage::Stepping(own, step, amending, call),
                ItemNext::Done(Amended::Done(entry, version)) => {
                    Stage::Executing(Own { entry, version, unrecorded: Vec::new() })
                }
                ItemNext::Done(_) => {
                    if world.flaw != Flaw::ForgetsItsSteps {
                        own.unrecorded.push(step);
                    }
                    Stage::Executing(own)
                }
            }
        }
        Stage::Closing(mut amending, call) => match world.amend(&mut amending, &call, run.grant) {
            ItemNext::Call(call) => Stage::Closing(amending, call),
            ItemNext::Done(_) => return None,
        },
    };
    Some(run)
}

/// One schedule: the broken promise, if any, and the final world.
fn schedule(seed: u64, flaw: Flaw, if_unknown: IfUnknown, slot: bool) -> (Option<String>, World) {
    let mut world = World { slot, ..World::new(seed, flaw) };
    let mut runs: Vec<Run> = Vec::new();
    for turn in 0..400 {
        if turn == 250 {
            world.faults = 0;
        }
        if let Some(lease) = (0..LEASES).find(|at| world.leases[*at].is_none()).filter(|_| world.chance(300))
        {
            let grant = Grant(world.ids.fresh());
            world.leases[lease] = Some(grant);
            let mut ask = ItemRequest { subject: subject(slot), ..ask(grant, lease, if_unknown) };
            world.tokens += 1;
            ask.claim.token = Token::new(world.tokens).unwrap();
            if flaw == Flaw::IgnoresTokens {
                ask.claim.token = Token::new(Token::MAX - world.tokens).unwrap();
            }
            if flaw == Flaw::SilenceIsFailure {
                ask.if_unknown = IfUnknown::Retry;
            }
            if flaw == Flaw::ForgetsDone {
                ask.keep = Some(Duration::ZERO);
            }
            let opening = Opening::new(ask, world.seed());
            runs.push(Run { grant, lease, stale: false, stage: Stage::Opening(opening, ItemCall::Read) });
        }
        if !world.late.is_empty() && world.chance(200) {
            let at = world.below(world.late.len() as u64) as usize;
            let Late { expected, body } = world.late.swap_remove(at);
            let _ = world.write(expected.as_ref(), &body);
        }
        if world.slot && world.chance(50) {
            world.sweep();
        }
        if runs.is_empty() {
            continue;
        }
        let at = world.below(runs.len() as u64) as usize;
        let mut run = runs.swap_remove(at);
        // It was frozen past the end of its lease, before it started the item, and does not know yet.
        if matches!(run.stage, Stage::Opening(..)) && !run.stale && world.chance(world.faults / 8) {
            (run.stale, world.leases[run.lease]) = (true, None);
        }
        let (grant, lease, stale) = (run.grant, run.lease, run.stale);
        let dies = world.chance(world.faults / 8);
        match Some(run).filter(|_| !dies).and_then(|run| step(&mut world, run, if_unknown)) {
            Some(run) => runs.push(run),
            // Its lease is free once it is released or expired.
            None => {
                world.executing.retain(|executing| *executing != grant);
                if !stale {
                    world.leases[lease] = None;
                }
            }
        }
    }
    (world.broken.take(), world)
}

const SCHEDULES: u64 = 2_000;

#[test]
fn an_item_is_done_once_whatever_happens() {
    let (mut done, mut begun, mut steps) = (0, 0, 0);
    for seed in 0..SCHEDULES {
        for if_unknown in [IfUnknown::Refuse, IfUnknown::Retry] {
            let (broken, world) = schedule(seed, Flaw::None, if_unknown, false);
            assert_eq!(broken, None, "seed {seed}, {if_unknown:?}");
            (begun, steps) = (begun + world.begun, steps + world.steps_done);
            done += u32::from(world.succeeded);
            // Without faults, the item is done in the end or has failed too often, unless it waits for a
            // person.
            let entry = world.cell.map(|(_, body)| Entry::decode(&body).unwrap());
            let settled = entry
                .is_some_and(|e| e.state == ItemState::Ok || e.state == ItemState::Failed && e.failures >= 3);
            assert!(settled || if_unknown == IfUnknown::Refuse, "seed {seed} never ends");
        }
    }
    println!("ledger: {} schedules, begun {begun} times, {steps} steps, done {done}", SCHEDULES * 2);
}

#[test]
fn a_slot_is_not_done_again_when_its_record_is_removed() {
    let (mut removed, mut begun) = (0, 0);
    for seed in 0..SCHEDULES {
        for if_unknown in [IfUnknown::Refuse, IfUnknown::Retry] {
            let (broken, world) = schedule(seed, Flaw::None, if_unknown, true);
            assert_eq!(broken, None, "seed {seed}, {if_unknown:?}");
            (removed, begun) = (removed + world.removed, begun + world.begun);
        }
    }
    assert!(removed > 1_000 && begun > 1_000, "{removed} removed, {begun} started");
    println!("slots: {} schedules, begun {begun} times, {removed} records removed", SCHEDULES * 2);
}

#[test]
fn broken_stores_and_rules_are_caught() {
    for flaw in [
        Flaw::NoCompare,
        Flaw::NobodyLives,
        Flaw::StartsFirst,
        Flaw::SilenceIsFailure,
        Flaw::ForgetsDone,
        Flaw::SweepsFirst,
        Flaw::NeverLooksTwice,
        Flaw::IgnoresTokens,
        Flaw::TakesItselfForAnother,
        Flaw::ForgetsItsSteps,
    ] {
        let caught = (0..SCHEDULES).find_map(|seed| {
            let slot = matches!(flaw, Flaw::SweepsFirst | Flaw::NeverLooksTwice);
            let one = |if_unknown| schedule(seed, flaw, if_unknown, slot).0;
            let broken = one(IfUnknown::Refuse).or_else(|| one(IfUnknown::Retry));
            broken.map(|what| (seed, what))
        });
        let (seed, what) = caught.unwrap_or_else(|| panic!("{flaw:?} was not caught"));
        println!("ledger: caught {flaw:?} after {}: {what}", seed + 1);
    }
}
