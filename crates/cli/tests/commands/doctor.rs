//! `leasehold doctor` and `leasehold use` say whether a store can be trusted, and leave nothing behind.

use crate::world::{Running, World, until};
use rustix::process::Signal;

/// Every key of a store, by a handle of our own.
fn keys(url: &str) -> Vec<String> {
    let mut store = leasehold::stores::open(url).unwrap_or_else(|e| panic!("{e}"));
    let found = pollster::block_on(store.list("", "", 1000)).unwrap();
    found.into_iter().map(|listed| listed.key).collect()
}

#[test]
fn a_database_that_is_not_there_is_not_made() {
    let world = World::new();
    std::fs::create_dir(world.path("place")).unwrap();
    world.run(&["doctor", &format!("sqlite:{}", world.at("place/new.db"))]).is(0, "");
    let left: Vec<_> =
        std::fs::read_dir(world.path("place")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_honest_store_passes_and_is_left_as_it_was() {
    for scheme in ["sqlite", "dir"] {
        let world = World::new();
        let url = world.store(scheme);
        world.run(&["--store", &url, "run", "site", "true"]).quiet();
        let before = keys(&url);
        let kinds: Vec<&str> = before.iter().filter_map(|key| Some(key.split_once('/')?.0)).collect();
        assert_eq!(kinds, ["leases", "log"]);
        let ended = world.run(&["--store", &url, "doctor"]).quiet();
        let lines: Vec<&str> = ended.out.lines().collect();
        assert!(lines[0].starts_with("store ") && lines[0].ends_with(&url), "{ended:#?}");
        for about in
            ["reach", "create", "stale", "late", "recreated", "races", "updates", "latency", "age", "ttl"]
        {
            let line = lines.iter().find(|line| line.starts_with(about));
            assert!(line.is_some_and(|line| line[12..].starts_with("ok ")), "{about}: {ended:#?}");
        }
        assert!(lines[lines.len() - 1].contains("can be trusted with leases"), "{ended:#?}");
        assert!(!ended.out.contains('\x1b'), "no colour and no progress off a terminal");
        assert_eq!(keys(&url), before);
        // Named as an argument it is the same, and a quiet one has nothing to say.
        let quiet = world.run(&["doctor", "-q", &url]).quiet();
        // But for the file system that the tests happen to run on.
        assert!(quiet.out.lines().all(|line| line.starts_with("filesystem  weak")), "{quiet:#?}");
    }
}

#[test]
fn json_is_one_object_per_line() {
    let world = World::new();
    let ended = world.run(&["--json", "doctor"]).quiet();
    let objects: Vec<serde_json::Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(objects.len() > 10 && objects.iter().all(|o| o["v"] == 1), "{ended:#?}");
    let (last, exams) = objects.split_last().unwrap();
    let about: std::collections::BTreeSet<_> = exams.iter().map(|o| o["exam"].as_str()).collect();
    assert_eq!(about.len(), exams.len(), "one finding for each thing: {ended:#?}");
    assert!(exams.iter().all(|o| o["exam"].is_string() && o["took_s"].is_number() && o["text"].is_string()));
    assert!(exams.iter().all(|o| ["ok", "weak"].contains(&o["verdict"].as_str().unwrap())), "{ended:#?}");
    assert_eq!((&last["usable"], &last["exit"]), (&true.into(), &0.into()));
    assert!(last["cas"]["p99_s"].as_f64() >= last["cas"]["p50_s"].as_f64(), "{last}");
    assert!(
        last["least_ttl_s"].as_f64().unwrap() >= 0.5 && last["left_behind"].as_array().unwrap().is_empty()
    );
}

#[test]
fn what_cannot_be_opened_is_said_as_everywhere() {
    let world = World::new();
    world.run(&["doctor", &format!("dir:{}", world.at("such"))]).is(69, "config.no_store");
    for kind in ["dir", "sqlite"] {
        world.run(&["doctor", &format!("{kind}:/no/such")]).is(78, "").names(&["it does not exist"]);
    }
    world.run(&["doctor", "sqllite:/x"]).is(78, "").names(&["Did you mean sqlite:?"]);
    world.run(&["doctor", "memory:"]).is(78, "").names(&["only as long as one process"]);
    world.write("notes", "not a database, and longer than a header would be: 0123456789");
    let url = format!("sqlite:{}", world.at("notes"));
    world.unchanged(|| world.run(&["doctor", &url])).is(78, "").names(&["is not a database"]);
    world.run(&["doctor", "--nope"]).is(64, "--nope");
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    for scheme in ["sqlite", "dir"] {
        for signal in [Signal::INT, Signal::TERM, Signal::QUIT] {
            let world = World::new();
            let url = world.store(scheme);
            // One that is there is examined itself.
            assert_eq!(keys(&url), [""; 0]);
            let mut command = world.hearing(crate::world::binary());
            command.args(["--json", "--store", &url, "doctor"]);
            let mut doctor = Running::new(command);
            // In the middle: something was found, and there is more to come.
            assert!(doctor.line().contains("\"reach\""));
            until("records of the doctor's", || (!keys(&url).is_empty()).then_some(()));
            doctor.signal(signal);
            let ended = doctor.ended();
            ended.is(128 + signal.as_raw(), "doctor.interrupted");
            assert_eq!(keys(&url), [""; 0]);
        }
    }
}

#[test]
fn use_does_not_write_what_nobody_could_read() {
    let world = World::new();
    world.run(&["run", "site", "true"]).quiet();
    let url = format!("dir:{}", world.at("shared"));
    for odd in ["\"store\" = \"sqlite:/x\"\n", "store = \"\"\"\nsqlite:/x\"\"\"\n"] {
        world.write(".config/leasehold/config.toml", odd);
        world.unchanged(|| world.run(&["use", &url])).is(78, "use_store.not_changeable");
    }
    // What the next command would refuse, at the line on which it stands.
    for (line, said) in [
        ("new_here = [\"sqlite:/x\"]", "config.project_key"),
        ("[[job]]", "config.project_key"),
        ("stroe = \"sqlite:/x\"", "unknown key \"stroe\""),
        ("nonsense", "config.toml:3"),
    ] {
        world.write(".config/leasehold/config.toml", &format!("# mine\n\n{line}\n"));
        world.unchanged(|| world.run(&["use", &url])).is(78, "").names(&["config.toml:3: "]).is(78, said);
        world.run(&["status"]).is(78, said);
    }
    // A store that is not there any more is what use is for.
    world.write(".config/leasehold/config.toml", "store_file = \"gone\"\n");
    world.run(&["use", &url]).is(0, "use_store.created");
}

/// Also from the store that nobody named; and a slash at the end, as shells complete it, makes no other store.
#[test]
fn use_warns_of_what_it_leaves_behind() {
    let world = World::new();
    world.run(&["run", "site", "true"]).quiet();
    let (plain, slashed) = (format!("dir:{}", world.at("shared")), format!("dir:{}/", world.at("shared")));
    world.run(&["use", &slashed]).is(0, "use_store.before").names(&["sqlite:"]);
    world.run(&["use", &plain]).is(0, "use_store.works").lacks("use_store.before");
    let other = format!("dir:{}", world.at("other"));
    world.run(&["use", &other]).is(0, "use_store.before").names(&[&plain]);
}

#[test]
fn use_asks_the_same_doctor_and_leaves_no_record() {
    let world = World::new();
    let url = format!("dir:{}", world.at("leases"));
    world.run(&["use", &url]).is(0, "use_store.created");
    assert_eq!(keys(&url), [""; 0]);
    let noted = std::fs::read_dir(world.state().join("probed")).unwrap().count();
    assert_eq!(noted, 1, "the next run need not ask again");
    // A store on this machine alone is never asked before a run.
    let world = World::new();
    world.run(&["run", "site", "true"]).quiet();
    assert!(!world.state().join("probed").exists());
}

#[test]
fn a_terminal_sees_progress() {
    let world = World::new();
    let line = format!("{} doctor", crate::world::binary().display());
    let ended: crate::world::Ended = world
        .program("script")
        .args(["-qec", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .output()
        .unwrap()
        .into();
    assert!(ended.out.contains("races       …") && ended.out.contains("\x1b[32mok"), "{ended:#?}");
    let mut command = world.program("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .env("NO_COLOR", "1");
    let plain: crate::world::Ended = command.output().unwrap().into();
    assert!(!plain.out.contains("\x1b[32m"), "{plain:#?}");
}

#[test]
fn a_password_is_never_repeated() {
    const CANARY: &str = "c4nary-s3cret";
    let world = World::new();
    // Nobody listens there, and nothing may be run. A build without that kind of store says so.
    for url in ["postgres://u:c4nary-s3cret@127.0.0.1:1/db", "redis://:c4nary-s3cret@127.0.0.1:1"] {
        for args in [
            &["doctor", url][..],
            &["--json", "doctor", url],
            &["-v", "use", url],
            &["-v", "--store", url, "run", "site", "env"],
            &["--store", url, "acquire", "site"],
        ] {
            let ended = world.run(args);
            assert!([69, 78].contains(&ended.code), "{ended:#?}");
            assert!(!ended.out.contains(CANARY) && !ended.err.contains(CANARY), "{ended:#?}");
        }
    }
    let notes = std::fs::read_dir(world.state().join("probed")).into_iter().flatten().flatten();
    assert_eq!(notes.count(), 0, "nothing went well");
}
