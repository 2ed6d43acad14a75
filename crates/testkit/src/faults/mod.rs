//! Fault suites for any store behind a network: sessions of the real code run through the proxy, which
//! loses answers, cuts connections and lets writes land late, while the truth is read past the proxy.
//!
//! A store's test makes a [`StoreBench`] and calls the suites:
//!
//! ```no_run
//! use leasehold_testkit::{faults::Bench, proxy::Proxy, server};
//! # fn store(_: &str) -> Box<dyn leasehold::stores::Store> { unimplemented!() }
//! let url = server("REDIS");
//! let proxy = Proxy::tcp(&url); // Proxy::http where the store speaks HTTP without TLS: more faults
//! let through = proxy.url(&url);
//! let bench = Bench::new("redis", &proxy, || store(&through), || store(&url));
//! bench.dropped(500).assert_clean(500);
//! bench.late(200).assert_clean(200);
//! bench.round_trips().assert_fewest();
//! ```
//!
//! The requests must carry the write id as text (32 hexadecimal digits) and no TLS (PostgreSQL: add
//! `?sslmode=disable`): that is how the proxy knows which one to hit. Where a store wants its own faults,
//! `proxy.arm_on` is the tool. Under `./test --long` ask for more: [`crate::count`].

mod aimed;
mod lane;
mod liar;
mod report;
mod round_trips;
mod worker;

use std::sync::Arc;
use std::thread;

use leasehold::random;
use leasehold::stores::Store;

use crate::proxy::Proxy;
use lane::{FaultRun, Lane};
pub use liar::{Liar, Lie};
pub use report::{FaultReport, Violation};
pub use round_trips::RoundTrips;

/// Leases worked on at the same time, and contenders for each.
const LANES: usize = 6;
const CONTENDERS: usize = 2;

/// What is done to the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultMode {
    /// Answers get lost after the write landed, or connections are cut before.
    Dropped,
    /// Writes are kept back and land later.
    Late,
}

type Factory<'a> = Box<dyn Fn() -> Box<dyn Store> + Sync + 'a>;

/// A store to be tried, through a proxy and past it.
pub struct StoreBench<'a> {
    name: String,
    proxy: &'a Proxy,
    through: Factory<'a>,
    direct: Factory<'a>,
}

impl<'a> StoreBench<'a> {
    /// `through` opens the store by way of the proxy, `direct` the same one past it. `name` becomes part
    /// of the names of the leases.
    pub fn new(
        name: &str,
        proxy: &'a Proxy,
        through: impl Fn() -> Box<dyn Store> + Sync + 'a,
        direct: impl Fn() -> Box<dyn Store> + Sync + 'a,
    ) -> Self {
        Self { name: name.into(), proxy, through: Box::new(through), direct: Box::new(direct) }
    }

    /// Claims, renewals and releases whose answer is lost, or which never arrive: this many.
    pub fn dropped(&self, faults: usize) -> FaultReport {
        self.run(FaultMode::Dropped, faults)
    }

    /// Claims, renewals and releases that land late: before the next look, before the next attempt, after
    /// it, or after the lease went on to somebody else. This many.
    pub fn late(&self, faults: usize) -> FaultReport {
        self.run(FaultMode::Late, faults)
    }

    /// Counts what each step costs on a warm connection.
    pub fn round_trips(&self) -> RoundTrips {
        round_trips::count(&self.name, self.proxy, (self.through)(), (self.direct)())
    }

    fn run(&self, mode: FaultMode, faults: usize) -> FaultReport {
        let run = Arc::new(FaultRun::new(mode, faults, self.proxy.shared()));
        let lanes: Vec<Arc<Lane>> = (0..LANES).map(|_| Arc::new(Lane::new(&self.name))).collect();
        thread::scope(|scope| {
            for lane in lanes.iter().cycle().take(LANES * CONTENDERS) {
                let (run, lane) = (run.clone(), lane.clone());
                scope.spawn(move || worker::work(&run, &lane, (self.through)(), (self.direct)()));
            }
        });
        let mut direct = (self.direct)();
        for lane in &lanes {
            lane.close(&run, direct.as_mut());
        }
        run.report()
    }
}

/// Fresh for every bench, so that old records are not in the way.
pub(crate) fn fresh_name(name: &str) -> String {
    format!("faults-{name}-{:08x}", random::seed() & 0xffff_ffff)
}
