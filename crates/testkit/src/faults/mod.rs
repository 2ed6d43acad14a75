//! Fault suites for any store behind a network. Sessions of the real code run through the proxy, which loses
//! answers, cuts connections and lets writes land late. The suite reads the real state past the proxy.
//!
//! A store's test makes a [`StoreBench`] and calls the suites:
//!
//! ```no_run
//! use leasehold_testkit::{faults::StoreBench, proxy::Proxy, server};
//! # fn store(_: &str) -> Box<dyn leasehold::stores::Store> { unimplemented!() }
//! let url = server("REDIS");
//! let proxy = Proxy::tcp(&url); // Proxy::http where the store speaks HTTP without TLS: more faults
//! let through = proxy.url(&url);
//! let bench = StoreBench::new("redis", &proxy, || store(&through), || store(&url));
//! bench.dropped(500).assert_clean(500);
//! bench.late(200).assert_clean(200);
//! bench.round_trips().assert_fewest();
//! ```
//!
//! The requests must contain the write id as text (32 hexadecimal digits), by which the proxy finds the one to
//! hit. So they must not use TLS (PostgreSQL: add `?sslmode=disable`). For faults of one store only, use
//! `proxy.arm_on`. [`crate::count`] gives larger numbers under `./test --long`.

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

/// The number of leases, and of contenders for each.
const LANES: usize = 6;
const CONTENDERS: usize = 2;

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultMode {
    /// Answers get lost after the write landed, or connections are cut before.
    Dropped,
    /// Writes are held and land later.
    Late,
}

type Factory<'a> = Box<dyn Fn() -> Box<dyn Store> + Sync + 'a>;

/// A store to test, through a proxy and past it.
pub struct StoreBench<'a> {
    name: String,
    proxy: &'a Proxy,
    through: Factory<'a>,
    direct: Factory<'a>,
}

impl<'a> StoreBench<'a> {
    /// `through` opens the store through the proxy, `direct` the same store past it. `name` becomes part of the
    /// names of the leases.
    pub fn new(
        name: &str,
        proxy: &'a Proxy,
        through: impl Fn() -> Box<dyn Store> + Sync + 'a,
        direct: impl Fn() -> Box<dyn Store> + Sync + 'a,
    ) -> Self {
        Self { name: name.into(), proxy, through: Box::new(through), direct: Box::new(direct) }
    }

    /// This many claims, renewals and releases lose their answer, or never arrive.
    pub fn dropped(&self, faults: usize) -> FaultReport {
        self.run(FaultMode::Dropped, faults)
    }

    /// This many claims, renewals and releases land late: before the next read, before the next attempt, after
    /// it, or after another run took the lease.
    pub fn late(&self, faults: usize) -> FaultReport {
        self.run(FaultMode::Late, faults)
    }

    /// Counts the requests of each step on an open connection.
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

/// A new name for every bench, so that old records do not matter.
pub(crate) fn fresh_name(name: &str) -> String {
    format!("faults-{name}-{:08x}", random::seed() & 0xffff_ffff)
}
