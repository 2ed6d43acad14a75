//! What a store call costs, counted with strace: how often it syncs, and that looking writes nothing.

use std::process::Command;

use crate::common::Scratch;
use leasehold::core::ids::WriteId;
use leasehold::stores::{Cas, Store, Version, open};
use pollster::block_on;

/// Names the store for the traced process; without it there is nothing to do.
const URL: &str = "LEASEHOLD_TEST_COSTS";

/// The calls to the kernel of one phase.
struct Phase {
    name: String,
    calls: Vec<String>,
}

impl Phase {
    fn syncs(&self) -> usize {
        let sync = |call: &&String| call.contains("fsync(") || call.contains("fdatasync(");
        self.calls.iter().filter(sync).count()
    }

    /// Calls that change a file, other than the shared index of SQLite, which is memory.
    fn writes(&self) -> Vec<&String> {
        let changes =
            ["pwrite64(", " write(", "linkat(", "unlinkat(", "unlink(", "mkdirat(", "renameat", "ftruncate("];
        let call = |call: &&String| changes.iter().any(|c| call.contains(c)) && !call.contains("-shm>");
        self.calls.iter().filter(call).collect()
    }
}

/// A call to the kernel that can be found again in the trace.
fn mark(name: &str) {
    let _ = std::fs::metadata(format!("/leasehold-phase/{name}/"));
}

/// Runs [`steps`] on `url` under strace.
fn traced(url: &str, scratch: &Scratch) -> Vec<Phase> {
    let trace = scratch.join("trace");
    let run = Command::new("strace")
        .args(["-f", "-y", "-s", "200", "-o", &trace])
        .arg(std::env::current_exe().unwrap())
        .args(["store_costs::steps", "--exact", "--nocapture", "--test-threads=1"])
        .env(URL, url)
        .output();
    if !run.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: this test counts with strace, which cannot be run here");
        panic!("SKIPPED: strace did not run; install it and allow tracing");
    }
    let mut phases: Vec<Phase> = Vec::new();
    for line in std::fs::read_to_string(&trace).unwrap().lines() {
        if let Some((_, rest)) = line.split_once("/leasehold-phase/") {
            let name = rest.split('/').next().unwrap().to_owned();
            let calls = Vec::new();
            phases.push(Phase { name, calls });
        } else if let Some(phase) = phases.last_mut() {
            phase.calls.push(line.to_owned());
        }
    }
    for phase in &phases {
        println!("{:>12}: {:3} calls, {} syncs", phase.name, phase.calls.len(), phase.syncs());
    }
    phases
}

fn phase<'a>(phases: &'a [Phase], name: &str) -> &'a Phase {
    phases.iter().find(|p| p.name == name).unwrap()
}

fn check(phases: &[Phase], cas_syncs: usize) {
    for name in ["open", "read", "lost", "lost-create", "list", "close"] {
        let phase = phase(phases, name);
        assert_eq!(phase.syncs(), 0, "{name} synced");
        assert!(phase.writes().is_empty(), "{name} wrote: {:?}", phase.writes());
    }
    for name in ["renew", "release", "remove"] {
        assert_eq!(phase(phases, name).syncs(), cas_syncs, "{name}");
    }
}

#[test]
fn sqlite_syncs_once_per_write_and_never_to_look() {
    let scratch = Scratch::new();
    let url = format!("sqlite:{}", scratch.join("x.db"));
    let phases = traced(&url, &scratch);
    check(&phases, 1);
    assert_eq!(phase(&phases, "acquire").syncs(), 1);
    assert_eq!(phase(&phases, "run").syncs(), 2, "a whole run: one to take, one to give back");
}

#[test]
fn dir_syncs_file_and_name_and_never_to_look() {
    let scratch = Scratch::new();
    let url = format!("dir:{}", scratch.join("store"));
    check(&traced(&url, &scratch), 2);
}

/// The traced process.
#[test]
fn steps() {
    let Ok(url) = std::env::var(URL) else { return };
    mark("create");
    // A first write and its removal: the name of a new log is synced once, when it is opened empty.
    let mut store = open(&url).unwrap();
    let first = write(&mut *store, None, 90);
    assert!(matches!(block_on(store.remove("leases/x", &first)), Cas::Written { .. }));
    drop(store);
    mark("open");
    let mut store = open(&url).unwrap();
    mark("read-absent");
    assert!(block_on(store.read("leases/x")).unwrap().is_none());
    mark("acquire");
    let first = write(&mut *store, None, 1);
    mark("renew");
    let second = write(&mut *store, Some(&first), 2);
    mark("release");
    let third = write(&mut *store, Some(&second), 3);
    mark("read");
    assert_eq!(block_on(store.read("leases/x")).unwrap().unwrap().version, third);
    mark("lost");
    let lost = block_on(store.cas("leases/x", Some(&first), WriteId(8), b"stale"));
    mark("lost-create");
    assert_eq!(lost, Cas::Conflict);
    let lost = block_on(store.cas("leases/x", None, WriteId(9), b"stale"));
    mark("list");
    assert_eq!(lost, Cas::Conflict);
    assert_eq!(block_on(store.list("", "", 9)).unwrap().len(), 1);
    mark("remove");
    assert!(matches!(block_on(store.remove("leases/x", &third)), Cas::Written { .. }));
    mark("close");
    drop(store);
    mark("run");
    // What one run costs: open, read, take, give back, close.
    let mut store = open(&url).unwrap();
    assert!(block_on(store.read("leases/x")).unwrap().is_none());
    let held = write(&mut *store, None, 11);
    write(&mut *store, Some(&held), 12);
    drop(store);
    mark("after");
}

fn write(store: &mut dyn Store, expected: Option<&Version>, id: u128) -> Version {
    match block_on(store.cas("leases/x", expected, WriteId(id), &[7; 600])) {
        Cas::Written { version, .. } => version,
        other => panic!("{other:?}"),
    }
}
