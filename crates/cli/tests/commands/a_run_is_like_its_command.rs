//! Under `run` a command behaves as it would alone: its exit code, its arguments, its input and output.
//! A run that went well says nothing; a skip says one line.

use std::io::Write;
use std::process::Stdio;

use crate::world::{World, binary};

#[test]
fn exit_codes_are_passed_on() {
    let world = World::new();
    for code in [0, 1, 2, 11, 64, 75, 255] {
        let ended = world.run(&["run", "site", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((ended.code, ended.err.as_str(), ended.out.as_str()), (code, "", ""));
    }
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("HUP", 129), ("SEGV", 139)] {
        let mut command = world.hearing(binary());
        command.args(["run", "site", "sh", "-c", &format!("kill -{signal} $$")]);
        let ended = crate::world::Ended::from(command.output().unwrap());
        assert_eq!((ended.code, ended.err.as_str()), (code, ""));
    }
    assert_eq!(world.status(&[], "site")["token"], 11, "one token for each run");
    assert_eq!(world.status(&[], "site")["state"], "free");
}

#[test]
fn standard_streams_are_untouched() {
    let world = World::new();
    // More than any pipe holds, with every byte there is.
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut command = world.command(&["run", "site", "sh", "-c", "cat; echo problem >&2"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), bytes.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == bytes, "the bytes came through changed");
    assert_eq!(output.stderr, b"problem\n");
}

#[test]
fn arguments_are_untouched_and_no_shell_sees_them() {
    let world = World::new();
    let odd = ["a b", "$HOME", "*", "", "--ttl", "-E", "'", "\"", "; touch ran", "--", "é\n"];
    for dashes in [&["--"][..], &[]] {
        let args = [&["run", "site"], dashes, &["printf", "<%s>"], &odd[..]].concat();
        let ended = world.run(&args).quiet();
        let expected: String = odd.iter().map(|arg| format!("<{arg}>")).collect();
        assert_eq!(ended.out, expected);
    }
    assert!(!world.path("ran").exists());
    let ended = world.run(&["run", "site", "sh", "-c", "echo $0 $1", "zero", "one"]).quiet();
    assert_eq!(ended.out, "zero one\n", "without -- too");
}

#[test]
fn the_environment_says_what_is_held() {
    let world = World::new();
    let mut command = world.command(&["run", "site", "--job", "publish", "--run-id", "ci-7", "env"]);
    command.env("MINE", "kept").env("LEASEHOLD_TOKEN", "999").env("LEASEHOLD_LEASE", "forged");
    let ended = crate::world::Ended::from(command.output().unwrap()).quiet();
    let value = |name: &str| {
        let line = ended.out.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("no {name}: {}", ended.out)).to_owned()
    };
    assert_eq!(value("MINE"), "kept");
    assert_eq!(value("LEASEHOLD_LEASE"), "site");
    assert_eq!(value("LEASEHOLD_JOB"), "publish");
    assert_eq!(value("LEASEHOLD_TOKEN"), "1");
    assert!(value("LEASEHOLD_RUN_ID").starts_with("ci-7-"));
    assert!(!value("LEASEHOLD_GRANT").is_empty());
}

/// It would give the outer run's key to the other side as its own, and do its steps in the outer run's name.
#[test]
fn a_run_inside_a_run_knows_nothing_of_the_outer_ones_item() {
    let world = World::new();
    // In a step of a slot that has a key.
    let inside = |slot: &str, inner: &str| {
        let line = format!("{0} step first -- {0} run inner {inner}", binary().display());
        world.run(&["run", "site", "--slot", slot, "--key", slot, "sh", "-c", &line]).is(0, "")
    };
    let told = |ended: &crate::world::Ended| -> Vec<String> {
        let ours = ["KEY", "SLOT", "ATTEMPT", "STEP", "SOCKET"].map(|name| format!("LEASEHOLD_{name}="));
        let about = ended.out.lines().filter(|line| ours.iter().any(|name| line.starts_with(name)));
        about.map(str::to_owned).collect()
    };
    let ended = inside("2026-11-16T05:45:00Z", "env");
    assert!(ended.out.contains("LEASEHOLD_LEASE=inner"), "{ended:#?}");
    assert_eq!(told(&ended), [""; 0], "{ended:#?}");
    let mut own = told(&inside("2026-11-16T06:30:00Z", "--key mine env"));
    own.retain(|line| !line.starts_with("LEASEHOLD_SOCKET="));
    own.sort();
    assert_eq!(own, ["LEASEHOLD_ATTEMPT=1", "LEASEHOLD_KEY=mine"]);
}

#[test]
fn the_job_gets_no_store_password() {
    let world = World::new();
    let store = format!("sqlite:{}", world.at("s.db"));
    let run = |url: &str, job: &str| {
        let mut command = world.command(&["--store", &store, "run", "site", "sh", "-c", job]);
        command.env("LEASEHOLD_STORE", url).env("LEASEHOLD_BIN", binary());
        crate::world::Ended::from(command.output().unwrap())
    };
    let ended = run("postgres://ops:s3cret@db/ops", "env").quiet();
    assert!(!ended.out.contains("s3cret"), "{}", ended.out);
    assert!(ended.out.contains("LEASEHOLD_STORE=postgres://ops:***@db/ops"), "{}", ended.out);
    // What runs inside is told, and does not quietly use another store.
    run("postgres://ops:s3cret@db/ops", "\"$LEASEHOLD_BIN\" run other touch ran").is(78, "config.masked");
    assert!(!world.path("ran").exists());
    let plain = run(&store, "env").quiet();
    assert!(plain.out.contains(&format!("LEASEHOLD_STORE={store}\n")), "nothing to hide: {}", plain.out);
}

/// Not without a lease either, and not in a text that we cannot read.
#[test]
fn no_job_gets_a_store_password() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let store = format!("sqlite:{}", world.at("s.db"));
    let unread = std::ffi::OsStr::from_bytes(b"postgres://ops:s3cret\xff@db/ops");
    let down = std::ffi::OsStr::new("postgres://ops:s3cret@127.0.0.1:1/ops");
    let cases: [(&[&str], _); 3] = [
        (&["run", "site", "--observe", "env"], down),
        (&["--store", &store, "run", "site", "--observe", "env"], unread),
        (&["--store", &store, "run", "site", "env"], unread),
    ];
    for (args, url) in cases {
        let mut command = world.command(args);
        let ended =
            crate::world::Ended::from(command.env("LEASEHOLD_STORE", url).output().unwrap()).is(0, "");
        let told = ended.out.lines().find(|line| line.starts_with("LEASEHOLD_STORE="));
        let masked = (url == down).then_some("LEASEHOLD_STORE=postgres://ops:***@127.0.0.1:1/ops");
        assert_eq!(told, masked, "{args:?}: {ended:#?}");
        assert!(ended.out.contains("PATH=") && !ended.out.contains("s3cret"), "{args:?}: {ended:#?}");
    }
}

#[test]
fn what_is_said_about_a_run() {
    let world = World::new();
    world.run(&["run", "site", "true"]).quiet();
    let verbose = world.run(&["-v", "run", "site", "true"]).is(0, "run.took").is(0, "run.done");
    verbose.names(&["site: token 2", "(this machine only)", "released"]);
    let json = world.run(&["--json", "run", "site", "sh", "-c", "exit 3"]);
    let said = json.json();
    assert_eq!((json.code, said["outcome"].as_str()), (3, Some("failed")));
    assert_eq!((said["lease"].as_str(), &said["token"]), (Some("site"), &3.into()));
    assert_eq!((said["exit"].as_i64(), json.err.as_str()), (Some(3), ""));
    world.run(&["run", "site", "--report", "r.json", "true"]).quiet();
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(world.path("r.json")).unwrap()).unwrap();
    assert_eq!((report["outcome"].as_str(), report["v"].as_i64()), (Some("ok"), Some(1)));
}

#[test]
fn too_long_is_ended_and_told() {
    let world = World::new();
    let args = ["run", "site", "--max-run", "300ms", "--report", "r.json", "tail", "-f", "/dev/null"];
    world.run(&args).is(143, "run.stop_max_run").names(&["300ms"]);
    let report = std::fs::read_to_string(world.path("r.json")).unwrap();
    assert!(report.contains("\"outcome\":\"killed\"") && report.contains("\"max-run\""), "{report}");
    let stubborn = "trap '' TERM; while :; do tail -f /dev/null; done";
    let args = ["run", "site", "--max-run", "300ms", "--grace", "300ms", "sh", "-c", stubborn];
    assert_eq!(world.run(&args).code, 137);
    assert_eq!(world.status(&[], "site")["state"], "free");
    world.run(&["run", "site", "--max-run", "none", "true"]).quiet();
}

#[test]
fn what_a_command_leaves_behind_is_named_and_ended() {
    let world = World::new();
    let job = "tail -f /dev/null & setsid tail -f /dev/null & echo $!; exit 4";
    let ended = world.run(&["run", "site", "sh", "-c", job]);
    let ended = ended.is(4, "run.left_behind");
    assert_eq!(ended.err.lines().count(), 1, "{ended:#?}");
    let pid = ended.out.trim().parse().unwrap();
    // By its number and by what it is; it may not have become `tail` yet.
    assert!(ended.err.contains(&format!("{pid} (")) && ended.err.contains("tail -f"), "{ended:#?}");
    assert!(!crate::world::lives(pid), "still there when the run was over");
    // Also to whoever wants to hear little: a part of the work may be lost with it.
    world.run(&["-q", "run", "site", "sh", "-c", "tail -f /dev/null & exit 0"]).is(0, "run.left_behind");
}
