//! Three daemons with the same jobs on one store, killed, frozen and restarted at random: every slot comes to exactly
//! one end, none runs twice, and none is lost without a reason.

mod audit;

use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use crate::world::places::{fresh, places};
use crate::world::{World, pause, until};
use audit::{Audit, Slots};
use leasehold::clock::boot_time;
use leasehold::core::name::Name;
use leasehold::stores::{self, Store};
use leasehold_testkit::count;
use rustix::process::{Pid, Signal, kill_process};

const JOBS: usize = 40;
const DAEMONS: usize = 3;

/// Random enough, and the same again for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// A store, its jobs, and what they wrote when they ran.
struct Ground {
    world: World,
    url: String,
    prefix: String,
}

impl Ground {
    fn new(world: World, url: String, ttl: &str) -> Self {
        let ground = Self { world, url, prefix: fresh("chaos") };
        let mut text = String::new();
        for n in 0..JOBS {
            // Some outlive their interval, some fail, some are run again if nobody knows what became of them.
            let (nap, code) = (if n % 8 == 3 { "sleep 2.5;" } else { "" }, if n % 10 == 5 { 3 } else { 0 });
            let script = format!(
                "echo begin $LEASEHOLD_JOB $LEASEHOLD_SLOT >> ran; {nap} echo end $LEASEHOLD_JOB $LEASEHOLD_SLOT >> ran; \
                 exit {code}"
            );
            let (job, every, again) = (ground.job(n), 1 + n % 2, Slots::again(n));
            write!(
                text,
                "[[job]]\nname = \"{job}\"\nevery = \"{every}s\"\nrun = [\"sh\", \"-c\", '''{script}''']\n\
                 ttl = \"{ttl}\"\nretry = {again}\ncatch_up = {}\n\n",
                1 + n % 3
            )
            .unwrap();
        }
        ground.world.write("leasehold.toml", &text);
        ground.world.write("ran", "");
        ground
    }

    fn job(&self, n: usize) -> Name {
        Name::new(&format!("{}-{n:02}", self.prefix)).unwrap()
    }

    fn store(&self) -> Box<dyn Store> {
        stores::open(&self.url).unwrap()
    }

    /// A daemon on a machine of its own: it shares nothing with the others but the store.
    fn daemon(&self, machine: usize) -> Daemon {
        let said = self.world.path(&fresh("said"));
        let to = std::fs::File::create_new(&said).unwrap();
        let mut command = self.world.command(&["--store", &self.url, "-q", "daemon"]);
        command.env("XDG_STATE_HOME", self.world.path(&format!("machine-{machine}")));
        Daemon(command.stdout(to.try_clone().unwrap()).stderr(to).spawn().unwrap(), said)
    }

    fn tick(&self) {
        let ended = self.world.run(&["--store", &self.url, "-q", "tick"]);
        assert!([0, 1].contains(&ended.code), "{ended:#?}");
    }
}

/// With what it and its runs said. Killed at the latest when the test ends; its runs go on.
struct Daemon(Child, PathBuf);

impl Daemon {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn ended(mut self) {
        let status = self.0.wait().unwrap();
        // One that was started just now may not have come as far as hearing signals.
        let told = status.success() || status.signal() == Some(Signal::TERM.as_raw());
        let said = std::fs::read_to_string(&self.1).unwrap();
        assert!(told || kept_out(status.code(), &said), "{status}: {said}");
    }
}

/// A database file whose writer is frozen in a commit lets nobody in. A daemon that comes then says so and nothing else,
/// for it has started nothing.
fn kept_out(code: Option<i32>, said: &str) -> bool {
    let line = "another process kept it busy for too long";
    code == Some(69) && said.contains(line) && said.lines().count() == 1
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes that a daemon has started.
fn runs_of(daemon: u32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children"));
    children.unwrap_or_default().split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn send(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

/// Kills, freezes and restarts daemons and their runs until the time is up.
fn rage(ground: &Ground, daemons: &mut Vec<Daemon>, dice: &mut Dice, seconds: u64) -> u32 {
    let end = boot_time().plus(Duration::from_secs(seconds));
    let mut deeds = 0;
    while boot_time() < end {
        pause(Duration::from_millis(100 + dice.below(900)));
        let at = usize::try_from(dice.below(DAEMONS as u64)).unwrap();
        let pid = daemons[at].pid();
        deeds += 1;
        match dice.below(10) {
            0..=2 => daemons[at] = ground.daemon(at),
            3..=5 => {
                send(pid, Signal::STOP);
                pause(Duration::from_millis(200 + dice.below(4_000)));
                send(pid, Signal::CONT);
            }
            6 => {
                send(pid, Signal::TERM);
                let leaving = std::mem::replace(&mut daemons[at], ground.daemon(at));
                daemons.push(leaving);
            }
            _ => {
                // One of its runs: their wrappers are killed as well, and frozen.
                let runs = runs_of(pid);
                let at = usize::try_from(dice.below(runs.len().max(1) as u64)).unwrap();
                let Some(run) = runs.get(at) else { continue };
                let signal = if dice.below(2) == 0 { Signal::KILL } else { Signal::STOP };
                let run = run.cast_unsigned();
                send(run, signal);
                pause(Duration::from_millis(dice.below(1_000)));
                send(run, Signal::CONT);
            }
        }
    }
    deeds
}

fn chaos(name: &str, ground: &Ground) {
    let seconds = count(60, 300) as u64;
    let seed = leasehold::random::seed() as u64 | 1;
    println!("{name}: seed {seed}");
    let mut store = ground.store();
    let mut daemons: Vec<Daemon> = (0..DAEMONS).map(|at| ground.daemon(at)).collect();
    let jobs: Vec<Name> = (0..JOBS).map(|n| ground.job(n)).collect();
    let begun: Vec<i64> = jobs
        .iter()
        .map(|job| {
            until("the job is registered", || leasehold_run::job_records::read(store.as_mut(), job).unwrap())
                .settled
        })
        .collect();
    let deeds = rage(ground, &mut daemons, &mut Dice(seed), seconds);
    let end = i64::try_from(leasehold::clock::wall().as_secs()).unwrap();
    for daemon in daemons {
        send(daemon.pid(), Signal::CONT);
        send(daemon.pid(), Signal::TERM);
        daemon.ended();
    }
    let slots = Slots { jobs, begun, end };
    // What was left half done is seen to by whoever comes next.
    until("everything has come to an end", || {
        ground.tick();
        slots.all_settled(store.as_mut()).then_some(())
    });
    let mut audit =
        Audit::new(&slots, store.as_mut(), &std::fs::read_to_string(ground.world.path("ran")).unwrap());
    println!("{name}: {deeds} deeds in {seconds} s, {audit}");
    assert_eq!(audit.wrong(), Vec::<String>::new(), "{name}, seed {seed}");
    assert!(audit.ok > 100 && deeds > 10, "{name}: nothing much happened: {audit}");
    audit.is_no_pushover();
}

#[test]
fn on_sqlite_postgres_and_redis() {
    let world = World::new();
    let sqlite = format!("sqlite:{}", world.at("store.db"));
    let mut grounds = vec![("sqlite", Ground::new(world, sqlite, "6s"))];
    for place in places().into_iter().filter(|place| ["postgres", "redis"].contains(&place.name)) {
        let ttl = format!("{}s", place.short.as_secs());
        grounds.push((place.name, Ground::new(place.world(), place.url(), &ttl)));
    }
    assert_eq!(grounds.len(), 3);
    std::thread::scope(|scope| {
        for (name, ground) in &grounds {
            scope.spawn(move || chaos(name, ground));
        }
    });
}

/// The one end of a daemon that is excused, and what is not.
#[test]
fn a_daemon_that_is_kept_out_says_only_that() {
    let world = World::new();
    let file = world.at("store.db");
    let ground = Ground::new(world, format!("sqlite:{file}"), "6s");
    ground.tick();
    let writer = rusqlite::Connection::open(&file).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut daemon = ground.daemon(0);
    let code = daemon.0.wait().unwrap().code();
    let said = std::fs::read_to_string(&daemon.1).unwrap();
    assert!(kept_out(code, &said), "{code:?}: {said}");
    assert!(!kept_out(Some(70), &said));
    assert!(!kept_out(Some(69), &format!("{said}a run of it says something\n")));
    assert!(!kept_out(Some(69), "leasehold: the store cannot be reached\n"));
}
