//! `leasehold serve --store-api`: any store, for clients that may not hold its credentials.

#[path = "../../../lib/tests/remote/http/rewrites.rs"]
mod rewrites;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::world::{Ended, Running, World, kill, lives, long, messages};
use leasehold::backends::http::open_as;
use leasehold::core::ids::WriteId;
use leasehold::random;
use leasehold::stores::conformance::{Harness, suite};
use leasehold::stores::prefixed::Prefixed;
use leasehold::stores::{Cas, FailureKind, Store};
use leasehold_testkit::faults::StoreBench;
use leasehold_testkit::proxy::{Fault, Proxy};
use pollster::block_on;
use rustix::process::Signal;

const PLAIN: &str = "plain-bearer-0123456789";
const ADMIN: &str = "admin-bearer-0123456789";
const TEAM: &str = "team-bearer-0123456789";
const OTHER: &str = "other-bearer-0123456789";

struct Served {
    server: Running,
    url: String,
}

fn secret(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// SQLite, served on a free port.
fn serve(world: &World, with_tokens: bool) -> Served {
    serve_store(world, &format!("sqlite:{}", world.at("served.db")), with_tokens)
}

fn serve_store(world: &World, store: &str, with_tokens: bool) -> Served {
    let mut args = vec!["--store", store, "--json", "serve", "--store-api", "--listen", "127.0.0.1:0"];
    let tokens = world
        .write("tokens", &format!("# who\n{PLAIN} *\n{TEAM} team-a/\n{OTHER} team-b/\n{ADMIN} * admin\n"));
    secret(&tokens);
    if with_tokens {
        args.extend(["--tokens", tokens.to_str().unwrap()]);
    }
    let mut server = Running::new({
        let mut command = world.hearing(crate::world::binary());
        command.args(&args);
        command
    });
    let told: serde_json::Value = serde_json::from_str(&server.line()).unwrap();
    assert_eq!(told["open"], !with_tokens);
    let url = format!("http://{}", told["listen"].as_str().unwrap());
    Served { server, url }
}

/// A command on the other side, with this token in a file.
fn client(world: &World, url: &str, token: Option<&str>, args: &[&str]) -> Ended {
    let mut command = world.command(&["--store", url]);
    command.args(args);
    if let Some(token) = token {
        command.env("LEASEHOLD_AUTH_FILE", world.write("bearer", &format!("{token}\n")));
    }
    command.output().unwrap().into()
}

#[test]
fn what_is_served_conforms() {
    let world = World::new();
    let served = serve(&world, true);
    suite(&|| {
        let url = served.url.clone();
        let prefix = format!("doctor/{:032x}/", random::seed());
        Harness::new(move || Box::new(Prefixed::new(open_as(&url, Some(PLAIN)).unwrap(), prefix.clone())))
    });
}

#[test]
fn one_of_32_writers_wins_every_round() {
    let world = World::new();
    let served = serve(&world, false);
    rewrites::race(&|| open_as(&served.url, None).unwrap(), if long() { 5_000 } else { 200 }, "raced");
}

/// Writes whose answers are lost, or that land when nobody expects them any more: the same as of every other store.
#[test]
fn answers_that_are_lost_and_writes_that_come_late() {
    let world = World::new();
    let served = serve(&world, false);
    let proxy = Proxy::http(&served.url);
    let through = proxy.url(&served.url);
    let open = |url: &str| open_as(url, None).unwrap();
    let bench = StoreBench::new("serve", &proxy, || open(&through), || open(&served.url));
    bench.dropped(500).assert_clean(500);
    bench.late(200).assert_clean(200);
}

#[test]
fn an_illegal_rewrite_of_any_kind_is_refused_and_logged() {
    let world = World::new();
    let mut served = serve(&world, true);
    let (mut plain, mut admin) =
        (open_as(&served.url, Some(PLAIN)).unwrap(), open_as(&served.url, Some(ADMIN)).unwrap());
    rewrites::suite(plain.as_mut(), admin.as_mut(), "rewritten");
    served.server.said("serve.write_refused");
    served.server.said("leases/rewritten");
}

/// What one team tests with is out of reach of the other, which could have its store condemned.
#[test]
fn a_bearers_test_corner_is_its_own() {
    let world = World::new();
    let served = serve(&world, true);
    let [mut a, mut b, mut all] =
        [TEAM, OTHER, PLAIN].map(|token| open_as(&served.url, Some(token)).unwrap());
    let listed = |store: &mut dyn Store, after: &str| {
        let found = block_on(store.list("doctor/", after, 9)).unwrap();
        found.into_iter().map(|listed| listed.key).collect::<Vec<_>>()
    };
    let write = || WriteId(random::seed());
    for key in ["doctor/x/1", "doctor/x/2", "probe/clock"] {
        let Cas::Written { version, .. } = block_on(b.cas(key, None, write(), b"b")) else { panic!("{key}") };
        assert_eq!(block_on(a.cas(key, Some(&version), write(), b"a")), Cas::Conflict);
        assert_eq!(block_on(a.remove(key, &version)), Cas::Conflict);
        for name in [key.to_owned(), key.replacen('/', "/team-b/", 1)] {
            assert_eq!(block_on(a.read(&name)), Ok(None), "{name}");
        }
        assert_eq!(block_on(b.read(key)).unwrap().unwrap().body, b"b");
    }
    assert!(listed(a.as_mut(), "").is_empty());
    assert_eq!(listed(b.as_mut(), ""), ["doctor/x/1", "doctor/x/2"]);
    assert_eq!(listed(b.as_mut(), "doctor/x/1"), ["doctor/x/2"]);
    // The doctor works there, and leaves nothing.
    client(&world, &served.url, Some(TEAM), &["doctor"]).is(0, "");
    client(&world, &served.url, Some(TEAM), &["run", "team-a/x", "--", "true"]).is(0, "");
    assert_eq!(listed(all.as_mut(), ""), ["doctor/team-b/x/1", "doctor/team-b/x/2"]);
}

/// Without our environment, and we had a child before: there is no lock file on this store by which to know it.
#[test]
fn what_a_job_leaves_behind_is_ended_beside_children_we_already_had() {
    let world = World::new();
    let served = serve(&world, false);
    let left = world.script("left", "#!/bin/sh\nexec >/dev/null 2>&1\necho $$ >up\nexec sleep 1000\n");
    let job = format!("mkfifo up; env -i setsid sh -c '{left} & exit'; read p <up; echo $p");
    let shell =
        r#"sleep 1000 >/dev/null 2>&1 & echo $! >ours; exec "$0" --store "$1" run site -- sh -c "$2""#;
    let mut command = world.program("sh");
    command.args(["-c", shell]).arg(crate::world::binary()).args([&served.url, &job]);
    let ended = Ended::from(command.output().unwrap());
    let ours: u32 = std::fs::read_to_string(world.path("ours")).unwrap().trim().parse().unwrap();
    let living =
        [ours, ended.out.trim().parse().unwrap()].map(|pid| lives(pid).then(|| kill(pid, Signal::KILL)));
    assert_eq!(living, [Some(()), None], "{ended:#?}");
    ended.is(0, "run.left_behind");
}

#[test]
fn a_lease_through_a_server_is_a_lease() {
    let world = World::new();
    let Served { server, url } = serve(&world, true);
    let ran = client(&world, &url, Some(PLAIN), &["run", "site", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"]);
    assert_eq!((ran.code, ran.out.trim()), (0, "1"), "{ran:?}");
    let token = client(&world, &url, Some(PLAIN), &["acquire", "site", "--ttl", "60s"]).token();
    assert_eq!(token, 2);
    client(&world, &url, Some(PLAIN), &["acquire", "site"]).is(11, "").names(&["held by"]);
    // Whoever opens the store itself sees the same lease.
    let store = format!("sqlite:{}", world.at("served.db"));
    assert_eq!(world.status(&["--store", &store], "site")["token"], 2);
    // Only an admin takes it from a living holder.
    let refused = client(&world, &url, Some(PLAIN), &["break", "site", "--now"]);
    let refused = refused.is(77, "store.cannot_take");
    assert!(!refused.err.contains("may still land") && !refused.err.contains("two machines"), "{refused:#?}");
    let taken = client(&world, &url, Some(ADMIN), &["break", "site", "--now"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    // Within its prefix a sandbox may do what it likes, and nothing beside it.
    assert_eq!(client(&world, &url, Some(TEAM), &["run", "team-a/x", "--", "true"]).code, 0);
    client(&world, &url, Some(TEAM), &["run", "site", "--", "true"]).is(77, "store.cannot_run");
    let mine = client(&world, &url, Some(TEAM), &["--json", "status"]);
    assert!(mine.out.contains("team-a/x") && !mine.out.contains("\"site\""), "{mine:?}");
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code, 0);
}

/// A login page in place of an answer says nothing of the write.
#[test]
fn what_may_have_landed_is_told() {
    let world = World::new();
    let served = serve(&world, false);
    let proxy = Proxy::http(&served.url);
    let through = proxy.url(&served.url);
    for (verb, done) in [("renew", "renewed "), ("release", "released ")] {
        let token = client(&world, &through, None, &["acquire", verb, "--ttl", "1h"]).token().to_string();
        for after_landing in [false, true] {
            let (content_type, body) = ("text/html", "<html>log in</html>");
            let strike =
                proxy.arm_on(b"PUT ", Fault::Answer { status: 200, after_landing, content_type, body });
            let ended = client(&world, &through, None, &[verb, verb, "--token", &token]);
            assert!(strike.struck());
            match after_landing {
                false => drop(ended.is(78, "store.unconfirmed")),
                true => drop(ended.is(0, done)),
            }
        }
    }
}

/// Schedulers ask the store for its time, which is nobody's name.
#[test]
fn a_bearer_with_a_prefix_can_have_jobs_that_are_due() {
    let world = World::new();
    let served = serve(&world, true);
    world.write("leasehold.toml", "[[job]]\nname = \"team-a/x\"\nevery = \"366d\"\nrun = [\"true\"]\n");
    let team = |args: &[&str]| client(&world, &served.url, Some(TEAM), args);
    for args in [&["tick"][..], &["pause", "team-a/x"], &["resume", "team-a/x"]] {
        team(args).is(0, "");
    }
    // A key that is no name has a lease outside, unless it is given one.
    team(&["once", "team-a/order-7", "--", "true"]).is(0, "");
    team(&["once", "team-a/Order 7", "--", "true"]).is(77, "store.cannot_run");
    team(&["run", "team-a/orders", "--key", "team-a/Order 7", "--", "true"]).is(0, "");
}

/// A gate is a name like any other: within the bearer's prefix.
#[test]
fn a_bearer_with_a_prefix_can_have_gates() {
    let world = World::new();
    let served = serve(&world, true);
    let enter = |gate: &str| {
        let fence = format!("gate:{gate}");
        let script = "\"$0\" gate $1 -- touch sent";
        let us = crate::world::binary();
        let job = ["sh", "-c", script, us.to_str().unwrap(), gate];
        let run = ["run", "team-a/x", "--fence", &fence];
        client(&world, &served.url, Some(TEAM), &[&run[..], &job].concat())
    };
    enter("team-a/mail").is(0, "");
    std::fs::remove_file(world.path("sent")).unwrap();
    enter("mail").is(77, "").names(&["prefix"]).is(77, "").names(&["Nothing was run"]);
    assert!(!world.path("sent").exists());
}

/// The first answer of a store behind a network tells which store it is; a look that ends with it must not
/// have asked before.
#[test]
fn one_look_tells_when_a_lease_ends() {
    let world = World::new();
    let served = serve(&world, false);
    let look = |args: &[&str]| client(&world, &served.url, None, args);
    look(&["acquire", "site", "--ttl", "1h"]).token();
    for args in [&["--json", "status"][..], &["--json", "status", "site"]] {
        let row = look(args).json();
        assert!(row["state"] == "held" && row["expires_in_s"].as_f64() > Some(3000.0), "{row}");
    }
    look(&["acquire", "short", "--ttl", "4s"]).token();
    crate::world::until("a lease that is seen to have expired", || {
        (look(&["--json", "status", "short"]).json()["state"] == "expired").then_some(())
    });
}

/// Whoever waits or watches is told that the store is gone, once, and that it is back.
#[test]
fn an_outage_is_said_and_waited_for() {
    let world = World::new();
    let store = format!("sqlite:{}", world.at("served.db"));
    let Served { server, url } = serve(&world, false);
    let token = client(&world, &url, None, &["acquire", "site", "--ttl", "1h"]).token().to_string();
    let mut waiting = world.start(&["-v", "--store", &url, "run", "site", "--wait", "1h", "echo", "ran"]);
    waiting.said("run.waiting");
    let mut watching = world.start(&["--store", &url, "status", "--watch"]);
    while !watching.line().contains("held") {}
    server.signal(Signal::KILL);
    server.ended();
    waiting.said("run.waiting_unanswered");
    watching.said("status.unanswered");
    let address = url.trim_start_matches("http://");
    let mut again = world.start(&["--store", &store, "--json", "serve", "--store-api", "--listen", address]);
    again.line();
    waiting.said("run.waiting_answered");
    watching.said("status.answered");
    while !watching.line().contains("held") {}
    client(&world, &url, None, &["release", "site", "--token", &token]).is(0, "");
    let ended = waiting.ended().is(0, "");
    assert_eq!(ended.out, "ran\n");
    let unanswered = |line: &&str| messages::says(&format!("{line}\n"), "run.waiting_unanswered");
    assert_eq!(ended.err.lines().filter(unanswered).count(), 1, "{ended:#?}");
}

#[test]
fn credentials_that_do_not_do() {
    let world = World::new();
    let Served { server, url } = serve(&world, true);
    let run = ["run", "site", "--", "echo", "ran"];
    for (token, says) in [(Some("wr0ng-canary-0123456789"), "store.cannot_run"), (None, "store.cannot_run")] {
        let ended = client(&world, &url, token, &run).is(77, says);
        assert!(ended.out.is_empty() && !ended.err.contains("canary"), "{ended:?}");
    }
    let missing = world
        .command(&["--store", &url, "run", "site", "--", "true"])
        .env("LEASEHOLD_AUTH_FILE", world.at("nowhere"))
        .output()
        .unwrap();
    Ended::from(missing).is(78, "").names(&["does not exist"]);
    let spaced = client(&world, &url, Some("two canary words"), &run).is(78, "").names(&["one line"]);
    assert!(!spaced.err.contains("canary"), "{spaced:?}");
    let (_, port) = url.rsplit_once(':').unwrap();
    let named = client(&world, &format!("http://canary@127.0.0.1:{port}"), None, &run);
    assert!(!named.is(78, "").names(&["LEASEHOLD_AUTH_FILE"]).err.contains("canary"));
    client(&world, "http://store.example", None, &run).is(78, "").names(&["not encrypted"]);
    // Nothing of all this ran, and the right token does.
    assert_eq!(client(&world, &url, Some(PLAIN), &run).out, "ran\n");
    server.signal(Signal::INT);
    let ended = server.ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(!ended.err.contains("canary"), "{ended:?}");
    client(&world, &url, Some(PLAIN), &run).is(69, "store.cannot_run");
}

#[test]
fn a_server_that_would_not_be_safe_is_not_started() {
    let world = World::new();
    let store = format!("sqlite:{}", world.at("served.db"));
    let serve = |more: &[&str]| {
        let mut args = vec!["--store", &store, "serve"];
        args.extend(more);
        world.run(&args)
    };
    serve(&["--store-api", "--listen", "0.0.0.0:0"]).is(78, "serve.tokens_needed");
    serve(&["--store-api", "--listen", "nonsense"]).is(64, "nonsense");
    let tokens = world.write("tokens", "s3cret-canary-0123456789 *\n");
    let tokens = tokens.to_str().unwrap();
    std::fs::set_permissions(tokens, std::fs::Permissions::from_mode(0o644)).unwrap();
    serve(&["--store-api", "--tokens", tokens]).is(77, "serve.readable_tokens").names(&["chmod 600"]);
    secret(world.write("tokens", "short *\n").as_ref());
    serve(&["--store-api", "--tokens", tokens]).is(78, "serve.bad_tokens").names(&[":1: ", "16 characters"]);
    serve(&["--store-api", "--tokens", &world.at("nowhere")]).is(78, "").names(&["nowhere"]);
    // A port that somebody has.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    serve(&["--store-api", "--listen", &address]).is(78, "serve.cannot_listen");
    // A store that cannot be reached.
    drop(taken);
    let url = format!("http://{address}");
    world
        .run(&["--store", &url, "serve", "--store-api", "--listen", "127.0.0.1:0"])
        .is(69, "store.cannot_run");
}

#[test]
fn what_was_served_is_kept() {
    let world = World::new();
    let first = serve(&world, false);
    let mut store = open_as(&first.url, None).unwrap();
    let cas = block_on(store.cas("runs/x", None, WriteId(1), b"kept"));
    let Cas::Written { version, .. } = cas else { panic!("{cas:?}") };
    let instance = store.facts().instance;
    first.server.signal(Signal::KILL);
    first.server.ended();
    assert_eq!(block_on(store.read("runs/x")).unwrap_err().kind, FailureKind::Unreachable);
    let second = serve(&world, false);
    let mut store = open_as(&second.url, None).unwrap();
    let found = block_on(store.read("runs/x")).unwrap().unwrap();
    assert_eq!((found.version, found.body), (version, b"kept".to_vec()));
    assert_eq!(store.facts().instance, instance);
    assert_eq!(block_on(store.cas("runs/x", None, WriteId(2), b"stale")), Cas::Conflict);
}

/// As if this machine had been started anew since everything in the store was written.
fn reboot(store: &str) {
    let now = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let (now, before) = (now.trim().replace('-', ""), "0123456789abcdef".repeat(2));
    let (scheme, path) = store.split_once(':').unwrap();
    if scheme == "sqlite" {
        let db = rusqlite::Connection::open(path).unwrap();
        let rows = db.execute("UPDATE records SET stamp = replace(stamp, ?1, ?2)", [&now, &before]).unwrap();
        assert!(rows > 0);
        return;
    }
    let versions = std::process::Command::new("grep").args(["-rl", &now, path]).output().unwrap();
    let versions = String::from_utf8(versions.stdout).unwrap();
    assert!(!versions.is_empty());
    for version in versions.lines() {
        let text = std::fs::read_to_string(version).unwrap();
        std::fs::write(version, text.replace(&now, &before)).unwrap();
    }
}

/// Whoever held a lease through the server is on another machine, and lives on. Only what this machine itself
/// held ended with it.
#[test]
fn a_reboot_of_the_server_ends_no_lease_of_a_client() {
    for scheme in ["sqlite", "dir"] {
        let world = World::new();
        let store = world.store(scheme);
        let served = serve_store(&world, &store, false);
        for lease in ["site", "asked-back"] {
            assert_eq!(client(&world, &served.url, None, &["acquire", lease, "--ttl", "1h"]).token(), 1);
        }
        let here = |args: &[&str]| {
            let mut all = vec!["--store", &store];
            all.extend(args);
            world.run(&all)
        };
        // A change by hand from the server's own machine leaves the holder where it is.
        here(&["break", "asked-back", "--wait", "1ms"]).is(11, "");
        assert_eq!(here(&["acquire", "local", "--ttl", "1h"]).token(), 1);
        served.server.signal(Signal::KILL);
        served.server.ended();
        reboot(&store);
        for lease in ["site", "asked-back"] {
            here(&["acquire", lease]).is(11, "").names(&["held by"]);
        }
        // Through the server too, as ever.
        let served = serve_store(&world, &store, false);
        client(&world, &served.url, None, &["acquire", "site"]).is(11, "").names(&["held by"]);
        // Control: this is what a reboot looks like, where it can be told from a move to another machine.
        if std::fs::read_to_string("/etc/machine-id").is_ok_and(|id| id.trim().len() == 32) {
            assert_eq!(here(&["acquire", "local"]).token(), 2);
        }
    }
}
