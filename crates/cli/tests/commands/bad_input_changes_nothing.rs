//! Whatever is typed wrongly is told in a sentence, has its exit code, and leaves everything as it was.

use crate::world::World;

/// A world in which `site` has run once, so that there is something to be changed.
fn lived_in() -> World {
    let world = World::new();
    world.run(&["run", "site", "true"]).quiet();
    world
}

/// Each line: the arguments, the exit code, what is said.
#[track_caller]
fn refused(world: &World, cases: &[(&[&str], i32, &str)]) {
    for (args, code, said) in cases {
        let ended = world.unchanged(|| world.run(args)).is(*code, said);
        assert!(ended.err.starts_with("leasehold: "), "{args:?}: {ended:#?}");
        assert_eq!(ended.out, "", "{args:?}");
    }
}

#[test]
fn names() {
    let long = "n".repeat(129);
    refused(
        &lived_in(),
        &[
            (&["run", "Gemi Lab", "true"], 64, "\"Gemi Lab\""),
            (&["run", "Gemi Lab", "true"], 64, "for example: gemi-lab"),
            (&["run", "a..b", "true"], 64, "not a valid name"),
            (&["run", "", "true"], 64, "not a valid name"),
            (&["run", "é", "true"], 64, "not a valid name"),
            (&["run", "-x", "true"], 64, "unexpected argument '-x'"),
            (&["run", &long, "true"], 64, "at most 128"),
            (&["acquire", "../x"], 64, "not a valid name"),
            (&["status", "A"], 64, "not a valid name"),
            (&["run", "site", "--job", "My Job", "true"], 64, "not a valid name"),
            (&["run", "site", "--or", "Other", "true"], 64, "not a valid name"),
            (&["run", "site", "--or", "b,b", "true"], 64, "run.named_twice"),
            (&["run", "site", "--or", "site", "true"], 64, "run.named_twice"),
            (&["run", "site", "--run-id", "a b", "true"], 64, "run.bad_run_id"),
        ],
    );
}

#[test]
fn durations() {
    refused(
        &lived_in(),
        &[
            (&["run", "site", "--ttl", "90", "true"], 64, "write 90s, 90m or 90h"),
            (&["run", "site", "--ttl", "1M", "true"], 64, "write 1m for minutes"),
            (&["run", "site", "--ttl", "soon", "true"], 64, "90s, 80m, 1h20m or 1d"),
            (&["run", "site", "--ttl=-5s", "true"], 64, "is not a duration"),
            (&["run", "site", "--ttl", "0s", "true"], 64, "0s is outside 500ms..7d"),
            (&["run", "site", "--max-run", "5", "true"], 64, "5s, 5m or 5h (or none)"),
            (&["run", "site", "--max-run", "0s", "true"], 64, "write none for no limit"),
            (&["acquire", "site", "--ttl", "1ms"], 64, "outside 500ms..7d"),
            (&["acquire", "site", "--wait", "1"], 64, "has no unit"),
            (&["run", "site", "--ttl", "10s", "--grace", "5s", "true"], 64, "3.3s and 5.6s"),
        ],
    );
}

#[test]
fn flags_and_words() {
    refused(
        &lived_in(),
        &[
            (&["--nope"], 64, "unexpected argument '--nope'"),
            (&["run", "site", "--nope", "--", "true"], 64, "unexpected argument '--nope'"),
            (&["run", "site", "--tll", "9s", "true"], 64, "'--ttl'"),
            (&["staus"], 64, "'status'"),
            (&["run", "site"], 64, "<COMMAND>"),
            (&["run", "site", "--"], 64, "<COMMAND>"),
            (&["run", "--", "./publish.sh"], 64, "leasehold run NAME -- ./publish.sh"),
            (&["run"], 64, "<NAME>"),
            (&["run", "site", "-E", "256", "true"], 64, "256 is not in 0..=255"),
            (&["run", "site", "-E", "-1", "true"], 64, "-1"),
            (&["-q", "-v", "status"], 64, "cannot be used with"),
            (&["release", "site"], 64, "by_hand.no_token"),
            (&["release", "site", "--token", "x"], 64, "help.bad_token"),
            (&["release", "site", "--token", "0"], 64, "help.bad_token"),
            (&["release", "site", "--token", "9007199254740992"], 64, "help.bad_token"),
            (&["release", "site", "--token", "1"], 64, "by_hand.never_taken"),
            (&["break", "site", "--now", "--wait", "1s"], 64, "cannot be used with"),
            (&["break", "site", "--ttl", "5s"], 64, "--take"),
            (&["break", "site", "--now", "--ttl", "5s"], 64, "--take"),
            (&["help", "nope"], 64, "help.no_command"),
        ],
    );
}

/// What only Leasehold itself starts is not suggested to people.
#[test]
fn internal_commands_are_not_suggested() {
    let world = World::new();
    world.run(&["runn"]).is(64, "").names(&["'run'"]);
    for word in ["runn", "run-slo", "demo-acto"] {
        let ended = world.run(&[word]);
        assert!(!ended.err.contains("run-slot'") && !ended.err.contains("demo-actor'"), "{ended:#?}");
    }
}

#[test]
fn commands_that_cannot_be_run_cost_no_token() {
    let world = lived_in();
    world.write("plain", "echo hi");
    refused(
        &world,
        &[
            (&["run", "site", "nope"], 127, "nope: command not found in PATH"),
            (&["run", "site", "./nope"], 127, "./nope: no such file"),
            (&["run", "site", ""], 127, "the command is empty"),
            (&["run", "site", "./plain"], 126, "chmod +x ./plain"),
            (&["run", "site", "/tmp"], 126, "/tmp: is a directory"),
            (&["run", "echo", "hi"], 127, "run.hint_name"),
            (&["run", "echo", "hi"], 127, "leasehold run NAME -- echo hi"),
            (&["run", "--", "echo", "hi"], 127, "leasehold run NAME -- echo hi"),
            (&["run", "/bin/sh", "x"], 64, "leasehold run NAME -- /bin/sh x"),
            (&["run", "site", "echo hi | cat"], 127, "run.hint_shell"),
            (&["run", "site", "A=1", "true"], 127, "run.hint_shell"),
            (&["run", "echo", "--", "nope"], 127, "run.no_command"),
            (&["run", "site", "plain"], 127, "run.hint_here"),
            (&["run", "site", "—", "true"], 127, "run.hint_long_dash"),
        ],
    );
    assert_eq!(world.status(&[], "site")["token"], 1);
    let script = world.script("bad-interpreter", "#!/nonexistent/interpreter\n");
    world.run(&["run", "site", &script]).is(126, "run.no_command");
    assert_eq!(world.status(&[], "site")["state"], "free");
}

#[test]
fn stores() {
    let world = lived_in();
    world.write("text.db", "this is not a database, and it is longer than a header would be, isn't it?");
    world.write("empty.db", "");
    world.write("empty-url", " \n");
    std::fs::create_dir(world.path("mounted")).unwrap();
    let at = |scheme: &str, name: &str| format!("{scheme}:{}", world.at(name));
    refused(
        &world,
        &[
            (&["--store", "sqllite:/x", "run", "site", "true"], 78, "Did you mean sqlite:?"),
            (&["--store", "nonsense", "run", "site", "true"], 78, "no scheme"),
            (&["--store", "", "run", "site", "true"], 78, "is not a store"),
            (&["--store", "dir:", "run", "site", "true"], 78, "Write dir:/PATH"),
            (&["--store", "dir://host/x", "run", "site", "true"], 78, "names a host"),
            (&["--store", "memory:", "run", "site", "true"], 78, "only as long as one process"),
            (&["--store", &at("sqlite", "text.db"), "run", "site", "true"], 78, "it is not a database"),
            (&["--store", &at("sqlite", "empty.db"), "run", "site", "true"], 78, "is empty"),
            (&["--store", &at("sqlite", "no/such.db"), "run", "site", "true"], 78, "it does not exist"),
            (&["--store", &at("dir", "text.db"), "run", "site", "true"], 78, "not a directory"),
            (&["use", "sqllite:/x"], 78, "Did you mean sqlite:?"),
            (&["use", "memory:"], 78, "only as long as one process"),
            (&["use", "secret"], 78, "the argument of use is not"),
            (&["doctor", "secret"], 78, "the argument of doctor is not"),
            (&["doctor", "dir:x", "--also", "secret"], 78, "the value of --also"),
            (&["doctor", "sqlite:"], 78, "names no file"),
            (&["--store", "dir:~/x", "status"], 78, "write dir:$HOME/x"),
            (&["--store", "/srv/x", "status"], 78, "Did you mean dir:/srv/x?"),
            (&["--store", "mysql://:secret@h", "status"], 78, "\"mysql:\" are not supported"),
            (&["--store", "postgre://u:secret@h/d", "status"], 78, "Did you mean postgres:?"),
            (&["--store", "host=h password=secret", "status"], 78, "connection string"),
            (&["--store", "host=h:1 password=secret", "status"], 78, "connection string"),
            (&["--store", "secret", "status"], 78, "the value of --store"),
            (&["--store", "u:x@secret", "status"], 78, "\"u:\" is not a kind"),
            (&["--store", "/x?password=secret", "status"], 78, "no scheme"),
            (
                &["--store", "postgres://u@127.0.0.1:1/d?sslmod=require", "status"],
                78,
                "Did you mean sslmode?",
            ),
            (
                &["--store", "postgres://u@127.0.0.1:1/d?SSLMODE=require", "status"],
                78,
                "Did you mean sslmode?",
            ),
            (&["--store", "postgres://u@127.0.0.1:1/d?foo=bar", "status"], 69, "have no effect here: foo"),
            (&["--store", &at("dir", "new"), "run", "site", "true"], 69, "config.no_store"),
            (&["--store", &at("dir", "new"), "status"], 69, "First time? leasehold use dir:/"),
            (&["--store", &at("dir", "new"), "acquire", "site"], 69, "Nothing was run"),
            (&["--store", &at("dir", "mounted"), "status"], 69, "config.no_store"),
            (&["break", "nobodys"], 64, "break_lease.unknown"),
        ],
    );
    for (file, said) in [("no-such-file", "config.unreadable_secret"), ("empty-url", "config.empty_secret")] {
        let mut command = world.command(&["run", "site", "true"]);
        command.env("LEASEHOLD_STORE_FILE", world.path(file));
        world.unchanged(|| command.output().unwrap().into()).is(78, said);
    }
}

/// A secret that did not arrive must not become a store of this machine alone.
#[test]
fn a_store_that_is_set_to_nothing() {
    let world = lived_in();
    for variable in ["LEASEHOLD_STORE", "LEASEHOLD_STORE_FILE"] {
        for empty in ["", " "] {
            let mut command = world.command(&["run", "site", "touch", "ran"]);
            command.env(variable, empty);
            let ended = world.unchanged(|| command.output().unwrap().into());
            ended.is(78, "config.empty_variable").names(&[variable]);
        }
    }
    let mut command = world.command(&["run", "site", "--store", "sqlite:x.db", "true"]);
    crate::world::Ended::from(command.env("LEASEHOLD_STORE", "").output().unwrap()).is(0, "");
    // Nor is the path of one: a variable may have been meant to say it.
    let args = ["run", "site", "--store", "sqlite:", "touch", "ran"];
    world.unchanged(|| world.run(&args)).is(78, "config.bad_url").names(&["names no file"]);
}

/// Two machines, or two directories, that read one file use one store.
#[test]
fn a_file_means_the_same_store_wherever_it_is_read() {
    let world = lived_in();
    world.write("project/leasehold.toml", "store = \"sqlite:state/leases.db\"\n");
    world.write(".config/leasehold/config.toml", "store_file = \"url\"\n");
    world.write(".config/leasehold/url", "sqlite:mine.db\n");
    for dir in ["project/state", "elsewhere"] {
        std::fs::create_dir_all(world.path(dir)).unwrap();
    }
    let config = world.at("project/leasehold.toml");
    let shown = |dir: &str, args: &[&str]| {
        let mut command = world.command(&[&["status"], args].concat());
        let ended: crate::world::Ended = command.current_dir(world.path(dir)).output().unwrap().into();
        let words = ended.is(0, "").out;
        words.split(' ').find(|word| word.starts_with("sqlite:")).unwrap_or_default().to_owned()
    };
    let project = format!("sqlite:{}", world.at("project/state/leases.db"));
    assert_eq!(shown("project", &[]), project);
    assert_eq!(shown("elsewhere", &["--config", &config]), project);
    assert_eq!(
        shown("project", &["--config", "../project/leasehold.toml"]).replace("project/../", ""),
        project
    );
    let mine = format!("sqlite:{}", world.at(".config/leasehold/mine.db"));
    assert_eq!(shown("elsewhere", &[]), mine);
    // What is typed is meant from where it is typed.
    let typed = format!("sqlite:{}", world.at("elsewhere/x.db"));
    assert_eq!(shown("elsewhere", &["--config", &config, "--store", "sqlite:x.db"]), typed);
}

#[test]
fn configurations() {
    let world = lived_in();
    for (text, said, named) in [
        ("# mine\nstor = \"dir:/x\"\n", "leasehold.toml:2: unknown key \"stor\"", "\"store\""),
        ("store = 5\n", "leasehold.toml:1: store", "in quotes"),
        ("store = \"a\"\nstore_file = \"b\"\n", "config.two_stores", "leasehold.toml:2: "),
        ("\n\nstore = \n", "leasehold.toml:3: ", ""),
        ("store_file = \"/no/such/file\"\n", "config.unreadable_secret", "/no/such/file"),
    ] {
        world.write("leasehold.toml", text);
        world.unchanged(|| world.run(&["run", "site", "true"])).is(78, said).names(&[named]);
    }
    std::fs::write(world.path("leasehold.toml"), b"store = \"\xff\"\n").unwrap();
    world.unchanged(|| world.run(&["run", "site", "true"])).is(78, "").names(&["line 1 is not UTF-8"]);
    std::fs::remove_file(world.path("leasehold.toml")).unwrap();
    std::fs::create_dir_all(world.path(".config/leasehold")).unwrap();
    for (text, said, named) in [
        ("\n[[job]]\nname = \"a\"\n", "config.project_key", "config.toml:2: job"),
        ("timezone = \"UTC\"\n", "config.project_key", "config.toml:1: timezone"),
        ("stor = \"dir:/x\"\n", "config.toml:1: unknown key \"stor\"", "\"store\""),
    ] {
        world.write(".config/leasehold/config.toml", text);
        world.unchanged(|| world.run(&["run", "site", "true"])).is(78, said).names(&[named]);
    }
    std::fs::remove_file(world.path(".config/leasehold/config.toml")).unwrap();
    refused(&world, &[(&["--config", "nope.toml", "run", "site", "true"], 78, "there is no nope.toml")]);
}

/// Whoever runs something by hand has nothing to do with the jobs.
#[test]
fn a_job_that_is_wrong_stops_no_other_run() {
    let world = lived_in();
    let job = "timezone = \"Mars\"\n[defaults]\nnonsense = 1\n[[job]]\nname = 5\n";
    world.write("leasehold.toml", &format!("store = \"sqlite:other.db\"\n{job}"));
    world.run(&["run", "site", "touch", "ran"]).is(0, "");
    assert!(world.path("ran").exists() && world.path("other.db").exists());
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_anything_is_run() {
    let world = lived_in();
    let touch = ["touch", "ran"];
    for (report, said) in [("no/such/dir/r.json", "No such file"), (".local", "directory")] {
        let args = [&["run", "site", "--report", report], &touch[..]].concat();
        world.unchanged(|| world.run(&args)).is(78, "report.unwritable").names(&[said]);
    }
    let args = [&["run", "site", "--report", "r.json"], &touch[..]].concat();
    world.run(&args).quiet();
    assert!(world.path("ran").exists(), "the control: a good place is no obstacle");
}

#[test]
fn a_run_inside_itself_is_not_started_and_does_not_wait() {
    let world = lived_in();
    let inner = "\"$0\" run site --wait 1h touch ran; echo $?";
    let binary = crate::world::binary();
    let args = ["run", "site", "sh", "-c", inner, binary.to_str().unwrap()];
    let ended = world.run(&args).is(0, "run.nested");
    assert_eq!(ended.out, "64\n");
    // Also with another run in between.
    let inner = "\"$0\" run other \"$0\" run site --wait 1h touch ran; echo $?";
    let args = ["run", "site", "sh", "-c", inner, binary.to_str().unwrap()];
    let ended = world.run(&args).is(0, "run.nested");
    assert_eq!(ended.out, "64\n");
    assert!(!world.path("ran").exists());
    let inner = "\"$0\" run other touch ran; echo $?";
    let args = ["run", "site", "sh", "-c", inner, binary.to_str().unwrap()];
    assert_eq!(world.run(&args).quiet().out, "0\n", "the control: another lease is fine");
    assert!(world.path("ran").exists());
}
