//! `acquire`, `renew`, `release` and `break`, as scripts use them.

use crate::world::{Running, World, lives, until};
use rustix::process::Signal;

#[test]
fn a_script_acquires_renews_and_releases() {
    let world = World::new();
    let ended = world.sh("token=$(leasehold acquire site) && leasehold renew site --token $token && \
         leasehold release site --token $token && leasehold release site --token $token");
    let ended = ended.is(0, "by_hand.taken");
    for said in ["renewed site (token 1) for ", "released site (token 1)", "it is free (last token 1)"] {
        assert!(ended.err.contains(said), "{said}: {ended:#?}");
    }
    let ended = world
        .sh("eval \"$(leasehold -q acquire site --eval)\" && echo $LEASEHOLD_LEASE $LEASEHOLD_TOKEN && \
         leasehold -q renew site && leasehold -q release site");
    assert_eq!(ended.quiet().out, "site 2\n");
    let json = world.run(&["--json", "acquire", "site"]).json();
    assert_eq!((json["acquired"].as_bool(), &json["token"]), (Some(true), &3.into()));
    let json = world.run(&["--json", "acquire", "site"]).is(11, "held by").json();
    assert_eq!((json["acquired"].as_bool(), &json["token"]), (Some(false), &3.into()));
    let json = world.run(&["--json", "release", "site", "--token", "3"]).json();
    assert_eq!(json["outcome"], "released");
}

#[test]
fn renew_after_a_takeover_says_lost_and_release_is_no_error() {
    let world = World::new();
    let first = world.run(&["acquire", "site", "--ttl", "1h"]).token().to_string();
    world.run(&["break", "site", "--now", "--take"]).is(0, "break_lease.yours");
    let old = ["--token", &first];
    world.run(&[&["renew", "site"], &old[..]].concat()).is(75, "by_hand.lost").names(&["token 2"]);
    world.run(&[&["release", "site"], &old[..]].concat()).is(0, "").names(&["holds it now (token 2)"]);
    assert_eq!(world.status(&[], "site")["state"], "held", "the new one is not touched");
    world.run(&["renew", "site", "--token", "2"]).is(0, "").names(&["renewed"]);
    world.run(&["release", "site", "--token", "2"]).is(0, "").names(&["released"]);
    world.run(&["release", "site", "--token", "3"]).is(64, "by_hand.token_not_taken");
}

#[test]
fn each_store_has_its_own_grant() {
    let world = World::new();
    let (a, b) = (format!("sqlite:{}", world.at("a")), format!("sqlite:{}", world.at("b")));
    for store in [&a, &b] {
        assert_eq!(world.run(&["--store", store, "acquire", "site"]).token(), 1);
    }
    for store in [&a, &b] {
        world.run(&["--store", store, "release", "site", "--token", "1"]).is(0, "").names(&["released site"]);
    }
}

/// What a script left behind has no process that could prove it dead: only its time ends it.
#[test]
fn a_lease_by_hand_is_not_taken_for_a_crashed_one() {
    let world = World::new();
    world.run(&["acquire", "site", "--ttl", "1h"]).token();
    world.run(&["acquire", "site"]).is(11, "held by");
    world.run(&["run", "site", "-E", "75", "true"]).is(75, "").names(&["skipped"]);
    // The control: a killed run is taken over long before its hour is over.
    let mut killed = world.start(&["run", "other", "--ttl", "1h", "sh", "-c", "echo $$; exec cat"]);
    let job = killed.line().parse().unwrap();
    killed.signal(Signal::KILL);
    killed.ended();
    until("the end of the job", || (!lives(job)).then_some(()));
    assert_eq!(world.run(&["acquire", "other", "--wait", "50s"]).token(), 2);
}

/// The environment of a run that is over gives no right to keep its lease.
#[test]
fn what_escaped_from_a_run_cannot_renew() {
    let world = World::new();
    let ended = world.run(&["run", "site", "env"]).quiet();
    let renew = |args: &[&str]| {
        let mut command = world.command(args);
        let vars = ended.out.lines().filter_map(|line| line.split_once('='));
        command.envs(vars.filter(|(name, _)| name.starts_with("LEASEHOLD_")));
        crate::world::Ended::from(command.output().unwrap())
    };
    world.unchanged(|| renew(&["renew", "site"])).is(75, "by_hand.lost").names(&["token 1"]);
    world.run(&["acquire", "site"]).token();
    world.unchanged(|| renew(&["renew", "site"])).is(75, "by_hand.lost").names(&["token 2"]);
    world.unchanged(|| renew(&["release", "site"])).is(0, "").names(&["holds it now (token 2)"]);
}

/// A job cannot open its store: it has no password. Who renews is the run.
#[test]
fn a_run_renews_for_its_job() {
    let world = World::new();
    let store = format!("sqlite:{}", world.at("s.db"));
    let binary = crate::world::binary();
    let inside = |script: &str| {
        let mut command = world.command(&["--store", &store, "run", "site", "sh", "-c", script]);
        command.arg(&binary).env("LEASEHOLD_STORE", "postgres://ops:s3cret@127.0.0.1:1/ops");
        crate::world::Ended::from(command.output().unwrap())
    };
    inside(r#""$0" renew site"#).is(0, "by_hand.renewed_by_run");
    let json = inside(r#""$0" --json renew site --token 2"#).json();
    assert_eq!((json["outcome"].as_str(), &json["token"]), (Some("renewed_by_run"), &2.into()));
    inside(r#"setsid sh -c '"$0" release site' "$0""#).is(64, "by_hand.runs");
    // Another token is not the run's, and so is another lease.
    inside(r#""$0" renew site --token 1"#).is(78, "config.masked");
    let by_hand = r#"eval "$("$0" --store "$1" -q acquire other --eval)" && "$0" --store "$1" renew other &&
        "$0" --store "$1" release other"#;
    let mut command = world.command(&["--store", &store, "run", "site", "sh", "-c", by_hand]);
    let ended = crate::world::Ended::from(command.arg(&binary).arg(&store).output().unwrap());
    ended.is(0, "").names(&["renewed other (token 1)"]).is(0, "").names(&["released other"]);
}

/// One of the same name on another store, with the same token, is nobody's but whoever took it there.
#[test]
fn a_lease_of_the_same_name_on_another_store_is_another() {
    let world = World::new();
    let [a, b] = ["a.db", "b.db"].map(|name| format!("sqlite:{}", world.at(name)));
    let binary = crate::world::binary();
    for how in [r#"--store "$1""#, ""] {
        // By name, or by the environment.
        let set = if how.is_empty() { r#"export LEASEHOLD_STORE="$1";"# } else { "" };
        let script = format!(
            r#"{set} T=$("$0" {how} acquire site) && "$0" {how} renew site --token $T && "$0" {how} release site --token $T"#
        );
        let mut command = world.command(&["--store", &a, "run", "site", "sh", "-c", &script]);
        let ended = crate::world::Ended::from(command.arg(&binary).arg(&b).output().unwrap());
        ended.is(0, "by_hand.taken").is(0, "by_hand.taken");
        let left = world.status(&["--store", &b], "site");
        assert_eq!(
            (&left["state"], &left["token"]),
            (&"free".into(), &world.status(&["--store", &a], "site")["token"])
        );
    }
    // Nor is it waited for in vain.
    let nested = r#""$0" --store "$1" run site --wait 1s -- echo nested"#;
    let held = world.run(&["--store", &b, "acquire", "site", "--ttl", "10m"]).token();
    let mut command = world.command(&["--store", &a, "run", "site", "sh", "-c", nested]);
    let ended = crate::world::Ended::from(command.arg(&binary).arg(&b).output().unwrap());
    ended.is(0, "").names(&["after waiting 1s"]);
    world
        .run(&["--store", &b, "release", "site", "--token", &held.to_string()])
        .is(0, "")
        .names(&["released"]);
}

/// Its run waits for it to end, so it would wait as long as it may.
#[test]
fn a_lease_that_is_held_around_us_is_not_waited_for() {
    let world = World::new();
    let binary = crate::world::binary();
    let inner = r#""$0" acquire site --wait 1h; echo $?"#;
    for around in [inner.to_owned(), format!(r#""$0" run other sh -c '{inner}' "$0""#)] {
        let ended = world.run(&["run", "site", "sh", "-c", &around, binary.to_str().unwrap()]);
        assert_eq!(ended.is(0, "by_hand.busy_around").out, "11\n");
    }
    // Also under one that the script took itself.
    let script = format!(r#"eval "$("$0" -q acquire site --eval)" || exit; {inner}; "$0" release site"#);
    let ended = world.run(&["run", "other", "sh", "-c", &script, binary.to_str().unwrap()]);
    assert_eq!(ended.is(0, "by_hand.busy_around").out, "11\n");
    // The control: another's is waited for.
    let held = world.run(&["acquire", "site", "--ttl", "10m"]).token().to_string();
    let ended = world.run(&["acquire", "site", "--wait", "100ms"]).is(11, "held by");
    ended.lacks("by_hand.busy_around");
    world.run(&["release", "site", "--token", &held]).is(0, "").names(&["released"]);
}

/// A script under a lease that takes another by hand: the numbers may well be the same.
#[test]
fn a_token_is_only_its_own_leases() {
    let world = World::new();
    for (lease, verb) in [("a", "renew"), ("b", "release")] {
        let script = format!(r#""$0" -q acquire {lease} && "$0" {verb} {lease}"#);
        let binary = crate::world::binary();
        let ended = world.run(&["run", "site", "sh", "-c", &script, binary.to_str().unwrap()]);
        ended.is(64, "by_hand.another_leases_token");
        assert_eq!(world.status(&[], lease)["state"], "held");
    }
    let mut command = world.command(&["release", "b"]);
    let ended = crate::world::Ended::from(command.env("LEASEHOLD_TOKEN", "1").output().unwrap());
    ended.is(0, "").names(&["released b (token 1)"]);
}

#[test]
fn what_had_run_out_is_said_when_it_is_given_back() {
    let world = World::new();
    let token = world.run(&["acquire", "site", "--ttl", "1s"]).token().to_string();
    until("the end of a short lease", || (world.status(&[], "site")["state"] == "expired").then_some(()));
    world.run(&["release", "site", "--token", &token]).is(0, "by_hand.released_late").names(&["token 1"]);
    let token = world.run(&["acquire", "site"]).token().to_string();
    world
        .run(&["release", "site", "--token", &token])
        .is(0, "by_hand.released")
        .names(&["site (token 2)"])
        .lacks("by_hand.released_late");
}

/// Its lease was taken, which it would have found out at its next renewal.
#[test]
fn a_job_that_ended_by_itself_was_not_stopped() {
    let world = World::new();
    let mut holder = world.start(&["run", "site", "--ttl", "10m", "sh", "-c", "echo; cat; exit 3"]);
    holder.line();
    world.run(&["break", "site", "--now"]).is(0, "break_lease.released");
    holder.ended().is(75, "run.lost_ended").names(&["(exit 3)"]).lacks("run.lost_stopped");
}

#[test]
fn breaking_waits_until_nothing_of_the_old_job_is_left() {
    let world = World::new();
    let job = "trap '' TERM; setsid tail -f /dev/null & echo $$ $!; while :; do tail -f /dev/null; done";
    let args = ["run", "site", "--ttl", "6s", "--heartbeat", "500ms", "--grace", "500ms", "sh", "-c", job];
    let mut holder = world.start(&args);
    let line = holder.line();
    let pids: Vec<u32> = line.split(' ').map(|pid| pid.parse().unwrap()).collect();
    let broken = world.run(&["--json", "break", "site"]).is(0, "break_lease.stopped").json();
    assert!(!pids.iter().any(|pid| lives(*pid)), "free while the old job lives");
    assert_eq!((broken["outcome"].as_str(), &broken["token"]), (Some("freed"), &1.into()));
    holder.ended().is(75, "run.lost_asked");
    let free = world.status(&[], "site");
    assert_eq!((free["state"].as_str(), &free["token"]), (Some("free"), &1.into()));
    assert_eq!(world.run(&["acquire", "site"]).token(), 2, "nobody has to release it first");
}

/// The same for somebody who wants to have it.
#[test]
fn what_is_broken_and_taken_is_held() {
    let world = World::new();
    let args = ["run", "site", "--ttl", "6s", "--heartbeat", "500ms", "sh", "-c", "echo $$; exec cat"];
    let mut holder = world.start(&args);
    let job = holder.line().parse().unwrap();
    let taken = world.run(&["--json", "break", "site", "--take"]).is(0, "break_lease.yours").json();
    assert_eq!((taken["acquired"].as_bool(), &taken["token"]), (Some(true), &2.into()));
    assert!(!lives(job), "granted while the old job lives");
    holder.ended().is(75, "run.lost_asked");
    world.run(&["run", "site", "-E", "11", "true"]).is(11, "").names(&["held by"]);
    world.run(&["release", "site", "--token", "2"]).is(0, "").names(&["released"]);
}

/// A script that took the lease and never looks at it again: it ends by itself, and is not granted before.
#[test]
fn what_does_not_answer_is_free_when_its_lease_ends() {
    for scheme in ["sqlite", "dir"] {
        let world = World::new();
        let store = world.store(scheme);
        let run = |args: &[&str]| world.run(&[&["--store", &store], args].concat());
        assert_eq!(run(&["acquire", "site", "--ttl", "2s"]).token(), 1);
        let broken = run(&["--json", "break", "site"]).is(0, "break_lease.expired").json();
        assert_eq!(broken["outcome"], "expired");
        assert_eq!(run(&["acquire", "site"]).token(), 2);
        // The control: one that is not waited for until then.
        let busy = run(&["--json", "break", "site", "--wait", "1ms"]).is(11, "").json();
        assert_eq!((busy["outcome"].as_str(), &busy["token"]), (Some("held"), &2.into()));
    }
}

/// What a killed run of this machine left is free at once, as for a run.
#[test]
fn breaking_does_not_wait_for_the_dead() {
    let world = World::new();
    let mut killed = world.start(&["run", "site", "--ttl", "1h", "sh", "-c", "echo $$; exec cat"]);
    let job = killed.line().parse().unwrap();
    killed.signal(Signal::KILL);
    killed.ended();
    until("the end of the job", || (!lives(job)).then_some(()));
    let broken = world.run(&["--json", "break", "site", "--wait", "50s"]).is(0, "").json();
    assert_eq!(broken["outcome"], "freed");
    assert_eq!(world.run(&["acquire", "site"]).token(), 2);
}

/// Its old holder finds out, and nobody has to release it.
#[test]
fn breaking_at_once_leaves_it_free() {
    let world = World::new();
    world.run(&["acquire", "site", "--ttl", "1h"]).token();
    let broken = world.run(&["--json", "break", "site", "--now"]).is(0, "break_lease.released").json();
    assert_eq!(broken["outcome"], "freed");
    assert_eq!(world.status(&[], "site")["state"], "free");
    world.run(&["renew", "site", "--token", "1"]).is(75, "by_hand.lost").names(&["token 2"]);
    assert_eq!(world.run(&["acquire", "site"]).token(), 3);
}

/// What somebody else started for the job (`at`, `systemd-run`) is no child of the wrapper's, has its environment, and
/// here hears no TERM.
#[test]
fn breaking_waits_for_strays_of_the_old_job() {
    let world = World::new();
    let mut holder = world.start(&[
        "run",
        "site",
        "--ttl",
        "9s",
        "--grace",
        "300ms",
        "sh",
        "-c",
        "echo $LEASEHOLD_RUN_ID; exec tail -f /dev/null",
    ]);
    let run = holder.line();
    let stray = |run: &str| {
        let mut stray = world.program("sh");
        stray.args(["-c", "trap '' TERM; echo up; exec tail -f /dev/null"]).env("LEASEHOLD_RUN_ID", run);
        let mut stray = Running::new(stray);
        assert_eq!(stray.line(), "up");
        stray
    };
    let (ours, strangers) = (stray(&run), stray("another-run-of-somebody"));
    // Somebody may wait for it.
    world
        .run(&["break", "site"])
        .is(0, "break_lease.asked")
        .is(0, "break_lease.stopped")
        .lacks("break_lease.free");
    assert!(!lives(ours.pid()), "it would run beside the next holder");
    assert!(lives(strangers.pid()), "the control: another run's is left alone");
    holder.ended().is(75, "");
    // Also if it is ended for another reason than a loss.
    let job = "echo $LEASEHOLD_RUN_ID; exec tail -f /dev/null";
    let mut long = world.start(&["run", "site", "--max-run", "1s", "--grace", "300ms", "sh", "-c", job]);
    let ours = stray(&long.line());
    long.ended().is(143, "run.stop_max_run");
    assert!(!lives(ours.pid()));
}

#[test]
fn breaking_gives_up_if_told_to() {
    let world = World::new();
    world.run(&["acquire", "site", "--ttl", "1h"]).token();
    let busy = world
        .run(&["--json", "break", "site", "--wait", "200ms"])
        .is(11, "")
        .names(&["site is still held by"])
        .json();
    assert_eq!(busy["outcome"], "held");
    let take = ["--json", "break", "site", "--take", "--wait", "200ms"];
    assert_eq!(world.run(&take).is(11, "").names(&["site is still held by"]).json()["acquired"], false);
    world.run(&["renew", "site", "--token", "1"]).is(75, "by_hand.broken");
    assert_eq!(world.status(&[], "site")["state"], "revoked");
    world.run(&["release", "site", "--token", "1"]).is(0, "").names(&["released"]);
    assert_eq!(world.run(&["--json", "break", "site"]).is(0, "break_lease.nobody").json()["outcome"], "free");
    assert_eq!(world.run(&["break", "site", "--take"]).is(0, "break_lease.yours").out, "2\n");
}
