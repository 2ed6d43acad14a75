//! What `history` and `why` tell of runs: each one, each skip and each refused write, the newest first.

use std::time::Duration;

use crate::world::{World, binary, kill, pause, until};
use leasehold::clock;
use leasehold::core::ids::Token;
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord};
use leasehold::host;
use leasehold::run_log::creation;
use leasehold::stores::Cas;
use leasehold_testkit::messages::says;
use pollster::block_on;
use rustix::process::Signal;
use serde_json::Value;

/// A world with a store of this kind.
struct Site {
    world: World,
    url: String,
}

impl Site {
    fn new(scheme: &str) -> Self {
        let world = World::new();
        let url = world.store(scheme);
        Self { world, url }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["--store", &self.url], args].concat()
    }

    fn run(&self, args: &[&str]) -> crate::world::Ended {
        self.world.run(&self.args(args))
    }

    /// The rows of `history --json` with these arguments.
    fn rows(&self, args: &[&str]) -> Vec<Value> {
        let said = self.run(&[&["--json", "history"], args].concat()).quiet().out;
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// "TOKEN OUTCOME EXIT" of each.
    fn told(&self, args: &[&str]) -> Vec<String> {
        let told = |row: Value| format!("{} {} {}", row["token"], row["outcome"], row["exit"]);
        self.rows(args).into_iter().map(told).map(|row| row.replace('"', "")).collect()
    }

    /// A run whose wrapper dies in the middle, taken over by the next: the token of the dead one.
    fn dies(&self, flags: &[&str]) {
        let job = ["--", "sh", "-c", "echo here; exec sleep 60"];
        let mut run = self.world.start(&self.args(&[flags, &job].concat()));
        assert_eq!(run.line(), "here");
        kill(run.pid(), Signal::KILL);
        run.ended();
    }

    /// Runs it as soon as the lease is free.
    fn run_as_soon_as_free(&self, lease: &str) {
        until("the lease is free", || self.run(&["run", lease, "--", "true"]).err.is_empty().then_some(()));
    }

    /// Writes records as runs do.
    fn log(&self, records: &[LogRecord]) {
        let mut store = leasehold::stores::open(&self.url).unwrap();
        let writes: Vec<_> = records.iter().map(creation).collect();
        let written = block_on(store.cas_many(&writes));
        assert!(written.iter().all(|cas| matches!(cas, Cas::Written { .. })), "{written:?}");
    }
}

/// A record of a run so long ago.
fn record(ago: Duration, event: LogEvent, job: &str, token: u64) -> LogRecord {
    let name = Name::new(job).unwrap();
    let holder = host::holder(&host::fresh_run_id(None), &name);
    LogRecord {
        token: Token::new(token),
        lease: Some(name.clone()),
        ..LogRecord::new(clock::wall() - ago, event, name, LogId::of(leasehold::random::seed()), holder)
    }
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// As `why` takes it.
fn time(ago: Duration) -> String {
    host::utc((clock::wall() - ago).as_secs())
}

fn each(test: impl Fn(&Site)) {
    for scheme in ["sqlite", "dir"] {
        test(&Site::new(scheme));
    }
}

#[test]
fn every_way_to_end_is_told() {
    each(|site| {
        site.run(&["run", "hello", "--", "true"]).quiet();
        site.run(&["run", "hello", "--job", "other", "--", "sh", "-c", "exit 3"]).is(3, "");
        let mut run =
            site.world.start(&site.args(&["run", "hello", "--", "sh", "-c", "echo here; exec sleep 60"]));
        assert_eq!(run.line(), "here");
        kill(run.pid(), Signal::TERM);
        run.ended();
        site.dies(&["run", "hello", "--ttl", "2s"]);
        site.run_as_soon_as_free("hello");
        let token = site.run(&["-q", "acquire", "byhand"]).token().to_string();
        site.run(&["-q", "release", "byhand", "--token", &token]).quiet();
        let ends = ["--only", "ok,failed,killed,unknown,released"];
        // The newest first; by the name of the lease, whatever job ran under it.
        let hello = ["5 ok 0", "4 unknown null", "3 killed 143", "2 failed 3", "1 ok 0"];
        assert_eq!(site.told(&[&["hello"], &ends[..]].concat()), hello);
        assert_eq!(site.told(&["byhand"]), ["1 released null"]);
        assert_eq!(site.told(&["other"]), ["2 failed 3"], "by the job's name");
        assert_eq!(site.told(&ends).len(), 6);
        assert_eq!(site.told(&["--only", "failed,unknown"]), ["4 unknown null", "2 failed 3"]);
        assert_eq!(site.told(&["--only", "lost"]), [""; 0]);
        let rows = site.rows(&[&["hello"], &ends[..]].concat());
        for row in &rows {
            assert_eq!((&row["v"], &row["kind"], &row["lease"]), (&1.into(), &"run".into(), &"hello".into()));
            assert!(row["holder"].as_str().unwrap().contains('/'), "{row}");
            assert_eq!(row["duration_s"].is_f64(), row["outcome"] != "unknown", "{row}");
        }
        let table = site.run(&[&["history"], &ends[..]].concat()).quiet().out;
        assert!(table.ends_with("\n2 ok, 1 failed, 1 killed, 1 unknown, 1 released\n"), "{table}");
        assert!(table.starts_with("ITEM "), "{table}");
    });
}

#[test]
fn since_and_until_count_from_when_a_run_ended() {
    each(|site| {
        site.run(&["run", "hello", "--", "false"]).is(1, "");
        let long_ago = Duration::from_secs(1_000_000_000);
        site.log(&[LogRecord { at: long_ago, ..record(SECOND, LogEvent::Ok, "hello", 1) }]);
        site.log(&[record(25 * HOUR, LogEvent::Killed, "hello", 7)]);
        let (old, day, new) = ("1 ok null", "7 killed null", "1 failed 1");
        assert_eq!(site.told(&[]), [new, day, old], "without a time it is everything");
        for name in [&[][..], &["hello"]] {
            let told = |args: &[&str]| site.told(&[name, args].concat());
            assert_eq!(told(&["--since", "1h"]), [new]);
            assert_eq!(told(&["--since", "2d"]), [new, day]);
            assert_eq!(told(&["--since", "2001-09-09T01:46:40Z"]), [new, day, old]);
            assert_eq!(told(&["--since", "2001-09-09T01:46:41Z"]), [new, day]);
            assert_eq!(told(&["--until", "1h"]), [day, old]);
            assert_eq!(told(&["--until", "2001-09-09T01:46:40Z"]), [old]);
            assert_eq!(told(&["--since", &time(26 * HOUR), "--until", &time(24 * HOUR)]), [day]);
            assert_eq!(told(&["--since", "2d", "--until", "3d"]), [""; 0]);
        }
        assert_eq!(site.told(&["--until", "2001-09-10"]), [old], "a day without a time");
        for wrong in ["soon", "10", "2001-13-01"] {
            site.run(&["history", "--since", wrong]).is(64, "");
        }
        // What is older than the records says so.
        let far = site.run(&["history", "--since", "300d"]).quiet().out;
        assert!(says(&far, "history.kept_for"), "{far}");
        assert!(!says(&site.run(&["history", "--since", "3d"]).quiet().out, "history.kept_for"));
    });
}

#[test]
fn every_run_and_every_skip_is_kept() {
    each(|site| {
        for _ in 0..10 {
            site.run(&["run", "hello", "--", "true"]).quiet();
        }
        let tokens: Vec<u64> =
            site.rows(&["hello"]).iter().map(|row| row["token"].as_u64().unwrap()).collect();
        assert_eq!(tokens, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
        let held = ["run", "hello", "--", "sh", "-c", "echo here; read line"];
        let mut run = site.world.start(&site.args(&held));
        assert_eq!(run.line(), "here");
        site.run(&["run", "hello", "--", "touch", "never"]).is(0, "").names(&["skipped hello"]);
        let (holder, why) = (run.pid(), site.run(&["why", "hello"]).quiet().out);
        run.close_stdin();
        run.ended();
        assert_eq!(site.told(&["hello"])[..2], ["11 failed 1", "11 skipped null"]);
        let skip = &site.rows(&["hello", "--only", "skipped"])[0];
        assert_eq!((&skip["kind"], &skip["reason"]), (&"skip".into(), &"overlap".into()), "{skip}");
        assert!(skip["held_by"].as_str().unwrap().ends_with(&format!("/{holder}")), "{skip}");
        let table = site.run(&["history", "hello", "--only", "skipped"]).quiet().out;
        assert!(table.contains(" skipped (overlap) ") && table.contains("held by "), "{table}");
        assert!(table.ends_with("\n1 skipped\n"), "{table}");
        assert!(says(&why, "why.last_skipped") && says(&why, "why.skipped_held"), "{why}");
        // The control: once another run has ended, the skip is not the last thing any more.
        let why = site.run(&["why", "hello"]).quiet().out;
        assert!(!says(&why, "why.last_skipped") && says(&why, "why.last_run"), "{why}");
    });
}

#[test]
fn no_history_keeps_nothing() {
    each(|site| {
        site.run(&["run", "hello", "--no-history", "--", "false"]).is(1, "");
        assert_eq!(site.told(&[]), [""; 0]);
        assert!(site.run(&["history", "hello"]).quiet().out.starts_with("no records on "));
        let why = site.run(&["why", "hello"]).quiet().out;
        assert!(says(&why, "why.no_run"), "{why}");
        site.run(&["run", "hello", "--observe", "--no-history", "--", "true"]).is(0, "");
        assert_eq!(site.told(&[]), [""; 0]);
        site.run(&["run", "hello", "--observe", "--", "true"]).is(0, "");
        assert_eq!(site.told(&[]), ["null observed 0"]);
    });
}

#[test]
fn each_try_of_an_item_is_told_once() {
    each(|site| {
        site.run(&["run", "hello", "--key", "k", "--", "true"]).quiet();
        site.run(&["run", "hello", "--slot", "2026-11-16T05:45Z", "--", "true"]).quiet();
        site.run(&["run", "hello", "--cooldown", "1ms", "--", "true"]).quiet();
        pause(Duration::from_millis(5));
        site.run(&["run", "hello", "--cooldown", "1ms", "--", "true"]).quiet();
        site.dies(&["run", "hello", "--ttl", "2s", "--key", "dead"]);
        site.run_as_soon_as_free("hello");
        let rows: Vec<String> = site
            .rows(&["hello", "--only", "ok,unknown"])
            .iter()
            .map(|row| format!("{} {} {}", row["token"], row["kind"], row["outcome"]).replace('"', ""))
            .collect();
        // The key of a run that died is in the record of the key alone.
        let each_hold_once =
            ["6 run ok", "5 run unknown", "4 cooldown ok", "3 run ok", "2 slot ok", "1 key ok"];
        assert_eq!(rows, each_hold_once);
        let dead = &site.rows(&["dead"])[0];
        assert_eq!(
            (&dead["kind"], &dead["outcome"], &dead["token"]),
            (&"key".into(), &"unknown".into(), &5.into())
        );
        site.run(&["run", "hello", "--key", "dead", "--if-unknown", "retry", "--", "true"]).is(0, "");
        assert_eq!(site.told(&["dead", "--only", "ok"]), ["7 ok 0"]);
        assert_eq!(site.told(&["hello", "--only", "unknown"]), ["5 unknown null"]);
        for (item, name) in
            [(["--key", "again"], "again"), (["--slot", "2026-11-16T06:30Z"], "hello@2026-11-16T06:30Z")]
        {
            site.run(&[&["run", "hello"], &item[..], &["--", "false"]].concat()).is(1, "");
            site.run(&[&["run", "hello"], &item[..], &["--", "true"]].concat()).quiet();
            let tries = site.rows(&[name]);
            let told: Vec<_> = tries.iter().map(|row| row["outcome"].as_str().unwrap()).collect();
            assert_eq!(told, ["ok", "failed"], "{name}");
            assert_eq!(tries[0]["attempt"], 2, "{name}");
        }
        let slot = site.rows(&["2026-11-16T06:30:00Z"]);
        assert_eq!(slot.len(), 2, "by the slot alone, as the table shows it: {slot:?}");
    });
}

#[test]
fn a_slot_that_died_is_told_as_a_slot() {
    let site = Site::new("sqlite");
    site.dies(&["run", "hello", "--ttl", "2s", "--slot", "2026-11-16T05:45Z"]);
    // It is open: only its own record tells.
    let open = &site.rows(&["hello"])[0];
    assert!(["started", "unknown"].contains(&open["outcome"].as_str().unwrap()), "{open}");
    assert_eq!((&open["kind"], &open["item"]), (&"slot".into(), &"2026-11-16T05:45:00Z".into()));
    site.run_as_soon_as_free("hello");
    let rows = site.rows(&["--only", "unknown"]);
    assert_eq!((rows.len(), &rows[0]["kind"]), (1, &"slot".into()));
    site.run(&["run", "hello", "--slot", "2026-11-16T05:45Z", "--if-unknown", "retry", "--", "true"])
        .is(0, "");
    assert_eq!(site.told(&["hello@2026-11-16T05:45Z"]).len(), 2);
    assert_eq!(site.rows(&["hello@2026-11-16T05:45Z"])[0]["outcome"], "ok");
}

#[test]
fn a_lease_that_was_asked_back_or_taken_is_told_of() {
    each(|site| {
        let job = ["run", "hello", "--ttl", "2s", "--", "sh", "-c", "echo here; exec sleep 60"];
        let mut run = site.world.start(&site.args(&job));
        assert_eq!(run.line(), "here");
        let token = site.run(&["-q", "break", "hello", "--take"]).token().to_string();
        run.ended().is(75, "run.lost");
        site.run(&["-q", "release", "hello", "--token", &token]).quiet();
        let lost = site.rows(&["--only", "lost"]);
        assert_eq!((lost.len(), &lost[0]["token"]), (1, &1.into()), "{lost:?}");
        let mut run = site.world.start(&site.args(&job));
        assert_eq!(run.line(), "here");
        let token = site.run(&["-q", "break", "--now", "--take", "hello"]).token().to_string();
        run.ended().is(75, "run.lost");
        site.run(&["-q", "release", "hello", "--token", &token]).quiet();
        assert_eq!(site.told(&["--only", "lost"]).len(), 2);
        assert_eq!(site.told(&["--only", "released"]), ["4 released null", "2 released null"]);
        let by = site.rows(&["--only", "break"]);
        assert_eq!(by.len(), 2);
        assert!(by.iter().all(|row| row["kind"] == "break" && row["said"].as_str().unwrap().contains('@')));
        let table = site.run(&["history", "--only", "break"]).quiet().out;
        assert!(table.contains("by ") && table.contains('@'), "{table}");
    });
}

#[test]
fn why_tells_of_the_last_run() {
    each(|site| {
        site.run(&["run", "hello", "--", "true"]).quiet();
        let said = |why: &str| {
            let told = site.run(&["why", "hello"]).quiet().out;
            assert!(told.contains(why), "{why}: {told}");
        };
        said("the last run of hello: ok, by ");
        site.run(&["run", "hello", "--job", "nightly", "--", "sh", "-c", "exit 3"]).is(3, "");
        said("the last run of hello (nightly): failed (exit 3), by ");
        assert!(site.run(&["why", "nightly"]).quiet().out.contains("failed (exit 3)"));
        assert_eq!(site.run(&["--json", "why", "hello"]).quiet().json()["outcome"], "failed");
        site.dies(&["run", "hello", "--job", "nightly", "--ttl", "2s"]);
        site.run_as_soon_as_free("hello");
        let nightly = site.run(&["why", "nightly"]).quiet().out;
        assert!(says(&nightly, "why.last_unknown"), "{nightly}");
        said("the last run of hello: ok, by ");
        assert_eq!(site.run(&["-q", "acquire", "hello"]).token(), 5);
        site.run(&["-q", "release", "hello", "--token", "5"]).quiet();
        said("hello was last held by ");
    });
}

/// A run without a slot is tied to no time: what is recorded around it is shown, skips too.
#[test]
fn why_shows_what_is_recorded_around_a_time() {
    each(|site| {
        site.run(&["run", "hello", "--", "true"]).quiet();
        let runs = [4, 3, 2, 1].map(|days| record(days * DAY, LogEvent::Ok, "hello", 20 - u64::from(days)));
        site.log(&runs);
        let skip = LogRecord {
            reason: Some("overlap".into()),
            said: "mac-mini/8123".into(),
            ..record(2 * DAY + HOUR, LogEvent::Skipped, "hello", 17)
        };
        site.log(std::slice::from_ref(&skip));
        let told = |ago: Duration| {
            let said = site.run(&["--json", "why", "hello", &time(ago)]).quiet().objects();
            said.iter()
                .map(|row| format!("{} {}", row["token"], row["outcome"]).replace('"', ""))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(3 * DAY + HOUR), ["16 ok", "17 ok"], "the one before it, and the one after it");
        assert_eq!(told(5 * DAY), ["16 ok"], "before all of them");
        assert_eq!(told(HOUR), ["19 ok", "1 ok"]);
        // The 03:00 question: it was skipped within that minute.
        assert_eq!(told(2 * DAY + HOUR + 30 * SECOND), ["17 ok", "17 skipped"]);
        let said = site.run(&["why", "hello", &time(2 * DAY + HOUR + 30 * SECOND)]).quiet().out;
        assert!(says(&said, "why.past_skip") && said.contains("mac-mini/8123 held the lease"), "{said}");
        assert!(says(&said, "why.nearest") && says(&said, "why.past_run"), "{said}");
        let said = site.run(&["why", "hello", &time(200 * DAY)]).quiet().out;
        assert!(says(&said, "why.too_old"), "{said}");
    });
}

/// Which lease `--or` took is shown, and both names lead to it, for `history` as for `why`.
#[test]
fn the_lease_that_was_taken_is_shown() {
    each(|site| {
        let job = ["run", "site/north", "--", "sh", "-c", "echo here; exec cat"];
        let mut holder = site.world.start(&site.args(&job));
        assert_eq!(holder.line(), "here");
        site.run(&["run", "site/north", "--or", "site/south", "--key", "k", "--", "true"]).quiet();
        for command in ["history", "why"] {
            for name in ["site/south", "site/north", "k"] {
                let row = site.run(&["--json", command, name]).quiet().json();
                let told = (row["item"].as_str(), row["lease"].as_str());
                assert_eq!(told, (Some("k"), Some("site/south")), "{command} {name}");
            }
        }
        let table = site.run(&["history"]).quiet().out;
        let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert!(table.starts_with("ITEM  JOB         LEASE "), "{table}");
        assert_eq!(row[..3], ["k", "site/north", "site/south"]);
        holder.ended().quiet();
        // The control: where it says nothing it is not there.
        let other = World::new();
        other.run(&["run", "site", "--key", "k", "--", "true"]).quiet();
        assert!(!other.run(&["history"]).quiet().out.contains("LEASE"));
    });
}

/// A job has no store: the run around it hands its refusals in, with the token that the fence has.
#[test]
fn a_refused_write_is_told_with_both_tokens() {
    each(|site| {
        let write = format!("echo page | {} write file:page", binary().display());
        site.run(&["run", "site", "--fence", "file:page", "--", "sh", "-c", &write]).is(0, "");
        site.run(&["run", "site", "--", "sh", "-c", &write]).is(76, "");
        let refused = &site.rows(&["site", "--only", "refused"])[0];
        assert_eq!((&refused["kind"], &refused["target"]), (&"refused".into(), &"file:page".into()));
        assert_eq!((&refused["token"], &refused["fence"]), (&2.into(), &1.into()), "{refused}");
        assert_eq!(refused["run_id"], site.rows(&["site", "--only", "failed"])[0]["run_id"]);
        let table = site.run(&["history", "site"]).quiet().out;
        assert!(says(&table, "history.refused") && table.ends_with("1 ok, 1 failed, 1 refused\n"), "{table}");
        let why = site.run(&["why", "site"]).quiet().out;
        assert!(says(&why, "why.refused") && says(&why, "refusals.not_named"), "{why}");
        assert!(!says(&why, "why.fence_has"), "nobody had taken over: {why}");
        // The control: after a run that was refused nothing, nothing is said of it.
        site.run(&["run", "site", "--", "true"]).quiet();
        let why = site.run(&["why", "site"]).quiet().out;
        assert!(!says(&why, "why.refused"), "{why}");
    });
}

#[test]
fn people_are_shown_the_newest_and_told_of_the_rest() {
    let site = Site::new("sqlite");
    site.run(&["run", "other", "--", "true"]).quiet();
    let records: Vec<_> =
        (1..=60).map(|n| record((61 - n) * HOUR, LogEvent::Ok, "site", u64::from(n))).collect();
    site.log(&records);
    let shown = |args: &[&str]| {
        let table = site.run(&[&["history", "site"], args].concat()).quiet().out;
        let rows = table.lines().filter(|line| line.starts_with("site ")).count();
        (rows, table)
    };
    let (rows, table) = shown(&[]);
    assert_eq!(rows, 50, "{table}");
    assert!(says(&table, "history.rest") && says(&table, "history.kept_for"), "{table}");
    assert!(table.contains("\n50 ok\n10 older "), "{table}");
    assert_eq!(shown(&["--limit", "3"]).0, 3);
    assert!(shown(&["--limit", "3"]).1.contains("\n57 older "));
    let (rows, table) = shown(&["--limit", "60"]);
    assert!(rows == 60 && !says(&table, "history.rest"), "{table}");
    // Programs get everything, unless they say how much.
    let tokens: Vec<u64> = site.rows(&["site"]).iter().map(|row| row["token"].as_u64().unwrap()).collect();
    assert_eq!(tokens, (1..=60).rev().collect::<Vec<_>>());
    assert_eq!(site.rows(&["site", "--limit", "7"]).len(), 7);
    site.run(&["history", "--limit", "0"]).is(64, "");
    let records: Vec<_> =
        (1..=1_100).map(|n| record(n * SECOND, LogEvent::Ok, "much", u64::from(n))).collect();
    site.log(&records);
    let table = site.run(&["history", "much"]).quiet().out;
    assert!(says(&table, "history.at_least"), "{table}");
    let config = site.world.write("good.toml", "keep_log = \"none\"\n");
    let table = site.run(&["--config", config.to_str().unwrap(), "history", "much"]).quiet().out;
    assert!(says(&table, "history.kept_for_good"), "{table}");
}

/// More than are in memory at once, of several jobs and days: in order, and each once.
#[test]
fn many_records_come_in_order() {
    let site = Site::new("sqlite");
    site.run(&["run", "other", "--no-history", "--", "true"]).quiet();
    let jobs = ["a", "b/c", "d"];
    let records: Vec<_> = (0..6_000u32)
        .map(|n| record(n * 40 * SECOND, LogEvent::Ok, jobs[n as usize % 3], u64::from(n) + 1))
        .collect();
    site.log(&records);
    let tokens = |args: &[&str]| -> Vec<u64> {
        site.rows(args).iter().map(|row| row["token"].as_u64().unwrap()).collect()
    };
    assert!(tokens(&[]).into_iter().eq(1..=6_000));
    assert!(tokens(&["b/c"]).into_iter().eq((1..=6_000).filter(|n| n % 3 == 2)));
    assert!(tokens(&["--limit", "4321"]).into_iter().eq(1..=4_321));
}

#[test]
fn a_prefix_is_all_jobs_below_it() {
    let site = Site::new("sqlite");
    for job in ["team/a", "team/b/c", "teams", "team"] {
        site.run(&["run", job, "--", "true"]).quiet();
    }
    let jobs: Vec<Value> = site.rows(&["team/"]).iter().map(|row| row["job"].clone()).collect();
    assert_eq!(jobs, ["team/b/c", "team/a"]);
    assert_eq!(site.rows(&["team"]).len(), 1, "the name alone is one job");
    site.run(&["history", "none/"]).is(64, "history.unknown_name");
    let said = |args: &[&str], message: &str| {
        let out = site.run(args).quiet().out;
        assert!(says(&out, message), "{message}: {out}");
    };
    said(&["history", "team/", "--until", "1h"], "history.nothing_like_that");
    let leases = |args: &[&str]| -> Vec<Value> {
        let said = site.run(&[&["--json", "status"], args].concat()).quiet().objects();
        said.iter().map(|row| row["lease"].clone()).collect()
    };
    assert_eq!(leases(&["team/"]), ["team/a", "team/b/c"]);
    said(&["status", "none/"], "status.none_below");
    said(&["status", "--held"], "status.none_held");
    site.run(&["-q", "acquire", "team/b/c"]).token();
    site.run(&["-q", "acquire", "teams"]).token();
    assert_eq!(leases(&["--held"]), ["team/b/c", "teams"]);
    assert_eq!(leases(&["team/", "--held"]), ["team/b/c"]);
    assert_eq!(leases(&["team", "--held"]), [""; 0]);
    site.run(&["status", "Team/"]).is(64, "");
}

#[test]
fn what_observing_saw_is_summed_up() {
    each(|site| {
        site.run(&["run", "pub", "--observe", "--", "true"]).is(0, "");
        site.run(&["run", "pub", "--", "true"]).quiet();
        let seen = |n: u32, reason: &str| LogRecord {
            reason: Some(reason.into()),
            ..record(n * HOUR, LogEvent::Observed, "pub", u64::from(n))
        };
        let records: Vec<_> = (1..=70)
            .map(|n| {
                seen(
                    n,
                    if n <= 3 {
                        "overwrote-newer"
                    } else if n <= 9 {
                        "overlapped"
                    } else {
                        "alone"
                    },
                )
            })
            .collect();
        site.log(&records);
        // The sum is about all of them, not only those that are shown.
        let table = site.run(&["history", "pub", "--observed"]).quiet().out;
        assert!(says(&table, "history.observed"), "{table}");
        assert!(
            table.contains("9 of 71 runs overlapped another run, and 3 of these overwrote newer work"),
            "{table}"
        );
        let rows = site.rows(&["--observed", "--since", "150m"]);
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[1]["reason"], "overwrote-newer");
        let sum = &rows[3];
        assert_eq!(
            (&sum["runs"], &sum["overlapped"], &sum["overwrote_newer"]),
            (&3.into(), &2.into(), &2.into())
        );
        site.run(&["history", "--observed", "--only", "ok"]).is(64, "");
    });
}
