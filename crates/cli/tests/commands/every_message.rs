//! Messages that no other test happens to bring about, each in the plainest way.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;

use leasehold_testkit::messages::{note_seen, note_wrapped, sentences};
use pollster::block_on;
use rustix::process::Signal;

use crate::schedules::kit::{RARE, Site, job, named, now};
use crate::world::places::{CANARY, places};
use crate::world::{Ended, Running, World, binary, until};

/// The exit code, and that this message is a line or a part of one, on stdout or stderr.
#[track_caller]
fn tells(ended: Ended, code: i32, message: &str) -> Ended {
    assert_eq!(ended.code, code, "{ended:#?}");
    let sentence = sentences().iter().find(|sentence| sentence.name == message);
    let sentence = sentence.unwrap_or_else(|| panic!("no message {message}"));
    let said = |line: &str| sentence.is(line) || sentence.is_in(line);
    assert!(ended.out.lines().chain(ended.err.lines()).any(said), "should say {message}: {ended:#?}");
    ended
}

#[test]
fn what_nothing_was_done_with() {
    let world = World::new();
    tells(world.run(&["fence", "ls"]), 0, "fence.nothing_fenced");
    tells(world.run(&["fence", "observed"]), 0, "fence.nothing_observed");
    world.run(&["run", "site", "true"]).quiet();
    world.run(&["why", "site", "nonsense"]).is(64, "why.no_time").names(&["nonsense"]);
    let mut renew = world.command(&["renew", "site"]);
    Ended::from(renew.env("LEASEHOLD_TOKEN", "none").output().unwrap()).is(64, "by_hand.bad_token");
    world.run(&["doctor", "--print-sql", "sqlite:x"]).is(64, "doctor.no_sql").names(&["sqlite"]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let status = world.command(&["status"]).stdout(full).output().unwrap();
    Ended::from(status).is(78, "report.output_lost").names(&["disk full"]);
    world.run(&["demo-actor", "page", "text"]).is(64, "demo.actor_alone").names(&["leasehold demo"]);
}

#[test]
fn a_long_ttl_is_remarked_on() {
    let world = World::new();
    world.write("leasehold.toml", &job("site", RARE, "ttl = \"80m\"", "true"));
    world.run(&["plan"]).is(0, "plan.long_ttl").names(&["site", "1h20m"]);
    world.run(&["plan", "sight"]).is(64, "plan.unknown_job").names(&["\"sight\"", "site"]);
    world.run(&["run", "-v", "site", "--ttl", "80m", "true"]).is(0, "plan.long_ttl").names(&["1h20m"]);
}

#[test]
fn times_and_records_that_items_do_not_have() {
    let world = World::new();
    let slot = |time: &str| world.run(&["run", "site", "--slot", time, "true"]);
    tells(slot("2026-11-16T05:45:00.5Z"), 64, "items.slot_fraction").names(&["05:45:00.5Z"]);
    slot("2026-11-16T05:45Z").is(0, "");
    tells(world.run(&["why", "site", "2026-11-16T06:45Z"]), 0, "why.no_such_slot");
    world.run(&["run", "--no-history", "other", "true"]).is(0, "");
    tells(
        tells(world.run(&["why", "other", "2026-11-16T06:45Z"]), 0, "why.none_kept"),
        0,
        "history.kept_for",
    );
    tells(world.run(&["why", "other", "2001-11-16T06:45Z"]), 0, "why.too_old");
    tells(world.run(&["why", "other"]), 0, "why.no_run");
    world.run(&["run", "other", "true"]).quiet();
    tells(world.run(&["why", "other", "2026-11-16T06:45Z"]), 0, "why.nearest");
    let config = world.write("good.toml", "keep_log = \"none\"\n");
    let good =
        world.run(&["--config", config.to_str().unwrap(), "why", "none-kept-here", "2026-11-16T06:45Z"]);
    tells(good, 64, "history.unknown_name");
    world.run(&["run", "often", "--cooldown", "1h", "true"]).is(0, "");
    tells(world.run(&["why", "often"]), 0, "why.cooldown_applies");
}

#[test]
fn an_item_that_was_stopped_between_its_steps() {
    let world = World::new();
    let step = |name: &str| format!("\"$LEASEHOLD_BIN\" step {name} true && ");
    let killed = |key: &str, steps: &str| {
        let mut once = world.command(&["once", key, "--", "sh", "-c", &format!("{steps}kill -9 $PPID")]);
        assert_eq!(Ended::from(once.env("LEASEHOLD_BIN", binary()).output().unwrap()).code, 137);
    };
    killed("none", "");
    killed("one", &step("a"));
    killed("two", &format!("{}{}", step("a"), step("b")));
    let again = |key: &str| world.run(&["once", key, "--", "true"]);
    again("none").is(79, "items.unknown").names(&["retry --done none"]);
    tells(world.run(&["why", "none"]), 0, "why.next_asks");
    tells(again("one"), 79, "items.one_step_done").names(&["retry --done one"]);
    tells(again("two"), 79, "items.steps_done").names(&["retry --done two"]);
    let deaf = "LEASEHOLD_SOCKET=/$(printf %0200d 0) \"$LEASEHOLD_BIN\" step a true";
    let mut once = world.command(&["once", "deaf", "--", "sh", "-c", deaf]);
    let once = Ended::from(once.env("LEASEHOLD_BIN", binary()).output().unwrap());
    once.is(69, "step.no_answer");
}

#[test]
fn writes_are_told_of() {
    let world = World::new();
    let write =
        "leasehold -v run site --fence file:page -- \"$LEASEHOLD_BIN\" -v write file:page -- echo one";
    world.sh(write).is(0, "write.wrote").names(&["token 1"]);
    let target = ["doctor", "--target", "file:page"];
    tells(world.run(&target), 0, "doctor.checked_near");
}

#[test]
fn hooks_are_installed_where_a_repository_is() {
    let world = World::new();
    let git = world.program("git").args(["init", "-q", "--bare", "bare.git"]).output().unwrap();
    assert!(git.status.success(), "{git:?}");
    let installed = world.run(&["push", "--install-hook", "bare.git"]);
    tells(tells(installed, 0, "push.hook"), 0, "push.hooks_installed").names(&["bare.git"]);
    world.run(&["push", "--install-hook", "nowhere"]).is(78, "push.hooks_not_installed");
}

#[test]
fn a_store_is_saved_where_it_can_be() {
    let world = World::new();
    let config = world.path(".config/leasehold/config.toml");
    for file in ["a", "b"] {
        let target = format!("file:{file}");
        world.run(&["run", "site", "--fence", &target, "true"]).is(0, "");
    }
    let url = format!("sqlite:{}", world.at("new.db"));
    tells(world.run(&["use", &url]), 0, "use_store.fenced_several").names(&["2 targets"]);
    fs::write(&config, "store = \"redis://u:correct-horse@127.0.0.1:1/0\"\n").unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let masked = tells(world.run(&["use", &url]), 0, "use_store.before_masked");
    assert!(!masked.err.contains(CANARY), "{masked:#?}");
    let use_with = |name: &str, value: &str| {
        let mut command = world.command(&["use", &url]);
        Ended::from(command.env(name, value).output().unwrap())
    };
    let elsewhere = use_with("XDG_CONFIG_HOME", &world.at("elsewhere"));
    tells(elsewhere, 0, "use_store.saved_elsewhere").names(&["elsewhere"]);
    use_with("XDG_CONFIG_HOME", "/proc/self").is(78, "use_store.not_written");
    let mut homeless = world.command(&["use", &url]);
    let homeless = homeless.env_remove("HOME").env("XDG_STATE_HOME", world.path(".local/state"));
    Ended::from(homeless.output().unwrap()).is(78, "use_store.no_place").names(&["HOME"]);
}

#[test]
fn stores_that_cannot_be_named_so() {
    let world = World::new();
    let mut run = world.command(&["run", "site", "true"]);
    let bytes = OsString::from_vec(b"sqlite:\xff".to_vec());
    Ended::from(run.env("LEASEHOLD_STORE", bytes).output().unwrap()).is(78, "config.not_text");
    world.write("state/leasehold", "a file");
    let mut run = world.command(&["run", "site", "true"]);
    let ended = Ended::from(run.env("XDG_STATE_HOME", world.path("state")).output().unwrap());
    tells(ended, 78, "state.is_no_directory").names(&["state/leasehold"]);
}

#[test]
fn a_store_with_a_password_is_named_without_it() {
    let place = places().into_iter().find(|place| place.url().contains(CANARY)).unwrap();
    let world = place.world();
    let lease = format!("masked-{}", std::process::id());
    world.run(&["--store", &place.url(), "run", &lease, "true"]).is(0, "");
    let refused = tells(world.run(&["run", &lease, "true"]), 78, "config.with_password");
    assert!(!refused.err.contains(CANARY), "{refused:#?}");
}

#[test]
fn a_record_that_is_gone_or_damaged() {
    let site = Site::new();
    fs::create_dir_all(site.world.path("a")).unwrap();
    site.run("a", &["run", "bad", "true"]).is(0, "");
    site.damage("leases/bad");
    tells(site.run("a", &["why", "bad"]), 0, "status.unusable");
    site.run("a", &["run", "gone", "true"]).is(0, "");
    let mut store = leasehold::stores::open(&site.store).unwrap_or_else(|e| panic!("{e}"));
    let stored = block_on(store.read("leases/gone")).unwrap().unwrap();
    block_on(store.remove("leases/gone", &stored.version));
    let gone = tells(site.run("a", &["status", "gone"]), 0, "status.vanished");
    assert!(gone.out.contains("token 1"), "{gone:#?}");
}

#[test]
fn jobs_and_their_slots_are_told_of() {
    let many: String = (10..32).map(|n| job(&format!("job-{n}"), RARE, "", "true")).collect();
    let site = Site::with(&many);
    let nobody = site.run("a", &["why", "nobody"]);
    tells(nobody, 64, "history.some_jobs").names(&["job-10", "2 more"]);
    let site = Site::with(&job("site", RARE, "", "exit 1"));
    site.make_due("site");
    site.tick("a");
    tells(site.run("a", &["plan"]), 0, "plan.last_slot");
    site.jobs("a", &job("site", RARE, "attempts = 9", "exit 1"));
    tells(site.run("a", &["why", "site"]), 0, "why.may_fail");
    site.jobs("b", &job("site", "every = \"300d\"", "", "true"));
    tells(site.run("b", &["plan"]), 0, "plan.elsewhere");
    tells(site.run("b", &["why", "site"]), 0, "why.elsewhere");
}

#[test]
fn slots_that_were_dropped_or_are_not_known() {
    let site = Site::with(&job("minutely", "every = \"1m\"", "catch_up = 0", "true"));
    let due = now().div_euclid(60) * 60;
    site.rewind("minutely", due - 3_600);
    site.tick("a").is(0, "daemon.dropped");
    let why = |machine: &str, at: i64| site.run(machine, &["why", "minutely", &named(at)]);
    tells(tells(site.run("a", &["why", "minutely"]), 0, "why.dropped_last"), 0, "plan.slots");
    tells(why("a", due - 1_800), 0, "why.dropped");
    tells(why("a", due - 360_000), 0, "why.forgotten");
    fs::create_dir_all(site.world.path("empty")).unwrap();
    tells(why("empty", due + 360_000), 0, "why.not_started_nor_known");
}

#[test]
fn an_item_that_never_reports() {
    let world = World::new();
    let silent = ["once", "k", "--if-unknown", "retry", "--", "sh", "-c", "kill -9 $PPID"];
    let refused = (0..50).map(|_| world.run(&silent)).find(|ended| ended.code != 137).unwrap();
    tells(refused, 79, "items.too_often").names(&["retry --done k"]);
    tells(world.run(&["why", "k"]), 0, "why.check_first");
}

#[test]
fn a_run_of_a_job_that_was_killed() {
    for (more, says) in [("ttl = \"6s\"", "why.check_first"), ("retry = true\nttl = \"6s\"", "why.retried")] {
        let site = Site::with(&job("site", RARE, more, "kill -9 $PPID"));
        let slot = site.make_due("site");
        site.tick("a");
        site.becomes("site", &slot, "unknown");
        tells(site.run("a", &["why", "site"]), 0, says);
    }
}

#[test]
fn a_record_that_a_wrong_clock_wrote() {
    let site = Site::with(&job("site", RARE, "", "true"));
    site.rewind("site", now() + 900_000_000);
    fs::create_dir_all(site.world.path("empty")).unwrap();
    site.run("empty", &["resume", "site"]).is(78, "pause.not_set_back");
    tells(site.run("a", &["resume", "site"]), 0, "pause.set_back");
}

#[test]
fn a_daemon_stays_on_its_store() {
    let world = World::new();
    let file = |store: &str| {
        let text = format!("store = \"sqlite:{}\"\n{}", world.at(store), job("site", RARE, "", "true"));
        let new = world.write("new.toml", &text);
        fs::rename(new, world.path("leasehold.toml")).unwrap();
    };
    file("a.db");
    let mut command = world.hearing(binary());
    command.args(["-v", "daemon"]);
    let mut daemon = Running::new(command);
    daemon.said("daemon.one_job");
    file("b.db");
    daemon.said("daemon.other_store");
    daemon.signal(Signal::TERM);
    daemon.ended().is(0, "b.db");
}

/// Whether a process has a handler for this signal.
fn hears(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
}

#[test]
fn waiting_that_is_interrupted() {
    let world = World::new();
    world.run(&["acquire", "site"]).token();
    for (args, says) in [
        (&["-v", "run", "site", "--wait", "60s", "true"][..], "store.interrupted_run"),
        (&["acquire", "site", "--wait", "60s"], "store.interrupted_take"),
    ] {
        let mut command = world.hearing(binary());
        command.args(args);
        let waiting = Running::new(command);
        until("it hears signals", || hears(waiting.pid(), Signal::INT).then_some(()));
        waiting.signal(Signal::INT);
        tells(waiting.ended(), 130, says);
    }
    let mut command = world.hearing(binary());
    command.args(["break", "site"]);
    let mut breaking = Running::new(command);
    breaking.said("break_lease.asked");
    breaking.signal(Signal::INT);
    tells(breaking.ended(), 130, "break_lease.holder_asked");
}

const PLAIN: &str = "plain-bearer-0123456789";
const TEAM: &str = "team-bearer-0123456789";

/// The status and the body of an answer.
fn asked(address: &str, head: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{head}\r\nHost: store\r\nConnection: close\r\n\r\n").unwrap();
    // It may answer before it has read everything.
    let _ = stream.write_all(body);
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{head}: {text}"));
    note_seen(body);
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn a_server_says_what_is_wrong_with_a_request() {
    let world = World::new();
    let store = format!("sqlite:{}", world.at("served.db"));
    let tokens = world.write("tokens", &format!("{PLAIN} *\n{TEAM} team/\n"));
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = world.hearing(binary());
    command.args(["--store", &store, "-v", "--json", "serve", "--store-api", "--listen", "127.0.0.1:0"]);
    let mut server = Running::new({
        command.arg("--tokens").arg(&tokens);
        command
    });
    let told: serde_json::Value = serde_json::from_str(&server.line()).unwrap();
    let address = told["listen"].as_str().unwrap();
    let bearer = format!("\r\nAuthorization: Bearer {PLAIN}");
    let write = format!("{bearer}\r\nLeasehold-Write-Id: {:032x}", 1);
    let long = "k".repeat(5000);
    let big = vec![b'x'; 2 << 20];
    let team = format!("\r\nAuthorization: Bearer {TEAM}");
    for (line, headers, body, status, says) in [
        ("GET /v1/k/a", "", &b""[..], 401, "serve.bearer_needed"),
        ("GET /v1/k/a", "\r\nAuthorization: Bearer nobody-knows-this-one", b"", 401, "serve.bearer_unknown"),
        ("GET /v1/list?prefix=", &team, b"", 403, "serve.list_too_wide"),
        ("GET /v2", &bearer, b"", 400, "serve.no_such_path"),
        ("POST /v1/k/a", &bearer, b"", 405, "serve.no_such_method"),
        ("GET /v1/k/a", &bearer, b"", 404, "serve.no_such_key"),
        ("GET /v1/k/%00", &bearer, b"", 400, "serve.zero_byte"),
        (&format!("GET /v1/k/{long}"), &bearer, b"", 414, "serve.long_key"),
        ("GET /v1/k/%ff", &bearer, b"", 400, "serve.bad_encoding"),
        ("DELETE /v1/k/a", &bearer, b"", 428, "serve.no_condition"),
        ("DELETE /v1/k/a", &format!("{bearer}\r\nIf-Match: \"7\""), b"", 412, "serve.other_version"),
        ("DELETE /v1/k/leases%2Fa", &bearer, b"", 422, "serve.lease_stays"),
        ("PUT /v1/k/a", &bearer, b"", 400, "serve.bad_write_id"),
        (
            "PUT /v1/k/a",
            &format!("{write}\r\nIf-None-Match: *\r\nContent-Length: {}", big.len()),
            &big,
            413,
            "serve.long_body",
        ),
    ] {
        let (code, said) = asked(address, &format!("{line} HTTP/1.1{headers}"), body);
        let sentence = sentences().iter().find(|sentence| sentence.name == says).unwrap();
        assert!(code == status && sentence.is_in(&said), "{line}: {code} {said}");
    }
    server.signal(Signal::TERM);
    server.ended().is(0, "serve.stopped");
    for (text, says) in [
        ("one two three four\n", "serve.not_a_token_line"),
        (&format!("{PLAIN} *\n{PLAIN} *\n"), "serve.token_twice"),
        ("# nobody\n", "serve.no_token"),
    ] {
        fs::write(&tokens, text).unwrap();
        let serve = world.run(&["serve", "--store-api", "--tokens", tokens.to_str().unwrap()]);
        tells(serve, 78, says).names(&["tokens"]);
    }
}

#[test]
fn the_demo_of_git_is_told() {
    let world = World::new();
    for columns in ["40", "100"] {
        let demo = world.command(&["demo", "--git"]).env("COLUMNS", columns).output().unwrap();
        let told = String::from_utf8_lossy(&demo.stdout);
        note_seen(&told);
        note_wrapped(&told);
        assert!(demo.status.success() && told.contains("git:origin"), "{demo:?}");
    }
}

#[test]
fn work_of_several_jobs_that_another_store_knows() {
    let site = Site::with(&[job("a-1", RARE, "", "true"), job("a-2", RARE, "", "true")].concat());
    for job in ["a-1", "a-2"] {
        site.make_due(job);
    }
    site.tick("a").is(0, "");
    let other = format!("sqlite:{}", site.world.at("other.db"));
    let used = until("the slots are noted", || Some(site.run("a", &["use", &other])));
    tells(used, 0, "other_stores.slots").names(&["slots of 2 jobs"]);
}
