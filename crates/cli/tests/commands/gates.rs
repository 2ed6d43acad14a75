//! Gates: no command starts after a later run has sealed the gate, wherever that run is.

use std::fs;
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::random;
use leasehold_testkit::count;
use rustix::process::Signal;
use serde_json::Value;

use crate::world::places::{CANARY, Place, fresh, places};
use crate::world::{Ended, Running, World, binary, kill, pause, state, until};

/// A script that knows how to call us.
fn job(text: &str) -> String {
    text.replace("LEASEHOLD ", &format!("{} ", binary().display()))
}

/// The word for what went wrong, with `--json`.
#[track_caller]
fn word(ended: &Ended) -> String {
    let said: Value = serde_json::from_str(ended.err.lines().last().unwrap()).unwrap();
    assert_eq!(said["error"]["exit"], ended.code, "{ended:#?}");
    said["error"]["code"].as_str().unwrap().into()
}

#[track_caller]
fn keeps_the_secret(ended: Ended) -> Ended {
    assert!(!format!("{ended:?}").contains(CANARY), "the secret is in {ended:#?}");
    ended
}

fn place(name: &str) -> Place {
    places().into_iter().find(|place| place.name == name).unwrap()
}

/// Two machines with one store: each has a home and a state directory of its own. What a job starts has no
/// credentials for that store.
struct Machines {
    old: World,
    new: World,
    lease: String,
    ttl: Duration,
}

impl Machines {
    fn new(place: &Place) -> Self {
        let machine = || {
            let mut world = place.world();
            world.variables.push(("LEASEHOLD_STORE".into(), place.url()));
            world
        };
        Self { old: machine(), new: machine(), lease: fresh("gate"), ttl: place.short + place.short / 3 }
    }

    fn run(&self, world: &World, gate: &str, script: &str) -> Running {
        let fence = format!("gate:{gate}");
        // Renewed so often that a busy machine has much time for each renewal.
        let [ttl, heartbeat] = [self.ttl, self.ttl / 8].map(|time| format!("{}ms", time.as_millis()));
        let times = ["--ttl", &ttl, "--heartbeat", &heartbeat, "--wait", "50s"];
        let run = [&["run", &self.lease, "--fence", &fence][..], &times, &["sh", "-c", &job(script)]];
        world.start(&run.concat())
    }

    /// The old run starts one command after the other at its gate. Its wrapper is frozen at any moment, the new run
    /// takes over and seals, the wrapper is thawed. How many commands of the old run started after the seal. Where
    /// that `leaks` it is given the time to.
    fn overtaken(&self, old_gate: &str, new_gate: &str, leaks: bool) -> usize {
        let log = self.old.at("log");
        let enter = |gate: &str, who: &str| format!("LEASEHOLD gate {gate} -- sh -c 'echo {who} >>{log}'");
        let old = format!("while :; do {} || exec echo $? >code; echo; done", enter(old_gate, "old"));
        let mut old = self.run(&self.old, old_gate, &old);
        if old.line_or_end().is_none() {
            panic!("it started nothing: {:#?}", old.ended());
        }
        pause(Duration::from_micros(u64::try_from(random::seed() % 30_000).unwrap()));
        old.signal(Signal::STOP);
        let new = format!("echo sealed >>{log}; {}", enter(new_gate, "new"));
        keeps_the_secret(self.run(&self.new, new_gate, &new).ended()).is(0, "");
        if leaks {
            until("a command of the old run", || (self.leaked() > 0).then_some(()));
        }
        old.signal(Signal::CONT);
        let thawed = boot_time();
        let ended =
            keeps_the_secret(old.ended()).is(75, "").names(&[&format!("lost {} (token 1)", self.lease)]);
        let lasted = boot_time().since(thawed);
        assert!(lasted < self.ttl, "it hung for {lasted:?}: {ended:#?}");
        // It may have been stopped before its gate was answered.
        let code = fs::read_to_string(self.old.path("code")).unwrap_or_default();
        assert!(["", "76\n"].contains(&code.as_str()), "{code}: {ended:#?}");
        self.leaked()
    }

    /// How many commands of the old run started after the seal of the new one, which started one.
    fn leaked(&self) -> usize {
        let lines = fs::read_to_string(self.old.path("log")).unwrap();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.iter().filter(|line| **line == "new").count(), 1, "{lines:?}");
        let sealed = lines.iter().position(|line| *line == "sealed").unwrap();
        lines[sealed..].iter().filter(|line| **line == "old").count()
    }
}

/// Many rounds at once, since each only waits for a lease to run out.
fn frozen_and_overtaken(name: &str) {
    let (place, rounds) = (place(name), count(10, 100));
    let mut started = 0;
    for batch in 0..rounds.div_ceil(10) {
        let many = (rounds - batch * 10).min(10);
        started += std::thread::scope(|scope| {
            let round = || {
                let machines = Machines::new(&place);
                machines.overtaken(&machines.lease, &machines.lease, false)
            };
            let threads: Vec<_> = (0..many).map(|_| scope.spawn(round)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
    }
    println!("{name}: {rounds} rounds, {started} commands of an overtaken run started after the seal");
    assert_eq!(started, 0);
}

#[test]
fn on_redis_an_overtaken_run_starts_nothing() {
    frozen_and_overtaken("redis");
}

#[test]
fn on_postgres_an_overtaken_run_starts_nothing() {
    frozen_and_overtaken("postgres");
}

/// The control: a gate in a directory of each machine, as every gate once was, is found to leak by the same check.
#[test]
fn a_gate_of_one_machine_leaks_to_another() {
    let machines = Machines::new(&place("redis"));
    let [old, new] = [&machines.old, &machines.new].map(|world| world.at("mail"));
    let started = machines.overtaken(&old, &new, true);
    println!("{started} commands of the overtaken run started after the seal");
    assert!(started > 0, "then this check sees nothing");
}

/// Waits until that process has asked at its gate, and waits for the answer.
fn asks(pid: u32) {
    let mut looks = 0;
    until("it waits at the gate", || {
        let ours = fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "leasehold\n");
        looks = if ours && state(pid) == Some('S') { looks + 1 } else { 0 };
        (looks == 10).then_some(())
    });
}

const AT_THE_GATE: &str = "echo $$; read go; exec LEASEHOLD gate mail -- touch sent";

/// A run that stands at its gate, which is asked while the wrapper is frozen; and the process that asks.
fn frozen_at_the_gate(world: &World, ttl: &str) -> (Running, u32) {
    let run = ["run", "site", "--ttl", ttl, "--fence", "gate:mail", "sh", "-c", &job(AT_THE_GATE)];
    let mut run = world.start(&run);
    let pid = run.line().parse().unwrap();
    run.signal(Signal::STOP);
    run.type_in("go\n");
    asks(pid);
    (run, pid)
}

#[test]
fn while_the_wrapper_is_frozen_nothing_starts() {
    let world = World::new();
    let (run, _) = frozen_at_the_gate(&world, "60s");
    assert!(!world.path("sent").exists());
    run.signal(Signal::CONT);
    run.ended().is(0, "");
    assert!(world.path("sent").exists(), "nobody had overtaken it");
}

/// The gate was ours when the wrapper asked; whoever hears of it after the lease has ended starts nothing.
#[test]
fn an_answer_that_is_heard_too_late_starts_nothing() {
    let world = World::new();
    let (run, pid) = frozen_at_the_gate(&world, "2s");
    kill(pid, Signal::STOP);
    run.signal(Signal::CONT);
    let fence = || world.run(&["--json", "fence", "ls", "gate:mail"]).json();
    until("the gate is entered", || (fence()["seq"] == 1).then_some(()));
    run.signal(Signal::STOP);
    world.run(&["run", "site", "--wait", "50s", "--fence", "gate:mail", "true"]).is(0, "");
    // Before its wrapper, which would end it.
    kill(pid, Signal::CONT);
    until("it has ended", || state(pid).is_none_or(|state| state == 'Z').then_some(()));
    run.signal(Signal::CONT);
    run.ended().is(75, "gate.late");
    assert!(!world.path("sent").exists());
}

/// Not only gates of other names: also where there is nobody to ask, and somebody who answers for an item alone.
#[test]
fn a_gate_that_the_run_did_not_name_is_shut() {
    let world = World::new();
    let script = job("LEASEHOLD --json gate mail -- touch sent");
    for more in [&[][..], &["--key", "k", "--attempts", "9"], &["--fence", "gate:other"]] {
        let ended = world.run(&[&["run", "zz"], more, &["sh", "-c", &script]].concat());
        let ended = ended.is(76, "targets.gate_not_named");
        assert_eq!(word(&ended), "not-sealed", "{more:?}");
        assert!(!ended.err.contains(world.state().to_str().unwrap()), "{ended:#?}");
    }
    // A gate belongs to one lease.
    world.run(&["run", "site", "--fence", "gate:mail", "true"]).is(0, "");
    world.run(&["run", "zz", "--fence", "gate:mail", "touch", "sent"]).is(78, "targets.other_lease");
    world
        .run(&["run", "zz", "--fence", "gate:Mail", "touch", "sent"])
        .is(64, "")
        .names(&["is not a valid name"]);
    for verb in ["write", "read"] {
        world
            .run(&["run", "zz", "sh", "-c", &job(&format!("LEASEHOLD {verb} gate:mail </dev/null"))])
            .is(64, "")
            .names(&["a gate holds nothing"]);
    }
    assert!(!world.path("sent").exists());
    // What outlives its run has nobody to ask.
    world.run(&["run", "site", "--fence", "gate:mail", "sh", "-c", "env | grep ^LEASEHOLD_ >old"]).is(0, "");
    let ended = world.sh(&job("set -a; . ./old; LEASEHOLD --json gate mail -- touch sent"));
    assert_eq!((ended.code, word(&ended).as_str()), (76, "refused"), "{ended:#?}");
    assert!(!world.path("sent").exists());
}

#[test]
fn a_store_that_does_not_answer_starts_nothing() {
    let place = place("redis");
    let (world, proxy) = (place.world(), place.proxy());
    let store = place.through(&proxy);
    let lease = fresh("gate");
    let fence = format!("gate:{lease}");
    let script =
        job(&format!("echo; read go; LEASEHOLD --json gate {lease} -- touch sent; c=$?; read end; exit $c"));
    let run = ["--store", &store, "run", &lease, "--ttl", "60s", "--fence", &fence, "sh", "-c", &script];
    let mut run = world.start(&run);
    run.line();
    proxy.set_down(true);
    run.type_in("go\n");
    run.said("\"exit\":69");
    proxy.set_down(false);
    let ended = keeps_the_secret(run.ended());
    assert_eq!(ended.code, 69, "{ended:#?}");
    assert!(ended.err.contains("\"store_unreachable\"") && !world.path("sent").exists(), "{ended:#?}");
    // By hand as well.
    let taken = world.run(&["--store", &store, "-q", "acquire", &lease, "--eval"]);
    let enter = |store: &str| {
        world.write("grant", &taken.out);
        keeps_the_secret(world.sh(&job(&format!(
            "set -a; . ./grant; LEASEHOLD --store {store} --json gate {lease} -- touch sent"
        ))))
    };
    proxy.set_down(true);
    let ended = enter(&store);
    assert_eq!((ended.code, word(&ended).as_str()), (69, "store_unreachable"), "{ended:#?}");
    assert!(!world.path("sent").exists());
    // The control: it was for the store alone.
    proxy.set_down(false);
    enter(&store).is(0, "");
    assert!(world.path("sent").exists());
}

/// There is no wrapper to ask: the command itself seals the gate, and enters.
#[test]
fn by_hand_a_gate_is_sealed_by_who_enters() {
    let world = World::new();
    let take = |store: &str| {
        let taken = world.run(&["--store", store, "-q", "acquire", "site", "--ttl", "60s", "--eval"]);
        assert_eq!(taken.code, 0, "{taken:#?}");
        taken.out
    };
    let enter = |grant: &str, store: &str| {
        world.write("grant", grant);
        let line = format!("set -a; . ./grant; LEASEHOLD --store {store} --json gate mail -- touch sent");
        world.sh(&job(&line))
    };
    let [here, elsewhere] = ["here", "elsewhere"].map(|name| format!("sqlite:{}", world.at(name)));
    let first = take(&here);
    enter(&first, &here).is(0, "");
    fs::remove_file(world.path("sent")).unwrap();
    let listed = world.run(&["--store", &here, "--json", "fence", "ls", "gate:mail"]).json();
    assert_eq!((listed["token"].as_u64(), listed["seq"].as_u64()), (Some(1), Some(1)), "{listed}");
    // On another store this grant means nothing, and seals nobody out.
    let refused = |ended: Ended| {
        assert_eq!((ended.code, word(&ended).as_str()), (76, "stale"), "{ended:#?}");
        assert!(!world.path("sent").exists());
    };
    refused(enter(&first, &elsewhere));
    take(&elsewhere);
    refused(enter(&first, &elsewhere));
    assert!(
        world.run(&["--store", &elsewhere, "--json", "fence", "ls", "gate:mail"]).json()["token"].is_null()
    );
    // Taken over, whether or not who has it now has been at the gate.
    world.run(&["--store", &here, "break", "site", "--now"]).is(0, "");
    refused(enter(&first, &here));
    let second = world.run(&["--store", &here, "release", "site", "--token", "2"]);
    assert_eq!(second.code, 0, "{second:#?}");
    let third = take(&here);
    enter(&third, &here).is(0, "");
    fs::remove_file(world.path("sent")).unwrap();
    refused(enter(&first, &here));
}

/// Each of them moves the fence, so all but one have to try again, and all but one of those.
#[test]
fn many_enter_at_once() {
    let world = World::new();
    let taken = world.run(&["-q", "acquire", "site", "--ttl", "5m", "--eval"]);
    world.write("grant", &taken.out);
    let line = job("set -a; . ./grant; LEASEHOLD gate mail -- sh -c 'echo sent >> sent'");
    let all: Vec<Running> = (0..32)
        .map(|_| {
            let mut command = world.program("sh");
            command.args(["-c", &line]);
            Running::new(command)
        })
        .collect();
    let codes: Vec<i32> = all.into_iter().map(|entering| entering.ended().code).collect();
    assert_eq!(codes, [0; 32]);
    assert_eq!(fs::read_to_string(world.path("sent")).unwrap().lines().count(), 32);
    assert_eq!(world.run(&["--json", "fence", "ls", "gate:mail"]).json()["seq"], 32);
}

/// Inside a run, a lease that was taken by hand is another matter than the run's own.
#[test]
fn a_lease_by_hand_inside_a_run_is_asked_by_hand() {
    let world = World::new();
    let script = job("eval \"$(LEASEHOLD -q acquire other --eval)\" && LEASEHOLD gate post -- touch sent \
         && LEASEHOLD release other");
    world.run(&["run", "site", "--fence", "gate:mail", "sh", "-c", &script]).is(0, "");
    assert!(world.path("sent").exists());
}

#[test]
fn its_fence_is_shown_changed_and_forgotten() {
    let world = World::new();
    let enter = |fence: &[&str]| {
        let script = job("LEASEHOLD --json gate mail -- touch sent");
        let ended =
            world.run(&[&["run", "site", "--key", &fresh("k")], fence, &["sh", "-c", &script]].concat());
        let started = fs::remove_file(world.path("sent")).is_ok();
        assert_eq!(started, ended.code == 0, "{ended:#?}");
        ended
    };
    world.run(&["fence", "enforce", "gate:mail"]).is(78, "").names(&["--fence gate:mail"]);
    enter(&["--fence", "gate:mail"]).is(0, "");
    // Remembered by its name.
    let listed = world.run(&["--json", "fence", "ls"]).json();
    let shown = ["target", "class", "lease", "mode"].map(|key| listed[key].as_str().unwrap());
    assert_eq!(shown, ["gate:mail", "gate", "site", "enforce"]);
    // One that watches lets in, and counts, who goes with the run's own gate as well as who did not name it.
    world.run(&["fence", "observe", "gate:mail"]).is(0, "");
    enter(&["--fence", "gate:other"]).is(0, "gate.would_be_refused").names(&["(not-sealed)"]);
    assert_eq!(world.run(&["--json", "fence", "ls", "gate:mail"]).json()["let_in"].as_u64(), Some(1));
    world.run(&["fence", "enforce", "gate:mail"]).is(0, "");
    assert_eq!(word(&enter(&["--fence", "gate:other"])), "not-sealed");
    // Forgotten, it is another lease's.
    world.run(&["fence", "reset", "gate:mail"]).is(0, "fence.reset");
    world.run(&["run", "zz", "--fence", "gate:mail", "true"]).is(0, "");
    // What was kept in the state directory before means nothing.
    assert!(!world.state().join("gates").exists());
}

#[test]
fn a_run_that_observes_asks_at_its_gate() {
    let world = World::new();
    let observe = |script: &str| {
        let script = job(script);
        let run = ["run", "site", "--observe", "--fence", "gate:mail", "sh", "-c"];
        world.start(&[&run[..], &[&script]].concat())
    };
    observe("LEASEHOLD gate mail -- touch sent").ended().is(0, "");
    fs::remove_file(world.path("sent")).unwrap();
    // Overtaken: it is let in, and that is noted.
    let mut first = observe("echo; read go; LEASEHOLD gate mail -- touch sent");
    first.line();
    world.run(&["break", "site", "--now", "--take", "--ttl", "1s"]).is(0, "");
    until("the lease that was taken is over", || {
        (!observe("true").ended().err.contains("held by")).then_some(())
    });
    first.type_in("go\n");
    first.ended().is(0, "gate.would_be_refused").is(0, "observe.accepted_write").names(&["(stale)"]);
    assert!(world.path("sent").exists());
}

#[test]
fn of_several_leases_and_in_a_schedule() {
    let world = World::new();
    let script = job("l=$LEASEHOLD_LEASE; echo $l; read go; LEASEHOLD gate mail/$l -- touch sent-$l");
    let run = ["run", "north", "--or", "south", "--fence", "gate:mail/{lease}", "sh", "-c", &script];
    let mut both = ["north", "south"].map(|lease| {
        let mut run = world.start(&run);
        assert_eq!(run.line(), lease);
        run
    });
    both.iter_mut().for_each(|run| run.type_in("go\n"));
    both.into_iter().for_each(|run| drop(run.ended().is(0, "")));
    assert!(world.path("sent-north").exists() && world.path("sent-south").exists());
    world.write(
        "leasehold.toml",
        &format!(
            "[[job]]\nname = \"post\"\nevery = \"1s\"\nfence = [\"gate:post\"]\n\
             run = [\"{}\", \"gate\", \"post\", \"--\", \"touch\", \"posted\"]\n",
            binary().display()
        ),
    );
    until("the slot was run", || {
        world.run(&["tick"]).is(0, "");
        world.path("posted").exists().then_some(())
    });
}

/// What each kind of gate does not do is said when the run starts.
#[test]
fn what_a_gate_does_not_do_is_said() {
    let world = World::new();
    let verbose = |fence: &str| world.run(&["-v", "run", "site", "--fence", fence, "true"]);
    verbose("gate:mail").is(0, "fenced.fences_gate");
    verbose("gate:./mail").is(0, "fenced.fences_lock_file");
    // Where machines share the store that is no matter of course.
    let place = place("redis");
    let (world, lease) = (place.world(), fresh("gate"));
    let gate = format!("gate:{lease}");
    let shared = |fence: &str| world.run(&["--store", &place.url(), "run", &lease, "--fence", fence, "true"]);
    shared(&gate).is(0, "").lacks("fenced.lock_file_alone").lacks("only");
    shared("gate:./mail").is(0, "fenced.lock_file_alone");
}
