//! What a target refuses is told by a code that fits, with a way out; and no way out is the wrong one.

use std::fs;

use crate::world::{Ended, World, binary};

fn job(text: &str) -> String {
    text.replace("LEASEHOLD", binary().to_str().unwrap())
}

/// A shell line as a job of a run that fences these.
fn within(world: &World, fences: &[&str], line: &str) -> Ended {
    let line = job(line);
    let mut args = vec!["run", "site"];
    fences.iter().for_each(|fence| args.extend(["--fence", fence]));
    args.extend(["--", "sh", "-c", &line]);
    world.run(&args)
}

/// After a move to another store every fence is from another life: there is a way out, and it is named.
#[test]
fn whoever_moves_to_another_store_resets_the_fences() {
    let world = World::new();
    let (old, new) = (format!("dir:{}", world.at("old")), world.store("dir"));
    leasehold::stores::open(&old).unwrap();
    fs::create_dir(world.path("from")).unwrap();
    for target in ["file:page", "tree:site", "gate:./mail"] {
        let run = |store: &str| world.run(&["--store", store, "run", "site", "--fence", target, "true"]);
        run(&old).is(0, "");
        run(&new)
            .is(79, "targets.other_history")
            .names(&[&format!("leasehold fence reset {}:", target.split_once(':').unwrap().0)]);
        // Not while somebody has it.
        let reset = job(&format!("LEASEHOLD --store '{new}' fence reset {target}"));
        world.run(&["--store", &new, "run", "site", "--", "sh", "-c", &reset]).is(11, "fence.held");
        run(&new).is(79, "targets.other_history");
        world.run(&["--store", &new, "fence", "reset", target]).is(0, "fence.reset");
        world.run(&["--store", &new, "fence", "reset", target]).is(0, "fence.no_fence");
        run(&new).is(0, "");
        // Control: the fence holds again, now against the old store.
        run(&old).is(79, "targets.other_history");
    }
}

/// A command that failed, or a standard input that was forgotten, leaves nothing to write.
#[test]
fn nothing_is_not_written_by_accident() {
    let world = World::new();
    let page = || fs::read_to_string(world.path("page")).unwrap();
    within(&world, &["file:page"], "echo old | LEASEHOLD write file:page").is(0, "");
    for line in ["false | LEASEHOLD write file:page", "LEASEHOLD write file:page </dev/null"] {
        within(&world, &["file:page"], line).is(64, "write.empty");
        assert_eq!(page(), "old\n", "{line}");
    }
    within(&world, &["file:page"], "LEASEHOLD write file:page --from /dev/null").is(0, "");
    assert_eq!(page(), "", "on purpose");
}

#[test]
fn a_home_that_nobody_expands_is_no_directory() {
    let world = World::new();
    for target in ["file:~/page", "tree:~", "sqlite:~/db#t"] {
        world.run(&["run", "site", "--fence", target, "touch", "ran"]).is(78, "").names(&["begins with ~"]);
    }
    world
        .run(&["run", "site", "--fence", "sub/page", "touch", "ran"])
        .is(78, "")
        .names(&["For a file write file:PATH"]);
    assert!(!world.path("ran").exists());
}

/// Of a target that is refused no secret is told: in a parameter, before a host, in what is no target at all.
#[test]
fn a_refused_target_tells_no_secret() {
    let world = World::new();
    for target in [
        "az://box/key?sig=s3cret",
        "s3://box/key?sig=s3cret",
        "s3://box/key?endpoint=http://u:s3cret@127.0.0.1:1",
        "bot:s3cret@host/x.git",
        "s3cret@host/x.git",
        "s3cret",
        "git:bot:s3cret@127.0.0.1/x.git",
        "git:http://127.0.0.1:1/x.git?private_token=s3cret",
        "firestore://p/c/d?key=s3cret",
        "redis://h?token=s3cret#key",
        // As they are mistyped.
        "redis:/:s3cret@h#k",
        "redis::s3cret@h#k",
        "rediss:/:s3cret@h#k",
        "pg:postgres:/u:s3cret@h/d#t",
        "pg:u:s3cret@h/d#t",
        "pg:host=db password=s3cret#t",
        "az:/b/k?sig=s3cret",
        "s3:/a:s3cret@b/k",
        "firestore:/p/c/d?token=s3cret",
        "git:https:/u:s3cret@127.0.0.1/x",
    ] {
        let toml = format!("[[job]]\nname = 'a'\nevery = '1h'\nrun = ['true']\nfence = [{target:?}]\n");
        std::fs::write(world.path("leasehold.toml"), toml).unwrap();
        for args in [
            &["run", "site", "--fence", target, "true"][..],
            &["run", "site", "--observe", "--fence", target, "true"],
            &["--json", "run", "site", "--fence", target, "true"],
            &["fence", "ls", target, "file:page"],
            &["write", target],
            &["read", target],
            &["doctor", "--target", target],
            &["guard", "show", target],
            &["fence", "reset", target],
            &["why", "a"],
            &["tick"],
        ] {
            let ended = world.run(args);
            assert!(!format!("{ended:?}").contains("s3cret"), "{args:?}: {ended:#?}");
        }
    }
    let mut kept = vec![world.state()];
    while let Some(path) = kept.pop() {
        match std::fs::read_dir(&path) {
            Ok(entries) => kept.extend(entries.map(|entry| entry.unwrap().path())),
            Err(_) => {
                let bytes = std::fs::read(&path).unwrap_or_default();
                assert!(!String::from_utf8_lossy(&bytes).contains("s3cret"), "{}", path.display());
            }
        }
    }
}

/// Nobody writes between a reset and the next seal: a run that was sealed before it is stale.
#[test]
fn a_reset_lets_nobody_in() {
    let world = World::new();
    let other = world.store("dir");
    let line =
        format!("LEASEHOLD --store '{other}' fence reset file:page; echo x | LEASEHOLD write file:page");
    within(&world, &["file:page"], &line).is(76, "fence.reset");
    assert!(!world.path("page").exists());
}

#[test]
fn what_does_not_fit_is_a_mistake_of_the_caller() {
    let world = World::new();
    fs::create_dir(world.path("dir")).unwrap();
    let cases = [
        ("tree:site", "echo x | LEASEHOLD write tree:site", "--from"),
        ("file:page", "LEASEHOLD write file:page --from dir", "is a directory"),
        ("gate:./mail", "echo x | LEASEHOLD write gate:./mail", "a gate holds nothing"),
        (
            "file:page",
            "env LEASE\"\"HOLD_GRANT=x LEASEHOLD write file:page </dev/null",
            "fenced.bad_run_variables",
        ),
        ("file:page", "LEASEHOLD --json read file:page", "read.no_json"),
    ];
    for (target, line, said) in cases {
        within(&world, &[target], line).is(64, said);
    }
    let elsewhere = "cd dir && echo x | LEASEHOLD write file:page";
    within(&world, &["file:page"], elsewhere).is(76, "targets.never_named").names(&[world.at("dir/page")]);
}

#[test]
fn what_was_refused_leaves_nothing_beside_it() {
    let world = World::new();
    fs::create_dir(world.path("dir")).unwrap();
    within(&world, &["file:dir"], "true").is(78, "").names(&["is a directory"]);
    let left: Vec<_> = fs::read_dir(world.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("leasehold-lock")), "{left:?}");
}

#[test]
fn one_broken_row_of_many_is_only_shown() {
    let world = World::new();
    within(&world, &["file:page", "file:broken"], "true").is(0, "");
    fs::write(world.path(".broken.leasehold-fence"), "{").unwrap();
    world.run(&["fence", "ls", "file:page", "file:broken"]).is(0, "");
    world.run(&["fence", "ls", "file:broken"]).is(79, "");
    world.run(&["fence", "ls", "nope"]).is(78, "").names(&["is not a target"]);
    let read = world.run(&["read", "file:none"]).is(78, "").names(&["is not there"]);
    assert!(!read.err.contains("Nothing was"), "{read:#?}");
}

#[test]
fn commands_below_commands_have_help() {
    let world = World::new();
    for words in [&["help", "guard", "install"][..], &["man", "guard", "install"], &["help", "fence"]] {
        let told = world.run(words).is(0, "");
        assert!(told.out.contains(words[1]) && told.out.len() > 100, "{told:#?}");
    }
    world.run(&["help", "guard", "nope"]).is(64, "help.no_command");
    world.run(&["man", "guard", "nope"]).is(64, "help.no_command");
}

/// Closing a directory may fail, on a network mount for one: no reason to break off.
#[test]
fn a_directory_that_cannot_be_closed_is_no_panic() {
    let world = World::new();
    fs::create_dir_all(world.path("from/deep")).unwrap();
    fs::write(world.path("from/deep/page"), "x").unwrap();
    // Only those of what is copied: without its libraries no program starts.
    let (outer, inner) = (world.path("from"), world.path("from/deep"));
    let line = format!(
        "strace -f -qq -o log -P {} -P {} -e trace=close -e inject=close:error=EIO LEASEHOLD write tree:site --from from",
        outer.display(),
        inner.display()
    );
    let ended = within(&world, &["tree:site"], &line);
    assert!(!ended.err.contains("panicked"), "{ended:#?}");
    assert!(fs::read_to_string(world.path("log")).unwrap().contains("INJECTED"));
    assert_eq!(fs::read_to_string(world.path("site/deep/page")).unwrap(), "x", "{ended:#?}");
}
