//! The run log: what is written, where, and what is not.

use std::fs;

use leasehold::core::run_log::{LogEvent, LogRecord};
use leasehold::run_log::{Scope, Window, newest};
use rustix::process::Signal;

use crate::world::{World, binary, kill, until};

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

    /// The records, the oldest first.
    fn log(&self) -> Vec<LogRecord> {
        let mut store = leasehold::stores::open(&self.url).unwrap();
        let window = Window::last(std::time::Duration::from_secs(3600));
        let (found, more) = newest(store.as_mut(), Scope::All, window, 100, |_| true).unwrap();
        assert!(!more);
        let filled = found.into_iter().rev().map(|mut entry| {
            entry.fill(store.as_mut()).unwrap();
            let record = entry.record.unwrap();
            assert_eq!(record.key(), entry.key);
            record
        });
        filled.collect()
    }

    /// "EVENT REASON" of each.
    fn told(&self) -> Vec<String> {
        let word = |log: &LogRecord| match &log.reason {
            Some(why) => format!("{} {why}", log.event.word()),
            None => log.event.word().to_owned(),
        };
        self.log().iter().map(word).collect()
    }
}

fn each(test: impl Fn(&Site)) {
    for scheme in ["sqlite", "dir"] {
        test(&Site::new(scheme));
    }
}

#[test]
fn each_run_and_each_skip_has_one_record() {
    each(|site| {
        site.run(&["run", "hello", "--", "true"]).quiet();
        site.run(&["run", "hello", "--job", "other", "--tail", "--", "sh", "-c", "echo why; exit 3"])
            .is(3, "");
        let held = ["run", "hello", "--", "sh", "-c", "echo here; read line"];
        let mut run = site.world.start(&site.args(&held));
        assert_eq!(run.line(), "here");
        site.run(&["run", "hello", "--", "touch", "never"]).is(0, "run.skipped");
        site.run(&["acquire", "hello", "--ttl", "9s"]).is(11, "");
        site.run(&["run", "hello", "--no-history", "--", "true"]).is(0, "run.skipped");
        run.close_stdin();
        run.ended();
        site.run(&["once", "k", "--", "true"]).quiet();
        site.run(&["once", "k", "--", "true"]).is(0, "items.skipped");
        site.run(&["run", "hello", "--cooldown", "1h", "--", "true"]).quiet();
        site.run(&["run", "hello", "--cooldown", "1h", "--", "true"]).is(0, "items.skipped");
        let wanted =
            ["ok", "failed", "skipped overlap", "failed", "ok", "skipped done", "ok", "skipped cooldown"];
        assert_eq!(site.told(), wanted);
        let log = site.log();
        let (failed, skipped, key) = (&log[1], &log[2], &log[4]);
        assert_eq!((failed.exit, failed.job.as_str(), failed.said.as_str()), (Some(3), "other", "why"));
        assert_eq!((failed.lease.as_ref().unwrap().as_str(), failed.token.unwrap().get()), ("hello", 2));
        assert!(failed.took.is_some() && log[0].said.is_empty());
        // The holder that was in the way, and not the run that was skipped.
        assert_eq!(skipped.token.unwrap().get(), 3);
        assert!(skipped.said.ends_with(&format!("/{}", log[3].holder.pid)), "{}", skipped.said);
        assert_eq!(serde_json::to_value(&key.item).unwrap()["key"], "k");
    });
}

#[test]
fn no_history_writes_no_record() {
    each(|site| {
        site.run(&["run", "hello", "--no-history", "--", "false"]).is(1, "");
        site.run(&["run", "hello", "--observe", "--no-history", "--", "true"]).is(0, "");
        assert_eq!(site.told(), [""; 0]);
        // The control.
        site.run(&["run", "hello", "--observe", "--", "true"]).is(0, "");
        assert_eq!(site.told(), ["observed alone"]);
    });
}

/// A job has no store: the run around it hands its refusals in.
#[test]
fn a_refused_write_is_logged_with_both_tokens() {
    each(|site| {
        let leasehold = binary().to_str().unwrap().to_owned();
        let write = format!("echo page | {leasehold} write file:page");
        site.run(&["run", "site", "--fence", "file:page", "--", "sh", "-c", &write]).is(0, "");
        site.run(&["run", "site", "--", "sh", "-c", &write]).is(76, "");
        assert_eq!(site.told(), ["ok", "refused not-sealed", "failed"]);
        let log = site.log();
        let refused = log[1].target.as_ref().unwrap();
        let tokens = (log[1].token.unwrap().get(), refused.fence.unwrap().get());
        assert_eq!((tokens, refused.target.as_str()), ((2, 1), "file:page"));
        assert_eq!(log[1].holder.run, log[2].holder.run, "of the run that was refused");
        assert!(fs::read_dir(site.world.state().join("unlogged")).unwrap().next().is_none(), "handed in");
    });
}

/// Another store knows a lease of the same name, and a run there ends first.
#[test]
fn a_refusal_goes_to_the_store_of_its_run() {
    let site = Site::new("sqlite");
    let other = Site { url: site.world.store("dir"), world: site.world };
    let site = |args: &[&str]| other.world.run(&[&["--store", "sqlite:own.db"], args].concat());
    site(&["run", "site", "--fence", "file:page", "--", "true"]).quiet();
    other.run(&["run", "site", "--", "true"]).quiet();
    let write = format!("echo x | {} write file:page; echo written; read line", binary().display());
    let mut run = other.world.start(&["--store", "sqlite:own.db", "run", "site", "--", "sh", "-c", &write]);
    assert_eq!(run.line(), "written");
    other.run(&["run", "site", "--", "true"]).quiet();
    assert_eq!(other.told(), ["ok", "ok"]);
    run.close_stdin();
    run.ended();
    let refused = site(&["--json", "history", "site", "--only", "refused"]).is(0, "").json();
    assert_eq!((&refused["token"], &refused["fence"]), (&2.into(), &1.into()), "{refused}");
}

/// A pipe among the kept records is nothing that a run waits for.
#[test]
fn a_pipe_is_not_waited_for() {
    let site = Site::new("sqlite");
    site.run(&["run", "hello", "--", "true"]).quiet();
    fs::create_dir_all(site.world.state().join("unlogged")).unwrap();
    let pipe = site.world.at(".local/state/leasehold/unlogged/1-1-ok.json");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    site.run(&["run", "hello", "--", "true"]).quiet();
    assert_eq!(site.told(), ["ok", "ok"]);
}

#[test]
fn what_a_person_did_is_logged_with_who_and_where() {
    each(|site| {
        let job = ["run", "hello", "--ttl", "3s", "--", "sh", "-c", "echo here; exec sleep 60"];
        let mut run = site.world.start(&site.args(&job));
        assert_eq!(run.line(), "here");
        site.run(&["break", "hello"]).is(0, "");
        run.ended().is(75, "run.lost");
        site.run(&["once", "k", "--", "false"]).is(1, "");
        site.run(&["retry", "k"]).is(0, "");
        site.run(&["retry", "--done", "k"]).is(0, "");
        let token = site.run(&["-q", "acquire", "byhand"]).token().to_string();
        site.run(&["-q", "release", "byhand", "--token", &token]).quiet();
        assert_eq!(site.told(), ["break", "lost revoked", "failed", "retry", "done", "released"]);
        for log in site.log().iter().filter(|log| log.event.by_person()) {
            assert!(log.said.contains('@') && log.said.contains('/'), "{}: {}", log.event.word(), log.said);
        }
        assert_eq!(serde_json::to_value(&site.log()[4].item).unwrap()["key"], "k");
    });
}

#[test]
fn a_run_that_never_reported_is_logged_by_the_next() {
    each(|site| {
        let job = ["run", "hello", "--ttl", "2s", "--", "sh", "-c", "echo here; exec sleep 60"];
        let mut run = site.world.start(&site.args(&job));
        assert_eq!(run.line(), "here");
        kill(run.pid(), Signal::KILL);
        run.ended();
        until("the lease is free", || {
            site.run(&["run", "hello", "--no-history", "--", "true"]).err.is_empty().then_some(())
        });
        assert_eq!(site.told(), [""; 0], "a run without history says nothing of others");
        let mut run = site.world.start(&site.args(&job));
        assert_eq!(run.line(), "here");
        kill(run.pid(), Signal::KILL);
        run.ended();
        until("the lease is free", || site.run(&["run", "hello", "--", "true"]).err.is_empty().then_some(()));
        let told: Vec<_> = site.log().iter().filter(|log| log.event != LogEvent::Skipped).cloned().collect();
        let told: Vec<_> = told.iter().map(|log| (log.event, log.token.unwrap().get())).collect();
        assert_eq!(told, [(LogEvent::Unknown, 3), (LogEvent::Ok, 4)]);
    });
}

/// What the store does not take is kept here, and the next run hands it in.
#[test]
fn a_store_that_is_away_gets_the_record_later() {
    let site = Site::new("sqlite");
    site.run(&["run", "hello", "--", "true"]).quiet();
    let (from, to) = (site.world.path("away"), site.url.trim_start_matches("sqlite:").to_owned());
    // The store goes while the job runs, and the lease with it.
    let script = format!("echo here; read line; mv {to} {}; mv {to}-wal {0}-wal", from.display());
    let job = ["run", "hello", "--ttl", "2s", "--", "sh", "-c", &script];
    let mut run = site.world.start(&site.args(&job));
    assert_eq!(run.line(), "here");
    run.close_stdin();
    run.ended().is(0, "");
    let unlogged = site.world.state().join("unlogged");
    assert_eq!(fs::read_dir(&unlogged).unwrap().count(), 1);
    fs::rename(&from, &to).unwrap();
    fs::rename(format!("{}-wal", from.display()), format!("{to}-wal")).unwrap();
    until("the lease is free", || site.run(&["run", "hello", "--", "true"]).err.is_empty().then_some(()));
    assert_eq!(fs::read_dir(&unlogged).unwrap().count(), 0);
    let own: Vec<_> =
        site.log().iter().filter(|log| log.token.is_some_and(|t| t.get() == 2)).cloned().collect();
    assert!(own.iter().any(|log| log.event != LogEvent::Unknown), "its own record is there: {own:?}");
}
