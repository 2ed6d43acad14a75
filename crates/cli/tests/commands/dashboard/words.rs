//! What the pages say of things that are seldom.

use std::io::{Read, Write};
use std::time::Duration;

use leasehold::clock;
use leasehold::core::ids::{Token, WriteId};
use leasehold::core::ledger::job_record::JobRecord;
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::run_log::{LogEvent, LogRecord, RefusedWrite};
use leasehold::random;
use leasehold::run_log::{Scope, Window, creation, newest};
use leasehold::stores::{BatchWrite, Cas};
use pollster::block_on;
use rustix::process::Signal;

use super::night::{log, open, record, run};
use super::{Answer, Board};
use crate::world::{World, until};

fn now() -> u64 {
    clock::wall().as_secs()
}

/// Replaces or creates a record.
fn put(url: &str, key: &str, body: &[u8]) {
    let mut store = open(url);
    let version = block_on(store.read(key)).unwrap().map(|stored| stored.version);
    let written = block_on(store.cas(key, version.as_ref(), WriteId(random::seed()), body));
    assert!(matches!(written, Cas::Written { .. }), "{key}: {written:?}");
}

#[test]
fn records_that_say_little() {
    let board = Board::new();
    let why = |record: LogRecord| LogRecord { reason: Some("max-run".into()), ..record };
    log(
        &board.url,
        &[
            LogRecord { exit: None, ..run(now() - 9, LogEvent::Failed, "somehow", "vm", 1, 5) },
            run(now() - 3, LogEvent::Ok, "somehow", "vm", 2, 5),
            why(run(now() - 8, LogEvent::Killed, "stopped", "vm", 1, 5)),
            record(now() - 7, LogEvent::Unsealed, "unfenced", "vm", 1),
            record(now() - 6, LogEvent::Refused, "somewhere", "vm", 1),
            LogRecord {
                reason: Some("not-sealed".into()),
                target: Some(RefusedWrite { target: "file:out".into(), fence: Token::new(1) }),
                ..record(now() - 6, LogEvent::Refused, "unnamed", "vm", 2)
            },
            run(now() - 5, LogEvent::Failed, "twice", "vm", 1, 5),
            run(now() - 4, LogEvent::Failed, "twice", "vm", 2, 5),
        ],
    );
    let newer = record(now() - 3, LogEvent::Ok, "newer", "vm", 1);
    put(&board.url, &creation(&newer).key, br#"{"leasehold_log": 99}"#);
    put(&board.url, "jobs/broken", b"{}");
    put(&board.url, "leases/broken", b"{}");
    board.world.write("leasehold.toml", "[[job]]\nname = \"late\"\nevery = \"1h\"\nrun = [\"true\"]\n");
    board.run(&["tick"]).is(0, "");
    let page = board.get("/").is(200).has(&[
        "The command failed on vm after 5s.",
        "A later run was ok.",
        "Its command was stopped on vm after 5s: max-run.",
        "a target could not be fenced",
        "came with token 1, and its target did not take that",
        "came to file:out with token 2: that run did not name file:out",
        "twice failed2 times",
        "The record of the lease broken cannot be used",
        "Records of jobs that cannot be read: 1",
    ]);
    assert!(!page.body.contains("late is overdue"));
    board.get("/log").is(200).has(&["written by a newer version"]);
    // Two days ago a scheduler looked for the last time.
    let mut store = open(&board.url);
    let stored = block_on(store.read("jobs/late")).unwrap().unwrap();
    let mut job = JobRecord::decode(&Name::new("late").unwrap(), &stored.body).unwrap();
    job.settled -= 2 * 86_400;
    put(&board.url, "jobs/late", &job.encode());
    until("what is overdue", || {
        let page = board.get("/").has(&["leasehold why broken"]);
        page.body.contains("late is overdue").then_some(())
    });
    let json = board.get("/api/v1/jobs").json();
    assert!(
        json["jobs"][0]["standing"] == "overdue" && json["jobs"][0]["overdue_s"].as_f64() > Some(80_000.0)
    );
    board.run(&["pause", "late"]).is(0, "");
    until("what is paused", || board.get("/").body.contains("late is paused").then_some(()));
    board.get("/").has(&["leasehold resume late", "paused on"]);
}

/// A run is one run, also if another one took over before it told its end.
#[test]
fn a_run_that_reports_late_is_counted_once() {
    let board = Board::new();
    let lost = run(now() - 5, LogEvent::Lost, "site", "vm", 1, 60);
    let taken = LogRecord { id: lost.id, ..record(now() - 20, LogEvent::Unknown, "site", "vm", 1) };
    let never = record(now() - 9, LogEvent::Unknown, "other", "vm", 1);
    log(&board.url, &[lost, taken, never]);
    let count = |path: &str, of: &str| board.get(path).is(200).json()[of]["unknown"].as_u64();
    assert_eq!(count("/api/v1/now", "counts_24h"), Some(1));
    assert_eq!(count("/api/v1/jobs/site", "counts"), Some(0));
    assert_eq!(board.get("/api/v1/jobs/site").json()["runs"], 1);
    assert_eq!(count("/api/v1/jobs/other", "counts"), Some(1));
    let page = board.get("/").is(200).has(&["other began and never reported"]);
    assert!(!page.body.contains("site began"));
}

/// Whatever `check` lists is on the page, and nothing else is.
#[test]
fn what_needs_a_person_is_the_same_for_check() {
    let board = Board::new();
    let ago = |seconds: u64| now() - seconds;
    log(
        &board.url,
        &[
            run(ago(90), LogEvent::Lost, "lost", "vm", 1, 5),
            record(ago(80), LogEvent::Unsealed, "unfenced", "vm", 1),
            record(ago(80), LogEvent::Refused, "refused", "vm", 1),
            run(ago(70), LogEvent::Killed, "killed", "vm", 1, 5),
            run(ago(60), LogEvent::Failed, "failed", "vm", 1, 5),
            // The control: later runs were ok.
            run(ago(50), LogEvent::Lost, "well", "vm", 1, 5),
            record(ago(50), LogEvent::Refused, "well", "vm", 1),
            record(ago(50), LogEvent::Unsealed, "well", "vm", 2),
            run(ago(40), LogEvent::Ok, "well", "vm", 3, 5),
            record(ago(30), LogEvent::Skipped, "well", "vm", 3),
        ],
    );
    let fails = ["once", "often", "--attempts", "1", "--", "false"];
    assert_eq!([board.run(&fails).code, board.run(&fails).code], [1, 79]);
    board.run(&["once", "gone", "--ttl", "1s", "--", "sh", "-c", "kill -9 $PPID"]).is(137, "");
    board.run(&["acquire", "by-hand", "--ttl", "1s"]).token();
    let check = || {
        let told = board.run(&["--json", "check"]);
        let kind = |line: &str| {
            let found: serde_json::Value = serde_json::from_str(line).unwrap();
            (found["job"].as_str().unwrap().to_owned(), found["kind"].as_str().unwrap().to_owned())
        };
        told.out.lines().map(kind).collect::<std::collections::BTreeMap<_, _>>()
    };
    let expected = [
        ("by-hand", "unknown"),
        ("failed", "failed"),
        ("gone.once", "unknown"),
        ("killed", "killed"),
        ("lost", "lost"),
        ("often.once", "quarantined"),
        ("refused", "refused"),
        ("unfenced", "not_fenced"),
    ];
    let expected = expected.map(|(job, kind)| (job.to_owned(), kind.to_owned())).into();
    until("what check lists", || (check() == expected).then_some(()));
    until("the same on the page", || {
        let json = board.get("/api/v1/now").is(200).json();
        let titles = |list: &str| -> Vec<String> {
            let list = json[list].as_array().unwrap().iter();
            list.map(|matter| matter["title"].as_str().unwrap().to_owned()).collect()
        };
        let needs = titles("needs");
        let told = |job: &String| needs.iter().any(|title| title.contains(job.as_str()));
        let notes = titles("notes");
        assert!(notes.iter().all(|note| note.contains("well")), "{notes:?}");
        (needs.len() == expected.len() && expected.keys().all(told)).then_some(())
    });
    board.get("/").has(&["no run has taken the lease since"]);
}

/// What waits for a person does not go away with the day, nor behind many skips.
#[test]
fn what_is_old_or_covered_is_told_all_the_same() {
    let world = World::new();
    let url = world.store("sqlite");
    let fails = ["--store", &url, "once", "k", "--attempts", "1", "--", "false"];
    assert_eq!([world.run(&fails).code, world.run(&fails).code], [1, 79]);
    // As if that had been three days ago.
    let mut store = open(&url);
    let day = Window::last(Duration::from_secs(600));
    let (found, _) =
        newest(store.as_mut(), Scope::Job(&Name::new("k.once").unwrap()), day, 9, |_| true).unwrap();
    for entry in found {
        let stored = block_on(store.read(&entry.key)).unwrap().unwrap();
        assert!(matches!(block_on(store.remove(&entry.key, &stored.version)), Cas::Written { .. }));
        let old = entry.record.unwrap();
        log(&url, &[LogRecord { at: old.at - Duration::from_secs(3 * 86_400), ..old }]);
    }
    let skips = (0..20).map(|n| record(now() - 1 - n, LogEvent::Skipped, "site", "vm", 2));
    let skips: Vec<LogRecord> =
        skips.chain([run(now() - 60, LogEvent::Failed, "site", "vm", 1, 5)]).collect();
    log(&url, &skips);
    let board = Board::of(world, url, &[]);
    board.get("/").is(200).has(&[
        "2 things need you.",
        "leasehold retry k",
        "site failed",
        "No later run was ok.",
    ]);
}

#[test]
fn the_same_on_another_store() {
    let world = World::new();
    let url = world.store("dir");
    let fails = ["--store", &url, "once", "k", "--attempts", "1", "--", "false"];
    assert_eq!([world.run(&fails).code, world.run(&fails).code], [1, 79]);
    let board = Board::of(world, url, &[]);
    board.get("/").is(200).has(&["leasehold retry k"]);
    board.get("/log").is(200).has(&["quarantined", "key k"]);
    board.get("/job/k.once").is(200).has(&["1 failed"]);
}

#[test]
fn where_there_is_more_than_is_shown() {
    let board = Board::new();
    board.run(&["run", "one", "--", "true"]).is(0, "");
    let mut store = open(&board.url);
    let stored = block_on(store.read("leases/one")).unwrap().unwrap();
    let free = LeaseRecord::decode(&Name::new("one").unwrap(), &stored.body).unwrap();
    let copies: Vec<BatchWrite> = (0..500)
        .map(|n| {
            let (lease, write) = (Name::new(&format!("lease-{n}")).unwrap(), WriteId(random::seed()));
            let key = format!("leases/{lease}");
            let body = LeaseRecord { lease, write, ..free.clone() }.encode();
            BatchWrite { key, expected: None, write, body }
        })
        .collect();
    assert!(block_on(store.cas_many(&copies)).iter().all(|cas| matches!(cas, Cas::Written { .. })));
    let failures: Vec<LogRecord> =
        (0..30).map(|n| run(now() - 60 - n, LogEvent::Failed, &format!("bad-{n}"), "vm", 1, 5)).collect();
    log(&board.url, &failures);
    let jobs: String =
        (0..60).map(|n| format!("[[job]]\nname = \"job-{n}\"\nevery = \"1h\"\nrun = [\"true\"]\n")).collect();
    board.world.write("leasehold.toml", &jobs);
    board.run(&["tick"]).is(0, "");
    board.get("/").is(200).has(&[
        "and 480 free leases more",
        "These are the first 500 by name",
        "and 10 jobs more",
        "and 10 more in the log",
    ]);
    assert_eq!(board.get("/api/v1/now").json()["more_leases"], true);
    board.get("/timeline").is(200).has(&["and 10 more in the log"]);
    let many: Vec<LogRecord> =
        (0..10_001).map(|n| run(now() - 60 - n, LogEvent::Ok, "often", "vm", 20_000 - n, 1)).collect();
    log(&board.url, &many);
    board.get("/job/often").is(200).has(&["only the newest 10000 were read"]);
}

/// A lease of a job that is not among the first by name is shown all the same.
#[test]
fn the_lease_of_a_job_is_found_among_many() {
    let board = Board::new();
    board.run(&["acquire", "zebra", "--ttl", "1h"]).token();
    board.world.write("leasehold.toml", "[[job]]\nname = \"zebra\"\nevery = \"1h\"\nrun = [\"true\"]\n");
    board.run(&["tick"]).is(0, "");
    let mut store = open(&board.url);
    let stored = block_on(store.read("leases/zebra")).unwrap().unwrap();
    let held = LeaseRecord::decode(&Name::new("zebra").unwrap(), &stored.body).unwrap();
    let copies: Vec<BatchWrite> = (0..501)
        .map(|n| {
            let (lease, write) = (Name::new(&format!("a-{n}")).unwrap(), WriteId(random::seed()));
            let key = format!("leases/{lease}");
            let body = LeaseRecord { lease, write, hold: None, ..held.clone() }.encode();
            BatchWrite { key, expected: None, write, body }
        })
        .collect();
    assert!(block_on(store.cas_many(&copies)).iter().all(|cas| matches!(cas, Cas::Written { .. })));
    let leases = board.get("/api/v1/now").is(200).json()["leases"].clone();
    assert_eq!((leases[0]["lease"].as_str(), leases[0]["state"].as_str()), (Some("zebra"), Some("held")));
    assert_eq!(leases.as_array().unwrap().len(), 501);
}

/// A store that takes connections and never answers: so many may wait, and not for ever.
#[test]
fn a_store_that_hangs_holds_nobody_for_long() {
    let world = World::new();
    let url = world.store("sqlite");
    let mut behind =
        world.start(&["--store", &url, "--json", "serve", "--store-api", "--listen", "127.0.0.1:0"]);
    let told: serde_json::Value = serde_json::from_str(&behind.line()).unwrap();
    let board = Board::of(World::new(), format!("http://{}", told["listen"].as_str().unwrap()), &[]);
    behind.signal(Signal::STOP);
    let since = clock::boot_time();
    let mut asking: Vec<_> = (0..70)
        .map(|_| {
            let mut stream = board.connect();
            let request =
                format!("GET /api/v1/log HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", board.address);
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut reasons: Vec<String> = asking
        .iter_mut()
        .map(|stream| {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            let answer = Answer::of(&bytes).is(503);
            answer.json()["reason"].as_str().unwrap().to_owned()
        })
        .collect();
    assert!(clock::boot_time().since(since) < Duration::from_secs(40));
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons, ["busy", "failed"]);
    // Nothing was ever known.
    board.get("/").is(503).has(&["The store has not answered yet, so nothing is known."]);
    behind.signal(Signal::CONT);
    // The last look may be a second old.
    until("an answer", || (board.get("/").status == 200).then_some(()));
    board.get("/").is(200).has(&["Nothing needs you."]);
}
