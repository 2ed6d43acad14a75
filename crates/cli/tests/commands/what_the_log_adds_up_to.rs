//! `stats` and `metrics`: what is counted, what is advised, and that a parser of OpenMetrics reads it.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::wall;
use leasehold::core::ids::Token;
use leasehold::core::ledger::Subject;
use leasehold::core::name::Name;
use leasehold::core::record::Holder;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord, RefusedWrite};
use leasehold::run_log::write;
use serde_json::Value;

use crate::world::{Ended, World};

/// A record of a job, so long ago.
pub fn record(job: &str, event: LogEvent, ago: Duration, took: Duration) -> LogRecord {
    let name = Name::new(job).unwrap();
    let holder = Holder {
        host: "mac".into(),
        pid: 7,
        run: "mac-7".into(),
        job: job.into(),
        since: String::new(),
        slot: None,
    };
    let id = LogId::of(leasehold::random::seed());
    LogRecord {
        took: Some(took),
        lease: Some(name.clone()),
        token: Token::new(7),
        ..LogRecord::new(wall() - ago, event, name, id, holder)
    }
}

/// A store in which these records are.
pub fn with(world: &World, scheme: &str, records: &[LogRecord]) -> String {
    let url = world.store(scheme);
    let mut store = leasehold::stores::open(&url).unwrap_or_else(|e| panic!("{e}"));
    records.iter().for_each(|record| write(store.as_mut(), record).unwrap());
    url
}

pub const MINUTE: Duration = Duration::from_secs(60);

/// So many runs, 45 minutes apart, of so many minutes.
fn runs(job: &str, event: LogEvent, count: u32, took: Duration) -> Vec<LogRecord> {
    (0..count).map(|n| record(job, event, 45 * MINUTE * n, took)).collect()
}

fn because(reason: &str, log: LogRecord) -> LogRecord {
    LogRecord { reason: Some(reason.into()), took: None, ..log }
}

fn stats(world: &World, url: &str, job: &str) -> Value {
    world.run(&["--store", url, "--json", "stats", job]).is(0, "").json()
}

#[test]
fn a_skip_is_counted_apart_from_failures() {
    for scheme in ["sqlite", "dir"] {
        let world = World::new();
        let mut log = runs("site", LogEvent::Ok, 20, MINUTE);
        log.extend(runs("site", LogEvent::Failed, 2, MINUTE));
        for (count, reason) in [(4, "overlap"), (1, "done")] {
            let skips = runs("site", LogEvent::Skipped, count, MINUTE).into_iter();
            log.extend(skips.map(|skip| because(reason, skip)));
        }
        log.push(because("stale", record("site", LogEvent::Refused, MINUTE, MINUTE)));
        let dropped = record("site", LogEvent::Dropped, MINUTE, MINUTE);
        log.push(LogRecord { count: Some(41), took: None, ..dropped });
        // Older than the window, and of a job whose name only begins so.
        log.push(record("site", LogEvent::Lost, 60 * 24 * 8 * MINUTE, MINUTE));
        log.push(record("site/north", LogEvent::Lost, MINUTE, MINUTE));
        let url = with(&world, scheme, &log);
        let site = stats(&world, &url, "site");
        let number = |field: &str| site[field].as_u64().unwrap_or_else(|| panic!("{field}: {site}"));
        assert_eq!((number("runs"), number("ok"), number("failed"), number("lost")), (22, 20, 2, 0));
        assert_eq!((number("skipped"), number("refused"), number("dropped")), (5, 1, 41));
        assert_eq!(site["skips"], serde_json::json!({"overlap": 4, "done": 1}));
        assert_eq!(site["skip_percent"], 18.5, "5 of 27");
        assert_eq!((&site["p95_s"], &site["interval_s"]), (&60.0.into(), &2700.0.into()), "{site}");
        assert_eq!((&site["ttl"]["kind"], &site["ttl"]["fit"]), (&"renewed".into(), &"right".into()));
        // Negative control: with the older record in the window a run was lost.
        let more = world.run(&["--store", &url, "--json", "stats", "site", "--since", "9d"]).json();
        assert_eq!((&more["lost"], &more["ttl"]["fit"]), (&1.into(), &"short".into()), "{more}");
        let all = world.run(&["--store", &url, "--json", "stats"]).is(0, "");
        assert_eq!(all.out.lines().count(), 2, "{all:#?}");
        let below = world.run(&["--store", &url, "--json", "stats", "site/"]).is(0, "").json();
        assert_eq!(below["job"], "site/north");
    }
}

#[track_caller]
pub fn tells(ended: &Ended, code: i32, message: &str) {
    assert_eq!(ended.code, code, "{ended:#?}");
    let sentences = crate::world::messages::sentences();
    let sentence = sentences.iter().find(|sentence| sentence.name == message);
    let sentence = sentence.unwrap_or_else(|| panic!("no message {message}"));
    let said = |line: &str| sentence.is(line) || sentence.is_in(line);
    assert!(ended.out.lines().chain(ended.err.lines()).any(said), "should say {message}: {ended:#?}");
}

#[test]
fn stats_are_told_with_the_ttl_that_fits() {
    let world = World::new();
    let mut log = runs("site", LogEvent::Ok, 12, MINUTE);
    log.extend(runs("hand", LogEvent::Released, 12, 45 * MINUTE));
    log.extend(runs("bad", LogEvent::Ok, 10, MINUTE));
    log.extend(runs("bad", LogEvent::Lost, 3, MINUTE));
    log.extend(runs("few", LogEvent::Ok, 9, MINUTE));
    log.push(because("overlap", record("site", LogEvent::Skipped, MINUTE, MINUTE)));
    log.push(because("stale", record("site", LogEvent::Refused, MINUTE, MINUTE)));
    log.push(LogRecord { count: Some(3), ..record("site", LogEvent::Dropped, MINUTE, MINUTE) });
    log.push(record("once", LogEvent::Ok, MINUTE, MINUTE));
    log.push(record("once", LogEvent::Released, 2 * MINUTE, MINUTE));
    log.push(LogRecord { count: Some(1), ..record("once", LogEvent::Dropped, MINUTE, MINUTE) });
    log.extend(runs("once", LogEvent::Refused, 2, MINUTE));
    let url = with(&world, "sqlite", &log);
    let told = |job: &str| world.run(&["--store", &url, "stats", job]);
    let site = told("site");
    for says in [
        "stats.head",
        "stats.runs",
        "stats.skipped",
        "stats.refused",
        "stats.dropped",
        "stats.took",
        "stats.every",
        "stats.ttl",
        "stats.right",
    ] {
        tells(&site, 0, says);
    }
    assert!(site.out.contains("90s is right"), "{site:#?}");
    assert!(site.out.contains(" 1 write:") && site.out.contains(" 3 slots:"), "{site:#?}");
    assert!(site.out.contains("(12 ok runs)"), "{site:#?}");
    assert!(told("once").out.contains("(1 ok run)") && told("once").out.contains("(1 lease taken"));
    assert!(told("once").out.contains(" 1 slot:") && told("once").out.contains(" 2 writes:"));
    let table = world.run(&["--store", &url, "stats"]).is(0, "").out;
    assert!(table.contains("%)") && !table.contains(" %"), "{table}");
    tells(&told("hand"), 0, "stats.by_hand");
    tells(&told("hand"), 0, "stats.held");
    tells(&told("bad"), 0, "stats.short");
    tells(&told("few"), 0, "stats.too_few");
    world.write("leasehold.toml", &crate::schedules::kit::job("site", "every = \"1h\"", "ttl = \"80m\"", ""));
    tells(&told("site"), 0, "stats.long");
    world.run(&["--store", &url, "acquire", "hand", "--ttl", "10m"]).token();
    tells(&told("hand"), 0, "stats.by_hand_now");
    told("site/").is(0, "");
    told("").is(64, "");
}

#[test]
fn what_is_not_there_is_said() {
    let world = World::new();
    tells(&world.run(&["stats"]), 0, "stats.nothing");
    world.run(&["stats", "sight"]).is(64, "history.unknown_name").names(&["sight"]);
    world.run(&["run", "--no-history", "site", "true"]).is(0, "");
    tells(&world.run(&["stats", "site"]), 0, "stats.nothing_of");
    world.run(&["stats", "site", "--since", "7"]).is(64, "\"7\" has no unit");
}

/// What the reference parser of the Prometheus project makes of a text: JSON, `{sample{labels}: value}`.
pub fn parsed(world: &World, text: &str) -> Value {
    const READ: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read
print(json.dumps({f'{s.name}{json.dumps(s.labels, sort_keys=True)}': s.value
                  for family in read(sys.stdin.read()) for s in family.samples}))";
    let python = std::env::var_os("LEASEHOLD_TEST_OPENMETRICS");
    let python = python.expect("SKIPPED: LEASEHOLD_TEST_OPENMETRICS names a python3 with prometheus-client");
    let mut reader = world.program(python);
    reader.args(["-c", READ]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut reader = reader.spawn().unwrap();
    std::io::Write::write_all(&mut reader.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let read = reader.wait_with_output().unwrap();
    assert!(read.status.success(), "{text}\n{}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).unwrap()
}

#[test]
fn a_parser_of_openmetrics_reads_the_metrics() {
    let world = World::new();
    let mut log = runs("site", LogEvent::Ok, 3, 90 * MINUTE);
    log.push(record("site", LogEvent::Failed, MINUTE, MINUTE));
    log.push(because("overlap", record("site", LogEvent::Skipped, MINUTE, MINUTE)));
    log.push(LogRecord { count: Some(41), ..record("site", LogEvent::Dropped, MINUTE, MINUTE) });
    let target = |target: &str| Some(RefusedWrite { target: target.into(), fence: None });
    let hostile = "file:a\\b\"c\nd{e}";
    for name in [hostile, "postgres://me:correct-horse@db/ops#t"] {
        let refused = record("site", LogEvent::Refused, MINUTE, MINUTE);
        log.push(LogRecord { target: target(name), ..because("stale", refused) });
    }
    for n in 0..3 {
        let once = record(&format!("invoice-{n}.once"), LogEvent::Ok, MINUTE, MINUTE);
        log.push(LogRecord { item: Some(Subject::Key(format!("invoice-{n}"))), ..once });
    }
    let url = with(&world, "sqlite", &log);
    world.run(&["--store", &url, "acquire", "site"]).token();
    let told = world.run(&["--store", &url, "metrics"]).is(0, "");
    assert!(!told.out.contains("correct-horse"), "{told:#?}");
    let found = parsed(&world, &told.out);
    for (sample, value) in [
        (r#"leasehold_runs_total{"job": "site", "outcome": "ok"}"#, 3.0),
        (r#"leasehold_runs_total{"job": "site", "outcome": "failed"}"#, 1.0),
        (r#"leasehold_runs_total{"job": "*.once", "outcome": "ok"}"#, 3.0),
        (r#"leasehold_skips_total{"job": "site", "reason": "overlap"}"#, 1.0),
        (r#"leasehold_slots_dropped_total{"job": "site"}"#, 41.0),
        (r#"leasehold_lease_token{"lease": "site"}"#, 1.0),
        (r#"leasehold_run_duration_seconds_count{"job": "site"}"#, 4.0),
        (r#"leasehold_run_duration_seconds_bucket{"job": "site", "le": "3600.0"}"#, 1.0),
    ] {
        assert_eq!(found[sample], value, "{sample}: {found:#}");
    }
    let hostile = serde_json::json!({"reason": "stale", "resource": hostile});
    let hostile = format!(
        "leasehold_writes_refused_total{{\"reason\": \"stale\", \"resource\": {}}}",
        hostile["resource"]
    );
    assert_eq!(found[&hostile], 1.0, "{hostile}: {found:#}");
    // Negative control: the parser refuses a label that is not escaped, and a text without its end.
    let broken = std::panic::AssertUnwindSafe(|| parsed(&world, "# TYPE a gauge\na{b=\"c\"d\"} 1\n# EOF\n"));
    assert!(std::panic::catch_unwind(broken).is_err());
}

#[test]
fn a_text_file_is_replaced_as_a_whole() {
    let world = World::new();
    world.run(&["run", "site", "true"]).is(0, "");
    let file = world.write("metrics/leasehold.prom", "old");
    let args = ["metrics", "--textfile", file.to_str().unwrap()];
    let before = fs::File::open(&file).unwrap();
    world.run(&args).is(0, "").quiet();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.ends_with("# EOF\n") && text.contains("leasehold_runs_total"), "{text}");
    // Whoever had it open still reads the old text.
    assert_eq!(std::io::read_to_string(before).unwrap(), "old");
    assert_eq!(fs::read_dir(world.path("metrics")).unwrap().count(), 1);
    let nowhere = world.at("nowhere/leasehold.prom");
    world.run(&["metrics", "--textfile", &nowhere]).is(78, "metrics.not_written").names(&["nowhere"]);
}
