//! Every answer a store may give, tried on a counter that must be raised once.

use alloc::collections::VecDeque;
use alloc::string::ToString;

use super::*;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Counter {
    write: WriteId,
    count: u32,
}

impl Record for Counter {
    fn write(&self) -> WriteId {
        self.write
    }
}

/// The fate of one attempt.
#[derive(Clone, Copy)]
enum Fate {
    Written,
    /// Another was faster: it raised the counter by a hundred.
    Overtaken,
    Lost,
    LostButLanded,
    /// It lands with the next attempt, just before that.
    LostAndLate,
    Refused(FailureKind, Landed),
}

struct Store {
    counter: Option<Counter>,
    version: u32,
    late: Option<(Option<Version>, Counter)>,
    fates: VecDeque<Fate>,
}

impl Store {
    fn new(fates: &[Fate]) -> Self {
        let counter = Some(Counter { write: WriteId(1), count: 0 });
        Self { counter, version: 1, late: None, fates: fates.iter().copied().collect() }
    }

    fn at(&self) -> Option<Version> {
        self.counter.as_ref().map(|_| Version(self.version.to_string()))
    }

    fn put(&mut self, expected: &Option<Version>, counter: Counter) -> Cas {
        if *expected != self.at() {
            return Cas::Conflict;
        }
        (self.counter, self.version) = (Some(counter), self.version + 1);
        Cas::Written { version: Version(self.version.to_string()), store_time: None }
    }

    fn cas(&mut self, expected: Option<Version>, record: Counter) -> Cas {
        if let Some((expected, late)) = self.late.take() {
            self.put(&expected, late);
        }
        let fate = self.fates.pop_front().unwrap_or(Fate::Written);
        match fate {
            Fate::Written => return self.put(&expected, record),
            Fate::Overtaken => {
                let count = self.counter.as_ref().map_or(0, |counter| counter.count) + 100;
                self.put(&self.at(), Counter { write: WriteId(u128::from(count)), count });
                return self.put(&expected, record);
            }
            Fate::LostButLanded => drop(self.put(&expected, record)),
            Fate::LostAndLate => self.late = Some((expected, record)),
            Fate::Refused(kind, landed) => {
                return Cas::Unknown(Failure { landed, ..Failure::new(kind, "no") });
            }
            Fate::Lost => {}
        }
        Cas::Unknown(silence())
    }

    fn read(&self) -> Result<Option<FoundRecord<Counter, ()>>, Failure> {
        let found = |counter: &Counter| FoundRecord {
            record: Ok(counter.clone()),
            version: Version(self.version.to_string()),
            age: None,
        };
        Ok(self.counter.as_ref().map(found))
    }
}

fn silence() -> Failure {
    Failure::new(FailureKind::Unreachable, "silence")
}

/// Raises the counter, until it is three.
fn raise(found: Option<FoundRecord<Counter, ()>>, write: WriteId) -> UpdateDecision<Counter, u32> {
    let count = found.and_then(|found| found.record.ok()).map_or(0, |counter| counter.count);
    if count == 3 {
        UpdateDecision::Stop(count)
    } else {
        UpdateDecision::Write(Counter { write, count: count + 1 })
    }
}

/// The outcome, and the number of calls.
fn run(store: &mut Store, mut update: Update<Counter>) -> (UpdateOutcome<Counter, u32>, u32) {
    let (mut next, mut calls) = (UpdateNext::Read, 0);
    loop {
        calls += 1;
        next = match next {
            UpdateNext::Read => update.on_read(store.read(), raise),
            UpdateNext::Cas { expected, record } => update.on_cas(store.cas(expected, record)),
            UpdateNext::Done(done) => return (done, calls - 1),
        };
    }
}

/// The counter afterwards, and the number of calls.
fn raised(fates: &[Fate]) -> (u32, u32) {
    let mut store = Store::new(fates);
    match run(&mut store, Update::new(7 << 64)) {
        (UpdateOutcome::Landed { record, version }, calls) => {
            assert_eq!((Some(&record), Some(version)), (store.counter.as_ref(), store.at()));
            (record.count, calls)
        }
        other => panic!("{other:?}"),
    }
}

/// The failure, and whether an attempt may still land.
fn failed(fates: &[Fate]) -> (FailureKind, alloc::string::String, bool) {
    match run(&mut Store::new(fates), Update::new(7 << 64)) {
        (UpdateOutcome::Failed { failure, open }, _) => (failure.kind, failure.message, open),
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_is_applied_once_whatever_becomes_of_the_answers() {
    assert_eq!(raised(&[]), (1, 2));
    assert_eq!(raised(&[Fate::Overtaken]), (101, 4));
    assert_eq!(raised(&[Fate::Lost]), (1, 4));
    assert_eq!(raised(&[Fate::LostButLanded]), (1, 3));
    // The second attempt meets the first, which has landed meanwhile.
    assert_eq!(raised(&[Fate::LostAndLate]), (1, 5));
    assert_eq!(raised(&[Fate::Refused(FailureKind::Unreachable, Landed::No)]), (1, 4));
}

/// The negative control: a change that forgets its attempts is applied twice.
#[test]
fn an_attempt_that_is_not_recognised_would_be_applied_twice() {
    let mut store = Store::new(&[Fate::LostButLanded]);
    let mut update = Update::<Counter>::new(7 << 64);
    let UpdateNext::Cas { expected, record } = update.on_read(store.read(), raise) else { panic!() };
    assert_eq!(update.on_cas::<u32>(store.cas(expected, record)), UpdateNext::Read);
    let mut forgetful = Update { sent: Vec::new(), ..update.clone() };
    let UpdateNext::Cas { record, .. } = forgetful.on_read(store.read(), raise) else { panic!() };
    assert_eq!(record.count, 2);
    let UpdateNext::Done(UpdateOutcome::Landed { record, .. }) = update.on_read(store.read(), raise) else {
        panic!()
    };
    assert_eq!(record.count, 1);
}

#[test]
fn races_and_silence_end() {
    let tries = TRIES as usize;
    let races = "other processes changed the record 8 times meanwhile".into();
    assert_eq!(failed(&[Fate::Overtaken; 8]), (FailureKind::Unreachable, races, false));
    assert_eq!(failed(&[Fate::Lost; 8]), (FailureKind::Unreachable, "silence".into(), true));
    assert_eq!(raised(&[Fate::Overtaken; 7]), (701, 16));
    // The record is read back after the last try, too.
    let mut last = [Fate::Lost; 8];
    last[tries - 1] = Fate::LostButLanded;
    assert_eq!(raised(&last), (1, 17));
}

#[test]
fn a_refusal_is_looked_after_and_not_repeated() {
    for kind in [FailureKind::Denied, FailureKind::Unusable] {
        assert_eq!(failed(&[Fate::Refused(kind, Landed::Maybe)]), (kind, "no".into(), true));
        assert_eq!(failed(&[Fate::Refused(kind, Landed::No)]), (kind, "no".into(), false));
    }
}

#[test]
fn what_can_no_longer_land_is_not_open() {
    let no = Fate::Refused(FailureKind::Denied, Landed::No);
    // Another has replaced what the lost attempt would have replaced.
    assert!(!failed(&[Fate::Lost, Fate::Overtaken, no]).2);
    assert!(failed(&[Fate::Lost, no]).2);
    // An attempt to create the record lands if the record is removed.
    let mut store = Store { counter: None, ..Store::new(&[Fate::Lost, Fate::Overtaken, no]) };
    let (done, _) = run(&mut store, Update::new(7 << 64));
    assert!(matches!(done, UpdateOutcome::Failed { open: true, .. }), "{done:?}");
}

#[test]
fn the_caller_may_stop_it() {
    let mut store = Store::new(&[]);
    store.counter = Some(Counter { write: WriteId(1), count: 3 });
    assert_eq!(run(&mut store, Update::new(7 << 64)), (UpdateOutcome::Stopped(3), 1));
    // Also where no more attempts would be sent.
    let mut update = Update::<Counter>::new(7 << 64);
    assert!(matches!(
        update.offer::<u32>(None, Counter { write: WriteId(9), count: 1 }),
        UpdateNext::Cas { .. }
    ));
    assert_eq!(update.on_cas::<u32>(Cas::Unknown(Failure::new(FailureKind::Denied, "no"))), UpdateNext::Read);
    assert_eq!(update.on_read(store.read(), raise), UpdateNext::Done(UpdateOutcome::Stopped(3)));
}

#[test]
fn a_read_that_fails_ends_it_unless_silence_is_outlasted() {
    let failed = |failure, open| UpdateNext::Done(UpdateOutcome::<Counter, u32>::Failed { failure, open });
    let mut update = Update::<Counter>::new(7 << 64);
    assert_eq!(update.on_read(Err(silence()), raise), failed(silence(), false));
    let mut update = Update::<Counter>::outlasting_silence(7 << 64);
    let store = Store::new(&[]);
    for _ in 0..100 {
        assert_eq!(update.on_read(Err(silence()), raise), UpdateNext::Read);
        assert!(matches!(update.on_read(store.read(), raise), UpdateNext::Cas { .. }));
        assert_eq!(update.on_cas::<u32>(Cas::Unknown(silence())), UpdateNext::Read);
    }
    let denied = Failure::new(FailureKind::Denied, "no");
    assert_eq!(update.on_read(Err(denied.clone()), raise), failed(denied, true));
    // Lost races are still counted.
    let mut store = Store::new(&[Fate::Overtaken; 8]);
    let (done, _) = run(&mut store, Update::outlasting_silence(7 << 64));
    assert!(matches!(done, UpdateOutcome::Failed { .. }), "{done:?}");
}

#[test]
fn what_cannot_be_decoded_is_for_the_caller() {
    let stored = Stored { body: b"?".to_vec(), version: Version("1".into()), age: None };
    let found = FoundRecord::of(stored, |body| Err::<Counter, usize>(body.len()));
    let mut update = Update::<Counter>::new(7 << 64);
    let bad = |found: Option<FoundRecord<Counter, usize>>, _| {
        UpdateDecision::Stop(found.and_then(|f| f.record.err()))
    };
    assert_eq!(update.on_read(Ok(Some(found)), bad), UpdateNext::Done(UpdateOutcome::Stopped(Some(1))));
}
