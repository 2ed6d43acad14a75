//! The steps and the end of an item that a run has started.

use leasehold_core::ledger::step_done;

use super::*;

/// A run's knowledge of its item.
pub struct Own {
    pub entry: Entry,
    pub version: Version,
    /// Steps that are done and may not be recorded.
    pub unrecorded: Vec<StepRecord>,
}

impl Own {
    /// The entry with every step that is done.
    fn whole(&self) -> Entry {
        let add = |entry: Entry, step: &StepRecord| {
            step_done(&entry, &step.name, step.output.clone()).unwrap_or(entry)
        };
        self.unrecorded.iter().fold(self.entry.clone(), add)
    }
}

impl World {
    /// No other run changes the record of a run that is at work.
    pub fn check_owner(&mut self, entry: &Entry) {
        let Some((_, body)) = &self.cell else { return };
        let now = Entry::decode(body).unwrap();
        let lives = now.state == ItemState::Started && self.executing.contains(&now.claim.grant);
        let ours = entry.claim.grant == now.claim.grant && entry.state != ItemState::Unknown;
        if lives && !ours {
            self.broken.get_or_insert("a living run was written over".into());
        }
    }

    pub fn check_steps(&mut self, entry: &Entry) {
        match self.cell.as_ref().map(|(_, body)| Entry::decode(body).unwrap()) {
            // The record was removed because the slot is settled.
            None => self.steps.clear(),
            Some(before) if entry.claim.grant == before.claim.grant => {
                if entry.state == ItemState::Started && before.state != ItemState::Started {
                    self.broken.get_or_insert("how it ended was undone".into());
                }
            }
            Some(_) => {}
        }
        let names: BTreeSet<String> = entry.steps.iter().map(|step| step.name.clone()).collect();
        if !self.steps.is_subset(&names) {
            self.broken.get_or_insert("a step that was recorded is lost".into());
        }
        self.steps = names;
    }

    /// A step's command is executed.
    fn do_step(&mut self, name: &str) {
        if self.steps.contains(name) {
            self.broken.get_or_insert("a step was done again after it was recorded".into());
        }
        self.steps_done += 1;
    }

    fn amending(&mut self, version: Version, entry: Entry) -> (Amending, ItemCall) {
        let new = if self.flaw == Flaw::TakesItselfForAnother { Amending::new } else { Amending::by_run };
        let mut amending = new(version, entry, self.seed());
        let call = amending.start();
        (amending, call)
    }

    /// One call of a run that changes its item. The run gives up when its time is over.
    pub fn amend(&mut self, amending: &mut Amending, call: &ItemCall, grant: Grant) -> ItemNext<Amended> {
        let answer = self.answer(call);
        let failed = matches!(&answer, Answer::Cas(Cas::Unknown(_)) | Answer::Read(Err(_)));
        if failed && self.chance(300) {
            return ItemNext::Done(Amended::Failed(unreachable()));
        }
        let next = match answer {
            Answer::Read(result) => amending.on_read(result),
            Answer::Cas(result) => amending.on_cas(result),
            Answer::Lease(_) | Answer::Settled(_) | Answer::Removed => panic!("{call:?}"),
        };
        if matches!(next, ItemNext::Done(Amended::Superseded(_))) && self.last == Some(grant) {
            self.broken.get_or_insert("overtaken by itself".into());
        }
        next
    }
}

/// The next step of the command, or its end.
pub fn execute(world: &mut World, own: Own, grant: Grant) -> Stage {
    let whole = own.whole();
    let to_do = ["a", "b"].into_iter().find(|name| whole.steps.iter().all(|step| step.name != *name));
    if let Some(name) = to_do.filter(|_| world.chance(600)) {
        world.do_step(name);
        let next = step_done(&whole, name, None).unwrap();
        let step = next.steps.last().cloned().unwrap();
        let (amending, call) = world.amending(own.version.clone(), next);
        return Stage::Stepping(own, step, amending, call);
    }
    world.executing.retain(|executing| *executing != grant);
    let failed = world.chance(300);
    let state = if failed { ItemState::Failed } else { ItemState::Ok };
    let (amending, call) = world.amending(own.version, finish(&whole, state, ending(failed.into())));
    Stage::Closing(amending, call)
}
