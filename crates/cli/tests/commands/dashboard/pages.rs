//! What the pages show.

use std::time::Duration;

use leasehold::clock;
use leasehold::core::ids::WriteId;
use leasehold::core::ledger::Subject;
use leasehold::core::ledger::job_record::JobRecord;
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogRecord, RefusedWrite};
use leasehold::stores::Cas;
use pollster::block_on;
use rustix::process::Signal;

use super::night::{hold, log, open, record, run};
use super::{Board, words};
use crate::world::{World, until};

fn now() -> u64 {
    clock::wall().as_secs()
}

#[test]
fn an_empty_store_says_so() {
    let board = Board::new();
    board.get("/").is(200).has(&[
        "Nothing needs you.",
        "leasehold run hello -- sleep 60",
        "No schedule is known",
    ]);
    board.get("/jobs").is(200).has(&["No schedule is known", "Nothing ran"]);
    board.get("/timeline").is(200).has(&["No runs in this window"]);
    board.get("/log").is(200).has(&["There are no records in this time", "Look back 90 days"]);
    board.get("/log?only=lost").is(200).has(&["No record matches"]);
    board.get("/job/nobody").is(404).has(&["Nothing is known here"]);
    board.get("/nowhere").is(404).has(&["There is nothing under this address"]);
    board.get("/api/v1/nowhere").is(404).because("path");
    assert_eq!(board.get("/api/v1/jobs/nobody").is(404).json()["reason"], "absent");
    let now = board.get("/api/v1/now").is(200).json();
    assert_eq!((&now["leases"], &now["needs"]), (&serde_json::json!([]), &serde_json::json!([])));
}

/// Attention first, then leases, then slots; and each fact where it belongs.
#[test]
fn now_says_what_needs_a_person_first() {
    let board = Board::of_a_night();
    let page = board.get("/").is(200).has(&[
        "2 things need you.",
        "charges began and never reported",
        "leasehold retry --done charge-4711",
        "rorklab failed",
        "error: 503 from the origin",
        "A write of claudelab was refused",
        "git:origin main",
        "lost the lease of claudelab",
        "Slots of gemilab that were dropped: 3",
        "mac-mini/9034",
        "macbook/2391",
        "every 45m",
    ]);
    let at = |text: &str| page.body.find(text).unwrap_or_else(|| panic!("{text}"));
    assert!(at("Needs you") < at("Good to know") && at("Good to know") < at(">Leases<"));
    assert!(at(">Leases<") < at("Next slots"));
    let json = board.get("/api/v1/now").is(200).json();
    let held: Vec<&str> = json["leases"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|lease| lease["state"] == "held")
        .map(|lease| lease["lease"].as_str().unwrap())
        .collect();
    assert_eq!(held, ["antigravitylab", "gemilab"]);
    let commands: Vec<&str> = json["needs"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|need| need["commands"].as_array().unwrap())
        .map(|command| command["command"].as_str().unwrap())
        .collect();
    assert!(commands.contains(&"leasehold retry --done charge-4711"), "{commands:?}");
    assert_eq!(json["counts_24h"]["dropped"], 3);
    let jobs = json["jobs"].as_array().unwrap();
    assert!(jobs.len() == 4 && jobs.iter().all(|job| job["next"].is_string() && job["interval_s"] == 2700.0));
    // Decided, it needs nobody any more.
    let told = board.run(&["--json", "check"]);
    assert!(told.out.contains("retry --done charge-4711"), "{told:#?}");
    board.run(&["retry", "--done", "charge-4711"]).is(0, "");
    let told = board.run(&["--json", "check"]);
    assert!(!told.out.contains("charge"), "{told:#?}");
    until("nothing that needs anybody", || {
        let needs = board.get("/api/v1/now").json()["needs"].as_array().unwrap().len();
        (needs == 1).then_some(())
    });
}

#[test]
fn what_waits_for_a_person_is_told() {
    let board = Board::new();
    let fails = ["once", "k", "--attempts", "1", "--", "false"];
    assert_eq!([board.run(&fails).code, board.run(&fails).code], [1, 79]);
    board.get("/").is(200).has(&[
        "One thing needs you.",
        "k.once failed as often as it may",
        "leasehold retry k",
    ]);
}

#[test]
fn the_timeline_shows_machines_and_windows() {
    let board = Board::of_a_night();
    let page = board.get("/timeline").is(200).has(&[
        "mac-mini",
        "macbook",
        "sandbox-7",
        "nobody",
        "git:origin main refused",
    ]);
    assert!(page.body.contains("<svg") && !page.body.contains("style=\"") && !page.body.contains("<style"));
    board.get("/timeline?window=6h&name=rorklab").is(200).has(&["rorklab"]);
    let marks = |path: &str| {
        let json = board.get(path).is(200).json();
        let rows = json["lanes"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|lane| lane["rows"].as_array().unwrap().clone());
        rows.map(|row| row["marks"].as_array().unwrap().len()).sum::<usize>()
    };
    let (all, one, hours) = (
        marks("/api/v1/timeline"),
        marks("/api/v1/timeline?name=rorklab"),
        marks("/api/v1/timeline?window=6h"),
    );
    assert!(one > 0 && one < all && hours < all, "{all} {one} {hours}");
    for bad in ["window=1y", "name=Gemi+Lab"] {
        board.get(&format!("/timeline?{bad}")).is(400);
        board.get(&format!("/api/v1/timeline?{bad}")).is(400);
    }
}

#[test]
fn a_job_has_numbers_and_advice() {
    let board = Board::of_a_night();
    let json = board.get("/api/v1/jobs/claudelab").is(200).json();
    assert_eq!((json["counts"]["lost"].as_u64(), json["counts"]["refused"].as_u64()), (Some(1), Some(1)));
    assert_eq!((&json["advice"]["kind"], &json["ttl_known"]), (&"renewed".into(), &true.into()), "{json}");
    assert!(json["p50_s"].as_f64().unwrap() <= json["p95_s"].as_f64().unwrap());
    board.get("/job/claudelab").is(200).has(&[
        "Skip rate",
        "1 overlap",
        "90s is short: 1 of",
        "every 45m",
        "Writes refused",
    ]);
    // One run outlasted the interval.
    board.get("/job/antigravitylab").is(200).has(&[
        "1 longer than the interval",
        "90s is right:",
        "held by macbook/2391",
    ]);
    board.get("/job/charges").is(200).has(&["no advice yet:", "leasehold stats charges"]);
    // By hand, and nothing renews it.
    let held: Vec<LogRecord> =
        (1..=10).map(|n| run(now() - n * 600, LogEvent::Released, "by-hand", "vm", n, 300)).collect();
    log(&board.url, &held);
    board.get("/job/by-hand").is(200).has(&["8m to 10m, 1.5 to 2 times"]);
    // The lease is held now, with its own TTL.
    board.run(&["acquire", "by-hand", "--ttl", "1h"]).token();
    board.get("/job/by-hand").is(200).has(&["1h is long: use"]);
    // With another TTL in leasehold.toml another advice.
    let file = std::fs::read_to_string(board.world.path("leasehold.toml")).unwrap();
    board.world.write("leasehold.toml", &file.replace("offset = \"30m\"", "offset = \"30m\"\nttl = \"80m\""));
    board.get("/job/rorklab").is(200).has(&["1h20m is long:"]);
    // `stats` says the same, word for word.
    for job in ["claudelab", "gemilab", "antigravitylab", "rorklab", "charges", "by-hand"] {
        let page = board.get(&format!("/api/v1/jobs/{job}")).is(200).json();
        let stats = board.run(&["--json", "stats", job, "--since", "30d"]).is(0, "").json();
        for field in ["runs", "skips", "skip_percent", "p50_s", "p95_s", "worst_s"] {
            assert_eq!(page[field], stats[field], "{job} {field}");
        }
        let mut advice = page["advice"].clone();
        let says = advice.as_object_mut().unwrap().remove("says");
        assert_eq!((Some(&stats["advice"]), &stats["ttl"]), (says.as_ref(), &advice), "{job}");
        let count = |event: &str| page["counts"][event].as_u64().unwrap_or(0);
        for field in
            ["ok", "failed", "lost", "killed", "unknown", "skipped", "refused", "dropped", "released"]
        {
            assert_eq!(stats[field], count(field), "{job} {field}");
        }
    }
    // Names with a slash are names.
    board.run(&["run", "team/site", "--", "true"]).is(0, "");
    board.get("/job/team/site").is(200).has(&["team/site", "1 ok"]);
    board.get("/job/team%2Fsite").is(200).has(&["team/site"]);
}

#[test]
fn the_log_is_filtered_and_goes_on() {
    let board = Board::new();
    let records: Vec<LogRecord> = (0..120)
        .map(|n| {
            let event = if n % 10 == 0 { LogEvent::Failed } else { LogEvent::Ok };
            let job = if n % 2 == 0 { "team/even" } else { "odd" };
            // Five in each second: a page ends between records of one millisecond.
            run(now() - 60 - n / 5, event, job, "vm", 1_000 - n, 1)
        })
        .collect();
    log(&board.url, &records);
    let list = |query: &str| {
        let json = board.get(&format!("/api/v1/log?{query}")).is(200).json();
        let tokens: Vec<u64> = json["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["token"].as_u64().unwrap())
            .collect();
        (tokens, json["older"].as_str().map(String::from))
    };
    // Every record once, whatever page it is on.
    let (mut all, mut older) = list("");
    assert_eq!(all.len(), 50);
    while let Some(next) = older {
        let (more, then) = list(&format!("older={next}"));
        all.extend(more);
        older = then;
    }
    let mut unique = all.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!((all.len(), unique.len()), (120, 120));
    assert!(all[0] >= 996 && all[119] <= 885, "the newest first: {all:?}");
    assert_eq!(list("only=failed").0.len(), 12);
    assert_eq!(list("only=failed,lost&name=odd").0.len(), 0);
    let (even, _) = list("name=team/");
    assert!(even.iter().all(|token| token % 2 == 0), "{even:?}");
    assert_eq!(list("name=team/even&only=failed").0.len(), 12);
    assert_eq!(list("since=1s").0.len(), 0);
    assert_eq!(list("until=2000-01-01T00:00Z").0.len(), 0);
    let page = board.get("/log?only=failed").is(200).has(&[
        "team/even",
        "exit code 1",
        "leasehold history --only failed",
    ]);
    assert!(!page.body.contains(">odd<") && page.body.contains("There are no older records"));
    assert!(board.get("/log").body.contains("Older records"));
    for bad in ["only=nonsense", "name=Gemi+Lab", "since=soon", "older=x"] {
        board.get(&format!("/log?{bad}")).is(400);
        board.get(&format!("/api/v1/log?{bad}")).is(400);
    }
}

/// Names follow a rule, but keys, hosts, output, targets and slots are what somebody wrote.
#[test]
fn what_somebody_wrote_is_shown_as_text() {
    let board = Board::new();
    let evil = "<script>alert(1)</script>\"'\u{1b}[31m\u{202e}";
    let failed = LogRecord {
        said: evil.into(),
        item: Some(Subject::Key(evil.into())),
        reason: Some(evil.into()),
        ..run(now() - 5, LogEvent::Failed, "site", evil, 7, 3)
    };
    let target = Some(RefusedWrite { target: evil.into(), fence: failed.token });
    let refused = LogRecord { target, ..record(now() - 4, LogEvent::Refused, "site", evil, 6) };
    let unknown = LogRecord {
        item: Some(Subject::Key(evil.into())),
        ..record(now() - 3, LogEvent::Unknown, "other", evil, 6)
    };
    log(&board.url, &[failed, refused, unknown]);
    hold(&board.world, &board.url, ("held", "1h"), &format!("{evil}/7"), 7);
    // Texts of a job's record, in the shape that ends a line of an event.
    board.world.write("leasehold.toml", "[[job]]\nname = \"paused\"\nevery = \"1h\"\nrun = [\"true\"]\n");
    board.run(&["tick"]).is(0, "");
    board.run(&["pause", "paused"]).is(0, "");
    let mut store = open(&board.url);
    let stored = block_on(store.read("jobs/paused")).unwrap().unwrap();
    let mut job = JobRecord::decode(&Name::new("paused").unwrap(), &stored.body).unwrap();
    let paused = job.paused.as_mut().unwrap();
    (paused.at, paused.by) = (format!("\r\n\r\nevent: x\r{evil}"), format!("\r{evil}"));
    job.schedule = format!("\r{evil}");
    let written = block_on(store.cas("jobs/paused", Some(&stored.version), WriteId(1), &job.encode()));
    assert!(matches!(written, Cas::Written { .. }), "{written:?}");
    for page in ["/", "/timeline", "/jobs", "/job/site", "/job/held", "/log", "/log?name=%3Cscript%3E"] {
        let answer = board.get(page);
        assert_eq!(answer.body.matches("<script").count(), 1, "{page}: {}", answer.body);
        assert!(!answer.body.contains(['\u{1b}', '\u{202e}', '\r']), "{page}");
        assert!(answer.head.contains("content-security-policy: default-src 'none';"), "{page}");
    }
    let told = board.events("page=now").next("now", "paused on");
    assert!(!told.contains("<script>") && !told.contains("\nevent: x"), "{told}");
    // The control: they do show it.
    assert!(board.get("/log").body.contains("&lt;script&gt;alert(1)"));
    assert!(words(&board.get("/").body).contains("<script>alert(1)"));
    let json = board.get("/api/v1/log").is(200);
    assert!(!json.body.contains('\u{1b}'));
    let records = json.json()["records"].as_array().unwrap().clone();
    assert!(records.iter().any(|record| record["said"] == evil), "{records:?}");
}

#[test]
fn every_script_is_a_file_of_ours() {
    let board = Board::new();
    let page = board.get("/").body;
    assert_eq!(page.matches("<script").count(), 1);
    assert!(
        page.contains("<script src=\"/app.js\" defer>")
            && !page.contains(" style=")
            && !page.contains("onclick")
    );
    for (path, kind) in
        [("/app.js", "text/javascript"), ("/style.css", "text/css"), ("/icon.svg", "image/svg+xml")]
    {
        let file = board.get(path).is(200);
        assert!(file.head.contains(&format!("content-type: {kind}")), "{file:?}");
        assert!(!file.body.contains("https://"), "{path}");
    }
}

/// A change is told to whoever looks, without being asked.
#[test]
fn what_changes_is_told() {
    let board = Board::new();
    let mut now = board.events("page=now");
    now.next("state", "");
    let mut log = board.events("page=other");
    log.next("state", "");
    board.run(&["acquire", "site", "--ttl", "1h"]).token();
    let told = now.next("now", "site");
    assert!(told.contains("held") && !told.contains("<script"), "{told}");
    board.run(&["run", "other", "--", "false"]).is(1, "");
    now.next("now", "other failed");
    log.next("newer", "");
    log.next("beat", "");
}

/// A store that goes away is said, with what was last known, and so is its return.
#[test]
fn a_store_that_goes_away_is_said_and_comes_back() {
    let store = World::new();
    let url = store.store("sqlite");
    let serve = |address: &str| {
        let mut server =
            store.start(&["--store", &url, "--json", "serve", "--store-api", "--listen", address]);
        let told: serde_json::Value = serde_json::from_str(&server.line()).unwrap();
        (server, told["listen"].as_str().unwrap().to_owned())
    };
    let (server, address) = serve("127.0.0.1:0");
    let mut board = Board::of(World::new(), format!("http://{address}"), &[]);
    board.run(&["acquire", "site", "--ttl", "1h"]).token();
    board.run(&["run", "other", "--", "true"]).is(0, "");
    board.get("/").is(200).has(&["site"]);
    board.get("/log").is(200).has(&["other"]);
    let mut events = board.events("page=now");
    events.next("state", "");
    server.signal(Signal::KILL);
    server.ended();
    let since = clock::boot_time();
    events.next("state", "has not answered since");
    assert!(clock::boot_time().since(since) < Duration::from_secs(5));
    board.server.said("serve.store_failed");
    board.get("/").is(503).has(&[
        "The store has not answered since",
        "Showing what was last known at",
        "site",
        "held",
    ]);
    board.get("/log").is(503).has(&["the store does not answer", "Showing what was last known at", "other"]);
    board.get("/job/site").is(503).has(&["Load the page again"]);
    board.get("/metrics").is(503).has(&["the store does not answer"]);
    for path in ["now", "jobs", "jobs/site", "log", "timeline"] {
        board.get(&format!("/api/v1/{path}")).is(503).because("failed");
    }
    let (_server, _) = serve(&address);
    let back = events.next("state", "");
    assert!(!back.contains("has not answered"), "{back}");
    board.server.said("dashboard.answers_again");
    board.get("/").is(200).has(&["site"]);
    board.get("/log").is(200).has(&["other"]);
}

/// Looking changes nothing: every byte of the store is as it was.
#[test]
fn nothing_changes() {
    let board = Board::of_a_night();
    let dump = || {
        let db = rusqlite::Connection::open(board.world.path("store")).unwrap();
        let mut rows = db.prepare("SELECT * FROM records ORDER BY key").unwrap();
        let columns = rows.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            (0..columns).map(|at| row.get::<_, rusqlite::types::Value>(at)).collect::<Result<Vec<_>, _>>()
        };
        let rows: Vec<_> = rows.query_map([], row).unwrap().map(Result::unwrap).collect();
        format!("{rows:?}")
    };
    let before = dump();
    let mut events = board.events("page=now");
    for path in [
        "/",
        "/timeline?window=7d",
        "/jobs",
        "/job/claudelab",
        "/job/charges",
        "/log?only=failed",
        "/api/v1/now",
        "/api/v1/jobs",
        "/api/v1/jobs/claudelab",
        "/api/v1/log",
        "/api/v1/timeline",
        "/api/openapi.json",
    ] {
        board.get(path).is(200);
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in ["/", "/job/claudelab", "/v1/k/leases%2Fgemilab", "/api/v1/now"] {
            board.ask(method, path, &[]).is(405);
        }
    }
    events.next("beat", "");
    assert_eq!(dump(), before);
    // The control.
    board.run(&["run", "one-more", "--", "true"]).is(0, "");
    assert_ne!(dump(), before);
}
