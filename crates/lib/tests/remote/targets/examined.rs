//! Servers that have to show that they compare, when they are first sealed.

use std::thread;
use std::time::Duration;

use leasehold::core::fence::FenceMode;
use leasehold::targets::TargetError;
use leasehold::{clock, random};
use leasehold_testkit::count;
use leasehold_testkit::proxy::Fault;

use super::kit::{Maker, Site, at, bearer, seal, write};

const LONG: Duration = Duration::from_secs(30);

/// A later run seals at some moment of the exam: nobody is called a liar, and the later seal stays.
pub fn honest_servers_pass(site: &dyn Site) {
    let (mut good, mut overtaken, mut lasted) = (0, 0, Duration::from_millis(20));
    for round in 0..count(20, 200) {
        let token = 2 * round as u64 + 1;
        let begun = clock::boot_time();
        let done = thread::scope(|scope| {
            scope.spawn(move || {
                thread::park_timeout(lasted.mul_f64((random::seed() % 1000) as f64 / 1000.0));
                seal(site.open().as_mut(), token + 1);
            });
            let done = site.open().seal_examined(&bearer(token), FenceMode::Enforce);
            lasted = clock::boot_time().since(begun);
            done
        });
        match done {
            Ok(_) => good += 1,
            Err(TargetError::Refused(_)) => overtaken += 1,
            Err(error) => panic!("{}, round {round}: {error}", site.name()),
        }
        assert_eq!(at(site.open().as_mut()), (token + 1, 0), "{}", site.name());
        site.open().examine().unwrap_or_else(|e| panic!("{}: {e}", site.name()));
        assert_eq!(at(site.open().as_mut()), (token + 1, 0), "{}", site.name());
    }
    println!("{}: {good} passed, {overtaken} overtaken", site.name());
}

/// Found out with what was there already; without the exam the same server takes a stale write.
pub fn liars_are_refused(make: Maker<'_>) {
    for round in 0..20 {
        let site = make();
        if round % 2 == 1 {
            seal(site.open().as_mut(), 33);
            write(site.open().as_mut(), 33, "report").unwrap();
        }
        let before = site.text();
        let error = site.open().seal_examined(&bearer(34), FenceMode::Enforce).unwrap_err();
        assert!(matches!(error, TargetError::Unfit { .. }), "{error}");
        assert_eq!((at(site.open().as_mut()), site.text()), ((34, 0), before));
        let error = site.open().examine().unwrap_err();
        assert!(matches!(error, TargetError::Unfit { .. }), "{error}");
    }
    let site = make();
    let proxy = site.proxy();
    let mut zombie = site.open_at(&proxy.url(&site.server()));
    seal(zombie.as_mut(), 33);
    let strike = proxy.arm_on(site.swap_mark(), Fault::Pause);
    let late = thread::spawn(move || write(zombie.as_mut(), 33, "stale"));
    assert!(strike.wait(LONG), "it never wrote");
    seal(site.open().as_mut(), 34);
    write(site.open().as_mut(), 34, "fresh").unwrap();
    strike.release();
    late.join().unwrap().unwrap();
    assert_eq!(site.text().as_deref(), Some("stale"), "then there is nothing to find out");
}
