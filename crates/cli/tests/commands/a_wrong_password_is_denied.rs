//! A password that the store refuses: 77, nothing is run, and no password in anything that is said.

#[allow(dead_code)] // it can do more than is needed here
#[path = "../../../lib/tests/remote/postgres/own.rs"]
mod own;

use crate::world::World;
use crate::world::places::CANARY;
use leasehold_testkit::server;

const WRONG: &str = "wr0ng-canary-0123456789";

/// For the servers' directories.
fn corner() -> String {
    format!("leasehold-cli-{:032x}/", leasehold::random::seed())
}

/// What every command does with it.
fn refused(wrong: &str, right: &str) {
    let world = World::new();
    for args in [
        &["run", "site", "touch", "never"][..],
        &["-v", "run", "site", "--wait", "2s", "touch", "never"],
        &["acquire", "site"],
        &["--json", "acquire", "site"],
        &["status"],
        &["--json", "status", "site"],
        &["break", "site"],
        &["doctor"],
        &["--json", "doctor"],
        &["use", wrong],
    ] {
        // Given by a flag and by a variable.
        for named in [&["--store", wrong][..], &[]] {
            let args: Vec<&str> = named.iter().chain(args).copied().collect();
            let ended = world.command(&args).env("LEASEHOLD_STORE", wrong).output().unwrap();
            let ended = crate::world::Ended::from(ended);
            assert_eq!(ended.code, 77, "{args:?}: {ended:#?}");
            let said = format!("{ended:?}");
            assert!(!said.contains(WRONG) && !said.contains(CANARY), "{args:?}: {ended:#?}");
        }
    }
    assert!(!world.path("never").exists());
    for (path, _) in world.snapshot(".") {
        let text = std::fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(!text.unwrap_or_default().contains(WRONG), "{}", path.display());
    }
    // Control: with the right one it works.
    world.run(&["--store", right, "run", "site", "touch", "ran"]).is(0, "");
    assert!(world.path("ran").exists());
}

#[test]
fn by_postgres() {
    let mut server = own::Server::start(&[]);
    let port = server.port.to_string();
    let set = format!("ALTER USER lease PASSWORD '{CANARY}'");
    own::done(own::command("psql").args([
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-U",
        "lease",
        "postgres",
        "-c",
        &set,
    ]));
    let rule = "host all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(server.data().join("pg_hba.conf"), rule).unwrap();
    server.kill();
    server.run();
    let with = |password: &str| server.url().replacen("lease@", &format!("lease:{password}@"), 1);
    refused(&with(WRONG), &with(CANARY));
}

#[test]
fn by_redis() {
    let right = server("REDIS_AUTH");
    assert!(right.contains(CANARY), "then the control has no password");
    refused(&right.replace(CANARY, WRONG), &right);
}
