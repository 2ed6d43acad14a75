//! Every write that lands must be one that a server of our protocol would have accepted.

use leasehold_core::record::LeaseRecord;
use leasehold_core::rules::Rules;
use leasehold_core::session::lease_key;
use leasehold_core::write_policy::{Illegal, WriteOffer, legal};

use crate::faults::Fault;
use crate::mutants::Mutant;
use crate::world::{Request, World};

impl<R: Rules> World<R> {
    pub(crate) fn check_legal(&mut self, request: &Request, body: &[u8], record: &LeaseRecord) {
        // A broken rule makes illegal writes by design. One write in eight is checked, chosen by its
        // nanosecond: to check all of them would make the simulator slow.
        if self.mutant != Mutant::None || !self.now.is_multiple_of(8) {
            return;
        }
        let reading = self.store.read(request.lease, self.now);
        let met = |fault: Fault| self.met.0[fault as usize] > 0;
        // A session may force, or see that a holder on its host is dead. A server sees neither.
        let admin = met(Fault::Forced) || self.config.evidence;
        let verdict = legal(&WriteOffer {
            key: &lease_key(&record.lease),
            old: reading.stored.as_ref().map(|stored| stored.body.as_slice()),
            age: reading.stored.as_ref().and_then(|stored| stored.age),
            resolution: self.config.timing.clock.resolution,
            instance: &reading.instance,
            admin,
            write: record.write,
            new: body,
        });
        let clock_moved =
            [Fault::StepBack, Fault::WildStep, Fault::WildDrift, Fault::Failover, Fault::AgeLost];
        let excused = match verdict {
            Ok(_) => true,
            // The session looked before the change and wrote after it: it gets a conflict.
            Err(Illegal::Instance) => met(Fault::Restart) || met(Fault::Failover),
            // The store's clock shows less time than when the session looked.
            Err(Illegal::Held | Illegal::Early) => clock_moved.into_iter().any(met),
            Err(_) => false,
        };
        if !excused {
            let body = String::from_utf8_lossy(body).into_owned();
            self.violation.get_or_insert(format!("an illegal write ({verdict:?}): {body}"));
        }
    }
}
