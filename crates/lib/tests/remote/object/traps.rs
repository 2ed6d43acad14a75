//! Answers that mislead. With a client library's defaults each of these was reproduced as "somebody
//! else was first" while the write was ours, or as a success that was none.

use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::ids::WriteId;
use leasehold::stores::{Cas, FailureKind, Store, Version};
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server;

use super::{Spot, fresh_prefix};

const KEY: &str = "leases/repo";
const CONFLICT: &str = "<Error><Code>ConditionalRequestConflict</Code></Error>";

/// A store behind a proxy.
struct Trap {
    proxy: Proxy,
    store: Box<dyn Store>,
    /// Past the proxy.
    beside: Box<dyn Store>,
}

impl Trap {
    fn new(spot: fn(&str) -> Spot, server: &str) -> Self {
        let (proxy, prefix) = (Proxy::http(server), fresh_prefix());
        let store = spot(&proxy.url(server)).open(&prefix);
        Self { proxy, store, beside: spot(server).open(&prefix) }
    }

    fn s3() -> Self {
        Self::new(Spot::s3, &server("S3"))
    }

    fn write(&mut self, expected: Option<&Version>, body: &str) -> Cas {
        let write = WriteId(leasehold::random::seed());
        pollster::block_on(self.store.cas(KEY, expected, write, body.as_bytes()))
    }

    fn written(&mut self, expected: Option<&Version>, body: &str) -> Version {
        match self.write(expected, body) {
            Cas::Written { version, .. } => version,
            other => panic!("{other:?}"),
        }
    }

    /// What is really there.
    fn truth(&mut self) -> Option<String> {
        let stored = pollster::block_on(self.beside.read(KEY)).unwrap();
        stored.map(|s| String::from_utf8(s.body).unwrap())
    }

    /// Whether that comes to be what is there; a server may take its time after the client was cut off.
    fn becomes(&mut self, body: &str) -> bool {
        let patience = boot_time().plus(Duration::from_secs(10));
        while boot_time() < patience {
            if self.truth().as_deref() == Some(body) {
                return true;
            }
        }
        false
    }

    /// A write under a fault, which must be made once and be told to be unclear.
    fn unclear(&mut self, fault: Fault, expected: Option<&Version>) -> (FailureKind, String) {
        let strike = self.proxy.arm_on(b"PUT ", fault.clone());
        let before = self.proxy.requests();
        let got = self.write(expected, "ours");
        assert!(strike.struck());
        assert_eq!(self.proxy.requests() - before, 1, "{fault:?}: it was tried again");
        match got {
            Cas::Unknown(failure) => (failure.kind, failure.message),
            other => panic!("{fault:?} on {expected:?} gave {other:?}"),
        }
    }
}

fn xml(status: u16, body: &'static str) -> Fault {
    Fault::Answer { status, after_landing: false, content_type: "application/xml", body }
}

#[test]
fn a_write_that_landed_is_never_somebody_elses() {
    for fault in [Fault::answer(500, true), Fault::answer(503, true), Fault::DropReply, Fault::HalfClose] {
        for (spot, server) in [(Spot::s3 as fn(&str) -> Spot, server("S3")), (Spot::azure, server("AZURE"))] {
            let mut trap = Trap::new(spot, &server);
            trap.unclear(fault.clone(), None);
            assert!(trap.becomes("ours"), "{fault:?}: the create landed");
            let found = pollster::block_on(trap.store.read(KEY)).unwrap().unwrap();
            let version = trap.written(Some(&found.version), "next");
            trap.unclear(fault.clone(), Some(&version));
            assert!(trap.becomes("ours"), "{fault:?}: the update landed");
        }
    }
}

#[test]
fn a_409_of_s3_decides_nothing() {
    let mut trap = Trap::s3();
    let (kind, message) = trap.unclear(xml(409, CONFLICT), None);
    assert_eq!(kind, FailureKind::Unreachable, "{message}");
    assert_eq!(trap.truth(), None);
    let version = trap.written(None, "first");
    trap.unclear(xml(409, CONFLICT), Some(&version));
    assert_eq!(trap.truth().as_deref(), Some("first"));
    trap.written(Some(&version), "second");
}

#[test]
fn azures_409_is_a_conflict_only_for_what_exists() {
    let mut trap = Trap::new(Spot::azure, &server("AZURE"));
    trap.unclear(xml(409, "<Error><Code>LeaseAlreadyPresent</Code></Error>"), None);
    trap.unclear(xml(409, ""), None);
    let version = trap.written(None, "first");
    assert_eq!(trap.write(None, "second"), Cas::Conflict);
    trap.unclear(xml(409, "<Error><Code>BlobAlreadyExists</Code></Error>"), Some(&version));
}

/// A lease of Azure's own on the blob: nothing has changed, so it is not a conflict that a look would explain.
#[test]
fn azures_412_is_a_conflict_only_for_a_condition() {
    let mut trap = Trap::new(Spot::azure, &server("AZURE"));
    let version = trap.written(None, "first");
    for code in ["LeaseIdMissing", "LeaseIdMismatchWithBlobOperation"] {
        let body = format!("<Error><Code>{code}</Code></Error>").leak();
        let (kind, message) = trap.unclear(xml(412, body), Some(&version));
        assert_eq!(kind, FailureKind::Unusable, "{message}");
        assert!(message.contains("Break that lease") && message.contains("nothing was written"), "{message}");
    }
    trap.unclear(xml(412, ""), Some(&version));
    trap.written(Some(&version), "second");
    assert_eq!(trap.write(Some(&version), "stale"), Cas::Conflict);
}

#[test]
fn a_condition_that_failed_is_a_conflict() {
    for (spot, server) in [(Spot::s3 as fn(&str) -> Spot, server("S3")), (Spot::azure, server("AZURE"))] {
        let mut trap = Trap::new(spot, &server);
        let old = trap.written(None, "first");
        trap.written(Some(&old), "second");
        assert_eq!(trap.write(Some(&old), "stale"), Cas::Conflict);
        assert_eq!(trap.write(None, "stale"), Cas::Conflict);
        assert_eq!(trap.truth().as_deref(), Some("second"));
    }
}

/// A proxy that sends a write twice makes a conflict of it; what is stored is ours all the same, and
/// carries our write id for the session to find.
#[test]
fn a_write_sent_twice_lands_once() {
    let mut trap = Trap::s3();
    for (before, body) in [(None, "first"), (Some("first"), "second")] {
        let expected = before.map(|_| pollster::block_on(trap.beside.read(KEY)).unwrap().unwrap().version);
        let strike = trap.proxy.arm_on(b"PUT ", Fault::Duplicate);
        assert_eq!(trap.write(expected.as_ref(), body), Cas::Conflict);
        assert!(strike.struck());
        assert_eq!(trap.truth().as_deref(), Some(body));
    }
}

#[test]
fn a_missing_bucket_is_no_conflict() {
    let mut trap = Trap::s3();
    let version = trap.written(None, "first");
    let gone = xml(404, "<Error><Code>NoSuchBucket</Code></Error>");
    let (kind, message) = trap.unclear(gone, Some(&version));
    assert!(kind == FailureKind::Unusable && message.contains("does not exist"), "{message}");
}

#[test]
fn too_many_requests_is_back_pressure() {
    let mut trap = Trap::s3();
    for fault in [Fault::answer(429, false), xml(503, "<Error><Code>SlowDown</Code></Error>")] {
        let (kind, message) = trap.unclear(fault, None);
        assert!(kind == FailureKind::Unreachable && message.contains("fewer requests"), "{message}");
    }
}

#[test]
fn a_web_page_is_no_store() {
    let mut trap = Trap::s3();
    let refused =
        Fault::Answer { status: 403, after_landing: false, content_type: "text/html", body: "<html>" };
    let moved = Fault::answer(302, false);
    for fault in [Fault::html(), refused.clone(), moved.clone()] {
        let (kind, message) = trap.unclear(fault, None);
        assert!(kind == FailureKind::Unusable && message.ends_with('.'), "{message}");
    }
    let plain = Fault::Answer { status: 404, after_landing: false, content_type: "text/plain", body: "nope" };
    for fault in [Fault::html(), refused, moved, plain] {
        let strike = trap.proxy.arm(fault.clone());
        let read = pollster::block_on(trap.store.read(KEY)).unwrap_err();
        assert!(strike.struck() && read.kind == FailureKind::Unusable, "{fault:?}: {read:?}");
        trap.proxy.arm(fault.clone());
        let list = pollster::block_on(trap.store.list("", "", 9)).unwrap_err();
        assert_eq!(list.kind, FailureKind::Unusable, "{fault:?}: {list:?}");
    }
    assert_eq!(trap.truth(), None);
    trap.written(None, "and then it works");
}

#[test]
fn a_silent_server_is_given_up_in_time_and_its_late_write_is_refused() {
    let mut trap = Trap::s3();
    let version = trap.written(None, "first");
    trap.store.limit_calls(Duration::from_millis(300));
    let strike = trap.proxy.arm_on(b"PUT ", Fault::Hold { hang_up: false });
    let begun = boot_time();
    assert!(matches!(trap.write(Some(&version), "late"), Cas::Unknown(_)));
    assert!(boot_time().since(begun) < Duration::from_secs(30));
    trap.store.limit_calls(Duration::from_secs(10));
    // The next call gets its own answer, not the late one.
    let found = pollster::block_on(trap.store.read(KEY)).unwrap().unwrap();
    assert_eq!((found.version.clone(), found.body.as_slice()), (version, &b"first"[..]));
    trap.written(Some(&found.version), "second");
    let held = strike.held().expect("the proxy kept it");
    held.deliver().unwrap();
    assert_eq!(trap.truth().as_deref(), Some("second"));
}

#[test]
fn a_store_that_comes_back_is_used_again() {
    let mut trap = Trap::s3();
    let version = trap.written(None, "first");
    trap.proxy.set_down(true);
    let down = pollster::block_on(trap.store.read(KEY)).unwrap_err();
    assert_eq!(down.kind, FailureKind::Unreachable, "{down:?}");
    assert!(matches!(trap.write(Some(&version), "lost"), Cas::Unknown(_)));
    trap.proxy.set_down(false);
    trap.written(Some(&version), "second");
}

/// Between two heartbeats a server hangs up on the idle connection; that must not cost a renewal.
#[test]
fn a_connection_closed_while_idle_is_not_used() {
    let mut trap = Trap::s3();
    let mut version = trap.written(None, "0");
    for _ in 0..20 {
        trap.proxy.cut_all();
        version = trap.written(Some(&version), "next");
    }
}
