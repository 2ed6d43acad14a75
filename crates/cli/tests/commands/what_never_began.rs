//! A run that is told to end before its command began leaves its item as it found it, before the lease is given back.

use std::fs;

use crate::work_is_done_once::pending;
use crate::world::places::{fresh, places};
use crate::world::{PATIENCE, World, until};
use leasehold_testkit::git::{RepoAccess, SETTINGS, Server, Yard, script};
use leasehold_testkit::proxy::Fault;
use rustix::process::Signal;

/// Told to end while its targets are sealed: nothing is begun any more.
#[test]
fn what_is_told_to_end_while_it_seals_begins_nothing() {
    let mut world = World::new();
    world.variables = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let yard = Yard::new(&world.path(""));
    let server = Server::start(RepoAccess::File, yard.dir());
    // The server takes the seal when it is told to.
    let hook =
        format!("#!/bin/sh\ncat > /dev/null\ntouch '{}'\nread go < '{}'\n", world.at("here"), world.at("go"));
    script(&yard.bare().join("hooks/pre-receive"), &hook);
    assert!(world.program("mkfifo").arg("go").status().unwrap().success());
    let fence = format!("git:{}", server.url());
    let run = world.start(&["once", "order", "--fence", &fence, "--", "touch", "never"]);
    until("it seals", || world.path("here").exists().then_some(()));
    run.signal(Signal::TERM);
    until("the wrapper has heard it", || pending(run.pid()).is_none().then_some(()));
    fs::write(world.path("go"), "go\n").unwrap();
    run.ended().is(143, "interrupted before anything was run");
    assert_eq!(world.run(&["--json", "history", "order"]).out, "", "it was begun");
    assert!(!world.path("never").exists());
}

/// Told to end while the record is written: it is taken back while the lease is still held, so that whoever waits for the
/// lease finds an item that may be begun.
#[test]
fn what_is_taken_back_is_so_before_the_lease_is() {
    let place = places().into_iter().find(|place| place.name == "redis").unwrap();
    let (world, key, proxy) = (place.world(), fresh("taken-back"), place.proxy());
    let (url, through) = (place.url(), place.through(&proxy));
    world.run(&["--store", &through, "run", &fresh("first"), "true"]).is(0, "");
    let begun = proxy.arm_on(b"leasehold_item", Fault::Pause);
    let run = world.start(&["--store", &through, "once", &key, "--", "touch", "never"]);
    assert!(begun.wait(PATIENCE), "no item was written");
    run.signal(Signal::TERM);
    until("the wrapper has heard it", || pending(run.pid()).is_none().then_some(()));
    let taken_back = proxy.arm_on(b"leasehold_item", Fault::Pause);
    begun.release();
    assert!(taken_back.wait(PATIENCE), "it was not taken back");
    assert_eq!(world.status(&["--store", &url], &format!("{key}.once"))["state"], "held");
    let next = world.start(&["--store", &url, "once", &key, "--wait", "30s", "--", "touch", "now"]);
    taken_back.release();
    run.ended().is(143, "interrupted before anything was run");
    next.ended().is(0, "");
    assert!(world.path("now").exists() && !world.path("never").exists());
}
