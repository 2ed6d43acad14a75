//! `leasehold uninstall --show`: what there is, and nothing else happens.

use std::fs;

use crate::world::{Ended, Running, World};

/// The pieces of this kind, each with what removes it.
fn pieces(ended: &Ended, kind: &str) -> Vec<(String, String)> {
    let told = ended.json();
    let text = |piece: &serde_json::Value, name: &str| piece[name].as_str().unwrap().to_owned();
    let all = told["pieces"].as_array().unwrap().iter().filter(|piece| piece["kind"] == kind);
    all.map(|piece| (text(piece, "what"), text(piece, "remove"))).collect()
}

fn show(world: &World, more: &[&str]) -> Ended {
    let mut command = world.command(&[&["uninstall", "--show"], more].concat());
    let path = format!("{}:{}", world.at("bin"), std::env::var("PATH").unwrap());
    command.env("PATH", path).output().unwrap().into()
}

#[test]
fn everything_here_is_named_with_what_removes_it() {
    let world = World::new();
    world.script(
        "bin/crontab",
        "#!/bin/sh\necho '# leasehold is off'\necho '*/5 * * * * leasehold run site -- x'\n",
    );
    world.write(".config/systemd/user/site.service", "[Service]\nExecStart=/usr/bin/leasehold daemon\n");
    world.write(".config/systemd/user/other.service", "[Service]\nExecStart=/usr/bin/other\n");
    world.unchanged(|| world.run(&["uninstall"]).is(64, "uninstall.only_shows"));
    // Nothing of ours: nothing is made.
    let none = world.unchanged(|| show(&world, &[]));
    let none = none.is(0, "uninstall.nothing_removed").is(0, "uninstall.records");
    assert!(none.err.contains(": none"), "{none:#?}");
    world.run(&["run", "site", "--fence", "file:page", "--fence", "gate:mail", "true"]).quiet();
    world.run(&["once", "k", "true"]).quiet();
    world.write(".config/leasehold/config.toml", "");
    let table = show(&world, &[]).is(0, "uninstall.records");
    assert!(
        table.out.contains("crontab -e") && table.out.contains("disable --now site.service"),
        "{table:#?}"
    );
    let told = world.unchanged(|| show(&world, &["--json"]));
    assert_eq!(told.code, 0, "{told:#?}");
    let records = told.json()["records"].clone();
    assert_eq!((&records["leases"], &records["keys"], &records["gates"]), (&2.into(), &1.into(), &1.into()));
    assert!(records["log"].as_u64().unwrap() >= 2, "{records}");
    assert_eq!(pieces(&told, "crontab")[0].0, "*/5 * * * * leasehold run site -- x");
    assert_eq!(pieces(&told, "unit").len(), 1, "{told:#?}");
    let targets = pieces(&told, "target");
    let fence = |target: &str| targets.iter().find(|(what, _)| what.ends_with(target)).unwrap().1.clone();
    assert!(fence("/page").starts_with("leasehold fence reset file:"), "{targets:?}");
    assert!(!fence("gate:mail").contains("leasehold"), "{targets:?}");
    let store = pieces(&told, "store");
    assert!(store[0].1.starts_with("rm -rf ") && store[0].1.contains("leases.db-wal"), "{store:?}");
    // What it says is enough, here without a crontab and units.
    for kind in ["target", "store", "state", "config"] {
        for (_, how) in pieces(&told, kind) {
            let how = how.replace("leasehold ", &format!("{} ", crate::world::binary().display()));
            if how.contains("fence reset") || how.starts_with("rm ") {
                assert!(world.program("sh").args(["-c", &how]).status().unwrap().success(), "{how}");
            }
        }
    }
    let left = pieces(&show(&world, &["--json"]), "state");
    assert_eq!(left, []);
    assert!(!fs::exists(world.state()).unwrap());
}

#[test]
fn other_stores_and_tables_have_other_commands() {
    let world = World::new();
    show(&world, &["--store", &format!("dir:{}", world.at("no/such"))]).is(0, "uninstall.not_counted");
    let store = world.store("dir");
    world.run(&["--store", &store, "run", "site", "true"]).quiet();
    let told = show(&world, &["--json", "--store", &store]);
    assert_eq!(pieces(&told, "store")[0].1, format!("rm -r {}", world.at("store")));
    let mut server = Running::new(world.command(&[
        "--store",
        &store,
        "--json",
        "serve",
        "--store-api",
        "--listen",
        "127.0.0.1:0",
    ]));
    let listen: serde_json::Value = serde_json::from_str(&server.line()).unwrap();
    let url = format!("http://{}", listen["listen"].as_str().unwrap());
    let told = show(&world, &["--json", "--store", &url]);
    assert!(pieces(&told, "store")[0].1.contains("docs/remove.md"), "{told:#?}");
    server.signal(rustix::process::Signal::TERM);
    server.ended();
    let db = rusqlite::Connection::open(world.path("shop.db")).unwrap();
    db.execute_batch("CREATE TABLE stock (id INTEGER PRIMARY KEY)").unwrap();
    let table = format!("sqlite:{}#stock", world.at("shop.db"));
    world.run(&["guard", "install", &table, "--others", "refuse"]).is(0, "");
    world.run(&["run", "site", "--fence", &table, "true"]).is(0, "");
    let told = show(&world, &["--json"]);
    assert!(pieces(&told, "target")[0].1.starts_with("leasehold guard remove "), "{told:#?}");
}
