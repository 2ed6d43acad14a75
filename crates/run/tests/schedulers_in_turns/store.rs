//! A store in which every call waits for its turn, and may go wrong.

use async_trait::async_trait;
use leasehold::backends::memory::MemoryStore;
use leasehold::core::ids::WriteId;
use leasehold::core::ledger::Entry;
use leasehold::core::ledger::job_record::JobRecord;
use leasehold::core::store::{Cas, Failure, FailureKind, Stored, Version};
use leasehold::stores::{Listed, Store, StoreFacts};
use pollster::block_on;

use crate::flaws::{Flaw, altered, merged};
use crate::turns::{Call, Late, Me, Role, State};

pub struct Turned {
    pub me: Me,
    memory: MemoryStore,
    /// What a list was answered with before.
    snapshot: Option<Vec<Listed>>,
}

impl Me {
    pub fn store(&self) -> Turned {
        Turned { memory: self.stage.memory.clone(), me: self.clone(), snapshot: None }
    }
}

fn lost() -> Failure {
    Failure::new(FailureKind::Unreachable, "no answer")
}

fn is_job(key: &str) -> bool {
    key.starts_with("jobs/")
}

/// A record in a few words, for people.
fn brief(body: &[u8]) -> String {
    if let Ok(JobRecord { settled, open, paused, dropped, .. }) = JobRecord::decode_any(body) {
        let ranges = dropped.iter().map(|r| {
            let counting = if r.counting { "?" } else { "" };
            format!("{}..{}={}{counting} {}", r.first, r.last, r.count, r.why.word())
        });
        let paused = paused.map(|paused| paused.until);
        return format!(
            "settled {settled}, open {open:?}, {:?}, paused {paused:?}",
            ranges.collect::<Vec<_>>()
        );
    }
    let entry =
        Entry::decode(body).map(|e| format!("{} {} by {}", e.state.word(), e.attempt, e.claim.holder.pid));
    entry.unwrap_or_default()
}

fn told(answer: &Cas) -> &'static str {
    match answer {
        Cas::Written { .. } => "",
        Cas::Conflict => "conflict: ",
        Cas::Unknown(_) => "no answer: ",
    }
}

impl State {
    fn call(&mut self, actor: usize, verb: &'static str, key: &str) {
        let (key, clock, said) = (key.to_owned(), self.clock, String::new());
        self.trace.push(Call { actor, verb, key, clock, said });
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if self.tracing
            && let Some(call) = self.trace.last_mut()
        {
            call.said = what();
        }
    }
}

/// Makes a write, and has it watched.
fn apply(
    state: &mut State,
    memory: &mut MemoryStore,
    actor: usize,
    key: &str,
    expected: Option<&Version>,
    write: Option<(WriteId, &[u8])>,
) -> Cas {
    let before = block_on(memory.read(key)).unwrap();
    let mut body = write.map(|(_, body)| body.to_vec());
    let mut expected = expected.cloned();
    let now = before.as_ref().map(|stored| stored.version.clone());
    match (state.flaw, write) {
        (Flaw::PutsJobs, Some(_)) if is_job(key) => expected = now,
        (Flaw::PutsSlots, Some(_)) if key.starts_with("slots/") => expected = now,
        (Flaw::AccountsTwice, Some((id, wanted))) if is_job(key) && expected != now => {
            let both = before.as_ref().and_then(|there| merged(there, wanted, id));
            if both.is_some() {
                (expected, body) = (now, both);
            }
        }
        (Flaw::LosesRetries, Some((id, _))) if is_job(key) && state.role(actor) == Role::Operator => {
            let version = Version(id.to_string());
            return Cas::Written { version, store_time: None };
        }
        (Flaw::ForgetsOpen, Some((_, wanted))) if is_job(key) => {
            body = Some(altered(wanted, |job_record| job_record.open.clear()));
        }
        (Flaw::ForgetsRanges, Some((_, wanted))) if is_job(key) => {
            body = Some(altered(wanted, |job_record| job_record.dropped.clear()));
        }
        (Flaw::KeepsWithdrawn, None) if matches!(state.role(actor), Role::Run(..)) => {
            return expected.map_or(Cas::Conflict, |version| Cas::Written { version, store_time: None });
        }
        _ => {}
    }
    let answer = match (write, &body) {
        (Some((id, _)), Some(body)) => block_on(memory.cas(key, expected.as_ref(), id, body)),
        _ => expected.map_or(Cas::Conflict, |version| block_on(memory.remove(key, &version))),
    };
    if matches!(answer, Cas::Written { .. }) {
        let role = state.role(actor);
        let State { watch, plan, clock, .. } = state;
        let before = before.map(|stored| stored.body);
        watch.landed(actor, *clock, key, before.as_deref(), body.as_deref(), plan, role);
    }
    answer
}

/// A write that nobody waits for any more.
pub fn land(state: &mut State, memory: &MemoryStore, late: &Late) {
    let write = late.write.as_ref().map(|(id, body)| (*id, body.as_slice()));
    state.call(late.actor, "lands late", &late.key);
    let answer = apply(state, &mut memory.clone(), late.actor, &late.key, late.expected.as_ref(), write);
    state.say(|| format!("{}{}", told(&answer), write.map_or_else(String::new, |(_, body)| brief(body))));
}

impl Turned {
    fn begin(&self, verb: &'static str, key: &str) {
        self.me.turn();
        self.me.stage.lock().call(self.me.id, verb, key);
    }

    /// Whether a call that changes nothing gets no answer.
    fn fails(&self) -> bool {
        let mut state = self.me.stage.lock();
        let per_mille = if state.calm { 0 } else { state.faults / 3 };
        let fails = per_mille > 0 && state.dice.chance(per_mille);
        if fails {
            state.faulted(self.me.id);
            state.say(|| "no answer".into());
        }
        fails
    }

    fn write(&mut self, key: &str, expected: Option<&Version>, write: Option<(WriteId, &[u8])>) -> Cas {
        let (stage, actor) = (self.me.stage.clone(), self.me.id);
        let state = &mut *stage.lock();
        let fails = !state.calm && state.faults > 0 && state.dice.chance(state.faults);
        let what = || write.map_or_else(String::new, |(_, body)| brief(body));
        if !fails {
            let answer = apply(state, &mut self.memory, actor, key, expected, write);
            state.say(|| format!("{}{}", told(&answer), what()));
            return answer;
        }
        state.faulted(actor);
        let fate = state.dice.below(5);
        state.say(|| format!("no answer ({}): {}", ["lands", "later", "lost"][fate as usize / 2], what()));
        match fate {
            0..=1 => drop(apply(state, &mut self.memory, actor, key, expected, write)),
            2..=3 => state.late.push(Late {
                actor,
                key: key.to_owned(),
                expected: expected.cloned(),
                write: write.map(|(id, body)| (id, body.to_vec())),
            }),
            _ => {}
        }
        Cas::Unknown(lost())
    }
}

#[async_trait(?Send)]
impl Store for Turned {
    fn facts(&self) -> StoreFacts {
        self.memory.facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.begin("read", key);
        if self.fails() {
            return Err(lost());
        }
        let (flaw, role) = {
            let state = self.me.stage.lock();
            (state.flaw, state.role(self.me.id))
        };
        let found = self.memory.read(key).await?;
        let say = || found.as_ref().map_or_else(|| "nothing".into(), |stored| brief(&stored.body));
        self.me.stage.lock().say(say);
        Ok(match (flaw, role) {
            (Flaw::NothingIsSettled, Role::Run(..)) if is_job(key) => None,
            (Flaw::SweepsUnsettled, Role::Sweeper) if is_job(key) => found.map(|stored| {
                let all = |job_record: &mut JobRecord| {
                    (job_record.settled, job_record.open) = (i64::MAX, Vec::new());
                };
                Stored { body: altered(&stored.body, all), ..stored }
            }),
            _ => found,
        })
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.begin("cas", key);
        self.write(key, expected, Some((write, body)))
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.begin("list", prefix);
        if self.fails() {
            return Err(lost());
        }
        let flaw = self.me.stage.lock().flaw;
        if flaw == Flaw::StaleLists && prefix.starts_with("slots/") {
            let fresh = self.memory.list(prefix, "", limit).await?;
            let old = if self.me.below(3) == 0 { None } else { self.snapshot.clone() };
            self.snapshot = Some(old.clone().unwrap_or(fresh.clone()));
            let all = old.filter(|old| old.iter().all(|l| l.key.starts_with(prefix))).unwrap_or(fresh);
            return Ok(all.into_iter().filter(|listed| listed.key.as_str() > after).collect());
        }
        self.memory.list(prefix, after, limit).await
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.begin("remove", key);
        self.write(key, Some(version), None)
    }
}
