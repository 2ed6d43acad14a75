//! Help, completions, the manual, `status`, `use` and what is never shown.

use std::process::Stdio;

use crate::world::{Ended, Running, World, binary};

#[test]
fn help_lists_what_works_and_the_first_commands_first() {
    let world = World::new();
    let help = world.run(&["--help"]).quiet().out;
    let run = help.find("\n  run ").unwrap();
    let status = help.find("\n  status ").unwrap();
    let acquire = help.find("\n  acquire ").unwrap();
    assert!(run < status && status < acquire, "{help}");
    // Whatever is listed has help of its own.
    let listed: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(listed.len() >= 8, "{listed:?}");
    for command in listed {
        let own = world.run(&[command, "--help"]).quiet().out;
        assert_eq!(own, world.run(&["help", command]).quiet().out, "{command}");
        assert!(own.lines().all(|line| line.chars().count() <= 100), "{own}");
    }
    assert_eq!(world.run(&["help"]).quiet().out, help);
    assert_eq!(world.run(&[]).is(64, "Usage: leasehold").out, "");
    assert!(world.run(&["--version"]).quiet().out.starts_with("leasehold "));
    assert!(!world.path(".local").exists(), "asking for help leaves nothing behind");
}

#[test]
fn every_exit_code_is_explained() {
    let text = World::new().run(&["help", "exit-codes"]).quiet().out;
    for code in
        ["0 ", "1     tick", "11 ", "64 ", "69 ", "75 ", "76 ", "77 ", "78 ", "79 ", "126 ", "127 ", "128+n "]
    {
        assert!(text.lines().any(|line| line.trim_start().contains(code)), "{code}: {text}");
    }
}

/// The same keys as in docs/schedule.md, and those that a file is checked for.
#[test]
fn the_file_of_jobs_is_explained() {
    let world = World::new();
    let text = world.run(&["help", "leasehold.toml"]).quiet().out;
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    let table = include_str!("../../../../docs/schedule.md");
    let table = table.split("| key of a job |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows = table.lines().skip(2).map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let mut listed = 0;
    for row in rows {
        for key in row[1].split(", ").map(|key| key.trim_matches('`')) {
            let line =
                text.lines().find(|line| line.split([' ', '*']).find(|word| !word.is_empty()) == Some(key));
            let line = line.unwrap_or_else(|| panic!("{key}: {text}"));
            let for_all = line.split_whitespace().any(|word| word == "*" || word == format!("{key}*"));
            assert_eq!(for_all, row[2].starts_with("yes"), "{line}");
            listed += 1;
        }
    }
    assert_eq!(listed, 28, "{table}");
    let once = world.run(&["help", "once"]).quiet().out;
    let once: Vec<&str> = once.split_whitespace().collect();
    assert!(
        once.join(" ")
            .contains("until ten runs in a row (or --attempts runs, if that is more) have never reported")
    );
    assert!(world.run(&["help", "daemon"]).quiet().out.contains("it reads the file again"));
    assert!(world.run(&["help", "tick"]).quiet().out.contains("1 if a run failed"));
}

#[test]
fn completions_load_and_the_manual_renders() {
    let world = World::new();
    let bash = world.run(&["completions", "bash"]).quiet().out;
    let script = world.write("complete.bash", &format!("{bash}\nCOMP_WORDS=(leasehold sta)\nCOMP_CWORD=1\n_leasehold leasehold sta leasehold\necho \"${{COMPREPLY[@]}}\"\n"));
    let ended = Ended::from(world.program("bash").arg(script).output().unwrap()).quiet();
    assert_eq!(ended.out, "status stats\n");
    assert!(world.run(&["completions", "zsh"]).quiet().out.starts_with("#compdef leasehold"));
    assert!(world.run(&["completions", "fish"]).quiet().out.contains("complete -c leasehold"));
    world.run(&["completions", "tcsh"]).is(64, "[possible values: ");
    let page = world.run(&["man"]).quiet().out;
    world.write("leasehold.1", &page);
    let mut man = world.program("man");
    man.args(["--warnings", "--local-file", "./leasehold.1"]).env("MANPAGER", "cat").env("MANWIDTH", "80");
    let man = Ended::from(man.output().unwrap()).quiet();
    assert!(man.out.contains("NAME") && man.out.contains("leasehold"), "{man:#?}");
}

#[test]
fn status_shows_who_holds_what() {
    let world = World::new();
    assert_eq!(world.run(&["status"]).quiet().out.lines().count(), 1, "no leases yet");
    world.run(&["status", "site"]).is(64, "history.unknown_name");
    world.run(&["run", "idle", "true"]).quiet();
    let mut holder = world.start(&["run", "site", "--job", "publish", "sh", "-c", "echo ok; exec cat"]);
    holder.line();
    let table = world.run(&["status"]).quiet().out;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = table.lines().map(words).collect();
    let row = |lease: &str| rows.iter().find(|row| row[0] == lease).unwrap_or_else(|| panic!("{table}"));
    assert_eq!(row("LEASE").join(" "), "LEASE JOB STATE TOKEN HOLDER HELD RENEWED ENDS IN");
    assert_eq!(row("idle")[2..5], ["free", "1", "-"]);
    assert_eq!(row("site")[1..4], ["publish", "held", "1"]);
    assert!(row("site")[4].ends_with(&format!("/{}", holder.pid())), "{table}");
    let json = world.status(&[], "site");
    assert_eq!((json["state"].as_str(), json["job"].as_str()), (Some("held"), Some("publish")));
    let left = json["expires_in_s"].as_f64().unwrap();
    assert!(left > 0.0 && left <= 90.0, "{json}");
    holder.ended().quiet();
}

#[test]
fn watching_shows_changes_and_ends_with_its_reader() {
    let world = World::new();
    world.run(&["run", "site", "true"]).quiet();
    let mut watching = world.start(&["--json", "status", "--watch", "site"]);
    assert!(watching.line().contains("\"free\""));
    world.run(&["acquire", "site"]).token();
    while !watching.line().contains("\"held\"") {}
    drop(watching);
    let script = "\"$0\" status --watch | head -n 1";
    let mut command = world.program("bash");
    command.args(["-o", "pipefail", "-c", script, binary().to_str().unwrap()]);
    let mut watching = Running::new(command);
    assert!(watching.line().starts_with("LEASE"));
    assert_eq!(watching.ended().code, 0);
}

#[test]
fn use_is_remembered_where_cron_sees_it() {
    let world = World::new();
    let store = format!("dir:{}", world.at("leases"));
    world.write(".config/leasehold/config.toml", "# mine\n");
    world.run(&["use", &store]).is(0, "use_store.created");
    let config = std::fs::read_to_string(world.path(".config/leasehold/config.toml")).unwrap();
    assert_eq!(config, format!("store = \"{store}\"\n# mine\n"));
    world.run(&["run", "site", "true"]).quiet();
    assert_eq!(world.status(&["--store", &store], "site")["token"], 1, "it was run there");
    // A link, as people who keep their configuration in a repository have.
    std::fs::rename(world.path(".config/leasehold/config.toml"), world.path("real.toml")).unwrap();
    std::os::unix::fs::symlink(world.path("real.toml"), world.path(".config/leasehold/config.toml")).unwrap();
    let other = format!("sqlite:{}", world.at("other.db"));
    world.run(&["use", &other]).is(0, "use_store.before");
    assert_eq!(
        std::fs::read_to_string(world.path("real.toml")).unwrap(),
        format!("store = \"{other}\"\n# mine\n")
    );
    // What does not work is not written.
    world.unchanged(|| world.run(&["use", "dir:/proc/nope"]));
}

/// A shell's profile exports the store; cron does not read it.
#[test]
fn an_empty_environment_does_not_fall_back_to_this_machine() {
    let world = World::new();
    let served = format!("sqlite:{}", world.at("served.db"));
    let serve = ["--store", &served, "--json", "serve", "--store-api", "--listen", "127.0.0.1:0"];
    let mut server = world.start(&serve);
    let listen: serde_json::Value = serde_json::from_str(&server.line()).unwrap();
    let store = format!("http://{}", listen["listen"].as_str().unwrap());
    let run = |store: Option<&str>, lease: &str| {
        let mut command = world.command(&["--json", "run", lease, "touch", "ran"]);
        command.envs(store.map(|store| ("LEASEHOLD_STORE", store)));
        Ended::from(command.output().unwrap())
    };
    run(Some(&store), "site").is(0, "");
    std::fs::remove_file(world.path("ran")).unwrap();
    let refused = world.unchanged(|| run(None, "site")).is(78, "config.wrong_store");
    assert_eq!(refused.json()["reason"], "wrong_store", "{refused:#?}");
    assert!(refused.err.contains(&format!("site ran on {store} before")), "{refused:#?}");
    assert!(refused.err.contains(&format!("leasehold use {store}")), "{refused:#?}");
    assert!(refused.err.contains("leasehold use sqlite:") && !refused.err.contains("rm "), "{refused:#?}");
    run(None, "another").is(0, "").lacks("ran on");
    // What it says to do, does it: both ways.
    world.run(&["use", &store]).is(0, "");
    run(None, "site").is(0, "");
    world.run(&["use", "sqlite:"]).is(0, "");
    run(None, "site").is(0, "").lacks("ran on");
}

/// One experiment with a file of this machine does not stop cron.
#[test]
fn a_store_of_this_machine_alone_is_told_once_and_refuses_nothing() {
    for scheme in ["sqlite", "dir"] {
        let world = World::new();
        let store = world.store(scheme);
        world.run(&["run", "site", "true"]).quiet();
        world.run(&["--store", &store, "run", "site", "true"]).quiet();
        // As a crontab has it.
        let told = world
            .run(&["run", "site", "-q", "true"])
            .is(0, "config.ran_elsewhere")
            .names(&[&format!("site ran on {store} before")]);
        assert_eq!(told.err.lines().count(), 1, "{told:#?}");
        world.run(&["run", "site", "true"]).quiet();
        // On it once more, and back: it was said.
        world.run(&["--store", &store, "run", "site", "true"]).quiet();
        world.run(&["run", "site", "true"]).quiet();
    }
}

/// As versions before this one noted it: which store, and not who uses it.
#[test]
fn what_is_not_known_to_be_of_this_machine_alone_is_taken_for_shared() {
    for (store, code) in [("postgres://ops@db/ops", 78), ("dir:/mnt/leases", 78), ("sqlite:/srv/x.db", 0)] {
        let world = World::new();
        world.run(&["run", "site", "true"]).quiet();
        let page = world.state().join("memory/site.json");
        std::fs::write(page, format!("{{\"stores\":{{\"{store}\":{{}}}}}}")).unwrap();
        world.run(&["run", "site", "true"]).is(code, "").names(&[&format!("site ran on {store} before")]);
    }
}

#[test]
fn passwords_are_never_shown() {
    let world = World::new();
    let urls = [
        "postgres://ops:s3cret@127.0.0.1:1/ops",
        "postgress://ops:s3cret@127.0.0.1:1/ops",
        "nonsense://ops:s3cret@127.0.0.1:1",
        "redis://:s3cret@127.0.0.1:1",
        "postgres://127.0.0.1:1/ops?password=s3cret",
        "ops:s3cret@127.0.0.1:1",
    ];
    for url in urls {
        let file = world.write("url", url);
        world.write("leasehold.toml", "");
        let commands: [&[&str]; 6] = [
            &["status"],
            &["run", "site", "true"],
            &["-v", "run", "site", "env"],
            &["acquire", "site"],
            &["--json", "status"],
            &["use", url],
        ];
        for args in commands {
            for how in ["--store", "LEASEHOLD_STORE", "LEASEHOLD_STORE_FILE", "store"] {
                let mut command = world.command(&[]);
                match how {
                    "--store" => command.args(["--store", url]),
                    "LEASEHOLD_STORE" => command.env(how, url),
                    "LEASEHOLD_STORE_FILE" => command.env(how, &file),
                    _ => {
                        world.write("leasehold.toml", &format!("store = {url:?}\n"));
                        &mut command
                    }
                };
                let ended = Ended::from(command.args(args).stdin(Stdio::null()).output().unwrap());
                assert_ne!(ended.code, 0, "{ended:#?}");
                let said = format!("{}{}", ended.out, ended.err);
                assert!(!said.contains("s3cret"), "{how} {args:?}: {ended:#?}");
            }
        }
    }
}

/// `run` has a parser of its own where it is the first word; nobody must be able to tell.
#[test]
fn run_reads_the_same_by_either_parser() {
    let world = World::new();
    for line in [&["--help"][..], &[], &["--fenc", "x", "y"], &["--version"], &["x", "--ttl", "5"]] {
        let (alone, among) =
            (world.run(&[&["run"], line].concat()), world.run(&[&["-q", "run"], line].concat()));
        assert_eq!((alone.code, alone.out, alone.err), (among.code, among.out, among.err), "{line:?}");
    }
}
