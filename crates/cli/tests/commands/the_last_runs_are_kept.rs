//! How the last runs of a lease ended is in its record, and `history` and `why` tell it.

use std::time::Duration;

use crate::world::{World, kill, pause, until};
use leasehold::core::ids::WriteId;
use leasehold::stores::Cas;
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
    fn runs_next(&self, lease: &str) {
        until("the lease is free", || self.run(&["run", lease, "--", "true"]).err.is_empty().then_some(()));
    }

    /// What the lease's record says, and the same with another text in it.
    fn rewrite(&self, lease: &str, from: &str, to: &str) {
        let mut store = leasehold::stores::open(&self.url).unwrap();
        let key = format!("leases/{lease}");
        let stored = block_on(store.read(&key)).unwrap().unwrap();
        let text = String::from_utf8(stored.body).unwrap();
        assert!(text.contains(from), "{text}");
        let text = text.replacen(from, to, 1);
        let write = WriteId(0x77);
        let written = block_on(store.cas(&key, Some(&stored.version), write, text.as_bytes()));
        assert!(matches!(written, Cas::Written { .. }), "{written:?}");
    }
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
        site.runs_next("hello");
        let token = site.run(&["-q", "acquire", "byhand"]).token().to_string();
        site.run(&["-q", "release", "byhand", "--token", &token]).quiet();
        let hello = ["1 ok 0", "2 failed 3", "3 killed 143", "4 unknown null", "5 ok 0"];
        assert_eq!(site.told(&["hello"]), hello);
        assert_eq!(site.told(&["byhand"]), ["1 released null"]);
        assert_eq!(site.told(&["other"]), ["2 failed 3"], "by the job's name");
        assert_eq!(site.told(&[]).len(), 6);
        assert_eq!(site.told(&["--only", "failed,unknown"]), ["2 failed 3", "4 unknown null"]);
        assert_eq!(site.told(&["--only", "lost"]), [""; 0]);
        let rows = site.rows(&["hello"]);
        for row in &rows {
            assert_eq!((&row["v"], &row["kind"], &row["lease"]), (&1.into(), &"run".into(), &"hello".into()));
            assert!(row["holder"].as_str().unwrap().contains('/'), "{row}");
            assert_eq!(row["duration_s"].is_f64(), row["outcome"] != "unknown", "{row}");
        }
        let table = site.run(&["history"]).quiet().out;
        assert!(table.ends_with("\n2 ok, 1 failed, 1 killed, 1 unknown, 1 released\n"), "{table}");
        assert!(table.starts_with("ITEM "), "{table}");
    });
}

#[test]
fn since_counts_from_when_a_run_ended() {
    each(|site| {
        site.run(&["run", "hello", "--", "true"]).quiet();
        site.run(&["run", "hello", "--", "false"]).is(1, "");
        let ended = site.rows(&["hello"])[0]["time"].as_str().unwrap().to_owned();
        site.rewrite("hello", &format!(" {ended} hello "), " 2001-09-09T01:46:40Z hello ");
        assert_eq!(site.told(&["--since", "1h"]), ["2 failed 1"]);
        assert_eq!(site.told(&[]), ["1 ok 0", "2 failed 1"]);
    });
}

#[test]
fn the_newest_eight_are_kept_and_a_skip_leaves_nothing() {
    each(|site| {
        for _ in 0..10 {
            site.run(&["run", "hello", "--", "true"]).quiet();
        }
        let tokens: Vec<u64> =
            site.rows(&["hello"]).iter().map(|row| row["token"].as_u64().unwrap()).collect();
        assert_eq!(tokens, [3, 4, 5, 6, 7, 8, 9, 10]);
        let held = ["run", "hello", "--", "sh", "-c", "echo here; read line"];
        let mut run = site.world.start(&site.args(&held));
        assert_eq!(run.line(), "here");
        site.run(&["run", "hello", "--", "touch", "never"]).is(0, "").names(&["skipped hello"]);
        run.close_stdin();
        run.ended();
        let told = site.told(&["hello"]);
        assert_eq!((told.len(), told.last().unwrap().as_str()), (8, "11 failed 1"), "{told:?}");
    });
}

#[test]
fn no_history_keeps_nothing() {
    each(|site| {
        site.run(&["run", "hello", "--no-history", "--", "false"]).is(1, "");
        assert_eq!(site.told(&[]), [""; 0]);
        assert!(
            site.run(&["history", "hello"]).quiet().out.starts_with("nothing of that kind is recorded on ")
        );
        let why = site.run(&["why", "hello"]).quiet().out;
        assert!(why.contains("no run of hello is recorded"), "{why}");
        site.run(&["run", "hello", "--observe", "--no-history", "--", "true"]).is(0, "");
        assert_eq!(site.told(&[]), [""; 0]);
        site.run(&["run", "hello", "--observe", "--", "true"]).is(0, "");
        assert_eq!(site.told(&[]), ["3 released null"]);
    });
}

#[test]
fn what_the_ledger_tells_is_not_told_twice() {
    each(|site| {
        site.run(&["run", "hello", "--key", "k", "--", "true"]).quiet();
        site.run(&["run", "hello", "--slot", "2026-11-16T05:45Z", "--", "true"]).quiet();
        site.run(&["run", "hello", "--cooldown", "1ms", "--", "true"]).quiet();
        pause(Duration::from_millis(5));
        site.run(&["run", "hello", "--cooldown", "1ms", "--", "true"]).quiet();
        site.dies(&["run", "hello", "--ttl", "2s", "--key", "dead"]);
        site.runs_next("hello");
        let mut rows: Vec<String> = site
            .rows(&[])
            .iter()
            .map(|row| format!("{} {} {}", row["token"], row["kind"], row["outcome"]).replace('"', ""))
            .collect();
        rows.sort();
        let each_hold_once =
            ["1 key ok", "2 slot ok", "3 run ok", "4 cooldown ok", "5 key unknown", "6 run ok"];
        assert_eq!(rows, each_hold_once);
        // Done again, its row is of the second time; that the first never reported is still there.
        site.run(&["run", "hello", "--key", "dead", "--if-unknown", "retry", "--", "true"]).is(0, "");
        assert_eq!(site.told(&["--only", "unknown"]), ["5 unknown null"]);
        // What a key or a slot came to is the ledger's alone, however often it was tried.
        for item in [["--key", "again"], ["--slot", "2026-11-16T06:30Z"]] {
            site.run(&[&["run", "hello"], &item[..], &["--", "false"]].concat()).is(1, "");
            site.run(&[&["run", "hello"], &item[..], &["--", "true"]].concat()).quiet();
        }
        assert_eq!(site.told(&["--only", "failed"]), [""; 0]);
    });
}

#[test]
fn a_slot_that_died_is_the_ledgers() {
    let site = Site::new("sqlite");
    site.dies(&["run", "hello", "--ttl", "2s", "--slot", "2026-11-16T05:45Z"]);
    site.runs_next("hello");
    let kinds: Vec<Value> = site.rows(&["--only", "unknown"]).iter().map(|row| row["kind"].clone()).collect();
    assert_eq!(kinds, ["slot"]);
    site.run(&["run", "hello", "--slot", "2026-11-16T05:45Z", "--if-unknown", "retry", "--", "true"])
        .is(0, "");
    assert_eq!(site.told(&["--only", "unknown"]), [""; 0]);
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
        assert_eq!(
            site.told(&["--only", "unknown,released"]),
            ["2 released null", "3 unknown null", "4 released null"]
        );
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
        site.dies(&["run", "hello", "--ttl", "2s"]);
        let next = ["run", "hello", "--no-history", "--", "true"];
        until("the lease is free", || site.run(&next).err.is_empty().then_some(()));
        said("the last run of hello never reported: ");
        site.run(&["-q", "acquire", "hello"]).token();
        site.run(&["-q", "release", "hello", "--token", "5"]).quiet();
        said("hello was last held by ");
    });
}

/// A run without a slot is tied to no time: what is kept around it is shown, and how far the records reach.
#[test]
fn why_shows_the_runs_around_a_time() {
    each(|site| {
        site.run(&["run", "hello", "--", "sh", "-c", "exit 3"]).is(3, "");
        let first = site.rows(&["hello"])[0]["time"].as_str().unwrap().to_owned();
        let told = site.run(&["--json", "why", "hello", &first]).quiet().json();
        assert_eq!((told["kind"].as_str(), told["outcome"].as_str()), (Some("run"), Some("failed")));
        let runs = |time: &str| {
            let said = site.run(&["--json", "why", "hello", time]).quiet().out;
            let rows = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            rows.map(|row| row["token"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        // Each a day after the other, by the clock of whoever wrote the line.
        for token in 1..=4 {
            let last = site.rows(&["hello"]).pop().unwrap();
            assert_eq!(last["token"], token);
            let line = |time: &str| format!("{time} hello ");
            let long_ago = format!("2026-01-0{token}T00:00:00Z");
            site.rewrite("hello", &line(last["time"].as_str().unwrap()), &line(&long_ago));
            site.run(&["run", "hello", "--", "true"]).quiet();
        }
        site.rewrite("hello", "5 ok", "5 no line");
        assert_eq!(runs("2026-01-02T12:00Z"), [2, 3]);
        assert_eq!(runs("2026-01-03T00:00Z"), [3, 4]);
        assert_eq!(runs("2025-12-31T00:00Z"), [1]);
        assert_eq!(runs("2026-02-01T00:00Z"), [4]);
        let said = |time: &str| site.run(&["why", "hello", time]).quiet().out;
        assert!(said("2025-12-31T00:00Z").contains(" is not known: "), "{}", said("2025-12-31T00:00Z"));
        assert!(said("2026-01-02T12:00Z").contains("kept since 2026-01-01T00:00:00Z"));
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
