//! The attack on link(2): a paused writer continues after its number was used, superseded and swept.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use pollster::block_on;

use super::*;

const KEY: &str = "leases/x";

thread_local! {
    /// Whether this thread is on a mount by sshfs.
    static SSHFS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The error that sshfs returns, because SFTP has one code for many errors.
pub(in crate::backends::dir) fn as_sshfs_says(made: Result<(), Errno>) -> Result<(), Errno> {
    match made {
        Err(Errno::EXIST | Errno::NOTEMPTY) if SSHFS.get() => Err(Errno::PERM),
        other => other,
    }
}

struct TestDir(PathBuf);

impl TestDir {
    fn new() -> Self {
        let name = format!("leasehold-dir-{:032x}", crate::random::seed());
        Self(std::env::temp_dir().join(name))
    }

    fn store(&self) -> DirStore {
        DirStore::open(self.0.to_str().unwrap()).unwrap()
    }

    fn file(&self, seq: u64) -> PathBuf {
        self.0.join(format!("keys/leases%2fx/{seq}"))
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn write(store: &mut DirStore, expected: Option<&Version>, id: u128) -> Cas {
    block_on(store.cas(KEY, expected, WriteId(id), format!("{id}").as_bytes()))
}

fn version(id: u128) -> Version {
    Version(WriteId(id).to_string())
}

/// Writes `ids` one after the other, the first after `expected`.
fn advance(store: &mut DirStore, expected: Option<u128>, ids: std::ops::RangeInclusive<u128>) {
    let mut last = expected;
    for id in ids {
        let got = write(store, last.map(version).as_ref(), id);
        assert!(matches!(got, Cas::Written { .. }), "{got:?}");
        last = Some(id);
    }
}

/// A writer that stops between its read and its link until the test continues it.
struct Paused {
    go: Sender<()>,
    thread: JoinHandle<Cas>,
}

impl Paused {
    fn before_link(mut store: DirStore, expected: u128, id: u128) -> Self {
        let (go, wait): (Sender<()>, Receiver<()>) = channel();
        let (stopped, reached) = channel();
        store.before_link = Some(Box::new(move || {
            stopped.send(()).unwrap();
            wait.recv().unwrap();
        }));
        let thread = std::thread::spawn(move || write(&mut store, Some(&version(expected)), id));
        reached.recv().unwrap();
        Self { go, thread }
    }

    fn resume(self) -> Cas {
        self.go.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

#[test]
fn a_delayed_link_of_a_swept_version_is_not_taken_for_success() {
    let scratch = TestDir::new();
    let mut others = scratch.store();
    advance(&mut others, None, 1..=1);
    let zombie = Paused::before_link(scratch.store(), 1, 666);
    advance(&mut others, Some(1), 2..=9);
    assert!(!scratch.file(2).exists(), "number 2 was swept");
    let got = zombie.resume();
    assert!(matches!(got, Cas::Unknown(_)), "{got:?}");
    assert!(scratch.file(2).exists(), "the link itself succeeded");
    let read = block_on(others.read(KEY)).unwrap().unwrap();
    assert_eq!(read.version, version(9));
    // The latecomer is swept, and the key can be written.
    advance(&mut others, Some(9), 10..=12);
    assert!(!scratch.file(2).exists());
}

#[test]
fn without_the_look_back_the_zombie_believes_it_won() {
    let scratch = TestDir::new();
    let mut others = scratch.store();
    advance(&mut others, None, 1..=1);
    let mut naive = scratch.store();
    naive.naive = true;
    let zombie = Paused::before_link(naive, 1, 666);
    advance(&mut others, Some(1), 2..=9);
    assert!(matches!(zombie.resume(), Cas::Written { .. }));
}

#[test]
fn two_zombies_one_behind_the_other_do_not_vouch_for_each_other() {
    let scratch = TestDir::new();
    let mut others = scratch.store();
    advance(&mut others, None, 1..=1);
    let first = Paused::before_link(scratch.store(), 1, 666);
    advance(&mut others, Some(1), 2..=2);
    let second = Paused::before_link(scratch.store(), 2, 667);
    advance(&mut others, Some(2), 3..=9);
    assert!(!scratch.file(2).exists() && !scratch.file(3).exists());
    assert!(matches!(first.resume(), Cas::Unknown(_)));
    let got = second.resume();
    assert!(scratch.file(2).exists() && scratch.file(3).exists());
    assert!(matches!(got, Cas::Unknown(_)), "{got:?}");
    let read = block_on(others.read(KEY)).unwrap().unwrap();
    assert_eq!(read.version, version(9));
}

#[test]
fn a_slow_writer_that_did_win_is_told_the_truth_or_nothing() {
    let scratch = TestDir::new();
    let mut others = scratch.store();
    advance(&mut others, None, 1..=1);
    let slow = Paused::before_link(scratch.store(), 1, 2);
    assert!(matches!(slow.resume(), Cas::Written { .. }));
    let beaten = Paused::before_link(scratch.store(), 2, 666);
    advance(&mut others, Some(2), 3..=3);
    assert_eq!(beaten.resume(), Cas::Conflict);
}

#[test]
fn a_reader_does_not_believe_a_latecomer_that_is_all_it_finds() {
    let scratch = TestDir::new();
    let mut store = scratch.store();
    advance(&mut store, None, 1..=3);
    // A listing that overlaps writes and a sweep may show one version whose predecessor is gone.
    std::fs::remove_file(scratch.file(2)).unwrap();
    let read = block_on(store.read(KEY));
    assert_eq!(read.unwrap_err().kind, FailureKind::Unreachable);
}

#[test]
fn the_newest_two_stay_and_nothing_else_does() {
    let scratch = TestDir::new();
    let mut store = scratch.store();
    advance(&mut store, None, 1..=20);
    let dead = scratch.0.join(format!("keys/leases%2fx/t5-{}", WriteId(5)));
    std::fs::write(&dead, "cut sho").unwrap();
    advance(&mut store, Some(20), 21..=21);
    let left = std::fs::read_dir(scratch.0.join("keys/leases%2fx")).unwrap();
    let mut left: Vec<_> = left.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["20", "21"]);
    assert_eq!(std::fs::read_dir(scratch.0.join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_moved_store_no_longer_counts() {
    let scratch = TestDir::new();
    let mut store = scratch.store();
    advance(&mut store, None, 1..=1);
    let aside = TestDir(scratch.0.with_extension("aside"));
    std::fs::rename(&scratch.0, &aside.0).unwrap();
    let fresh = scratch.store();
    assert_ne!(fresh.instance, store.instance);
    assert_eq!(block_on(store.read(KEY)).unwrap_err().kind, FailureKind::Unusable);
    let got = write(&mut store, Some(&version(1)), 2);
    assert!(matches!(got, Cas::Unknown(f) if f.kind == FailureKind::Unusable));
}

#[test]
fn a_mount_that_may_be_shared_tells_no_ages_and_says_so() {
    let scratch = TestDir::new();
    let mut store = scratch.store();
    store.domain = None;
    advance(&mut store, None, 1..=1);
    let facts = store.facts();
    assert_eq!(facts.clock, Clock::Observed);
    assert!(!facts.this_machine_only && facts.lock_dir.is_none() && facts.caution.is_some());
    assert_eq!(block_on(store.read(KEY)).unwrap().unwrap().age, None);
    // A machine for which the file system is local does not trust the stamp of another one either.
    let mut local = scratch.store();
    assert_eq!(block_on(local.read(KEY)).unwrap().unwrap().age, None);
}

#[test]
fn a_version_is_never_swept_before_the_one_below_it_nor_before_its_prepared_file() {
    let scratch = TestDir::new();
    let mut store = scratch.store();
    advance(&mut store, None, 1..=9);
    let dir = std::fs::File::open(scratch.file(9).parent().unwrap()).unwrap();
    // After a listing that missed 8, 9 must not be swept: a writer that is paused before 8 would win.
    assert!(!chain::sweep_one(dir.as_fd(), 9));
    assert!(scratch.file(9).exists());
    let prepared = scratch.file(8).with_file_name(format!("t8-{}", WriteId(8)));
    std::fs::hard_link(scratch.file(8), &prepared).unwrap();
    assert!(chain::sweep_one(dir.as_fd(), 8));
    assert!(!scratch.file(8).exists() && !prepared.exists());
}

/// A lost race is reported neither as a missing permission nor as a missing feature of the file system.
#[test]
fn on_sshfs_there_is_one_winner_and_nobody_is_denied() {
    for round in 0..20 {
        let scratch = TestDir::new();
        let start = std::sync::Barrier::new(8);
        // All create the store, then one key after another.
        let race = |id: u128| {
            SSHFS.set(true);
            start.wait();
            let mut store = scratch.store();
            let won = |key: usize| match block_on(store.cas(&format!("{KEY}{key}"), None, WriteId(id), b"")) {
                Cas::Unknown(failure) => panic!("{failure:?}"),
                other => other != Cas::Conflict,
            };
            (0..5).map(won).filter(|won| *won).count()
        };
        let won: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=8).map(|id| scope.spawn(move || race(id))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, 5, "round {round}");
    }
    // If the name does not exist, it is a missing permission.
    let scratch = TestDir::new();
    let store = scratch.store();
    let denied = unless_taken(Err(Errno::PERM), store.keys.as_fd(), "nothing");
    assert_eq!(denied, Err(Errno::PERM));
}
