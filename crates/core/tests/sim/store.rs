//! The store: a linearizable map with versions, its own clock and its faults.

use std::rc::Rc;
use std::time::Duration;

use leasehold_core::record::LeaseRecord;
use leasehold_core::session::Reading;
use leasehold_core::store::{Failure, FailureKind, Stored, Version};

use crate::faults::AgeMode;

const SECOND: i64 = 1_000_000_000;

/// One stored body.
pub(crate) struct Row {
    pub(crate) body: Vec<u8>,
    pub(crate) version: Version,
    stamp: i64,
    /// When it really landed.
    pub(crate) landed: u64,
    pub(crate) record: LeaseRecord,
}

pub(crate) struct Store {
    pub(crate) rows: Vec<Option<Rc<Row>>>,
    /// The record that each write replaced, newest last.
    log: Vec<(usize, Option<Rc<Row>>)>,
    pub(crate) snapshot: Option<Vec<Option<Rc<Row>>>>,
    /// Raised when connections break: requests under way never arrive.
    pub(crate) incarnation: u32,
    pub(crate) instance: String,
    /// Store time minus real time, without the effect of its rate.
    pub(crate) offset: i64,
    pub(crate) ppm: i64,
    pub(crate) age: AgeMode,
    pub(crate) down_until: u64,
    /// It says that it reports changes.
    pub(crate) pushes: bool,
}

impl Store {
    pub(crate) fn new(leases: usize, age: AgeMode, ppm: i64, pushes: bool) -> Self {
        Self {
            rows: (0..leases).map(|_| None).collect(),
            log: Vec::new(),
            snapshot: None,
            incarnation: 0,
            instance: "i0".into(),
            // Far from zero, so that steps back stay positive.
            offset: 1_000_000 * SECOND,
            ppm,
            age,
            down_until: 0,
            pushes,
        }
    }

    pub(crate) fn clock(&self, now: u64) -> i64 {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        now + now / 1_000_000 * self.ppm + self.offset
    }

    /// The store's clock, as it tells it after a write.
    pub(crate) fn tells(&self, now: u64) -> Option<Duration> {
        let clock = match self.age {
            AgeMode::Exact => self.clock(now),
            AgeMode::Coarse => self.clock(now) / SECOND * SECOND,
            AgeMode::Never => return None,
        };
        u64::try_from(clock).ok().map(Duration::from_nanos)
    }

    fn age_of(&self, row: &Row, now: u64) -> Option<Duration> {
        let now = self.clock(now);
        let age = match self.age {
            AgeMode::Exact => now - row.stamp,
            AgeMode::Coarse => (now / SECOND - row.stamp / SECOND) * SECOND,
            AgeMode::Never => return None,
        };
        u64::try_from(age).ok().map(Duration::from_nanos)
    }

    pub(crate) fn read(&self, lease: usize, now: u64) -> Reading {
        let stored = self.rows[lease].as_ref().map(|row| Stored {
            body: row.body.clone(),
            version: row.version.clone(),
            age: self.age_of(row, now),
        });
        Reading { stored, instance: self.instance.clone(), pushes: self.pushes }
    }

    pub(crate) fn matches(&self, lease: usize, expected: Option<&Version>) -> bool {
        self.rows[lease].as_ref().map(|row| &row.version) == expected
    }

    pub(crate) fn put(&mut self, lease: usize, body: Vec<u8>, record: LeaseRecord, now: u64) -> Version {
        let version = Version(record.write.to_string());
        let stamp = self.clock(now);
        let row = Rc::new(Row { body, version: version.clone(), stamp, landed: now, record });
        self.set(lease, Some(row));
        version
    }

    fn set(&mut self, lease: usize, row: Option<Rc<Row>>) {
        let before = std::mem::replace(&mut self.rows[lease], row);
        self.log.push((lease, before));
    }

    pub(crate) fn vanish(&mut self, lease: usize) {
        self.set(lease, None);
    }

    /// Its instance has changed.
    pub(crate) fn is_another(&self) -> bool {
        self.incarnation > 0
    }

    fn new_instance(&mut self) {
        self.incarnation += 1;
        self.instance = format!("i{}", self.incarnation);
    }

    /// A restart that forgets the last writes it acknowledged.
    pub(crate) fn restart(&mut self, forget: u64) {
        for _ in 0..forget {
            if let Some((lease, before)) = self.log.pop() {
                self.rows[lease] = before;
            }
        }
        self.new_instance();
    }

    /// Another node takes over, with all records and its own clock.
    pub(crate) fn fail_over(&mut self, clock_differs: i64) {
        self.offset += clock_differs;
        self.new_instance();
    }

    pub(crate) fn take_snapshot(&mut self) {
        self.snapshot = Some(self.rows.clone());
    }

    pub(crate) fn rewind(&mut self) -> bool {
        match self.snapshot.take() {
            Some(rows) => {
                self.rows = rows;
                self.log.clear();
                true
            }
            None => false,
        }
    }
}

pub(crate) fn unreachable() -> Failure {
    Failure::new(FailureKind::Unreachable, "no route to the store")
}
