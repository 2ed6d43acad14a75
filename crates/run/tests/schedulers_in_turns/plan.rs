//! What is to be run in one schedule, by the dice.

use std::sync::OnceLock;
use std::time::Duration;

use jiff::tz::TimeZone;
use leasehold::core::ledger::job_record::JobSchedule;
use leasehold::core::name::Name;
use leasehold_run::job_records::Terms;
use leasehold_run::schedule::{Cron, Every, Policy, Schedule};

use crate::turns::Dice;

/// When a job is due, told twice: as the product takes it, and as the audit counts.
pub struct Due {
    pub schedule: Schedule,
    pub written: String,
    pub every: i64,
    pub offset: i64,
}

impl Due {
    pub fn is_due(&self, at: i64) -> bool {
        (at - self.offset).rem_euclid(self.every) == 0
    }

    /// The slots after one second, up to and with another.
    pub fn between(&self, after: i64, upto: i64) -> impl DoubleEndedIterator<Item = i64> + use<> {
        let number = |at: i64| (at - self.offset).div_euclid(self.every);
        let (every, offset) = (self.every, self.offset);
        (number(after) + 1..=number(upto)).map(move |n| n * every + offset)
    }
}

fn every(seconds: i64, offset: i64) -> Due {
    let of = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    let schedule = Schedule::every(Every::new(of(seconds), of(offset)).unwrap());
    Due { schedule, written: format!("every {seconds}s +{offset}s"), every: seconds, offset }
}

fn cron(pattern: &str, every: i64) -> Due {
    let schedule = Schedule::cron(Cron::parse(pattern).unwrap(), TimeZone::UTC, Policy::default());
    Due { schedule, written: format!("{pattern} in UTC"), every, offset: 0 }
}

/// All that there are.
pub fn dues() -> &'static [Due] {
    static DUES: OnceLock<Vec<Due>> = OnceLock::new();
    DUES.get_or_init(|| {
        vec![every(10, 0), every(10, 3), every(25, 0), cron("* * * * *", 60), cron("*/10 * * * *", 600)]
    })
}

#[derive(Clone, Debug)]
pub struct Job {
    pub name: Name,
    /// Which of the schedules it has now, and the other one.
    pub due: usize,
    pub other: usize,
    pub leases: Vec<Name>,
    pub skips: bool,
    pub catch_up: usize,
    pub max_age: Option<u64>,
    pub retry: bool,
    pub attempts: u32,
    pub keep: u64,
    pub ttl: u64,
    /// So long, at most, a run waits for its lease.
    pub wait: u64,
}

impl Job {
    fn new(n: usize, dice: &mut Dice, shared: bool) -> Self {
        let due = dice.one_of(&[0, 0, 0, 1, 2, 3, 4]);
        let other = dice.one_of(&[0, 1, 2, 3]);
        let lease = |text: &str| Name::new(text).unwrap();
        let own = lease(if shared { "l" } else { ["a", "b"][n] });
        let mut leases = vec![own];
        if dice.chance(150) {
            leases.push(lease("spare"));
        }
        let period = dues()[due].every.unsigned_abs();
        Self {
            name: Name::new(["north", "south"][n]).unwrap(),
            due,
            other,
            leases,
            skips: dice.chance(500),
            catch_up: dice.one_of(&[0, 1, 1, 3, 3]),
            max_age: dice.one_of(&[None, None, Some(period * 2), Some(400)]),
            retry: dice.chance(500),
            attempts: dice.one_of(&[1, 2, 3]),
            keep: dice.one_of(&[1, 3, 8]) * period + 30,
            ttl: 12,
            wait: dice.one_of(&[0, 0, 0, 8]),
        }
    }

    pub fn terms(&self) -> Terms {
        let due = &dues()[self.due];
        Terms {
            job: self.name.clone(),
            schedule: due.schedule.clone(),
            named: JobSchedule { key: due.schedule.key(), written: due.written.clone() },
            leases: self.leases.clone(),
            skips: self.skips,
            catch_up: self.catch_up,
            max_age: self.max_age.map(Duration::from_secs),
            retry: self.retry,
            attempts: self.attempts,
            keep: Duration::from_secs(self.keep),
            stagger: Duration::ZERO,
        }
    }
}

/// The file that all schedulers read, and how bad the world is to them.
#[derive(Clone, Debug)]
pub struct Plan {
    pub jobs: Vec<Job>,
    /// Raised when the file is changed.
    pub edition: u32,
    /// A long time for these jobs.
    pub unit: u64,
    pub daemons: usize,
    /// In a thousand turns so many actors die.
    pub deaths: u64,
    /// What the operator does, at most so many times.
    pub one_shots: u64,
}

impl Plan {
    pub fn new(dice: &mut Dice) -> Self {
        let jobs = if dice.chance(250) { 2 } else { 1 };
        let shared = dice.chance(500);
        let jobs: Vec<Job> = (0..jobs).map(|n| Job::new(n, dice, shared)).collect();
        let unit = jobs.iter().map(|job| dues()[job.due].every.unsigned_abs()).max().unwrap_or(10);
        let deaths = dice.one_of(&[0, 8, 20]);
        Self { jobs, edition: 1, unit, daemons: 2, deaths, one_shots: dice.one_of(&[0, 1, 3, 4]) }
    }

    pub fn job(&self, name: &Name) -> usize {
        self.jobs.iter().position(|job| job.name == *name).unwrap()
    }
}
