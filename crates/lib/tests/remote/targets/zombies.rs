//! The write of a holder is on its way, after its last check, when a successor seals without writing.

use std::thread;
use std::time::Duration;

use leasehold::targets::TargetError;
use leasehold_testkit::count;
use leasehold_testkit::proxy::Fault;

use super::kit::{Maker, assert_stale, at, bearer, seal, write};
use leasehold::targets::Content;

const OLD: &str = "report of token 33";
const STALE: &str = "stale report of token 33";
const LONG: Duration = Duration::from_secs(30);

/// The request waits in the proxy and arrives after the seal: refused, naming both tokens.
pub fn are_refused(make: Maker<'_>) {
    let rounds = count(3, 100);
    let (mut refused, mut visible) = (0, 0);
    let mut name = "";
    for _ in 0..rounds {
        let site = make();
        name = site.name();
        let proxy = site.proxy();
        let mut zombie = site.open_at(&proxy.url(&site.server()));
        seal(zombie.as_mut(), 33);
        write(zombie.as_mut(), 33, OLD).unwrap_or_else(|e| panic!("{e}"));
        let strike = proxy.arm_on(site.swap_mark(), Fault::Pause);
        let late = thread::spawn(move || write(zombie.as_mut(), 33, STALE));
        assert!(strike.wait(LONG), "{name}: it never wrote");
        seal(site.open().as_mut(), 34);
        strike.release();
        let error = late.join().unwrap().expect_err("a stale write was acknowledged");
        assert_stale(&error);
        refused += 1;
        visible += usize::from(site.text().as_deref() != Some(OLD));
        assert_eq!(at(site.open().as_mut()), (34, 0), "{name}");
    }
    println!(
        "{name}: {rounds} zombies frozen in flight, {refused} refused with both tokens, {visible} visible"
    );
    assert_eq!(visible, 0);
}

/// The answers are lost too: nobody can say whether it landed before the seal, and nobody does.
pub fn whose_answers_are_lost_say_so(make: Maker<'_>) {
    let rounds = count(2, 100);
    let (mut in_doubt, mut visible) = (0, 0);
    let mut name = "";
    for _ in 0..rounds {
        let site = make();
        name = site.name();
        let proxy = site.proxy();
        let mut zombie = site.open_at(&proxy.url(&site.server()));
        seal(zombie.as_mut(), 33);
        write(zombie.as_mut(), 33, OLD).unwrap_or_else(|e| panic!("{e}"));
        let lost = proxy.arm_on(site.swap_mark(), Fault::Hold { hang_up: true });
        let again = proxy.arm_on(site.swap_mark(), Fault::Pause);
        let late = thread::spawn(move || write(zombie.as_mut(), 33, STALE));
        assert!(again.wait(LONG), "{name}: it never tried again");
        seal(site.open().as_mut(), 34);
        lost.held().expect("the first attempt").deliver().unwrap();
        again.release();
        let error = late.join().unwrap().expect_err("a stale write was acknowledged");
        assert!(matches!(error, TargetError::InDoubt { .. }), "{name}: {error}");
        in_doubt += 1;
        visible += usize::from(site.text().as_deref() != Some(OLD));
        assert_eq!(at(site.open().as_mut()), (34, 0), "{name}");
    }
    println!("{name}: {rounds} zombies cut off in flight, {in_doubt} told unknown, {visible} visible");
    assert_eq!(visible, 0);
}

/// An answer that is lost is found again: the write is there once, and acknowledged once.
pub fn lost_answers_are_found_again(make: Maker<'_>) {
    let site = make();
    let proxy = site.proxy();
    let mut target = site.open_at(&proxy.url(&site.server()));
    seal(target.as_mut(), 33);
    let rounds = count(8, 100);
    let mut found = 0;
    for round in 1..=rounds {
        let fault = match round % 3 {
            0 => Fault::Cut,
            1 => Fault::DropReply,
            _ => Fault::HalfClose,
        };
        let strike = proxy.arm_on(site.swap_mark(), fault.clone());
        let text = format!("report {round}");
        let written = write(target.as_mut(), 33, &text).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert!(strike.struck());
        assert_eq!(written.seq, round as u64, "{fault:?}: written twice, or not at all");
        assert_eq!(site.text(), Some(text.clone()), "{fault:?}: acknowledged and not there");
        let again = target.write(&bearer(33), Some(written.seq), Content::Bytes(text.as_bytes())).unwrap();
        assert!(again.repeat && again.seq == written.seq, "{again:?}");
        found += 1;
    }
    assert_eq!(at(target.as_mut()), (33, rounds as u64));
    println!("{}: {rounds} answers lost, {found} writes there once", site.name());
}
