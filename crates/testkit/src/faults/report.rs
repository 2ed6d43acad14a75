//! The report of a suite.

use std::fmt;
use std::time::Duration;

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// Two holders at once, a token twice or out of order, or a grant that the store does not have.
    DoubleGrant,
    /// A lease reported lost that was still held.
    Lost,
    /// A deadline that counts from an attempt that did not land.
    Deadline,
    /// The store gave a wrong answer to a write.
    Answer,
    /// A session ended with a wrong outcome.
    Outcome,
}

/// What a suite did, and the violations it found.
#[derive(Clone, Debug, Default)]
pub struct FaultReport {
    /// Faults that struck a write: claims, renewals, releases.
    pub struck: [usize; 3],
    /// Armed faults whose request never came.
    pub missed: usize,
    /// Struck writes that landed all the same, then or later.
    pub landed: usize,
    /// Sessions that were granted a lease.
    pub grants: usize,
    /// Conditional writes in all.
    pub writes: usize,
    /// Deadlines that were compared with the attempt they count from.
    pub deadlines: usize,
    /// Sessions without a grant because the store did not answer in time, on a busy machine.
    pub gave_up: usize,
    /// The time for all of it.
    pub took: Duration,
    /// Every broken promise, with a description.
    pub violations: Vec<(Violation, String)>,
}

impl FaultReport {
    /// Faults that struck, of all kinds of write.
    pub fn faults(&self) -> usize {
        self.struck.iter().sum()
    }

    /// The number of violations of this kind.
    pub fn count(&self, kind: Violation) -> usize {
        self.violations.iter().filter(|(k, _)| *k == kind).count()
    }

    /// Checks that there are no violations, and that the suite caused the faults and did the work it is for.
    ///
    /// # Panics
    ///
    /// With the whole report otherwise.
    pub fn assert_clean(&self, faults: usize) {
        assert!(self.violations.is_empty(), "{self}");
        assert!(
            self.missed <= faults / 10,
            "faults do not strike: a write's request must contain its id as text, without TLS: {self}"
        );
        assert!(self.faults() >= faults, "fewer faults than asked for: {self}");
        assert!(self.struck.iter().all(|n| *n >= faults / 20), "one kind of write was hardly hit: {self}");
        assert!(self.landed >= faults / 5, "hardly any of them landed: {self}");
        assert!(self.gave_up <= self.grants / 4, "too many sessions gave up: {self}");
        assert!(self.deadlines > self.grants, "hardly any deadline moved: {self}");
        println!("{self}");
    }
}

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [claims, renewals, releases] = self.struck;
        let Self { missed, landed, grants, writes, deadlines, .. } = self;
        let (double, lost) = (self.count(Violation::DoubleGrant), self.count(Violation::Lost));
        let wrong = self.count(Violation::Deadline);
        write!(
            f,
            "{} faults ({claims} claims, {renewals} renewals, {releases} releases; {landed} landed, {missed} missed) \
             in {writes} writes and {grants} grants: {double} double grants, {lost} lost that were ours, \
             {wrong} of {deadlines} deadlines wrong, {} wrong answers, {} wrong ends, {} gave up; {:.1} s",
            self.faults(),
            self.count(Violation::Answer),
            self.count(Violation::Outcome),
            self.gave_up,
            self.took.as_secs_f64(),
        )?;
        for (kind, text) in self.violations.iter().take(12) {
            write!(f, "\n  {kind:?}: {text}")?;
        }
        Ok(())
    }
}
