//! Google's credentials. They come from the environment, so each test starts this binary again with its own
//! environment. Only the store's own tests can send credentials to a server on this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::backends::remote::Remote;

/// The variable with the server's address; set only in a child process.
const SERVER: &str = "LEASEHOLD_TEST_CHILD_SERVER";
const CANARY: &str = "c4n4ry";

/// Runs one test of this module again with only these variables, and returns its output.
fn again(test: &str, variables: &[(&str, &str)]) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", &format!("backends::firestore::store::tests::{test}"), "--nocapture"]);
    child.env_clear().env("HOME", "/nonexistent").envs(variables.iter().copied());
    let output = child.output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

/// A store that uses a server on this machine as if it were Google's.
fn store(server: &str) -> Remote<FirestoreStore> {
    of_project("demo", server)
}

fn of_project(project: &str, server: &str) -> Remote<FirestoreStore> {
    let url = format!("firestore://{project}/leases?endpoint=http://{server}");
    let config = Config { emulator: false, ..Config::parse(&url, None).unwrap() };
    Remote::new(FirestoreStore { connection: FirestoreConnection::new(config) })
}

/// A metadata server and a Firestore in one. Each token is valid for three calls.
fn serve(calls: &Arc<Mutex<Vec<String>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let calls = Arc::clone(calls);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, calls) = (stream.unwrap(), Arc::clone(&calls));
            thread::spawn(move || while let Some(()) = exchange(&stream, &calls) {});
        }
    });
    server
}

fn exchange(stream: &std::net::TcpStream, calls: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let from = head.len();
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
        if let Some(value) = head[from..].to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let lower = head.to_lowercase();
    let mut calls = calls.lock().unwrap();
    let (status, answer) = if lower.starts_with("get /none/") {
        (404, json!({ "error": CANARY }))
    } else if let Some(rest) = lower.strip_prefix("get /v1/projects/") {
        database(rest.split('/').next().unwrap_or_default())
    } else if lower.contains("metadata-flavor: google") {
        calls.push("token".into());
        let number = calls.iter().filter(|call| *call == "token").count();
        (
            200,
            json!({ "access_token": format!("{CANARY}-{number}"), "expires_in": 3600, "token_type": "Bearer" }),
        )
    } else {
        let bearer = lower.lines().find_map(|line| line.strip_prefix("authorization: bearer "));
        let bearer = bearer.unwrap_or("none").to_owned();
        let used = calls.iter().filter(|call| **call == bearer).count();
        calls.push(bearer.clone());
        let body: Value = serde_json::from_slice(&body).ok()?;
        if used < 3 && !lower.contains("/projects/shut/") {
            (200, json!([{ "missing": body["documents"][0], "readTime": "2026-11-15T23:28:25.368402Z" }]))
        } else {
            let words = format!("{bearer} is not known");
            (401, json!({ "error": { "code": 401, "status": "UNAUTHENTICATED", "message": words } }))
        }
    };
    let answer = answer.to_string();
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", answer.len());
    (&mut &*stream).write_all((head + &answer).as_bytes()).ok()
}

/// The description of a project's database.
fn database(project: &str) -> (u16, Value) {
    match project {
        "native" => (200, json!({ "type": "FIRESTORE_NATIVE", "locationId": "eur3" })),
        "exposed" => {
            let state = "DELETE_PROTECTION_DISABLED";
            (200, json!({ "type": "FIRESTORE_NATIVE", "locationId": "eur3", "deleteProtectionState": state }))
        }
        "old" => (200, json!({ "type": "DATASTORE_MODE", "locationId": "eur3" })),
        "closed" => (403, json!({ "error": { "code": 403, "status": "PERMISSION_DENIED" } })),
        _ => (404, json!({ "error": { "code": 404, "status": "NOT_FOUND", "message": "no such project" } })),
    }
}

#[test]
fn the_database_is_asked_what_it_is() {
    if let Ok(server) = std::env::var(SERVER) {
        for project in ["native", "exposed", "old", "closed", "absent"] {
            let said = pollster::block_on(of_project(project, &server).examine());
            let verdicts = said.map(|all| all.iter().map(|r| (r.about, r.verdict)).collect::<Vec<_>>());
            println!("{project}: {verdicts:?}");
        }
        return;
    }
    let server = serve(&Arc::default());
    let metadata = [(SERVER, &*server), ("GCE_METADATA_HOST", &server), ("GCE_METADATA_IP", &server)];
    let said = again("the_database_is_asked_what_it_is", &metadata);
    for line in [
        "native: Ok([(\"pace\", Good), (\"database\", Good)])",
        "exposed: Ok([(\"pace\", Good), (\"database\", Good), (\"deletion\", Weak)])",
        "old: Ok([(\"pace\", Good), (\"database\", Unsafe)])",
        "closed: Ok([(\"pace\", Good)])",
        "absent: Err(Failure { kind: Unusable",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn tokens_come_from_the_machine_and_are_kept() {
    if let Ok(server) = std::env::var(SERVER) {
        let mut store = store(&server);
        for call in 0..7 {
            println!("{call}: {:?}", pollster::block_on(store.read("leases/x")));
        }
        println!("{:?}", pollster::block_on(of_project("shut", &server).read("leases/x")));
        return;
    }
    let calls = Arc::default();
    let server = serve(&calls);
    let said = again(
        "tokens_come_from_the_machine_and_are_kept",
        &[(SERVER, &server), ("GCE_METADATA_HOST", &server), ("GCE_METADATA_IP", &server)],
    );
    let tokens: Vec<String> = (1..=3).map(|number| format!("{CANARY}-{number}")).collect();
    let [first, second, third] = [0, 1, 2].map(|n| tokens[n].as_str());
    // One token for three calls and a fourth that is refused; then another token.
    let want = ["token", first, first, first, first, "token", second, second, second, "token", third];
    assert_eq!(*calls.lock().unwrap(), want, "{said}");
    assert_eq!(said.matches("Ok(None)").count(), 6, "{said}");
    // A token that worked before has expired; one that never worked is refused.
    assert!(said.contains("3: Err(Failure { kind: Unreachable"), "{said}");
    assert_eq!(said.matches("kind: Denied").count(), 1, "{said}");
    assert!(!said.contains(CANARY) && said.contains("UNAUTHENTICATED: *** is not known"), "{said}");
}

#[test]
fn credentials_that_cannot_be_used_are_not_repeated() {
    if let Ok(server) = std::env::var(SERVER) {
        let mut store = store(&server);
        println!("read: {:?}", pollster::block_on(store.read("leases/x")));
        println!("cas: {:?}", pollster::block_on(store.cas("leases/x", None, WriteId(1), b"x")));
        return;
    }
    let calls = Arc::default();
    let server = serve(&calls);
    let path = std::env::temp_dir().join(format!("leasehold-{:032x}.json", crate::random::seed()));
    let path = path.to_str().unwrap();
    let key = "-----BEGIN PRIVATE KEY-----\nc4n4ry\n-----END PRIVATE KEY-----\n";
    let account = json!({ "type": "service_account", "private_key": key, "private_key_id": CANARY, "client_email": CANARY });
    let files = [
        ("GOOGLE_APPLICATION_CREDENTIALS", None, "do not exist"),
        ("GOOGLE_APPLICATION_CREDENTIALS", Some(CANARY.to_owned()), "neither"),
        ("GOOGLE_APPLICATION_CREDENTIALS", Some(format!("{{\"type\":\"{CANARY}\"}}")), "neither"),
        ("GOOGLE_APPLICATION_CREDENTIALS", Some(format!("{{\"type\":{{\"{CANARY}\":1}}}}")), "neither"),
        ("GOOGLE_APPLICATION_CREDENTIALS", Some(account.to_string()), "damaged"),
        ("GOOGLE_SERVICE_ACCOUNT", Some(format!("\"{CANARY}\"")), "neither"),
    ];
    for (variable, content, why) in files {
        if let Some(content) = &content {
            std::fs::write(path, content).unwrap();
        }
        let said =
            again("credentials_that_cannot_be_used_are_not_repeated", &[(SERVER, &server), (variable, path)]);
        let _ = std::fs::remove_file(path);
        assert_eq!(said.matches("kind: Unusable").count(), 2, "{content:?}: {said}");
        assert!(said.contains(why) && !said.contains(CANARY), "{content:?}: {said}");
        assert!(said.contains("cas: Unknown"), "{said}");
    }
    // The key itself is in the environment, and there is no metadata server.
    let name = "credentials_that_cannot_be_used_are_not_repeated";
    let said = again(name, &[(SERVER, &server), ("GOOGLE_SERVICE_ACCOUNT_KEY", CANARY)]);
    assert!(said.contains("neither") && !said.contains(CANARY), "{said}");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let said =
        again(name, &[(SERVER, &server), ("GCE_METADATA_HOST", &closed), ("GCE_METADATA_IP", &closed)]);
    assert_eq!(said.matches("kind: Unreachable").count(), 2, "{said}");
    assert!(said.contains("gcloud auth application-default login"), "{said}");
    // A machine without a service account.
    let none = format!("{server}/none");
    let said = again(name, &[(SERVER, &server), ("GCE_METADATA_HOST", &none), ("GCE_METADATA_IP", &none)]);
    assert_eq!(said.matches("kind: Denied").count(), 2, "{said}");
    assert!(said.contains("no service account") && !said.contains(CANARY), "{said}");
    assert_eq!(*calls.lock().unwrap(), [""; 0], "nothing is asked without credentials");
}

/// As docs/stores.md says.
#[test]
fn the_shortest_lease_is_what_is_told() {
    use leasehold_core::timing::TimingWishes;
    let store = FirestoreStore::new("firestore://demo/leases?endpoint=http://127.0.0.1:1").unwrap();
    let with = |millis| {
        let ttl = Some(Duration::from_millis(millis));
        crate::stores::timing(TimingWishes { ttl, ..TimingWishes::default() }, &store)
    };
    with(9_200).unwrap();
    with(9_100).unwrap_err();
}
