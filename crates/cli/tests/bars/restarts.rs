//! A server that is killed and comes back under a run: one that is back soon costs nothing, one that stays
//! away ends the job before anybody else can be granted the lease, and no token comes twice.

#[allow(dead_code)] // the library's tests use the rest of it
#[path = "../../../lib/tests/remote/postgres/own.rs"]
mod own;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::name::Name;
use leasehold::core::session::lease_key;
use leasehold::core::timing::{StoreClock, Timing, TimingWishes};
use rustix::process::Signal;

use crate::common::{Home, LEASE, Stalls, Started, alone, carriers, deaths, record, rounds};

/// How the runs are timed.
const WISHES: TimingWishes = TimingWishes {
    ttl: Some(Duration::from_secs(6)),
    heartbeat: Some(Duration::from_millis(500)),
    grace: Some(Duration::from_millis(300)),
};

/// The same as flags.
const FLAGS: [&str; 6] = ["--ttl", "6s", "--heartbeat", "500ms", "--grace", "300ms"];

/// A job of two processes, one in a session of its own, that ends with 7 when it is told to.
const JOB: &str = "trap 'kill $far; exit 7' USR1; setsid sleep 1000 & far=$!; \
    echo grant $LEASEHOLD_TOKEN $LEASEHOLD_RUN_ID; echo up far $far; echo up job $$; wait";

/// A round that ends late while the machine kept even this test waiting for this long is out of bounds.
const STALL: Duration = Duration::from_millis(200);

/// A name nobody else uses, for the directories of the servers.
fn corner() -> String {
    format!("t{:x}/", leasehold::random::seed())
}

/// A server of the test's own.
trait Server {
    fn url(&self) -> String;
    /// As kill -9 does.
    fn kill(&mut self);
    /// On what the last one left; ready when this returns.
    fn again(&mut self);
}

impl Server for own::Server {
    fn url(&self) -> String {
        own::Server::url(self)
    }

    fn kill(&mut self) {
        own::Server::kill(self);
    }

    fn again(&mut self) {
        self.run();
    }
}

struct Redis {
    home: Home,
    port: u16,
    args: &'static [&'static str],
    child: Option<Child>,
}

impl Redis {
    fn start(args: &'static [&'static str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { home: Home::new(), port, args, child: None };
        server.again();
        server
    }
}

impl Server for Redis {
    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn again(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--daemonize", "no"]);
        command.arg("--dir").arg(&self.home.0).args(self.args).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            command.spawn().unwrap_or_else(|e| panic!("SKIPPED: redis-server cannot be run: {e}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        self.child = Some(child);
        assert!(
            lines.any(|line| line.contains("Ready to accept connections")),
            "redis-server does not start"
        );
        // Read on, or the server would stand still when the pipe is full.
        std::thread::spawn(move || lines.for_each(drop));
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One `leasehold run` whose job is up.
struct Run {
    started: Started,
    token: u64,
    run_id: String,
}

impl Run {
    fn start(url: &str, home: &Home, lease: &str, timing: &[&str]) -> Result<Self, String> {
        let mut command = home.leasehold(&["--store", url, "run", lease, "--wait", "60s"]);
        command.args(timing).args(["--", "sh", "-c", JOB]);
        let mut started = Started::new(command, home);
        let (line, _) = started.line()?;
        let words: Vec<&str> = line.split(' ').collect();
        let ["grant", token, run_id] = words[..] else { return Err(format!("not understood: {line}")) };
        let (token, run_id) = (token.parse().unwrap(), run_id.to_owned());
        started.one_up()?;
        started.one_up()?;
        Ok(Self { started, token, run_id })
    }

    /// Tells the job to end: its own code is the run's.
    fn ends_by_itself(mut self) -> Result<(), String> {
        self.started.up[1].signal(Signal::USR1);
        let code = self.started.end()?.code();
        let left = carriers(&self.run_id);
        let good = code == Some(7) && left.is_empty();
        if good { Ok(()) } else { Err(format!("{code:?}, {left:?}: {}", self.started.said())) }
    }
}

fn timing() -> Timing {
    let clock = StoreClock { resolution: Duration::from_millis(1), jump: Duration::from_secs(1) };
    Timing::new(WISHES, clock).unwrap()
}

/// The server is gone only for as long as it takes to start again: the run goes on under its token.
/// How long that was; nothing if it was longer than the lease has room for.
fn short(server: &mut dyn Server, run: &mut Run) -> Result<Option<Duration>, String> {
    let began = boot_time();
    server.kill();
    server.again();
    let outage = boot_time().since(began);
    // The last renewal may be a heartbeat old, and the next try after the start a heartbeat away.
    if outage >= timing().trusted_for() - timing().heartbeat * 2 {
        return Ok(None);
    }
    let mut store = leasehold::stores::open(&server.url()).unwrap_or_else(|e| panic!("{e}"));
    let key = lease_key(&Name::new(LEASE).unwrap());
    let version = pollster::block_on(store.read(&key)).unwrap().expect("a record").version;
    let (mut now, patience) = (record(&server.url()).0, boot_time().plus(timing().ttl));
    // A hint may be wrong: the record itself tells.
    while now.write.to_string() == version.0 && boot_time() < patience {
        pollster::block_on(store.wait_change(&key, Some(&version), timing().ttl));
        now = record(&server.url()).0;
    }
    let renewed = now.write.to_string() != version.0;
    let same = now.token.get() == run.token && now.hold.is_some();
    let alive = run.started.up.iter().all(|process| process.alive());
    if renewed && same && alive {
        return Ok(Some(outage));
    }
    Err(format!("down for {outage:?}: renewed {renewed}, job alive {alive}, {now:?}: {}", run.started.said()))
}

/// The server stays away: everybody is dead, by as much as is returned, before the lease can be granted again.
fn long(server: &mut dyn Server, mut run: Run) -> Result<f64, String> {
    server.kill();
    let ended: Option<Vec<_>> = deaths(&run.started.up).into_iter().collect();
    let code = run.started.end()?.code();
    let left = carriers(&run.run_id);
    server.again();
    let last = ended.and_then(|ended| ended.into_iter().max()).ok_or("the job lives on")?;
    if code != Some(75) || !left.is_empty() {
        return Err(format!("{code:?}, {left:?}: {}", run.started.said()));
    }
    // What the store kept is what the next holder goes by.
    let (kept, written) = record(&server.url());
    if kept.token.get() != run.token {
        return Err(format!("token {} became {kept:?}", run.token));
    }
    let end = written.plus(timing().ttl - timing().clock.jump);
    Ok(end.since(last).as_secs_f64() * 1e3 - last.since(end).as_secs_f64() * 1e3)
}

/// Whether every token is above the one before.
fn grow(tokens: &[u64]) -> bool {
    tokens.windows(2).all(|pair| pair[0] < pair[1])
}

fn play(name: &str, server: &mut dyn Server, rounds: usize, stalls: &Stalls) {
    let (home, url) = (Home::new(), server.url());
    // Control: a longer lease outlives every one of these outages. It is the deadline that ends the others.
    let lasting = Run::start(&url, &home, "lasting", &["--ttl", "90s", "--heartbeat", "500ms"]).unwrap();
    let (mut tokens, mut outages, mut spares, mut repeated) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while outages.len() < rounds {
        assert!(repeated <= rounds / 10 + 1, "{name}: this machine is too busy to measure on");
        let (began, round) = (boot_time(), outages.len());
        let failed = |why: String| -> ! { panic!("{name}, round {round}: {why}") };
        let mut run = Run::start(&url, &home, LEASE, &FLAGS).unwrap_or_else(|e| failed(e));
        tokens.push(run.token);
        let Some(outage) = short(server, &mut run).unwrap_or_else(|e| failed(e)) else {
            println!("{name}, round {round}: the server took too long to start");
            repeated += 1;
            continue;
        };
        if round % 2 == 0 {
            run.ends_by_itself().unwrap_or_else(|e| failed(e));
        } else {
            let spare = long(server, run).unwrap_or_else(|e| failed(e));
            let stalled = stalls.longest_since(began);
            if spare <= 0.0 && stalled >= STALL {
                println!(
                    "{name}, round {round}: {spare:.0} ms, while the machine stood still for {stalled:.1?}"
                );
                repeated += 1;
                continue;
            }
            assert!(spare > 0.0, "{name}, round {round}: the job died {:.0} ms too late", -spare);
            spares.push(spare);
        }
        outages.push(outage);
    }
    assert!(grow(&tokens), "{name}: {tokens:?}");
    assert!(lasting.started.up.iter().all(|process| process.alive()), "{name}: {}", lasting.started.said());
    assert_eq!(lasting.token, 1);
    lasting.ends_by_itself().unwrap_or_else(|e| panic!("{name}, the longer lease: {e}"));
    let distinct: BTreeSet<_> = tokens.iter().collect();
    let (most, least) = (outages.iter().max().unwrap(), spares.iter().copied().fold(f64::MAX, f64::min));
    println!(
        "{name}: {rounds} rounds, {} short restarts survived (the longest {most:.1?}), {} long ones stopped the job \
         at least {least:.0} ms before it had to be dead; {} grants, {} tokens; {repeated} played again",
        outages.len(),
        spares.len(),
        tokens.len(),
        distinct.len(),
    );
}

#[test]
fn a_short_restart_is_survived_and_a_long_one_stops_the_job_in_time() {
    let _alone = alone();
    let (rounds, stalls) = (rounds(4, 50), Stalls::watch());
    // They mostly wait. A server ends with the thread that started it.
    std::thread::scope(|scope| {
        scope.spawn(|| play("postgres", &mut own::Server::start(&[]), rounds, &stalls));
        let log = &["--appendonly", "yes", "--appendfsync", "always", "--save", ""];
        scope.spawn(|| play("redis", &mut Redis::start(log), rounds, &stalls));
    });
}

/// Control: where the server forgets, tokens come again, and that is seen.
#[test]
fn a_server_that_forgets_gives_a_token_twice() {
    let _alone = alone();
    let mut server = Redis::start(&["--appendonly", "no", "--save", ""]);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        // Another home: this one would remember what the server has forgotten, and refuse it.
        let home = Home::new();
        let run = Run::start(&server.url(), &home, LEASE, &[]).unwrap();
        tokens.push(run.token);
        run.ends_by_itself().unwrap();
        server.kill();
        server.again();
    }
    assert!(!grow(&tokens), "{tokens:?}");
}
