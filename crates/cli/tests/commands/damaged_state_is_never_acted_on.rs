//! A state directory, a database or a record that is not as we left it: nothing is run, nothing is
//! repaired behind the user's back, and no token is ever granted twice.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::world::{Ended, World, until};
use leasehold::core::ids::WriteId;
use leasehold::stores::{Cas, Store, open};
use pollster::block_on;

const SOMEBODY: u32 = 12_345;

fn needs_root() {
    assert!(rustix::process::geteuid().is_root(), "SKIPPED: only root can prepare this; run it as root");
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn lived_in() -> World {
    let world = World::new();
    for token in 1..=3 {
        let ran = world.run(&["run", "site", "sh", "-c", "echo $LEASEHOLD_TOKEN"]).quiet();
        assert_eq!(ran.token(), token);
    }
    world
}

/// Runs a job that leaves a trace, which must not be there afterwards.
#[track_caller]
fn refuses(world: &World, code: i32, said: &str) -> Ended {
    world.unchanged(|| world.run(&["run", "site", "touch", "ran"])).is(code, said)
}

#[test]
fn links_planted_at_the_state_paths_are_refused() {
    for planted in ["", "leases.db", "memory", "grants", "leases.db-locks"] {
        let world = World::new();
        fs::create_dir_all(world.path(".local/state")).unwrap();
        fs::create_dir(world.path("elsewhere")).unwrap();
        mode(&world.path("elsewhere"), 0o700);
        let link = if planted.is_empty() { world.state() } else { world.state().join(planted) };
        if !planted.is_empty() {
            fs::create_dir(world.state()).unwrap();
            mode(&world.state(), 0o700);
        }
        symlink(world.path("elsewhere"), &link).unwrap();
        refuses(&world, 78, "is a symbolic link").is(78, "").names(&["Nothing was run"]);
        world.unchanged(|| world.run(&["acquire", "site"])).is(78, "").names(&["symbolic link"]);
        fs::remove_file(link).unwrap();
        world.run(&["run", "site", "true"]).quiet();
    }
}

#[test]
fn a_link_in_place_of_another_databases_locks_is_not_followed() {
    let world = World::new();
    fs::create_dir(world.path("elsewhere")).unwrap();
    symlink(world.path("elsewhere"), world.path("my.db-locks")).unwrap();
    let before = world.snapshot("elsewhere");
    world.run(&["--store", "sqlite:my.db", "run", "site", "true"]).quiet();
    assert_eq!(world.snapshot("elsewhere"), before);
}

#[test]
fn a_state_directory_that_is_not_ours_alone_is_refused() {
    needs_root();
    let world = lived_in();
    chown(world.state(), Some(SOMEBODY), None).unwrap();
    refuses(&world, 78, "state.not_private").names(&["user 12345"]);
    chown(world.state(), Some(0), None).unwrap();
    mode(&world.state(), 0o770);
    refuses(&world, 78, "state.is_open").is(78, "state.close_it");
    mode(&world.state(), 0o700);
    world.run(&["run", "site", "true"]).quiet();
}

#[test]
fn without_a_home_nothing_is_guessed() {
    let world = lived_in();
    for home in [None, Some(""), Some("relative")] {
        let mut command = world.command(&["run", "site", "touch", "ran"]);
        command.env_remove("HOME");
        command.envs(home.map(|home| ("HOME", home)));
        world.unchanged(|| command.output().unwrap().into()).is(78, "state.nowhere");
    }
}

/// A mistyped home must not become a second, empty store.
#[test]
fn a_home_that_does_not_exist_is_not_made() {
    let world = lived_in();
    let run = |variable: &str, place: &str| {
        let mut command = world.command(&["run", "site", "touch", "ran"]);
        command.env(variable, world.path(place));
        Ended::from(command.output().unwrap())
    };
    world.unchanged(|| run("HOME", "typo")).is(78, "state.no_root");
    world.unchanged(|| run("XDG_STATE_HOME", "typo/state")).is(78, "state.no_root");
    // The last part of it is made, as a unit with a home that is there expects.
    run("XDG_STATE_HOME", "state").quiet();
    assert!(world.path("state/leasehold/leases.db").exists());
    fs::create_dir(world.path("home")).unwrap();
    run("HOME", "home").quiet();
    assert!(world.path("home/.local/state/leasehold/leases.db").exists());
}

#[test]
fn what_this_user_may_not_write_is_told() {
    needs_root();
    let world = World::new();
    // Root may do anything, so the binary runs as somebody else.
    let binary = world.path("leasehold");
    fs::copy(crate::world::binary(), &binary).unwrap();
    for dir in ["", "closed", "open"] {
        fs::create_dir_all(world.path(dir)).unwrap();
        chown(world.path(dir), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    }
    let call = |args: &[&str]| {
        let mut command: Command = world.program(&binary);
        command.args(args).uid(SOMEBODY).gid(SOMEBODY);
        // A test beside this one may have forked while the copy was open for writing.
        let busy = std::io::ErrorKind::ExecutableFileBusy;
        until("the copied binary", || match command.output() {
            Err(e) if e.kind() == busy => None,
            output => Some(Ended::from(output.unwrap())),
        })
    };
    let run = |store: &str| call(&["--store", store, "run", "site", "touch", "ran"]);
    call(&["use", &format!("dir:{}", world.at("open/d"))]).is(0, "use_store.created");
    run(&format!("sqlite:{}", world.at("open/a.db"))).quiet();
    run(&format!("dir:{}", world.at("open/d"))).quiet();
    fs::remove_file(world.path("ran")).unwrap();
    mode(&world.path("closed"), 0o500);
    world
        .unchanged(|| run(&format!("sqlite:{}", world.at("closed/new"))))
        .is(77, "")
        .names(&["this user may not do that"]);
    let directory = format!("dir:{}", world.at("closed/new"));
    world.unchanged(|| call(&["use", &directory])).is(77, "").names(&["this user may not do that"]);
    world.unchanged(|| run(&directory)).is(69, "config.no_store");
    mode(&world.path("open/a.db"), 0o000);
    world.unchanged(|| run(&format!("sqlite:{}", world.at("open/a.db")))).is(77, "").names(&["permissions"]);
    mode(&world.path("open/a.db"), 0o400);
    world.unchanged(|| run(&format!("sqlite:{}", world.at("open/a.db")))).is(77, "");
    mode(&world.path("open/d"), 0o000);
    world
        .unchanged(|| run(&format!("dir:{}", world.at("open/d"))))
        .is(77, "")
        .names(&["this user may not do that"]);
}

#[test]
fn a_damaged_database_is_left_as_it_is() {
    let world = lived_in();
    let db = world.state().join("leases.db");
    let keep = fs::read(&db).unwrap();
    fs::write(&db, "").unwrap();
    refuses(&world, 78, "is empty");
    fs::write(&db, vec![b'x'; keep.len()]).unwrap();
    let log = fs::read(world.state().join("leases.db-wal")).unwrap();
    // The newest pages are in the log.
    refuses(&world, 78, "damaged");
    fs::write(world.state().join("leases.db-wal"), "").unwrap();
    refuses(&world, 78, "is not a database");
    let mut other = keep.clone();
    other[68..72].copy_from_slice(b"Oops");
    fs::write(&db, other).unwrap();
    refuses(&world, 78, "database of another program");
    fs::write(&db, &keep).unwrap();
    fs::write(world.state().join("leases.db-wal"), log).unwrap();
    fs::remove_file(&db).unwrap();
    refuses(&world, 78, "is gone but its log");
    fs::write(&db, &keep).unwrap();
    mode(&db, 0o600);
    assert_eq!(world.run(&["acquire", "site"]).token(), 4, "put back, it goes on where it was");
}

#[test]
fn the_doctor_sees_damage_that_no_lease_has_met_yet() {
    let world = lived_in();
    for number in 0..40 {
        world.run(&["run", &format!("lease-{number}"), "true"]).quiet();
    }
    let path = world.state().join("leases.db");
    let emptied = rusqlite::Connection::open(&path).unwrap();
    emptied.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(emptied);
    let checked = world.state().join("checked");
    let good = fs::read(&path).unwrap();
    let pages = good.len() / 4096;
    for page in [1, pages / 2, pages - 1] {
        let mut bad = good.clone();
        bad[page * 4096 + 300..(page + 1) * 4096].fill(0xA5);
        fs::write(&checked, bad).unwrap();
        world.run(&["doctor", &format!("sqlite:{}", checked.display())]).is(78, "");
        for left in ["checked", "checked-wal", "checked-shm"] {
            let _ = fs::remove_file(world.state().join(left));
        }
    }
    // The control: nothing but the damage was wrong.
    fs::write(&checked, good).unwrap();
    world.run(&["doctor", &format!("sqlite:{}", checked.display())]).is(0, "");
}

#[test]
fn a_store_that_lost_writes_or_vanished_needs_a_person() {
    let world = lived_in();
    let copy = |from: &str, to: &str| {
        for name in ["leases.db", "leases.db-wal"] {
            let (from, to) = (world.path(from).join(name), world.path(to).join(name));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
        let _ = fs::remove_file(world.path(to).join("leases.db-shm"));
    };
    copy(".local/state/leasehold", "backup");
    world.run(&["run", "site", "true"]).quiet();
    copy("backup", ".local/state/leasehold");
    refuses(&world, 79, "store.rewound").names(&["token 3", "4"]);
    for name in ["leases.db", "leases.db-wal", "leases.db-shm"] {
        let _ = fs::remove_file(world.state().join(name));
    }
    world.run(&["run", "site", "touch", "ran"]).is(79, "store.vanished").names(&["token 4"]);
    assert!(!world.path("ran").exists());
}

/// Changes the record of `site` as another program could.
fn rewrite(store: &str, change: impl Fn(&str) -> String) {
    let mut store: Box<dyn Store> = open(store).ok().unwrap();
    let stored = block_on(store.read("leases/site")).unwrap().unwrap();
    let body = change(std::str::from_utf8(&stored.body).unwrap());
    let write = WriteId(leasehold::random::seed());
    let cas = block_on(store.cas("leases/site", Some(&stored.version), write, body.as_bytes()));
    assert!(matches!(cas, Cas::Written { .. }), "{cas:?}");
}

#[test]
fn records_that_must_not_be_acted_on() {
    for scheme in ["sqlite", "dir"] {
        let world = World::new();
        let store = world.store(scheme);
        let run = || world.run(&["--store", &store, "run", "site", "touch", "ran"]);
        run().quiet();
        fs::remove_file(world.path("ran")).unwrap();
        let cases = [
            ("\"token\":9007199254740992", 79, "store.bad_record"),
            ("\"token\":9007199254740991", 79, "store.exhausted"),
            ("\"token\":0", 79, "store.bad_record"),
            ("\"token\":1,\"shoe\":43", 79, "store.bad_record"),
        ];
        for (token, code, said) in cases {
            let old = std::cell::RefCell::new(String::new());
            rewrite(&store, |body| {
                *old.borrow_mut() = body.into();
                body.replace("\"token\":1", token)
            });
            world.unchanged(run).is(code, said);
            let status = world.run(&["--store", &store, "status"]);
            assert_eq!(status.code, 0, "status shows the rest: {status:#?}");
            rewrite(&store, |_| old.borrow().clone());
        }
        rewrite(&store, |body| body.replace("\"leasehold\":1", "\"leasehold\":3"));
        world.unchanged(run).is(78, "store.newer_record");
        let release = ["--store", &store, "break", "site"];
        world.unchanged(|| world.run(&release)).is(78, "store.newer_record");
        rewrite(&store, |body| body.replace("\"leasehold\":3", "\"leasehold\":1"));
        run().quiet();
    }
}
