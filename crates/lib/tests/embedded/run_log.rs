//! The run log in stores of this machine: windows, order, retention, and what a store does not take.

use std::time::Duration;

use leasehold::backends::memory::MemoryStore;
use leasehold::clock::{self, boot_time};
use leasehold::core::ids::Token;
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord};
use leasehold::host;
use leasehold::run_log::unlogged::Unlogged;
use leasehold::run_log::{
    LogWriter, Retention, Scope, Window, each, in_order, newest, sweep_job, sweep_old, write,
};
use leasehold::state::StateDir;
use leasehold::stores::Store;

const DAY: Duration = Duration::from_secs(86_400);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A record of a run that ended so long ago.
fn record(job: &str, ago: Duration, id: u128) -> LogRecord {
    let (at, holder) = (clock::wall() - ago, host::holder("r-0000000000000000", &name(job)));
    let record = LogRecord::new(at, LogEvent::Ok, name(job), LogId::of(id), holder);
    LogRecord { token: Token::new(u64::try_from(id).unwrap() + 1), lease: Some(name(job)), ..record }
}

fn filled(records: &[LogRecord]) -> MemoryStore {
    let mut store = MemoryStore::new().unwrap();
    records.iter().for_each(|record| write(&mut store, record).unwrap());
    store
}

fn ids(store: &mut dyn Store, scope: Scope<'_>, window: Window, limit: usize) -> (Vec<u64>, bool) {
    let (found, more) = newest(store, scope, window, limit, |_| true).unwrap();
    (found.iter().map(|entry| entry.line.id.number()).collect(), more)
}

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[test]
fn the_newest_come_first_over_jobs_and_days() {
    let ago = [("a", secs(10)), ("b", secs(5)), ("a", DAY), ("b", DAY + secs(3)), ("a/x", 3 * DAY)];
    let records: Vec<_> =
        ago.iter().enumerate().map(|(i, (job, ago))| record(job, *ago, i as u128)).collect();
    let mut store = filled(&records);
    let all = Window::last(30 * DAY);
    assert_eq!(ids(&mut store, Scope::All, all, 9), (vec![1, 0, 2, 3, 4], false));
    assert_eq!(ids(&mut store, Scope::All, all, 1), (vec![1], true));
    assert_eq!(ids(&mut store, Scope::All, all, 3), (vec![1, 0, 2], true));
    assert_eq!(ids(&mut store, Scope::All, all, 5), (vec![1, 0, 2, 3, 4], false));
    assert_eq!(ids(&mut store, Scope::Job(&name("a")), all, 9), (vec![0, 2], false));
    assert_eq!(ids(&mut store, Scope::Job(&name("a")), all, 1), (vec![0], true));
    assert_eq!(ids(&mut store, Scope::Prefix("a/"), all, 9), (vec![4], false));
    assert_eq!(ids(&mut store, Scope::All, Window::last(secs(7)), 9), (vec![1], false));
    let until = Window { until: clock::wall() - secs(7), ..all };
    assert_eq!(ids(&mut store, Scope::Job(&name("a")), until, 9), (vec![0, 2], false));
    assert_eq!(ids(&mut store, Scope::Job(&name("b")), until, 9), (vec![3], false));
    assert_eq!(ids(&mut store, Scope::All, Window::last(Duration::ZERO), 9), (vec![], false));
}

#[test]
fn small_pages_show_the_same() {
    let records: Vec<_> = (0..57).map(|i| record(["a", "b"][i % 2], secs(i as u64), i as u128)).collect();
    let mut store = filled(&records);
    for page in [1, 2, 7, 1000] {
        let mut seen = Vec::new();
        each(&mut store, Scope::Job(&name("a")), Window::last(DAY), page, |entry| {
            seen.push(entry.line.id.number());
            true
        })
        .unwrap();
        assert_eq!(seen, (0..57).step_by(2).collect::<Vec<u64>>(), "{page}");
    }
}

#[test]
fn a_record_written_twice_is_one() {
    let mut store = filled(&[]);
    let one = record("a", secs(1), 7);
    write(&mut store, &one).unwrap();
    write(&mut store, &one).unwrap();
    assert_eq!(ids(&mut store, Scope::All, Window::last(DAY), 9).0, [7]);
}

/// The time in a key is by a client's clock, which may be wrong: only the store's age removes a record.
#[test]
fn old_records_go_by_the_age_that_the_store_tells() {
    let mut store = filled(&[record("a", 100 * DAY, 1), record("a", secs(1), 2)]);
    let end = || boot_time().plus(secs(9));
    let all = Window::last(200 * DAY);
    assert_eq!(sweep_old(&mut store, 90 * DAY, clock::wall(), end()), Ok(0), "it was written just now");
    assert_eq!(ids(&mut store, Scope::All, all, 9).0, [2, 1]);
    // A clock that is years ahead removes nothing either.
    assert_eq!(sweep_old(&mut store, 90 * DAY, clock::wall() + 9_000 * DAY, end()), Ok(0));
    // The control: what the store has had for that long goes, if its day is old enough.
    assert_eq!(sweep_old(&mut store, Duration::ZERO, clock::wall() - 50 * DAY, end()), Ok(1));
    assert_eq!(ids(&mut store, Scope::All, all, 9).0, [2]);
}

#[test]
fn the_oldest_of_too_many_go() {
    let records: Vec<_> = (0..30)
        .map(|i| record("a", secs(i) * 20_000, u128::from(i)))
        .chain([record("b", secs(1), 99)])
        .collect();
    let mut store = filled(&records);
    let end = boot_time().plus(secs(9));
    assert_eq!(sweep_job(&mut store, &name("a"), 10, clock::wall(), end), Ok(20));
    let all = Window::last(90 * DAY);
    assert_eq!(ids(&mut store, Scope::Job(&name("a")), all, 99).0, (0..10).collect::<Vec<u64>>());
    assert_eq!(ids(&mut store, Scope::Job(&name("b")), all, 99).0, [99]);
    assert_eq!(sweep_job(&mut store, &name("a"), 10, clock::wall(), end), Ok(0));
}

/// Whatever the ids are, records that are too old or too many are gone in the end, a few with each write.
#[test]
fn writes_sweep() {
    let mut store = filled(&[]);
    let log = LogWriter::new(Unlogged::none(), Retention { age: None, per_job: Some(20) });
    for i in 0..600_u64 {
        log.write(&mut store, &record("a", secs(1_000 - i), u128::from(i)));
    }
    let kept = ids(&mut store, Scope::All, Window::last(DAY), 999).0.len();
    assert!((20..=20 + 256).contains(&kept), "{kept}");
}

#[test]
fn what_cannot_be_written_is_handed_in_to_its_own_store() {
    let dir = std::env::temp_dir().join(format!("leasehold-unlogged-{}", std::process::id()));
    let state = StateDir::at(&dir);
    state.ensure().unwrap();
    let kept = Unlogged::new(state.clone(), Some("one".into()));
    let once = record("a", secs(9), 1);
    kept.keep(&once);
    kept.keep(&once);
    kept.keep(&record("a", secs(8), 2));
    assert_eq!((kept.waiting(), kept.dropped()), (2, 0), "a record is kept once");
    let log =
        |store: &str| LogWriter::new(Unlogged::new(state.clone(), Some(store.into())), Retention::default());
    let mut other = filled(&[]);
    log("two").write(&mut other, &record("a", secs(1), 3));
    assert_eq!((ids(&mut other, Scope::All, Window::last(DAY), 9).0, kept.waiting()), (vec![3], 2));
    let mut store = filled(&[]);
    log("one").write(&mut store, &record("a", secs(1), 4));
    assert_eq!((ids(&mut store, Scope::All, Window::last(DAY), 9).0, kept.waiting()), (vec![4, 2, 1], 0));
    // Half of a file says nothing, and does not stay for ever.
    std::fs::write(dir.join("unlogged/x-1-ok.json"), "{\"store\"").unwrap();
    log("one").write(&mut store, &record("a", secs(1), 5));
    assert_eq!(kept.waiting(), 0);
    std::fs::remove_dir_all(dir).unwrap();
}

/// However far apart the days are, and however far ahead a clock was: nothing is left out, and days without a record are not
/// read one by one.
#[test]
fn all_time_is_read_without_a_list_of_every_day() {
    let mut records: Vec<_> =
        [0, 1, 40, 41, 5_000].map(|days| record("a", days * DAY, u128::from(days))).into();
    records.extend((0..60).map(|days| record("b", days * DAY + secs(1), 100 + u128::from(days))));
    records.push(LogRecord { at: clock::wall() + 900 * DAY, ..record("a", DAY, 77) });
    let mut store = filled(&records);
    let in_order_of = |store: &mut dyn Store, scopes: &[Scope<'_>], first| {
        let mut ids = Vec::new();
        let visit = |_: &mut dyn Store, entry: leasehold::run_log::LogEntry| {
            ids.push(entry.line.id.number());
            Ok(true)
        };
        in_order(store, scopes, Window::all(), first, |_| true, visit).unwrap();
        ids
    };
    let (a, b) = (name("a"), name("b"));
    for first in [1, 2, 99] {
        assert_eq!(in_order_of(&mut store, &[Scope::Job(&a)], first), [77, 0, 1, 40, 41, 5_000]);
        let both = in_order_of(&mut store, &[Scope::Job(&a), Scope::Job(&b)], first);
        assert_eq!(both, in_order_of(&mut store, &[Scope::All], first));
        assert_eq!((both.len(), &both[..4]), (66, &[77, 0, 100, 1][..]));
    }
    assert_eq!(in_order_of(&mut store, &[], 1), [0; 0]);
}
