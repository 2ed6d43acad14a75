//! The command line on every store behind a network: the same runs, the same refusals, the same end
//! when the store goes away, and no secret in anything that people or jobs see.

use std::time::Duration;

use crate::world::places::{CANARY, Place, everywhere, fresh, liars, places};
use crate::world::{Ended, Running, World, lives, pause, until};
use leasehold::clock::boot_time;
use leasehold::doctor::FirstUseNotes;
use leasehold::state::StateDir;
use leasehold_testkit::count;

/// Says its token and its own pid, and works until its standard input ends.
const JOB: &str = "echo $LEASEHOLD_TOKEN; echo $$; exec cat";

#[track_caller]
fn keeps_the_secret(ended: &Ended) {
    assert!(!format!("{ended:?}").contains(CANARY), "the secret is in {ended:#?}");
}

/// A world, a store and a lease in one.
struct On<'a> {
    place: &'a Place,
    world: World,
    url: String,
    lease: String,
}

impl<'a> On<'a> {
    fn new(place: &'a Place, what: &str) -> Self {
        Self { place, world: place.world(), url: place.url(), lease: fresh(what) }
    }

    fn args<'b>(&'b self, args: &[&'b str]) -> Vec<&'b str> {
        let lease = |arg: &&'b str| if *arg == "LEASE" { self.lease.as_str() } else { *arg };
        ["--store", &self.url].into_iter().chain(args.iter().map(lease)).collect()
    }

    /// `LEASE` stands for the lease's name.
    #[track_caller]
    fn run(&self, args: &[&str]) -> Ended {
        let ended = self.world.run(&self.args(args));
        keeps_the_secret(&ended);
        ended
    }

    /// A job that holds the lease; its token and its pid.
    fn hold(&self, ttl: &str) -> (Running, u64, u32) {
        let mut holder = self.world.start(&self.args(&["run", "LEASE", "--ttl", ttl, "sh", "-c", JOB]));
        let token = holder.line_or_end().unwrap_or_else(|| panic!("{}: no token", self.place.name));
        let pid = holder.line().parse().unwrap();
        (holder, token.parse().unwrap(), pid)
    }

    fn short(&self) -> String {
        format!("{}s", self.place.short.as_secs())
    }
}

#[test]
fn a_run_a_skip_and_a_hand_over() {
    everywhere(|place| {
        let on = On::new(place, "run");
        let tokens =
            [1, 2].map(|_| on.run(&["run", "LEASE", "sh", "-c", "echo $LEASEHOLD_TOKEN"]).quiet().token());
        assert_eq!(tokens, [1, 2], "{}", place.name);
        let (holder, token, _) = on.hold("60s");
        assert_eq!(token, 3);
        on.run(&["run", "LEASE", "-E", "9", "true"]).is(9, "").names(&["token 3"]);
        let busy = on.run(&["--json", "acquire", "LEASE"]).is(11, "held by").json();
        let left = busy["expires_in_s"].as_f64().unwrap();
        assert!((20.0..=64.0).contains(&left), "{}: {busy}", place.name);
        let status = on.run(&["--json", "status", "LEASE"]).json();
        assert_eq!((&status["state"], &status["token"]), (&"held".into(), &3.into()), "{status}");
        let ended = holder.ended();
        keeps_the_secret(&ended);
        assert_eq!(ended.code, 0, "{ended:#?}");
        on.run(&["run", "LEASE", "--report", &on.world.at("report"), "sh", "-c", "exit 7"]).is(7, "");
        let report = std::fs::read_to_string(on.world.path("report")).unwrap();
        assert!(report.contains("\"token\":4") && !report.contains(CANARY), "{report}");
    });
}

#[test]
fn a_job_and_this_machine_learn_no_secret() {
    everywhere(|place| {
        let on = On::new(place, "secret");
        // What the user's own environment holds is the user's; the URL is given in the variable.
        let mut command = on.world.command(&["-v", "run", &on.lease, "env"]);
        command.env("LEASEHOLD_STORE", &on.url);
        let seen: Ended = command.output().unwrap().into();
        assert_eq!(seen.code, 0, "{seen:#?}");
        let ours = seen.out.lines().filter(|line| !line.starts_with("AWS_SECRET")).collect::<Vec<_>>();
        assert!(!ours.join("\n").contains(CANARY), "{seen:#?}");
        assert!(!seen.err.contains(CANARY), "{seen:#?}");
        for (path, _) in on.world.snapshot(".local") {
            let text = std::fs::read(&path).map(|b| String::from_utf8_lossy(&b).into_owned());
            assert!(!text.unwrap_or_default().contains(CANARY), "{}: {}", place.name, path.display());
        }
    });
}

#[test]
fn a_store_that_goes_away_ends_the_job_in_time_and_one_that_blinks_does_not() {
    everywhere(|place| {
        let proxy = place.proxy();
        let mut on = On::new(place, "down");
        on.url = place.through(&proxy);
        let (mut holder, token, job) = on.hold(&on.short());
        // Gone for less than there is room for: nothing happens.
        proxy.set_down(true);
        pause(place.short / 8);
        proxy.set_down(false);
        let end = boot_time().plus(place.short);
        until("a whole TTL", || (boot_time() >= end).then_some(()));
        assert!(lives(job), "{}: ended although the store came back", place.name);
        // Gone for good.
        proxy.set_down(true);
        let began = boot_time();
        until("the end of the job", || (!lives(job)).then_some(()));
        let lasted = boot_time().since(began);
        assert!(lasted < place.short, "{}: the job lived for {lasted:?}", place.name);
        holder.close_stdin();
        let ended = holder.ended();
        keeps_the_secret(&ended);
        assert_eq!(ended.code, 75, "{}: {ended:#?}", place.name);
        let down = on.run(&["run", "LEASE", "touch", "never"]).is(69, "store.cannot_run");
        assert!(!on.world.path("never").exists(), "{down:#?}");
        // Back: the next holder waits for the expiry and gets a larger token.
        proxy.set_down(false);
        let next = on.run(&["acquire", "LEASE", "--wait", "55s"]).token();
        assert_eq!(next, token + 1, "{}", place.name);
    });
}

/// The control of the test above: a lease is not free before its time.
#[test]
fn a_holder_that_cannot_renew_keeps_its_time() {
    everywhere(|place| {
        let on = On::new(place, "time");
        let began = boot_time();
        let token = on.run(&["acquire", "LEASE", "--ttl", &on.short()]).token();
        let next = on.run(&["acquire", "LEASE", "--ttl", &on.short(), "--wait", "55s"]).token();
        let lasted = boot_time().since(began);
        assert_eq!(next, token + 1);
        assert!(lasted >= place.short, "{}: taken over after {lasted:?}", place.name);
        assert!(lasted < place.short + Duration::from_secs(20), "{}: only after {lasted:?}", place.name);
    });
}

#[test]
fn what_cannot_be_reached_runs_nothing() {
    let world = World::new();
    // A port that was free a moment ago; nothing listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for url in [
        format!("postgres://lease:{CANARY}@127.0.0.1:{free}/lease"),
        format!("redis://:{CANARY}@127.0.0.1:{free}"),
        format!("http://127.0.0.1:{free}"),
        format!("firestore://demo/x?endpoint=http://127.0.0.1:{free}"),
        format!(
            "postgres://lease:{CANARY}@nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn/lease"
        ),
        format!("rediss://:{CANARY}@127.0.0.1:{free}"),
    ] {
        let ended = world.run(&["--store", &url, "run", "site", "touch", "never"]);
        keeps_the_secret(&ended);
        ended.is(69, "store.cannot_run");
    }
    assert!(!world.path("never").exists());
    assert!(!places().is_empty());
}

/// The bar of an honest store. It is run when nothing else is: a doctor that has to share the processor measures the
/// others.
const PATIENCE_WITH_A_DOCTOR: Duration = Duration::from_secs(15);

fn doctor(on: &On<'_>) -> (Ended, Duration) {
    let begun = boot_time();
    let ended = on.run(&["doctor"]);
    let took = boot_time().since(begun);
    println!("doctor: {} after {took:.1?}, code {}", on.place.name, ended.code);
    (ended, took)
}

#[test]
fn the_doctor_trusts_honest_stores_soon() {
    everywhere(|place| {
        let on = On::new(place, "doctor");
        for _ in 0..count(1, 20) {
            let (ended, took) = doctor(&on);
            let ended = ended.is(0, "");
            println!("{}: {took:.1?}", place.name);
            assert!(took < PATIENCE_WITH_A_DOCTOR, "{}: took {took:?}: {ended:#?}", place.name);
            assert!(ended.out.contains("can be trusted with leases"), "{}: {ended:#?}", place.name);
        }
    });
}

/// The first run has only a short look, which may miss a liar that is lucky; what the doctor refused stays refused.
#[test]
fn the_doctor_and_the_first_run_refuse_liars() {
    for place in liars() {
        let (rounds, mut caught) = (count(2, 20), 0);
        for _ in 0..rounds {
            let on = On::new(&place, "liar");
            caught += usize::from(on.run(&["run", "LEASE", "true"]).code == 78);
            let (ended, _) = doctor(&on);
            assert_eq!(ended.code, 78, "{}: {ended:#?}", place.name);
            let run = on.run(&["run", "LEASE", "touch", "never"]);
            assert_eq!(run.code, 78, "{}: {run:#?}", place.name);
            assert!(!on.world.path("never").exists());
        }
        println!("{}: {caught} of {rounds} first runs refused", place.name);
        assert!(caught > 0, "{}", place.name);
    }
}

/// Noted once as good, a store is used without another look; not after the doctor has refused it.
#[test]
fn what_the_doctor_refuses_is_trusted_no_longer() {
    let place = liars().into_iter().find(|place| place.name == "workers kv").unwrap();
    let on = On::new(&place, "once-good");
    let mut store = leasehold::stores::open(&on.url).unwrap_or_else(|e| panic!("{e}"));
    pollster::block_on(store.read("leases/none")).unwrap();
    let state = StateDir::at(on.world.state());
    state.ensure().unwrap();
    FirstUseNotes::new(&state, &on.url, &on.url).went_well(&store.facts().instance);
    let run = |file: &str| (on.run(&["run", "LEASE", "touch", file]).code, on.world.path(file).exists());
    // Control: the note is heeded, and a liar gets through.
    assert_eq!(run("noted"), (0, true));
    assert_eq!(on.run(&["doctor"]).code, 78);
    assert_eq!(run("never"), (78, false));
}
