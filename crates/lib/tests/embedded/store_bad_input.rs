//! What is not a store is refused with a sentence and left exactly as it was.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::Scratch;
use leasehold::core::ids::WriteId;
use leasehold::stores::{Cas, Failure, FailureKind, Landed, OpenError, Store, open};
use pollster::block_on;

fn refused(url: &str) -> Failure {
    match open(url) {
        Ok(_) => panic!("{url} opened"),
        Err(OpenError::Url(message)) => panic!("{message}"),
        Err(OpenError::Store(failure)) => {
            let text = &failure.message;
            assert!(text.ends_with('.') && text.len() > 40, "not a sentence: {text}");
            failure
        }
    }
}

fn store(url: &str) -> Box<dyn Store> {
    open(url).unwrap_or_else(|e| panic!("{url}: {e}"))
}

fn write(store: &mut dyn Store, key: &str, size: usize) -> Cas {
    let write = WriteId(leasehold::random::seed());
    block_on(store.cas(key, None, write, &vec![7; size]))
}

/// Expects a refusal of this kind that says `says` and does not touch the file.
fn refused_untouched(path: &str, kind: FailureKind, says: &str) {
    let before = std::fs::read(path).unwrap();
    for _ in 0..2 {
        let failure = refused(&format!("sqlite:{path}"));
        assert_eq!(failure.kind, kind, "{}", failure.message);
        assert!(failure.message.contains(says), "{}", failure.message);
    }
    assert_eq!(std::fs::read(path).unwrap(), before, "the file was changed");
}

/// A database with one record in it, all in the main file.
fn good_database(scratch: &Scratch) -> String {
    let path = scratch.join("good.db");
    let mut store = store(&format!("sqlite:{path}"));
    assert!(matches!(write(&mut *store, "k", 10), Cas::Written { .. }));
    drop(store);
    rusqlite::Connection::open(&path).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    path
}

#[test]
fn sqlite_refuses_what_is_not_its_own() {
    let scratch = Scratch::new();
    let path = scratch.join("x.db");
    std::fs::write(&path, "").unwrap();
    refused_untouched(&path, FailureKind::Unusable, "is empty");

    let noise: Vec<u8> = (0..8192_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&path, noise).unwrap();
    refused_untouched(&path, FailureKind::Unusable, "is not a database");

    std::fs::remove_file(&path).unwrap();
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign
        .execute_batch("CREATE TABLE meta(name, value); INSERT INTO meta VALUES('instance', 'x');")
        .unwrap();
    drop(foreign);
    refused_untouched(&path, FailureKind::Unusable, "another program");

    refused(&format!("sqlite:{}", scratch.join("")));
    assert_eq!(refused(&format!("sqlite:{}", scratch.join("no/such/x.db"))).kind, FailureKind::Unusable);
    std::fs::create_dir(scratch.join("directory")).unwrap();
    assert!(refused(&format!("sqlite:{}", scratch.join("directory"))).message.contains("is not a file"));
    assert!(refused("sqlite:/proc/x.db").message.contains("not on a local file system"));
}

#[test]
fn sqlite_refuses_what_is_damaged_or_newer() {
    let scratch = Scratch::new();
    let good = std::fs::read(good_database(&scratch)).unwrap();
    let path = scratch.join("x.db");
    for length in [1, 50, 100, 512, 1024, 2048] {
        std::fs::write(&path, &good[..length.min(good.len() - 1)]).unwrap();
        refused_untouched(&path, FailureKind::Unusable, "");
    }
    let mut newer = good.clone();
    newer[60..64].copy_from_slice(&2_u32.to_be_bytes());
    std::fs::write(&path, newer).unwrap();
    refused_untouched(&path, FailureKind::Unusable, "layout 2");

    let mut torn = good.clone();
    torn[1024..].fill(0xA5);
    std::fs::write(&path, torn).unwrap();
    refused_untouched(&path, FailureKind::Unusable, "damaged");

    std::fs::write(&path, &good).unwrap();
    store(&format!("sqlite:{path}"));
}

#[test]
fn sqlite_does_not_follow_a_link_but_its_directory_may_be_one() {
    let scratch = Scratch::new();
    let real = good_database(&scratch);
    symlink(&real, scratch.join("link.db")).unwrap();
    let failure = refused(&format!("sqlite:{}", scratch.join("link.db")));
    assert!(failure.message.contains("symbolic link"), "{}", failure.message);
    symlink(scratch.join("nowhere"), scratch.join("dangling.db")).unwrap();
    refused(&format!("sqlite:{}", scratch.join("dangling.db")));
    assert!(!Path::new(&scratch.join("nowhere")).exists());
    symlink(scratch.join(""), scratch.join("home")).unwrap();
    let through = store(&format!("sqlite:{}", scratch.join("home/good.db")));
    assert_eq!(through.facts().url, format!("sqlite:{real}"));
}

#[test]
fn a_log_without_its_database_is_not_replayed_into_a_new_one() {
    let scratch = Scratch::new();
    let path = scratch.join("x.db");
    let mut open_store = store(&format!("sqlite:{path}"));
    assert!(matches!(write(&mut *open_store, "k", 10), Cas::Written { .. }));
    std::fs::remove_file(&path).unwrap();
    let read = block_on(open_store.read("k")).unwrap_err();
    assert!(read.message.contains("removed or replaced"), "{}", read.message);
    let wrote = write(&mut *open_store, "other", 10);
    assert!(matches!(wrote, Cas::Unknown(f) if f.kind == FailureKind::Unusable));
    drop(open_store);
    assert!(refused(&format!("sqlite:{path}")).message.contains("its log"));
}

#[test]
fn new_files_are_private() {
    let scratch = Scratch::new();
    let path = good_database(&scratch);
    let mode = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    let dir = scratch.join("store");
    assert!(matches!(write(&mut *store(&format!("dir:{dir}")), "k", 1), Cas::Written { .. }));
    for sub in ["", "/keys", "/tmp", "/keys/k"] {
        assert_eq!(mode(&format!("{dir}{sub}")), 0o700, "{sub}");
    }
    for file in ["/leasehold-dir", "/keys/k/0", "/keys/k/1"] {
        assert_eq!(mode(&format!("{dir}{file}")), 0o600, "{file}");
    }
    let litter: Vec<_> =
        std::fs::read_dir(scratch.join("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(litter.iter().all(|n| !n.to_string_lossy().starts_with('.')), "{litter:?}");
}

#[test]
fn dir_refuses_what_is_not_its_own() {
    let scratch = Scratch::new();
    let path = scratch.join("store");
    let url = format!("dir:{path}");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(scratch.join("store/photo.jpg"), "x").unwrap();
    assert!(refused(&url).message.contains("not empty and not a store"));
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "something was added");
    std::fs::remove_file(scratch.join("store/photo.jpg")).unwrap();

    drop(store(&url));
    let format = scratch.join("store/leasehold-dir");
    let good = std::fs::read_to_string(&format).unwrap();
    std::fs::write(&format, good.replace("dir 1", "dir 2")).unwrap();
    assert!(refused(&url).message.contains("format 2"));
    for bad in ["", "leasehold-dir", "leasehold-dir 1 x", "hello"] {
        std::fs::write(&format, bad).unwrap();
        assert!(refused(&url).message.contains("damaged"), "{bad}");
    }
    std::fs::remove_file(&format).unwrap();
    symlink("/etc/passwd", &format).unwrap();
    assert!(refused(&url).message.contains("symbolic link"));
    std::fs::remove_file(&format).unwrap();
    // Keys without their format file: not a fresh directory.
    std::fs::create_dir(scratch.join("store/keys/k")).unwrap();
    assert!(refused(&url).message.contains("not empty"));

    std::fs::write(scratch.join("file"), "x").unwrap();
    refused(&format!("dir:{}", scratch.join("file")));
    refused(&format!("dir:{}", scratch.join("file/below")));
    refused(&format!("dir:{}", scratch.join("no/such")));
    symlink(&path, scratch.join("link")).unwrap();
    assert!(refused(&format!("dir:{}", scratch.join("link"))).message.contains("symbolic link"));
}

#[test]
fn dir_does_not_follow_planted_links() {
    let scratch = Scratch::new();
    let mut good = store(&format!("dir:{}", scratch.join("store")));
    assert!(matches!(write(&mut *good, "k", 1), Cas::Written { .. }));
    symlink("/etc/passwd", scratch.join("store/keys/k/2")).unwrap();
    let failure = block_on(good.read("k")).unwrap_err();
    assert!(failure.message.contains("symbolic link"), "{}", failure.message);
    std::fs::remove_file(scratch.join("store/keys/k/2")).unwrap();
    std::fs::write(scratch.join("store/keys/k/2"), "half a rec").unwrap();
    let failure = block_on(good.read("k")).unwrap_err();
    assert!(failure.message.contains("damaged"), "{}", failure.message);
    symlink(scratch.join(""), scratch.join("store/keys/planted")).unwrap();
    let failure = block_on(good.read("planted")).unwrap_err();
    assert!(failure.message.contains("symbolic link"), "{}", failure.message);
}

/// A file system of its own, gone when the test is. Needs root, as CI has.
struct Mount(String);

impl Mount {
    fn run(arguments: &[&str]) {
        let done = Command::new("mount").args(arguments).status();
        if !done.is_ok_and(|s| s.success()) {
            println!("SKIPPED: this test must mount a file system, which needs root");
            panic!("SKIPPED: mount {arguments:?} failed; run the tests as root");
        }
    }

    fn small(at: &str) -> Self {
        Self::run(&["-t", "tmpfs", "-o", "size=64k", "tmpfs", at]);
        Self(at.to_owned())
    }

    fn read_only(&self) {
        Self::run(&["-o", "remount,ro", &self.0]);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_read_only_place_is_said_to_be_one() {
    let scratch = Scratch::new();
    let mount = Mount::small(&scratch.join(""));
    let (db, dir) = (format!("sqlite:{}", scratch.join("x.db")), format!("dir:{}", scratch.join("d")));
    drop(store(&db));
    let mut before = store(&dir);
    mount.read_only();
    for url in [&db, &format!("sqlite:{}", scratch.join("new.db")), &format!("dir:{}", scratch.join("new"))] {
        let failure = refused(url);
        assert_eq!(failure.kind, FailureKind::Denied, "{url}: {}", failure.message);
    }
    let wrote = write(&mut *before, "k", 1);
    let Cas::Unknown(failure) = wrote else { panic!("{wrote:?}") };
    assert_eq!((failure.kind, failure.landed), (FailureKind::Denied, Landed::No), "{failure:?}");
    drop(before);
}

#[test]
fn a_full_disk_is_said_to_be_one_and_nothing_is_half_done() {
    for scheme in ["sqlite", "dir"] {
        let scratch = Scratch::new();
        let _mount = Mount::small(&scratch.join(""));
        let mut full = store(&format!("{scheme}:{}", scratch.join("x")));
        let mut kept = Vec::new();
        let failure = loop {
            let key = format!("k{}", kept.len());
            match write(&mut *full, &key, 4000) {
                Cas::Written { .. } => kept.push(key),
                Cas::Unknown(failure) => break failure,
                Cas::Conflict => panic!("a conflict over {key}"),
            }
            assert!(kept.len() < 100, "64 KiB hold more than that");
        };
        assert_eq!(failure.kind, FailureKind::Unreachable, "{}", failure.message);
        assert!(failure.message.contains("full"), "{}", failure.message);
        let listed = block_on(full.list("", "", 1000)).unwrap();
        let mut listed: Vec<String> = listed.into_iter().map(|l| l.key).collect();
        let by_number = |key: &String| key[1..].parse::<usize>().unwrap();
        listed.sort_by_key(by_number);
        assert_eq!(listed, kept, "{scheme}");
        drop(full);
        let failure = refused(&format!("{scheme}:{}", scratch.join("another")));
        assert_eq!(failure.kind, FailureKind::Unreachable, "{}", failure.message);
        assert!(!Path::new(&scratch.join("another/leasehold-dir")).exists());
        drop(store(&format!("{scheme}:{}", scratch.join("x"))));
    }
}
