//! Firestore when it refuses, stays silent, answers late, or is not Firestore at all.

use std::io::{Read, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::stores::FailureKind::{self, Denied, Unreachable, Unusable};
use leasehold::stores::{BatchWrite, Cas, Failure, Version};
use pollster::block_on;

use crate::firestore::{KEY, cas, fresh, fresh_url, read, store, write};
use crate::firestore_double::{Double, Fault, Flaw, Reply, Server, error};

/// What an answer must come to: for a create, for an update, and for a read. None is a conflict.
type Row = (u16, &'static str, &'static str, [Option<FailureKind>; 3]);

fn all(kind: FailureKind) -> [Option<FailureKind>; 3] {
    [Some(kind); 3]
}

/// The HTTP codes are right for some and wrong for others: they must not matter.
fn table() -> Vec<Row> {
    let no_database = "The database (default) does not exist for project demo-leasehold";
    let datastore = "The Cloud Firestore API is not available for Firestore in Datastore Mode database x";
    vec![
        (409, "ALREADY_EXISTS", "Document already exists", [None, None, Some(Unreachable)]),
        (500, "ALREADY_EXISTS", "", [None, None, Some(Unreachable)]),
        (400, "FAILED_PRECONDITION", "the stored version does not match", [None, None, Some(Unusable)]),
        (200, "FAILED_PRECONDITION", "", [None, None, Some(Unusable)]),
        (400, "FAILED_PRECONDITION", datastore, all(Unusable)),
        (404, "NOT_FOUND", "No document to update: x", [Some(Unusable), None, Some(Unusable)]),
        (404, "NOT_FOUND", no_database, all(Unusable)),
        (409, "ABORTED", "Too much contention on these documents", all(Unreachable)),
        (412, "ABORTED", "", all(Unreachable)),
        (429, "RESOURCE_EXHAUSTED", "Quota exceeded", all(Unreachable)),
        (504, "DEADLINE_EXCEEDED", "", all(Unreachable)),
        (503, "UNAVAILABLE", "", all(Unreachable)),
        (500, "INTERNAL", "", all(Unreachable)),
        (409, "INTERNAL", "", all(Unreachable)),
        (499, "CANCELLED", "", all(Unreachable)),
        (500, "UNKNOWN", "", all(Unreachable)),
        (409, "SOMETHING_NEW", "", all(Unreachable)),
        (409, "", "", all(Unreachable)),
        (401, "UNAUTHENTICATED", "Request had invalid authentication credentials", all(Denied)),
        (403, "PERMISSION_DENIED", "Missing or insufficient permissions", all(Denied)),
        (400, "INVALID_ARGUMENT", "badly asked", all(Unusable)),
    ]
}

fn kind_of(cas: &Cas) -> Option<FailureKind> {
    match cas {
        Cas::Conflict => None,
        Cas::Unknown(failure) => {
            sentence(failure);
            Some(failure.kind)
        }
        Cas::Written { .. } => panic!("a refused write was taken for one that landed"),
    }
}

/// Every message ends like one, and names the database or the server.
fn sentence(failure: &Failure) {
    let message = &failure.message;
    assert!(message.ends_with('.') && !message.contains("..") && !message.contains('\n'), "{message}");
    assert!(message.contains("demo-leasehold") || message.contains("127.0.0.1"), "{message}");
}

#[test]
fn refusals_are_known_by_their_names() {
    let double = Double::new(Flaw::None);
    let mut store = store(&fresh_url(&double.endpoint()));
    let version = write(&mut store, KEY, None, b"1");
    for (http, status, words, [creates, updates, _]) in table() {
        for (key, expected, want) in [("leases/new", None, creates), (KEY, Some(&version), updates)] {
            double.fault(Fault::Say(http, error(http, status, words)));
            let got = cas(&mut store, key, expected, b"2");
            assert_eq!(kind_of(&got), want, "{http} {status} {words}: {got:?}");
            if status == "RESOURCE_EXHAUSTED" {
                assert!(format!("{got:?}").contains("back-pressure"), "{got:?}");
            }
        }
        double.fault(Fault::Say(http, error(http, status, words)));
        let got = block_on(store.remove(KEY, &version));
        assert_eq!(kind_of(&got), updates, "{http} {status} {words}: {got:?}");
    }
    assert_eq!(read(&mut store, KEY).unwrap().version, version);
    assert_eq!(read(&mut store, "leases/new"), None);
}

#[test]
fn refused_reads_say_why() {
    for (http, status, words, [.., want]) in table() {
        let body = error(http, status, words);
        // Answers that are streamed wrap the error in a list.
        for body in [format!("[{body}]"), body] {
            let server = Server::new(move |_| Reply::Answer(http, body.clone()));
            let mut store = store(&fresh_url(&format!("http://{}", server.address)));
            let found = block_on(store.read(KEY)).unwrap_err();
            sentence(&found);
            assert_eq!(Some(found.kind), want, "{http} {status}: {found:?}");
            let listed = block_on(store.list("", "", 9)).unwrap_err();
            assert_eq!(listed.kind, found.kind);
        }
    }
}

/// What is not Firestore: a proxy's page, a sign-in page, JSON about something else.
#[test]
fn whatever_else_answers_is_not_taken_for_firestore() {
    let page = "<html>Sign in to the guest network</html>";
    for (http, body, want) in [
        (200, page, Unusable),
        (302, page, Unusable),
        (403, page, Unusable),
        (407, "", Unusable),
        // Google's own front ends speak HTML when they have a bad moment.
        (502, page, Unreachable),
        (503, "", Unreachable),
        (409, "by a proxy", Unreachable),
        (429, "slow down", Unreachable),
        (200, "", Unusable),
        (200, "{}", Unusable),
        (200, "[]", Unusable),
        (200, "null", Unusable),
        (200, "[{\"found\":{}}]", Unusable),
        (200, "[{\"missing\":\"another\"}]", Unusable),
        (200, "[{\"missing\":\"projects/1/databases/(default)/documents/t/leases%2Fsite\"}]", Unusable),
        (200, "{\"writeResults\":[]}", Unusable),
        (200, "{\"writeResults\":[{}]}", Unusable),
        (200, "{\"writeResults\":[{\"updateTime\":5}]}", Unusable),
        (200, "{\"writeResults\":[{\"updateTime\":\"v1\"},{\"updateTime\":\"v1\"}]}", Unusable),
        // It says that it wrote and that nothing changed.
        (200, "{\"writeResults\":[{\"updateTime\":\"v0\"}]}", Unusable),
        (418, "{}", Unreachable),
    ] {
        let server = Server::new(move |_| Reply::Answer(http, body.into()));
        let mut store = store(&fresh_url(&format!("http://{}", server.address)));
        let found = block_on(store.read(KEY)).unwrap_err();
        assert_eq!(found.kind, want, "{http} {body}: {found:?}");
        let v0 = Version("v0".into());
        let got = cas(&mut store, KEY, Some(&v0), b"x");
        assert_eq!(kind_of(&got), Some(want), "{http} {body}: {got:?}");
        let two =
            [1, 2].map(|n| BatchWrite { key: format!("{n}"), expected: None, write: fresh(), body: vec![] });
        for got in block_on(store.cas_many(&two)) {
            assert_eq!(kind_of(&got), Some(want), "{http} {body}: {got:?}");
        }
    }
}

#[test]
fn redirects_are_not_followed() {
    let elsewhere = Arc::new(AtomicUsize::new(0));
    let visits = Arc::clone(&elsewhere);
    let trap = Server::new(move |_| {
        visits.fetch_add(1, Ordering::SeqCst);
        Reply::Answer(200, "[]".into())
    });
    let to = format!("http://{}/v1/x", trap.address);
    let server = Server::new(move |_| Reply::Redirect(to.clone()));
    let mut store = store(&fresh_url(&format!("http://{}", server.address)));
    assert_eq!(block_on(store.read(KEY)).unwrap_err().kind, Unusable);
    assert_eq!(kind_of(&cas(&mut store, KEY, None, b"x")), Some(Unusable));
    assert_eq!(elsewhere.load(Ordering::SeqCst), 0);
}

#[test]
fn a_server_that_is_not_there_or_not_safe_is_told_apart() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut nobody = store(&fresh_url(&format!("http://{closed}")));
    let found = block_on(nobody.read(KEY)).unwrap_err();
    assert_eq!(found.kind, Unreachable);
    assert!(found.message.contains("refused"), "{}", found.message);
    assert_eq!(kind_of(&cas(&mut nobody, KEY, None, b"x")), Some(Unreachable));
    // Speaks, but no TLS.
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut unsafe_ = store(&fresh_url(&format!("https://{}", plain.local_addr().unwrap())));
    let speaking = thread::spawn(move || {
        let (mut stream, _) = plain.accept().unwrap();
        // What is said before anything was asked is still no greeting of TLS.
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        drop(stream.read_to_end(&mut Vec::new()));
    });
    unsafe_.limit_calls(Duration::from_secs(20));
    let found = block_on(unsafe_.read(KEY)).unwrap_err();
    assert_eq!(found.kind, Unusable, "{}", found.message);
    assert!(found.message.contains("not safe"), "{}", found.message);
    speaking.join().unwrap();
    // Takes calls and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut waiting = store(&fresh_url(&format!("http://{}", silent.local_addr().unwrap())));
    waiting.limit_calls(Duration::from_millis(50));
    assert_eq!(block_on(waiting.read(KEY)).unwrap_err().kind, Unreachable);
    assert!(matches!(cas(&mut waiting, KEY, None, b"x"), Cas::Unknown(_)));
}

/// A write whose answer was lost is unknown, whether it landed or not; what is stored tells.
#[test]
fn lost_answers_and_late_writes_are_unknown() {
    let double = Double::new(Flaw::None);
    let url = fresh_url(&double.endpoint());
    let (mut ours, mut theirs) = (store(&url), store(&url));
    let mut version = write(&mut ours, KEY, None, b"start");
    for round in 0..50 {
        let body = format!("lost {round}");
        double.fault(Fault::LoseReply);
        assert_eq!(kind_of(&cas(&mut ours, KEY, Some(&version), body.as_bytes())), Some(Unreachable));
        let now = read(&mut ours, KEY).unwrap();
        assert_eq!(now.body, body.as_bytes());
        // The same again would look like a conflict, and is one.
        assert_eq!(cas(&mut ours, KEY, Some(&version), body.as_bytes()), Cas::Conflict);
        version = now.version;

        double.fault(Fault::LoseRequest);
        assert_eq!(kind_of(&cas(&mut ours, KEY, Some(&version), b"never")), Some(Unreachable));
        assert_eq!(read(&mut ours, KEY).unwrap().version, version);

        // Cut off, seen not to have landed, and landing all the same.
        double.fault(Fault::LandLate);
        assert_eq!(kind_of(&cas(&mut ours, KEY, Some(&version), b"late")), Some(Unreachable));
        assert_eq!(read(&mut ours, KEY).unwrap().version, version);
        if round % 2 == 0 {
            double.land();
            assert_eq!(read(&mut ours, KEY).unwrap().body, b"late");
            assert_eq!(cas(&mut ours, KEY, Some(&version), b"stale"), Cas::Conflict);
        } else {
            // Somebody else was first: then it comes too late for good.
            let taken = write(&mut theirs, KEY, Some(&version), b"theirs");
            double.land();
            assert_eq!(read(&mut ours, KEY).unwrap().version, taken);
        }
        version = read(&mut ours, KEY).unwrap().version;
    }
}

/// An answer that comes after its call was given up belongs to no other call.
#[test]
fn a_late_answer_is_not_the_next_calls() {
    let double = Double::new(Flaw::None);
    let mut store = store(&fresh_url(&double.endpoint()));
    write(&mut store, KEY, None, b"0");
    let other = write(&mut store, "leases/other", None, b"other");
    let mut struck = 0;
    for round in 0..50 {
        let version = read(&mut store, KEY).unwrap().version;
        double.fault(Fault::ReplyLate);
        store.limit_calls(Duration::from_millis(100));
        let got = cas(&mut store, KEY, Some(&version), format!("{round}").as_bytes());
        store.limit_calls(Duration::from_secs(20));
        // On a busy machine the request may not even have arrived; then the fault must hit no other.
        struck += usize::from(double.calm() == 0 && matches!(got, Cas::Unknown(_)));
        double.land();
        // A write's answer taken for this one's would be a success.
        assert_eq!(cas(&mut store, "leases/other", None, b"x"), Cas::Conflict);
        assert_eq!(read(&mut store, "leases/other").unwrap().version, other);
        if struck == 5 {
            return;
        }
    }
    panic!("only {struck} answers came late");
}

/// The password of a URL that is refused is in no message.
#[test]
fn secrets_in_a_url_are_not_repeated() {
    const CANARY: &str = "c4n4ry-s3cret";
    for url in [
        format!("firestore://user:{CANARY}@demo/leases"),
        format!("firestore://demo/leases?password={CANARY}"),
        format!("firestore://demo/leases?database={CANARY}!"),
        format!("firestore://demo/leases?endpoint=https://u:{CANARY}@h"),
        format!("firestore://demo/leases/{CANARY}"),
    ] {
        let Err(refused) = leasehold::stores::open(&url) else { panic!("{url} opened") };
        assert!(!format!("{refused} {refused:?}").contains(CANARY), "{refused:?}");
    }
}
