//! What this machine saw done on one store is not done on another one, however the store is changed, until somebody says
//! that it is new there.

use std::process::Command;

use crate::schedules::kit::{NOTE, RARE, Site, job, lines};
use crate::world::places::{fresh, places};
use crate::world::{Ended, World, binary, until};

/// How a command comes to another store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Use,
    Flag,
    Environment,
    Directory,
}

const WAYS: [Way; 4] = [Way::Use, Way::Flag, Way::Environment, Way::Directory];

/// Two stores, and a home that remembers.
struct Machine {
    world: World,
    a: String,
    b: String,
}

impl Machine {
    fn new() -> Self {
        let world = World::new();
        let (a, b) = (format!("sqlite:{}", world.at("a.db")), world.store("dir"));
        Self { world, a, b }
    }

    fn command(&self, home: &str, way: Way, store: &str, args: &[&str]) -> Command {
        std::fs::create_dir_all(self.world.path(home)).unwrap();
        let mut command = match way {
            Way::Use => {
                let mut chosen = self.world.command(&["use", store]);
                Ended::from(chosen.env("HOME", self.world.path(home)).output().unwrap()).is(0, "");
                self.world.command(args)
            }
            Way::Flag => self.world.command(&[&["--store", store], args].concat()),
            Way::Environment => {
                let mut command = self.world.command(args);
                command.env("LEASEHOLD_STORE", store);
                command
            }
            Way::Directory => {
                let place = format!("in-{}", store.split(':').next().unwrap());
                self.world.write(&format!("{place}/leasehold.toml"), &format!("store = \"{store}\"\n"));
                let mut command = self.world.command(args);
                command.current_dir(self.world.path(&place));
                command
            }
        };
        command.env("HOME", self.world.path(home));
        command
    }

    fn by(&self, way: Way, store: &str, args: &[&str]) -> Ended {
        self.command("", way, store, args).output().unwrap().into()
    }

    fn on(&self, store: &str, args: &[&str]) -> Ended {
        self.by(Way::Flag, store, args)
    }

    fn once(&self, store: &str, key: &str) -> Ended {
        self.on(store, &["once", key, "--", "sh", "-c", &self.charge()])
    }

    /// A command that leaves a line.
    fn charge(&self) -> String {
        format!("echo charged >> {}", self.world.at("charges"))
    }

    fn charges(&self) -> usize {
        lines(&self.world.path("charges")).len()
    }
}

/// Refused as what was done on another store, with nothing run.
#[track_caller]
fn refused(ended: Ended, other: &str) {
    ended.is(78, "other_stores.seen_there").names(&[other, "--new-here"]);
}

/// The arguments of a run for each kind of item.
fn kinds(command: &str, item: usize) -> Vec<Vec<&str>> {
    let at = ["2026-11-16T05:45Z", "2026-11-16T06:30Z", "2026-11-16T07:15Z"][item];
    let key = ["first", "second", "third"][item];
    let sh = ["--", "sh", "-c", command];
    let kinds: [&[&str]; 4] = [
        &["once", key],
        &["run", "site", "--key", key],
        &["run", "site", "--slot", at],
        &["run", "site", "--slot", at, "--key", key],
    ];
    kinds.map(|args| [args, &sh].concat()).into()
}

fn told(args: &[&str]) -> Vec<String> {
    let mut told: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    told.insert(2, "--new-here".into());
    told
}

/// One way of changing the store and one kind of item.
fn not_repeated(way: Way, kind: usize) {
    let machine = Machine::new();
    let (a, b, charge) = (&machine.a, &machine.b, machine.charge());
    let item = |n: usize| kinds(&charge, n).swap_remove(kind);
    let (first, second, third) = (item(0), item(1), item(2));
    let expect = |count: usize, what: &str| assert_eq!(machine.charges(), count, "{way:?} {first:?}: {what}");
    machine.by(way, a, &first).is(0, "");
    machine.by(way, a, &first).is(0, "").names(&["skipped"]);
    expect(1, "done on the first store");
    refused(machine.by(way, b, &first), a);
    refused(machine.by(way, b, &first), a);
    let json = machine.by(way, b, &[&["--json"], &first[..]].concat());
    assert_eq!((json.code, json.json()["reason"].as_str()), (78, Some("other_store")), "{json:#?}");
    expect(1, "refused on the second");
    // Said once, it is done; and what is done on the first store later is not asked about any more.
    let said = told(&first);
    machine.by(way, b, &said.iter().map(String::as_str).collect::<Vec<_>>()).is(0, "");
    machine.by(way, b, &first).is(0, "").names(&["skipped"]);
    expect(2, "new on the second store, once");
    machine.by(way, a, &second).is(0, "");
    machine.by(way, b, &second).is(0, "");
    expect(4, "not asked again");
    // And back: nobody said anything of what was done on the second store.
    machine.by(way, b, &third).is(0, "");
    refused(machine.by(way, a, &third), b);
    // What the first store knows it answers for itself.
    machine.by(way, a, &first).is(0, "").names(&["skipped"]);
    expect(5, "and back");
    // The control: another home remembers nothing.
    Ended::from(machine.command("stranger", way, a, &third).output().unwrap()).is(0, "");
    expect(6, "by another home");
}

#[test]
fn a_key_by_once() {
    WAYS.into_iter().for_each(|way| not_repeated(way, 0));
}

#[test]
fn a_key_of_a_run() {
    WAYS.into_iter().for_each(|way| not_repeated(way, 1));
}

#[test]
fn a_slot_of_a_run() {
    WAYS.into_iter().for_each(|way| not_repeated(way, 2));
}

#[test]
fn a_slot_with_a_key() {
    WAYS.into_iter().for_each(|way| not_repeated(way, 3));
}

/// The same machine with another store.
fn with_store<T>(site: &mut Site, store: &str, act: impl FnOnce(&Site) -> T) -> T {
    let before = std::mem::replace(&mut site.store, store.into());
    let result = act(site);
    site.store = before;
    result
}

#[test]
fn a_slot_of_a_scheduler() {
    let mut site = Site::with(&job("publish", RARE, "", NOTE));
    let (first, second) = (site.store.clone(), format!("sqlite:{}", site.world.at("second.db")));
    with_store(&mut site, &second, |site| site.tick("a").is(0, ""));
    let slot = site.make_due("publish");
    with_store(&mut site, &second, |site| assert_eq!(site.make_due("publish"), slot));
    site.tick("a").is(0, "");
    assert_eq!(site.runs("a"), [slot.as_str()]);
    for _ in 0..2 {
        with_store(&mut site, &second, |site| site.tick("a"))
            .is(1, "other_stores.seen_there")
            .names(&[&first]);
        assert_eq!(site.runs("a"), [slot.as_str()], "not on the second store");
    }
    // The control: another machine remembers nothing.
    site.jobs("b", &job("publish", RARE, "", NOTE));
    with_store(&mut site, &second, |site| site.tick("b")).is(0, "");
    assert_eq!((site.runs("a").len(), site.runs("b").len()), (1, 1));
    // What it has done is known there by now, and not refused to anybody.
    with_store(&mut site, &second, |site| site.tick("a")).is(0, "").lacks(&first);
    assert_eq!(site.runs("a").len(), 1);
}

#[test]
fn a_scheduler_is_told_by_a_flag_or_by_its_file() {
    for by_file in [false, true] {
        let mut site = Site::with(&job("publish", RARE, "", NOTE));
        let (first, second) = (site.store.clone(), format!("sqlite:{}", site.world.at("second.db")));
        let due = |site: &Site| {
            site.tick("a").is(0, "");
            site.make_due("publish");
        };
        with_store(&mut site, &second, due);
        due(&site);
        site.tick("a").is(0, "");
        with_store(&mut site, &second, |site| site.tick("a"))
            .is(1, "other_stores.seen_there")
            .names(&[&first]);
        let tick = |args: &[&str]| {
            let mut command = site.world.program(binary());
            command.args(args).current_dir(site.world.path("a"));
            command.env("XDG_STATE_HOME", site.world.path("a/state"));
            Ended::from(command.output().unwrap())
        };
        if by_file {
            let told = format!("store = \"{second}\"\nnew_here = [\"{first}\"]\n");
            site.jobs("a", &format!("{told}{}", job("publish", RARE, "", NOTE)));
            tick(&["tick"]).is(0, "");
        } else {
            tick(&["--store", &second, "tick", "--new-here"]).is(0, "");
        }
        assert_eq!(site.runs("a").len(), 2, "by the file: {by_file}");
    }
}

#[test]
fn a_file_says_what_is_new_on_its_store() {
    let machine = Machine::new();
    let (a, b) = (&machine.a, &machine.b);
    machine.once(a, "first").is(0, "");
    machine.once(a, "second").is(0, "");
    let in_file = |text: &str, key: &str| {
        machine.world.write("project/leasehold.toml", text);
        let mut command = machine.world.command(&["once", key, "--", "sh", "-c", &machine.charge()]);
        Ended::from(command.current_dir(machine.world.path("project")).output().unwrap())
    };
    let named = format!("store = \"{b}\"\n");
    refused(in_file(&named, "first"), a);
    refused(in_file(&format!("{named}new_here = [\"sqlite:/other\"]\n"), "first"), a);
    in_file(&format!("new_here = [\"{a}\"]\n"), "first").is(78, "config.new_here_without_store");
    for (wrong, said) in [("a.db", "the value of new_here"), ("sqlit:/a", "Did you mean sqlite:?")] {
        let ended = in_file(&format!("{named}new_here = [\"{a}\", \"{wrong}\"]\n"), "first").is(78, said);
        ended.is(78, "").names(&["leasehold.toml:2: "]);
    }
    // It is said of the store that the file names, not of any that takes its place.
    machine.world.write("project/leasehold.toml", &format!("{named}new_here = [\"{a}\"]\n"));
    let mut command = machine.world.command(&["--store", "sqlite:c.db", "once", "first", "true"]);
    refused(command.current_dir(machine.world.path("project")).output().unwrap().into(), a);
    assert_eq!(machine.charges(), 2);
    in_file(&format!("{named}new_here = [\"{a}\"]\n"), "first").is(0, "");
    machine.once(b, "second").is(0, "");
    assert_eq!(machine.charges(), 4, "and it is remembered");
    // A relative path starts from where the file is, as that of the store.
    machine.once(&format!("sqlite:{}", machine.world.at("project/d.db")), "fourth").is(0, "");
    in_file(&format!("{named}new_here = [\"sqlite:d.db\"]\n"), "fourth").is(0, "");
    assert_eq!(machine.charges(), 6);
    let user =
        machine.world.write(".config/leasehold/config.toml", &format!("{named}new_here = [\"{a}\"]\n"));
    machine.world.run(&["once", "third", "true"]).is(78, "config.project_key").names(&["new_here"]);
    std::fs::remove_file(user).unwrap();
}

#[test]
fn a_key_that_is_not_kept_any_more_is_done_again() {
    let machine = Machine::new();
    let kept = |store: &str, key: &str, keep: &[&str]| {
        let charge = machine.charge();
        machine.on(store, &[&["once", key], keep, &["--", "sh", "-c", &charge]].concat())
    };
    kept(&machine.a, "short", &["--keep", "1s"]).is(0, "");
    kept(&machine.a, "long", &["--keep", "1h"]).is(0, "");
    kept(&machine.a, "asked", &[]).is(0, "");
    until("the keep is over", || (kept(&machine.b, "short", &[]).code == 0).then_some(()));
    refused(kept(&machine.b, "long", &["--keep", "1h"]), &machine.a);
    // As on one store, it is the keep of the run that asks.
    refused(kept(&machine.b, "asked", &[]), &machine.a);
    until("it is over", || (kept(&machine.b, "asked", &["--keep", "1s"]).code == 0).then_some(()));
    assert_eq!(machine.charges(), 5);
}

#[test]
fn what_others_did_and_this_machine_found_done_counts_as_well() {
    let machine = Machine::new();
    let other = World::new();
    let args = ["--store", &machine.a, "once", "invoice", "true"];
    other.run(&args).is(0, "");
    machine.once(&machine.a, "invoice").is(0, "").names(&["skipped"]);
    refused(machine.once(&machine.b, "invoice"), &machine.a);
    // What failed was not done.
    machine.on(&machine.a, &["once", "failed", "false"]).is(1, "");
    machine.once(&machine.b, "failed").is(0, "");
    assert_eq!(machine.charges(), 1);
    // What was stopped half way may have been done, and what a person says was done counts as done.
    machine.on(&machine.a, &["once", "stopped", "--max-run", "200ms", "sleep", "60"]).is(143, "");
    refused(machine.once(&machine.b, "stopped"), &machine.a);
    machine.on(&machine.a, &["once", "by-hand", "false"]).is(1, "");
    machine.on(&machine.a, &["retry", "--done", "by-hand"]).is(0, "");
    refused(machine.once(&machine.b, "by-hand"), &machine.a);
    assert_eq!(machine.charges(), 1);
}

/// Both ways of ending without a word: the wrapper is killed, or still at work.
#[test]
fn a_run_that_never_reported_counts_as_begun() {
    let machine = Machine::new();
    let flag = machine.world.write("busy", "");
    let busy = format!("{}; while [ -e {} ]; do sleep 0.05; done", machine.charge(), flag.display());
    let mut wrapper =
        machine.command("", Way::Flag, &machine.a, &["once", "killed", "--", "sh", "-c", &busy]);
    let mut wrapper = wrapper.spawn().unwrap();
    until("the command runs", || (machine.charges() == 1).then_some(()));
    refused(machine.once(&machine.b, "killed"), &machine.a);
    wrapper.kill().unwrap();
    wrapper.wait().unwrap();
    refused(machine.once(&machine.b, "killed"), &machine.a);
    std::fs::remove_file(flag).unwrap();
    assert_eq!(machine.charges(), 1);
}

#[test]
fn a_slot_that_failed_here_and_was_done_elsewhere_is_not_done_again() {
    let machine = Machine::new();
    let (a, b, charge) = (&machine.a, &machine.b, machine.charge());
    let slot = |store: &str, command: &str| {
        machine.on(store, &["run", "site", "--slot", "2026-11-16T05:45Z", "--", "sh", "-c", command])
    };
    slot(a, "false").is(1, "");
    // As long as it failed everywhere, it is tried again anywhere.
    slot(b, &charge).is(0, "");
    refused(slot(a, &charge), b);
    slot(b, &charge).is(0, "").names(&["skipped"]);
    assert_eq!(machine.charges(), 1);
}

/// The store in use knows that it failed there, which is no answer to whether it was done on another one.
#[test]
fn what_failed_here_and_was_done_elsewhere_is_not_done_again() {
    let machine = Machine::new();
    let (a, b) = (&machine.a, &machine.b);
    machine.on(a, &["once", "invoice", "false"]).is(1, "");
    machine.once(b, "invoice").is(0, "");
    refused(machine.once(a, "invoice"), b);
    machine.once(b, "invoice").is(0, "skipped");
    machine.on(a, &["retry", "--done", "invoice"]).is(0, "retry.done");
    machine.once(a, "invoice").is(0, "skipped");
    assert_eq!(machine.charges(), 1);
    // As long as it failed everywhere, it is tried again anywhere.
    machine.on(b, &["once", "other", "false"]).is(1, "");
    machine.once(a, "other").is(0, "");
    assert_eq!(machine.charges(), 2);
}

/// The flag is about all that was done on the other store; a person can say it of one key or slot.
#[test]
fn one_item_is_recorded_as_done_on_the_other_store() {
    let machine = Machine::new();
    let (a, b, slot) = (&machine.a, &machine.b, ["run", "site", "--slot", "2026-11-16T05:45Z", "true"]);
    for key in ["it's first", "second"] {
        machine.once(a, key).is(0, "");
    }
    machine.on(a, &slot).is(0, "");
    let first = machine.once(b, "it's first").is(78, "other_stores.seen_there");
    first.is(78, "other_stores.seen_there");
    machine.on(b, &["retry", "--done", "it's first"]).is(0, "retry.done");
    machine.on(b, &["retry", "--done", "it's first"]).is(0, "retry.is_done");
    machine.once(b, "it's first").is(0, "items.skipped").names(&["it's first: done by hand"]);
    machine.on(b, &slot).is(78, "other_stores.seen_there").names(&["site@2026-11-16T05:45:00Z"]);
    machine.on(b, &["retry", "--done", "site@2026-11-16T05:45:00Z"]).is(0, "retry.done");
    machine.on(b, &slot).is(0, "").names(&["skipped"]);
    // The others stay as they are, and what nobody saw is a typing error.
    refused(machine.once(b, "second"), a);
    machine.on(b, &["retry", "second"]).is(64, "retry.no_record");
    machine.on(b, &["retry", "--done", "third"]).is(64, "retry.no_record");
    assert_eq!(machine.charges(), 2);
}

#[test]
fn what_was_done_by_a_run_that_only_observed_counts_as_well() {
    let machine = Machine::new();
    let charge = machine.charge();
    machine.on(&machine.a, &["run", "site", "--observe", "--key", "k", "--", "sh", "-c", &charge]).is(0, "");
    refused(machine.once(&machine.b, "k"), &machine.a);
    assert_eq!(machine.charges(), 1);
}

/// What is done on one store while a run on the other waits for its lease is seen before its command starts.
#[test]
fn a_run_that_waited_looks_again() {
    for item in [&["--key", "k"][..], &["--slot", "2026-11-16T05:45Z"]] {
        let machine = Machine::new();
        let (a, b, charge) = (&machine.a, &machine.b, machine.charge());
        let flag = machine.world.write("held", "");
        let hold = format!("while [ -e {} ]; do sleep 0.05; done", flag.display());
        let mut holder = machine.command("", Way::Flag, b, &["run", "site", "--", "sh", "-c", &hold]);
        let mut holder = holder.spawn().unwrap();
        until("it is held", || machine.on(b, &["status", "site"]).out.contains("held").then_some(()));
        let waiting = [&["run", "site", "--wait", "60s"], item, &["--", "sh", "-c", &charge]].concat();
        let log = std::fs::File::create(machine.world.path("waiting.err")).unwrap();
        let mut waiting = machine.command("", Way::Flag, b, &[&["-v"], &waiting[..]].concat());
        let mut waiting = waiting.stderr(log).spawn().unwrap();
        let said = || std::fs::read_to_string(machine.world.path("waiting.err")).unwrap();
        until("it waits", || said().contains("wait").then_some(()));
        machine.on(a, &[&["run", "site"], item, &["--", "sh", "-c", &charge]].concat()).is(0, "");
        std::fs::remove_file(flag).unwrap();
        holder.wait().unwrap();
        assert_eq!(waiting.wait().unwrap().code(), Some(78), "{}", said());
        // What it had begun and did not run is no answer to the next.
        refused(machine.on(b, &[&["run", "site"], item, &["--", "sh", "-c", &charge]].concat()), a);
        assert_eq!(machine.charges(), 1, "{}", said());
    }
}

/// Two stores, one item, at the same moment: one of them is refused, or both.
#[test]
fn of_two_runs_on_two_stores_at_most_one_does_it() {
    let (mut done, mut refused) = (0, 0);
    for round in 0..20 {
        let machine = Machine::new();
        let key = format!("k{round}");
        let runs = [&machine.a, &machine.b].map(|store| {
            let args = ["once", &key, "--", "sh", "-c", &machine.charge()];
            let mut command = machine.command("", Way::Flag, store, &args);
            command.stderr(std::process::Stdio::null()).spawn().unwrap()
        });
        let codes: Vec<_> = runs.into_iter().map(|mut run| run.wait().unwrap().code().unwrap()).collect();
        assert!(machine.charges() <= 1, "round {round}: {codes:?}");
        assert!(codes.iter().all(|code| [0, 78].contains(code)), "round {round}: {codes:?}");
        done += machine.charges();
        refused += codes.iter().filter(|code| **code == 78).count();
    }
    println!("20 rounds: {done} done, {refused} refused");
}

/// One URL and two servers: the variable says which.
#[test]
fn a_variable_that_names_another_server_makes_another_store() {
    let place = places().into_iter().find(|place| place.name == "s3").unwrap();
    let (world, url, key) = (place.world(), place.url(), fresh("invoice"));
    let once = |endpoint: Option<&str>| {
        let mut command = world.program(binary());
        command.args(["--store", &url, "once", &key, "--", "sh", "-c", "echo x >> charged"]);
        endpoint.map(|endpoint| command.env("AWS_ENDPOINT_URL", endpoint));
        Ended::from(command.output().unwrap())
    };
    once(None).is(0, "");
    // The URL names its server, so the store is the same and answers for itself; the notes are told apart.
    once(Some("http://127.0.0.1:1")).is(0, "").names(&["skipped"]);
    let notes = std::fs::read_dir(world.state().join("done")).unwrap().count();
    assert_eq!((notes, std::fs::read_to_string(world.path("charged")).unwrap().as_str()), (2, "x\n"));
}

/// A share that is not mounted looks like a directory in which nothing was ever done.
#[test]
fn a_store_made_anew_in_the_same_place_is_another_store() {
    let machine = Machine::new();
    let (b, slot) = (&machine.b, ["run", "site", "--slot", "2026-11-16T05:45Z", "true"]);
    machine.once(b, "invoice").is(0, "");
    machine.on(b, &slot).is(0, "");
    let place = std::path::PathBuf::from(b.strip_prefix("dir:").unwrap());
    std::fs::rename(&place, machine.world.path("unmounted")).unwrap();
    std::fs::create_dir(&place).unwrap();
    machine.once(b, "invoice").is(69, "");
    machine.world.run(&["use", b]).is(0, "use_store.created").is(0, "use_store.done_elsewhere");
    let again = |args: &[&str]| refused(machine.on(b, args), "as it was before");
    again(&["run", "other", "--key", "invoice", "true"]);
    again(&["run", "other", "--job", "site", "--slot", "2026-11-16T05:45Z", "true"]);
    machine.on(b, &["run", "other", "--key", "invoice", "--new-here", "true"]).is(0, "");
    assert_eq!(machine.charges(), 1);
}

/// Whoever accepts what a store has left does not say that what it lost is to be done again.
#[test]
fn what_a_store_lost_is_not_done_again_when_it_is_adopted() {
    let machine = Machine::new();
    let a = &machine.a;
    machine.once(a, "first").is(0, "");
    let path = a.strip_prefix("sqlite:").unwrap();
    let beside = ["", "-wal", "-shm"].map(|end| format!("{path}{end}"));
    beside.iter().for_each(|file| drop(std::fs::remove_file(file)));
    machine.once(a, "first").is(79, "store.vanished");
    machine.on(a, &["adopt", "first.once"]).is(0, "adopt.lost_items");
    refused(machine.once(a, "first"), "as it was before");
    machine.once(a, "second").is(0, "");
    machine.once(a, "second").is(0, "").names(&["skipped"]);
    assert_eq!(machine.charges(), 2);
    machine.on(a, &["once", "first", "--new-here", "--", "sh", "-c", &machine.charge()]).is(0, "");
    assert_eq!(machine.charges(), 3);
}

#[test]
fn use_tells_what_is_not_known_on_the_new_store() {
    let machine = Machine::new();
    let (a, b) = (&machine.a, &machine.b);
    machine.once(a, "first").is(0, "");
    machine.once(a, "second").is(0, "");
    for slot in ["2026-11-16T05:45Z", "2026-11-16T06:30Z"] {
        machine.on(a, &["run", "site", "--slot", slot, "true"]).is(0, "");
    }
    let used = |args: &[&str]| {
        let ended = machine.world.run(&[&["--json", "use", b], args].concat());
        assert_eq!(ended.code, 0, "{ended:#?}");
        ended.json()["not_known"].clone()
    };
    assert_eq!(used(&[]), serde_json::json!([{"store": a, "keys": 2, "jobs": 1}]));
    machine
        .world
        .run(&["use", b])
        .is(0, "use_store.done_elsewhere")
        .names(&["2", "1"])
        .is(0, "use_store.done_elsewhere");
    refused(machine.world.run(&["once", "first", "true"]), a);
    assert_eq!(used(&["--new-here"]), serde_json::json!([]));
    assert_eq!(used(&[]), serde_json::json!([]), "it is not asked again");
    machine.world.run(&["once", "first", "true"]).quiet();
    machine.world.run(&["run", "site", "--slot", "2026-11-16T05:45Z", "true"]).quiet();
}

/// Nobody is advised to go on where nothing was run.
#[test]
fn a_store_that_refused_a_run_is_not_one_that_it_ran_on() {
    let machine = Machine::new();
    let (b, run) = (&machine.b, ["run", "site", "--key", "k", "true"]);
    machine.world.run(&run).is(0, "");
    machine.on(b, &run).is(78, "other_stores.seen_there");
    machine.world.run(&["run", "site", "true"]).is(0, "").lacks("config.ran_elsewhere");
    // The control, also for a run that finds its work done by others.
    World::new().run(&["--store", b, "run", "site", "--key", "done", "true"]).is(0, "");
    machine.on(b, &["run", "site", "--key", "done", "true"]).is(0, "").names(&["skipped"]);
    machine.world.run(&["run", "site", "true"]).is(0, "config.ran_elsewhere").names(&[b]);
}

/// The name of one store may begin with that of another.
#[test]
fn use_tells_of_sealed_targets_whatever_the_stores_are_called() {
    let world = World::new();
    let store = |name: &str| format!("dir:{}", world.at(name));
    world.run(&["use", &store("leases2")]).is(0, "").lacks("use_store.fenced");
    world.run(&["run", "site", "--fence", "file:page", "true"]).is(0, "");
    world.run(&["use", &store("leases2")]).is(0, "").lacks("use_store.fenced");
    world.run(&["use", &store("leases")]).is(0, "use_store.fenced");
}

/// Without a key or a slot there is nothing that could be new.
#[test]
fn the_flag_goes_with_a_key_or_a_slot() {
    let world = World::new();
    world.run(&["run", "site", "--new-here", "touch", "ran"]).is(64, "items.no_item");
    assert!(!world.path("ran").exists());
}
