//! Reading by the pointer, what a dead writer leaves, and what is taken away when.

use std::thread;
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::fence::FenceMode;
use leasehold::targets::{Content, Target, TargetError};
use leasehold_testkit::proxy::Fault;

use super::{Bucket, azure_bucket, s3_bucket};
use crate::object::{GcsDouble, Spot};
use crate::targets::kit::{EACH, Site, at, bearer, seal, write};

const LONG: Duration = Duration::from_secs(30);
/// A part of the request that lists the payloads, and of none other.
const LISTING: &[u8] = b"prefix=";

fn read(target: &mut dyn Target) -> Result<String, TargetError> {
    let mut bytes = Vec::new();
    target.read(&mut bytes)?;
    Ok(String::from_utf8(bytes).unwrap())
}

/// A handle that keeps nothing for readers.
fn hasty(bucket: &Bucket, server: &str) -> Box<dyn Target> {
    Box::new(bucket.object(server).with_grace(Duration::ZERO))
}

/// Writes until the payload is gone; ages are whole seconds, so it takes one or two.
fn write_until_swept(bucket: &Bucket, token: u64, payload: &str) {
    let mut target = hasty(bucket, &bucket.server());
    let deadline = boot_time().plus(LONG);
    for n in 0.. {
        write(target.as_mut(), token, &format!("report {n}")).unwrap_or_else(|e| panic!("{e}"));
        if !bucket.payloads().iter().any(|name| name == payload) {
            return;
        }
        assert!(boot_time() < deadline, "{payload} is never swept: {:?}", bucket.payloads());
    }
}

#[test]
fn readers_follow_the_pointer_and_trust_nothing() {
    for bucket in [s3_bucket(), azure_bucket()] {
        let mut target = bucket.open();
        assert!(read(target.as_mut()).unwrap_err().to_string().contains("never written"));
        seal(target.as_mut(), 33);
        assert!(read(target.as_mut()).unwrap_err().to_string().contains("never written"));
        write(target.as_mut(), 33, "report").unwrap();
        assert_eq!(read(target.as_mut()).unwrap(), "report");
        // Sealing changes nothing of what is read.
        seal(target.as_mut(), 34);
        assert_eq!(read(target.as_mut()).unwrap(), "report");
        let payload = format!("{}.leasehold/{}", bucket.name, bucket.payloads()[0]);
        bucket.put(&payload, b"rep0rt");
        let said = read(target.as_mut()).unwrap_err().to_string();
        assert!(said.contains("its digest is another"), "{said}");
        bucket.delete(&payload);
        let said = read(target.as_mut()).unwrap_err().to_string();
        assert!(said.contains("somebody removed it"), "{said}");
        // An object that was there before is nobody's pointer, and stays.
        let plain = if bucket.name() == "S3" { s3_bucket() } else { azure_bucket() };
        plain.put(&plain.name, b"{\"mine\":true}");
        let said = plain.open().seal(&bearer(1), FenceMode::Enforce).unwrap_err().to_string();
        assert!(said.contains("Leasehold did not write") && said.contains("Name a key"), "{said}");
        assert_eq!(plain.fence().as_deref(), Some(&b"{\"mine\":true}"[..]));
    }
}

/// What a reader is about to fetch is replaced and swept: it starts again, and gets what is there now.
#[test]
fn a_reader_that_was_overtaken_starts_again() {
    let bucket = s3_bucket();
    seal(bucket.open().as_mut(), 33);
    write(bucket.open().as_mut(), 33, "first").unwrap();
    let first = bucket.payloads()[0].clone();
    let proxy = bucket.proxy();
    let strike = proxy.arm_on(first.as_bytes(), Fault::Pause);
    let mut reader = bucket.open_at(&proxy.url(&bucket.server()));
    let late = thread::spawn(move || read(reader.as_mut()));
    assert!(strike.wait(LONG));
    write_until_swept(&bucket, 33, &first);
    strike.release();
    let seen = late.join().unwrap().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(Some(seen), bucket.text());
}

/// A writer dies between payload and pointer: nothing is seen of it, and the next ones clear it away.
fn a_dead_writer_leaves_only_garbage(bucket: &Bucket) {
    seal(bucket.open().as_mut(), 33);
    write(bucket.open().as_mut(), 33, "report").unwrap();
    let proxy = bucket.proxy();
    for _ in 0..20 {
        proxy.arm_on(bucket.swap_mark(), Fault::Hold { hang_up: false });
    }
    let short = Duration::from_millis(200);
    let mut dying = bucket.open_with(&proxy.url(&bucket.server()), EACH, short * 3);
    let error = write(dying.as_mut(), 33, "half").unwrap_err();
    assert!(matches!(error, TargetError::InDoubt { .. }), "{error}");
    drop((dying, proxy));
    let left = bucket.payloads();
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(bucket.text().as_deref(), Some("report"));
    seal(bucket.open().as_mut(), 34);
    write_until_swept(bucket, 34, &left[1]);
    assert_eq!(at(bucket.open().as_mut()).0, 34);
    assert!(read(bucket.open().as_mut()).is_ok());
}

#[test]
fn dead_writers_leave_only_garbage() {
    a_dead_writer_leaves_only_garbage(&s3_bucket());
    a_dead_writer_leaves_only_garbage(&azure_bucket());
    let double = GcsDouble::start();
    a_dead_writer_leaves_only_garbage(&Bucket::new(Spot::google_at, &double.endpoint()));
}

/// With the usual grace nothing young is taken away, however much is written.
#[test]
fn what_readers_may_still_follow_stays() {
    let bucket = s3_bucket();
    seal(bucket.open().as_mut(), 33);
    for n in 0..6 {
        write(bucket.open().as_mut(), 33, &format!("report {n}")).unwrap();
    }
    assert_eq!(bucket.payloads().len(), 6);
}

/// A sweep is frozen before it looks, and others publish meanwhile; what a reader gets before and after a
/// writer that has uploaded, and not yet published, goes on.
fn a_late_sweep(make: fn(&Bucket, &str) -> Box<dyn Target>) -> [Result<String, TargetError>; 2] {
    let bucket = s3_bucket();
    seal(bucket.open().as_mut(), 33);
    write(bucket.open().as_mut(), 33, "first").unwrap();
    let proxy = bucket.proxy();
    let mut sweeper = make(&bucket, &proxy.url(&bucket.server()));
    let strike = proxy.arm_on(LISTING, Fault::Pause);
    let late = thread::spawn(move || write(sweeper.as_mut(), 33, "second"));
    assert!(strike.wait(LONG), "it did not sweep");
    for n in 3..6 {
        write(bucket.open().as_mut(), 33, &format!("report {n}")).unwrap();
    }
    let other = bucket.proxy();
    let publishing = other.arm_on(bucket.swap_mark(), Fault::Pause);
    let mut writer = bucket.open_at(&other.url(&bucket.server()));
    let writing = thread::spawn(move || writer.write(&bearer(33), None, Content::Bytes(b"last")));
    assert!(publishing.wait(LONG));
    // Ages are whole seconds: until something younger is swept elsewhere, nothing here has one.
    let clock = s3_bucket();
    seal(clock.open().as_mut(), 33);
    write(clock.open().as_mut(), 33, "younger").unwrap();
    write_until_swept(&clock, 33, &clock.payloads()[0]);
    strike.release();
    late.join().unwrap().unwrap();
    let before = read(bucket.open().as_mut());
    publishing.release();
    writing.join().unwrap().unwrap();
    [before, read(bucket.open().as_mut())]
}

/// The real one needs no luck; the mutant, which takes its newest witness and what that saw as well, takes away
/// what the pointer names and what it is about to name.
#[test]
fn a_sweep_that_comes_late_takes_nothing_anybody_needs() {
    let seen = a_late_sweep(hasty).map(Result::unwrap);
    assert_eq!(seen, ["report 5", "last"]);
    let mutant = |bucket: &Bucket, server: &str| -> Box<dyn Target> {
        Box::new(bucket.object(server).with_grace(Duration::ZERO).sweeping_too_much())
    };
    for seen in a_late_sweep(mutant) {
        let said = seen.expect_err("the harness cannot see a sweep that takes too much").to_string();
        assert!(said.contains("somebody removed it"), "{said}");
    }
}

/// Somebody put an older pointer back, from a backup: what is published from there on is not taken for something that
/// the payloads of the time between have replaced.
#[test]
fn what_is_published_over_an_older_pointer_stays() {
    for bucket in [s3_bucket(), azure_bucket()] {
        seal(bucket.open().as_mut(), 33);
        write(bucket.open().as_mut(), 33, "report 1").unwrap();
        let older = bucket.fence();
        for n in 2..7 {
            write(bucket.open().as_mut(), 33, &format!("report {n}")).unwrap();
        }
        bucket.set_fence(older.as_deref());
        let mut sweeper = hasty(&bucket, &bucket.server());
        write(sweeper.as_mut(), 33, "after the backup").unwrap();
        assert_eq!(read(bucket.open().as_mut()).unwrap(), "after the backup");
        // A later one goes on from there.
        write(sweeper.as_mut(), 33, "and after that").unwrap();
        assert_eq!(read(bucket.open().as_mut()).unwrap(), "and after that");
    }
}

/// Names come in pages, the highest ordinal on the last, and a sweep looks at the first pages only. The pointer is
/// gone: a new one goes on above all that there is.
#[test]
fn ordinals_never_go_back_however_many_there_are() {
    let double = GcsDouble::start();
    let bucket = Bucket::new(Spot::google_at, &double.endpoint());
    // Its pages are short: more than twenty of them.
    for ordinal in 1..=160 {
        let name = format!("{}.leasehold/{ordinal:08}.1.1.{}", bucket.name, "ab".repeat(32));
        bucket.put(&name, b"left");
    }
    seal(bucket.open().as_mut(), 33);
    write(bucket.open().as_mut(), 33, "report").unwrap();
    let current = bucket.current().unwrap();
    assert!(current.starts_with("00000161."), "{current}");
    assert_eq!(read(bucket.open().as_mut()).unwrap(), "report");
}

/// Readers see a whole version, always, while one writes and keeps nothing for them.
#[test]
fn readers_always_see_one_whole_version() {
    let bucket = s3_bucket();
    seal(bucket.open().as_mut(), 33);
    let text = |n: usize| format!("{n} ").repeat(2_000);
    write(bucket.open().as_mut(), 33, &text(0)).unwrap();
    let writes = leasehold_testkit::count(25, 300);
    let reads = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut target = hasty(&bucket, &bucket.server());
            for n in 1..=writes {
                write(target.as_mut(), 33, &text(n)).unwrap_or_else(|e| panic!("{e}"));
            }
        });
        let mut target = bucket.open();
        let (mut reads, mut last) = (0, 0);
        while !writer.is_finished() {
            let seen = read(target.as_mut()).unwrap_or_else(|e| panic!("{e}"));
            let n: usize = seen.split(' ').next().unwrap().parse().unwrap();
            assert!(seen == text(n) && n >= last, "torn, or went back to {n} after {last}");
            (reads, last) = (reads + 1, n);
        }
        reads
    });
    println!("{writes} writes, {reads} reads, all of one whole version");
    assert_eq!(read(bucket.open().as_mut()).unwrap(), text(writes));
}
