//! How often a bucket is asked, and what is said when it cannot be used.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold::core::ids::WriteId;
use leasehold::core::name::Name;
use leasehold::core::timing::TimingWishes;
use leasehold::run_log::{self, Scope, Window, newest};
use leasehold::stores::{Cas, Failure, FailureKind, Landed, Store, Version, timing};
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server;

use super::{GcsDouble, Maker, Spot, fresh_prefix};

const KEY: &str = "leases/repo";
const CANARY: &str = "CANARYs3cretCANARYs3cretCANARYs3cretCANA";

fn cas(store: &mut dyn Store, expected: Option<&Version>) -> Cas {
    pollster::block_on(store.cas(KEY, expected, WriteId(leasehold::random::seed()), b"{}"))
}

fn read(store: &mut dyn Store) -> Failure {
    pollster::block_on(store.read(KEY)).unwrap_err()
}

/// What a provider promises is not said of a server that only speaks like it.
#[test]
fn another_endpoint_promises_for_itself() {
    let makers: [Maker; 3] = [Spot::s3, Spot::azure, Spot::google_at];
    for spot in makers.map(|make| make("http://127.0.0.1:1/x")) {
        let remarks = pollster::block_on(spot.open("leases").examine()).unwrap();
        let said = remarks.iter().find(|remark| remark.about == "durability").expect("a word about it");
        assert!(said.text.starts_with("http://127.0.0.1:1/x keeps"), "{}", said.text);
    }
}

/// Held is one read; an acquisition a read and a write; a renewal and a release one write each (that a
/// session makes these calls and no others is shown in `round_trips.rs`). All over one connection.
#[test]
fn a_record_is_one_request_more_and_a_day_is_listed_with_few() {
    let endpoint = server("S3");
    let proxy = Proxy::http(&endpoint);
    let mut store = Spot::s3(&proxy.url(&endpoint)).open(&fresh_prefix());
    let calls = crate::logged::released(store.as_mut(), || proxy.requests());
    assert_eq!(calls, 2, "the release, and the record");
    let day = 24 * 60;
    for minute in 1..=150 {
        run_log::write(store.as_mut(), &crate::logged::record("daily", minute * (day / 150) - 1)).unwrap();
    }
    let before = proxy.requests();
    let (job, window) = (Name::new("daily").unwrap(), Window::last(Duration::from_secs(day * 60)));
    let (found, more) = newest(store.as_mut(), Scope::Job(&job), window, 1000, |_| true).unwrap();
    assert_eq!((found.len(), more), (150, false));
    let asked = proxy.requests() - before;
    println!("150 records of one job and one day: {asked} requests");
    assert!(asked <= 3, "{asked}");
}

#[test]
fn every_call_is_one_request() {
    let double = GcsDouble::start();
    let makers: [Maker; 3] = [Spot::s3, Spot::azure, Spot::google_at];
    let endpoints = makers.into_iter().zip([server("S3"), server("AZURE"), double.endpoint()]);
    for (spot, endpoint) in endpoints {
        let proxy = Proxy::http(&endpoint);
        let mut store = spot(&proxy.url(&endpoint)).open(&fresh_prefix());
        assert_eq!(proxy.connections(), 0, "opening reaches nothing");
        assert_eq!(pollster::block_on(store.read(KEY)), Ok(None));
        assert_eq!(proxy.requests(), 1, "an absent record is one request");
        let Cas::Written { version, .. } = cas(store.as_mut(), None) else { panic!() };
        assert_eq!(proxy.requests(), 2, "a create is one request");
        let Cas::Written { .. } = cas(store.as_mut(), Some(&version)) else { panic!() };
        assert_eq!(proxy.requests(), 3, "an update is one request");
        assert!(pollster::block_on(store.read(KEY)).unwrap().is_some());
        assert_eq!(proxy.requests(), 4, "a record is one request");
        assert_eq!(proxy.connections(), 1);
    }
}

#[test]
fn wrong_credentials_are_denied() {
    // Azurite checks signatures.
    let mut spot = Spot::azure(&server("AZURE"));
    spot.vars = vec![("AZURE_STORAGE_ACCOUNT_KEY".into(), CANARY.into())];
    let failure = read(spot.open("x").as_mut());
    assert_eq!(failure.kind, FailureKind::Denied, "{failure:?}");
    let Cas::Unknown(failure) = cas(spot.open("x").as_mut(), None) else { panic!("written") };
    assert_eq!((failure.kind, failure.landed), (FailureKind::Denied, Landed::No), "{failure:?}");
    // ministack does not, so what S3 says is said for it.
    let s3 = server("S3");
    let proxy = Proxy::http(&s3);
    for (status, code) in [
        (403, "<Error><Code>SignatureDoesNotMatch</Code></Error>"),
        (403, "<Error><Code>RequestTimeTooSkewed</Code></Error>"),
        (400, "<Error><Code>ExpiredToken</Code></Error>"),
        (401, ""),
    ] {
        proxy.arm(Fault::Answer {
            status,
            after_landing: false,
            content_type: "application/xml",
            body: code,
        });
        let failure = read(Spot::s3(&proxy.url(&s3)).open("x").as_mut());
        assert_eq!(failure.kind, FailureKind::Denied, "{failure:?}");
    }
}

#[test]
fn no_credentials_are_denied() {
    let mut spot = Spot::s3(&server("S3"));
    spot.vars = vec![("AWS_METADATA_ENDPOINT".into(), "http://127.0.0.1:1".into())];
    let failure = read(spot.open("x").as_mut());
    assert!(
        failure.kind == FailureKind::Denied && failure.message.contains("AWS_ACCESS_KEY_ID"),
        "{failure:?}"
    );
    spot.vars = vec![("AWS_ACCESS_KEY_ID".into(), CANARY.into())];
    let failure = read(spot.open("x").as_mut());
    assert!(failure.kind == FailureKind::Denied && failure.message.contains("Only one of"), "{failure:?}");
}

#[test]
fn a_missing_bucket_is_said() {
    let double = GcsDouble::start();
    for mut spot in [Spot::s3(&server("S3")), Spot::azure(&server("AZURE")), Spot::google(&double)] {
        spot.bucket = "nosuchbucket".into();
        let mut store = spot.open("x");
        let listed = pollster::block_on(store.list("", "", 1)).unwrap_err();
        let Cas::Unknown(created) = cas(store.as_mut(), None) else { panic!() };
        for failure in [read(store.as_mut()), listed, created] {
            assert_eq!(failure.kind, FailureKind::Unusable, "{failure:?}");
            assert!(failure.message.contains("\"nosuchbucket\" does not exist"), "{failure:?}");
        }
    }
}

#[test]
fn what_cannot_be_reached_is_said() {
    let plain = server("S3").replacen("http://", "https://", 1);
    for (endpoint, kind) in [
        ("http://127.0.0.1:1", FailureKind::Unreachable),
        ("http://nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn", FailureKind::Unreachable),
        (plain.as_str(), FailureKind::Unusable),
    ] {
        let failure = read(Spot::s3(endpoint).open("x").as_mut());
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert!(failure.message.ends_with('.'), "{failure:?}");
    }
}

#[test]
fn secrets_are_in_no_message() {
    let (s3, azure) = (server("S3"), server("AZURE"));
    let proxy = Proxy::http(&s3);
    let mut said = String::new();
    for endpoint in [
        proxy.url(&s3),
        azure,
        "http://127.0.0.1:1".into(),
        "http://nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn".into(),
    ] {
        // Each with variables of its own: without any, a machine's metadata service would be asked.
        let cases: [(Maker, &[&str]); 5] = [
            (Spot::s3, &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]),
            (Spot::azure, &["AZURE_STORAGE_ACCOUNT_KEY"]),
            (Spot::azure, &["AZURE_STORAGE_SAS_KEY"]),
            (Spot::google_at, &["GOOGLE_SERVICE_ACCOUNT_KEY"]),
            (Spot::google_at, &["GOOGLE_SERVICE_ACCOUNT"]),
        ];
        for (spot, vars) in cases {
            let mut spot = spot(&endpoint);
            spot.vars = vars.iter().map(|n| ((*n).into(), CANARY.into())).collect();
            proxy.arm(Fault::answer(403, false));
            let mut store = spot.open("x");
            let answers = (pollster::block_on(store.read(KEY)), cas(store.as_mut(), None));
            said += &format!("{answers:?} {:?}\n", store.facts());
        }
    }
    assert!(!said.contains("CANARY"), "{said}");
    assert!(said.contains("does not let these credentials"), "{said}");
}

#[test]
fn another_programs_object_is_left_alone() {
    let (endpoint, prefix) = (server("S3"), format!("plain-{:032x}", leasehold::random::seed()));
    let mut stream = TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
    let body = "some notes of mine, which are longer than any mark of a removed record";
    write!(
        stream,
        "PUT /leases/{prefix}/{KEY} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut store = Spot::s3(&endpoint).open(&prefix);
    let failure = read(store.as_mut());
    assert!(failure.kind == FailureKind::Unusable && failure.message.contains("not written by Leasehold"));
    assert_eq!(cas(store.as_mut(), None), Cas::Conflict);
    assert_eq!(read(store.as_mut()), failure, "it was changed");
}

/// Google takes one write of an object a second.
#[test]
fn a_lease_too_short_for_the_store_is_refused() {
    let ttl = |spot: Spot, secs, heartbeat: Option<u64>| {
        let heartbeat = heartbeat.map(Duration::from_millis);
        let wishes = TimingWishes { ttl: Some(Duration::from_secs(secs)), heartbeat, grace: None };
        timing(wishes, spot.open("x").as_ref())
    };
    let google = || Spot::google_at("http://127.0.0.1:1");
    let why = ttl(google(), 9, Some(2_000)).unwrap_err();
    assert!(why.contains("at least 10s"), "{why}");
    assert!(ttl(google(), 60, Some(500)).unwrap_err().contains("heartbeat at least 1s"));
    assert!(ttl(google(), 30, None).is_ok());
    assert!(ttl(Spot::s3("http://127.0.0.1:1"), 9, Some(2_000)).is_ok());
}
