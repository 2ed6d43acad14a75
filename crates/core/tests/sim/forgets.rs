//! Names that are forgotten while sessions want their leases: looked at, announced and removed, each step a message of
//! its own, and each world with its own idea of how old a record must be.
//!
//! No message here is under way for as long as that, as none is for an hour in the real world.

use leasehold_core::forgotten::{Aged, Forgotten, Left, Names, may_forget};
use leasehold_core::record::LeaseRecord;
use leasehold_core::rules::{Rules, SeenToken};
use leasehold_core::store::Version;

use crate::faults::{AgeMode, Config, Fault, Loss, Rng, nanos};
use crate::mutants::Mutant;
use crate::world::{Event, World, trace};

/// How often somebody looks in one world.
const LOOKS: u64 = 24;

pub(crate) struct Forgets {
    /// Separate random numbers, so that worlds without forgetting do not change.
    rng: Rng,
    pub(crate) on: bool,
    /// The records, by lease.
    pub(crate) records: Vec<Vec<Forgotten>>,
}

/// The steps of one removal.
#[derive(Clone, Debug)]
pub(crate) enum Forget {
    Look(usize),
    Announce(usize, SeenToken, Version),
    Remove(usize, Version),
}

impl Forgets {
    pub(crate) fn new(seed: u64, config: &Config) -> Self {
        let mut rng = Rng::new(seed ^ 0x666f_7267_6574);
        let fits = !config.wild && config.loss == Loss::Keeps && config.age != AgeMode::Never;
        let on = rng.chance(400) && fits;
        Self { rng, on, records: vec![Vec::new(); config.leases] }
    }
}

/// How old a record must be, in nanoseconds.
fn least(config: &Config) -> u64 {
    nanos(config.timing.ttl) / 2 + nanos(config.timing.clock.jump)
}

impl<R: Rules> World<R> {
    /// How long a message may be under way.
    pub(crate) fn longest_delay(&self) -> u64 {
        if self.forgets.on { nanos(self.config.timing.ttl) / 4 } else { u64::MAX }
    }

    pub(crate) fn plan_forgets(&mut self) {
        if !self.forgets.on {
            return;
        }
        for _ in 0..LOOKS {
            let lease = usize::try_from(self.forgets.rng.below(self.names.len() as u64)).unwrap_or(0);
            let at = self.forgets.rng.below(self.config.quiet_at);
            self.after(at, Event::Forget(Forget::Look(lease)));
        }
    }

    pub(crate) fn forget(&mut self, step: Forget) {
        if self.quiet {
            return;
        }
        match step {
            Forget::Look(lease) => self.look_at_old(lease),
            Forget::Announce(lease, last, version) => self.announce(lease, last, version),
            Forget::Remove(lease, version) => self.remove_old(lease, &version),
        }
    }

    fn soon(&mut self, step: Forget) {
        // A person's process may be slow.
        let most = if self.forgets.rng.chance(500) { self.config.latency } else { self.ttl() };
        let wait = self.forgets.rng.below(most);
        self.after(wait, Event::Forget(step));
    }

    fn look_at_old(&mut self, lease: usize) {
        let reading = self.store.read(lease, self.now);
        let Some(stored) = reading.stored else { return };
        let Ok(record) = LeaseRecord::decode(&self.names[lease], &stored.body) else { return };
        let young = self.mutant == Mutant::ForgetsTooSoon;
        let aged = Aged {
            age: stored.age,
            resolution: self.config.timing.clock.resolution,
            instance: &reading.instance,
            least: std::time::Duration::from_nanos(if young { 0 } else { least(&self.config) }),
        };
        let last = match may_forget(&record, &aged, None) {
            Err(Left::Held | Left::Expired) if self.mutant == Mutant::ForgetsHeld => {
                SeenToken { epoch: record.epoch, token: record.token }
            }
            Ok(last) => last,
            Err(_) => return,
        };
        match self.mutant {
            Mutant::ForgetsUnannounced => self.soon(Forget::Remove(lease, stored.version.clone())),
            Mutant::AnnouncedAfterwards => self.remove_old(lease, &stored.version),
            _ => {}
        }
        self.soon(Forget::Announce(lease, last, stored.version));
    }

    fn announce(&mut self, lease: usize, last: SeenToken, version: Version) {
        if self.mutant == Mutant::ForgetsUnannounced {
            return;
        }
        let name = self.names[lease].clone();
        let names = if self.forgets.rng.chance(500) { Names::One(name) } else { Names::Under("s/".into()) };
        trace!(self, "forget: {names} is announced, {last:?}");
        let records = &mut self.forgets.records[lease];
        let found = records.iter().position(|record| record.names == names);
        let record = found.map_or_else(|| Forgotten::new(names), |at| records.remove(at));
        records.push(record.with(Some(last)));
        // Now and then its process is killed before it removes anything.
        if self.forgets.rng.chance(850) {
            self.soon(Forget::Remove(lease, version));
        }
    }

    fn remove_old(&mut self, lease: usize, version: &Version) {
        let blind = self.mutant == Mutant::ForgetsBlindly;
        if !blind && !self.store.matches(lease, Some(version)) {
            self.met.add(Fault::ForgetRaced);
            return;
        }
        trace!(self, "forget: the record of lease {lease} is removed");
        self.met.add(Fault::Forgotten);
        self.store.vanish(lease);
        self.ledger.forget(lease);
    }
}
