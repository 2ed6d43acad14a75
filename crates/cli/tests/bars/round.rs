//! One round: a job of some kind loses its lease in some way.

use std::process::Command;
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::time::BootTime;
use rusqlite::Connection;
use rustix::process::Signal;

use crate::common::{
    Home, LEASE, Seen, Started, carriers, deaths, fresh_run_id, python, record, sqlite_url, until,
};

/// A short lease with a quick heartbeat, so that the kill margin is about 0.2 s.
const TTL: Duration = Duration::from_millis(1500);
const HEARTBEAT: Duration = Duration::from_millis(250);
const GRACE: Duration = Duration::from_millis(300);

/// What the job is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Setsid,
    Daemon,
    Python,
    Deaf,
}

pub(crate) const KINDS: [Kind; 5] = [Kind::Plain, Kind::Setsid, Kind::Daemon, Kind::Python, Kind::Deaf];

impl Kind {
    /// The command, and how many processes will say that they are up.
    pub(crate) fn command(self) -> (Vec<&'static str>, usize) {
        let shell = |script| vec!["sh", "-c", script];
        match self {
            Self::Plain => (shell("echo up plain $$; exec sleep 1000"), 1),
            Self::Setsid => {
                (shell("setsid sh -c 'echo up setsid $$; exec sleep 1000' & echo up main $$; wait"), 2)
            }
            // Its parent and its parent's parent are gone at once.
            Self::Daemon => (
                shell(
                    "setsid sh -c '(sh -c \"echo up daemon \\$\\$; exec sleep 1000\" &) & exit'
                    echo up main $$; exec sleep 1000",
                ),
                2,
            ),
            // Python closes what it does not hand on.
            Self::Python => (
                vec![
                    python(),
                    "-ISc",
                    "import os, subprocess\n\
                     print('up main', os.getpid(), flush=True)\n\
                     job = ['sh', '-c', 'echo up python $$; exec sleep 1000']\n\
                     subprocess.Popen(job, start_new_session=True).wait()",
                ],
                2,
            ),
            Self::Deaf => (
                shell("trap '' TERM; sh -c 'echo up deaf-child $$; exec sleep 1000' & echo up deaf $$; wait"),
                2,
            ),
        }
    }
}

/// How the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Another process keeps the database locked.
    Locked,
    /// The database is moved away.
    Moved,
    /// A directory stands where the database was.
    Replaced,
    /// `break --now`.
    Broken,
    /// The wrapper is stopped, and another run overtakes it.
    Frozen,
}

pub(crate) const WAYS: [Way; 5] = [Way::Locked, Way::Moved, Way::Replaced, Way::Broken, Way::Frozen];

/// What a round came to.
#[derive(Debug)]
pub(crate) struct Figures {
    /// How long before it had to be the last process was dead; negative: too late by this much.
    pub(crate) spare_ms: f64,
}

/// The time from `a` to `b`, negative if `b` is first.
fn milliseconds(a: BootTime, b: BootTime) -> f64 {
    (b.0.as_secs_f64() - a.0.as_secs_f64()) * 1e3
}

/// A wrapper with a job of this kind, all of it up.
pub(crate) fn start(home: &Home, kind: Kind, run_id: &str, flags: &[&str]) -> Result<Started, String> {
    let (job, count) = kind.command();
    let mut command = home.leasehold(&["run", LEASE, "--run-id", run_id]);
    command.args(flags).arg("--").args(job);
    come_up(command, home, count)
}

pub(crate) fn come_up(command: Command, home: &Home, count: usize) -> Result<Started, String> {
    let mut started = Started::new(command, home);
    for _ in 0..count {
        started.one_up()?;
    }
    Ok(started)
}

/// Whoever is left: of those that came up, and of those that carry the run id.
pub(crate) fn survivors(up: &[Seen], run_id: &str) -> Vec<String> {
    let up = up.iter().filter(|s| s.alive()).map(|s| format!("{} {}", s.name, s.pid));
    up.chain(carriers(run_id)).collect()
}

/// Plays one round; what is wrong, if anything is.
pub(crate) fn play(way: Way, kind: Kind) -> Result<Figures, String> {
    let home = Home::new();
    let run_id = fresh_run_id();
    let flags = ["--ttl", "1500ms", "--heartbeat", "250ms", "--grace", "300ms"];
    let mut job = start(&home, kind, &run_id, &flags)?;
    let (deadline, ended) = match way {
        Way::Locked => locked(&home, &mut job)?,
        Way::Moved | Way::Replaced => taken_away(&home, &mut job, way == Way::Replaced)?,
        Way::Broken => broken(&home, &mut job)?,
        Way::Frozen => frozen(&home, &mut job)?,
    };
    let status = job.end()?;
    let left = survivors(&job.up, &run_id);
    if !left.is_empty() {
        return Err(format!("survivors: {left:?}"));
    }
    let said = job.said();
    let lines = said.lines().filter(|l| l.starts_with(&format!("leasehold: lost {LEASE} ("))).count();
    if status.code() != Some(75) || lines != 1 {
        return Err(format!("{status}, and it said: {said}"));
    }
    let mut last = BootTime::default();
    for (ended, seen) in ended.iter().zip(&job.up) {
        last = last.max(ended.ok_or_else(|| format!("{} lives", seen.name))?);
    }
    Ok(Figures { spare_ms: milliseconds(last, deadline) })
}

/// When it had to be over, and when each process ended.
type Ended = (BootTime, Vec<Option<BootTime>>);

/// A contender that is granted the lease as soon as it can be; the instant of its grant.
fn contend(home: &Home) -> Result<Started, String> {
    let command = home.leasehold(&["acquire", LEASE, "--wait", "60s", "--ttl", "60s", "-q"]);
    Ok(Started::new(command, home))
}

fn granted(home: &Home, contender: &mut Started, old: &str) -> Result<BootTime, String> {
    let status = contender.end()?;
    let (record, written) = record(&sqlite_url(home));
    let holds = record.hold.is_some() && record.holder.run != old;
    if !status.success() || !holds {
        return Err(format!("the contender: {status}, {record:?}; it said: {}", contender.said()));
    }
    Ok(written)
}

/// In the way of every write, and of the contender's, until the record has expired.
fn locked(home: &Home, job: &mut Started) -> Result<Ended, String> {
    let database = Connection::open(home.database()).map_err(|e| e.to_string())?;
    let run = record(&sqlite_url(home)).0.holder.run;
    let mut contender = contend(home)?;
    database.busy_timeout(Duration::from_secs(10)).map_err(|e| e.to_string())?;
    database.execute_batch("BEGIN IMMEDIATE").map_err(|e| e.to_string())?;
    let expires = record(&sqlite_url(home)).1.plus(TTL);
    let ended = std::thread::scope(|scope| {
        let watch = scope.spawn(|| deaths(&job.up));
        until(expires.plus(Duration::from_millis(20)));
        let freed = database.execute_batch("ROLLBACK");
        freed.map(|()| watch.join().unwrap())
    });
    let ended = ended.map_err(|e| e.to_string())?;
    let grant = granted(home, &mut contender, &run)?;
    // The lease may have been given back early, by a release that landed: then not before the end.
    Ok((grant, ended))
}

/// Puts the database where nobody finds it until the record has expired.
fn taken_away(home: &Home, job: &mut Started, replace: bool) -> Result<Ended, String> {
    let (path, away) = (home.database(), home.0.join("away.db"));
    let io = |e: std::io::Error| e.to_string();
    let database = Connection::open(&path).map_err(|e| e.to_string())?;
    let run = record(&sqlite_url(home)).0.holder.run;
    let read = || database.query_row("SELECT stamp FROM records", [], |row| row.get::<_, String>(0));
    read().map_err(|e| e.to_string())?;
    std::fs::rename(&path, &away).map_err(io)?;
    if replace {
        std::fs::create_dir(&path).map_err(io)?;
    }
    // What lands from here on is not confirmed to anybody.
    let stamp = read().map_err(|e| e.to_string())?;
    let seconds: f64 = stamp.rsplit('/').next().and_then(|t| t.parse().ok()).ok_or("no stamp")?;
    let expires = BootTime(Duration::from_secs_f64(seconds)).plus(TTL);
    let ended = deaths(&job.up);
    job.end()?;
    until(expires);
    if replace {
        std::fs::remove_dir(&path).map_err(io)?;
    }
    std::fs::rename(&away, &path).map_err(io)?;
    let mut contender = contend(home)?;
    granted(home, &mut contender, &run)?;
    Ok((expires, ended))
}

/// Taken over by force: the holder hears of it at its next renewal.
fn broken(home: &Home, job: &mut Started) -> Result<Ended, String> {
    let run = record(&sqlite_url(home)).0.holder.run;
    let command = home.leasehold(&["break", LEASE, "--now", "--take", "--ttl", "60s", "-q"]);
    let mut breaker = Started::new(command, home);
    let grant = granted(home, &mut breaker, &run)?;
    let ended = deaths(&job.up);
    Ok((grant.plus(HEARTBEAT + GRACE), ended))
}

/// Stopped past its lease and overtaken; what it says when it wakes up comes at once.
fn frozen(home: &Home, job: &mut Started) -> Result<Ended, String> {
    job.wrapper.signal(Signal::STOP);
    let script = "echo up next $$; exec sleep 1000";
    let mut command = home.leasehold(&["run", LEASE, "--wait", "60s", "--ttl", "60s", "-q", "--"]);
    command.args(["sh", "-c", script]);
    let mut next = come_up(command, home, 1)?;
    if job.up.iter().any(|seen| !seen.alive()) {
        return Err("something ended although nobody was there to end it".into());
    }
    let woken = boot_time();
    job.wrapper.signal(Signal::CONT);
    let ended = deaths(&job.up);
    job.end()?;
    let holder = record(&sqlite_url(home)).0;
    if !next.up[0].alive() || holder.hold.is_none() || holder.holder.pid != next.wrapper.pid as u32 {
        return Err(format!("the overtaker was disturbed: {holder:?}"));
    }
    next.wrapper.signal(Signal::TERM);
    let status = next.end()?;
    match status.code() {
        Some(143) => Ok((woken.plus(Duration::from_secs(1)), ended)),
        _ => Err(format!("the overtaker: {status}: {}", next.said())),
    }
}
