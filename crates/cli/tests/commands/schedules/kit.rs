//! Machines with one store and a leasehold.toml each; time that is moved in the records, not waited for.

use std::path::Path;
use std::process::Command;

use leasehold::core::ids::WriteId;
use leasehold::core::ledger::job_record::JobRecord;
use leasehold::core::name::Name;
use leasehold::core::store::Cas;
use leasehold::stores;
use leasehold_run::job_records::job_record_key;
use pollster::block_on;
use serde_json::Value;

use crate::world::{Ended, Running, World, messages, until};

/// A slot that was due months ago, and the next is due in months: nothing becomes due while a test runs.
pub const RARE: &str = "every = \"366d\"";
const RARE_S: i64 = 366 * 86_400;

/// Writes down which slot it runs.
pub const NOTE: &str = "echo $LEASEHOLD_SLOT >> runs";

pub fn now() -> i64 {
    i64::try_from(leasehold::clock::wall().as_secs()).unwrap()
}

/// When the newest slot of a rare job was due.
pub fn rare_slot() -> i64 {
    now().div_euclid(RARE_S) * RARE_S
}

pub fn named(second: i64) -> String {
    jiff::Timestamp::from_second(second).unwrap().to_string()
}

pub fn second(slot: &str) -> i64 {
    slot.parse::<jiff::Timestamp>().unwrap_or_else(|e| panic!("{slot}: {e}")).as_second()
}

/// A job that runs a line of shell.
pub fn job(name: &str, due: &str, more: &str, line: &str) -> String {
    format!("[[job]]\nname = \"{name}\"\n{due}\n{more}\nrun = [\"sh\", \"-c\", '''{line}''']\n")
}

/// What machines share.
pub struct Site {
    pub world: World,
    pub store: String,
}

impl Site {
    pub fn new() -> Self {
        let world = World::new();
        let store = format!("sqlite:{}", world.at("store.db"));
        Self { world, store }
    }

    /// One with these jobs on its first machine, which has seen them.
    pub fn with(jobs: &str) -> Self {
        let site = Self::new();
        site.jobs("a", jobs);
        site.tick("a").is(0, "");
        site
    }

    /// Puts the file in place as editors do.
    pub fn jobs(&self, machine: &str, jobs: &str) {
        let new = self.world.write(&format!("{machine}/leasehold.toml.new"), jobs);
        std::fs::rename(new, self.world.path(&format!("{machine}/leasehold.toml"))).unwrap();
    }

    /// Any command, on a machine.
    pub fn on(&self, machine: &str, args: &[&str]) -> Command {
        let mut command = self.world.hearing(crate::world::binary());
        command.args(["--store", &self.store]).args(args).current_dir(self.world.path(machine));
        command.env("XDG_STATE_HOME", self.world.path(&format!("{machine}/state")));
        command
    }

    pub fn run(&self, machine: &str, args: &[&str]) -> Ended {
        self.on(machine, args).output().unwrap().into()
    }

    pub fn tick(&self, machine: &str) -> Ended {
        self.run(machine, &["tick"])
    }

    pub fn start(&self, machine: &str, args: &[&str]) -> Running {
        Running::new(self.on(machine, args))
    }

    /// A daemon that has read its file.
    pub fn daemon(&self, machine: &str) -> Running {
        let mut daemon = self.start(machine, &["-v", "daemon"]);
        daemon.said("TERM or Ctrl-C");
        daemon
    }

    /// The record of a job.
    pub fn job_record(&self, job: &str) -> Option<JobRecord> {
        let mut store = stores::open(&self.store).unwrap_or_else(|e| panic!("{e}"));
        leasehold_run::job_records::read(store.as_mut(), &Name::new(job).unwrap()).unwrap()
    }

    /// As if nobody had looked since then.
    pub fn rewind(&self, job: &str, settled: i64) {
        let mut store = stores::open(&self.store).unwrap_or_else(|e| panic!("{e}"));
        let key = job_record_key(&Name::new(job).unwrap());
        until("the record of the job is rewound", || {
            let stored = block_on(store.read(&key)).unwrap().expect("a record");
            let mut job_record = JobRecord::decode(&Name::new(job).unwrap(), &stored.body).unwrap();
            job_record.settled = settled;
            job_record.dropped.clear();
            job_record.write = WriteId(leasehold::random::seed());
            let written =
                block_on(store.cas(&key, Some(&stored.version), job_record.write, &job_record.encode()));
            matches!(written, Cas::Written { .. }).then_some(())
        });
    }

    /// As many slots of a job are open as may be.
    pub fn fill_open(&self, job: &str) {
        let mut store = stores::open(&self.store).unwrap_or_else(|e| panic!("{e}"));
        let name = Name::new(job).unwrap();
        for at in 1..=100 {
            leasehold_run::job_records::again(store.as_mut(), &name, at).unwrap();
        }
    }

    /// Puts something else in the place of a record.
    pub fn damage(&self, key: &str) {
        self.edit(key, |record| *record = serde_json::json!({}));
    }

    /// Changes a record.
    pub fn edit(&self, key: &str, change: impl Fn(&mut Value)) {
        let mut store = stores::open(&self.store).unwrap_or_else(|e| panic!("{e}"));
        let stored = block_on(store.read(key)).unwrap().expect("a record");
        let mut record = serde_json::from_slice(&stored.body).unwrap();
        change(&mut record);
        let write = WriteId(leasehold::random::seed());
        let body = serde_json::to_vec(&record).unwrap();
        let written = block_on(store.cas(key, Some(&stored.version), write, &body));
        assert!(matches!(written, Cas::Written { .. }), "{written:?}");
    }

    /// The newest slot of a rare job has just become due, as far as the store knows.
    pub fn make_due(&self, job: &str) -> String {
        self.rewind(job, rare_slot() - 1);
        named(rare_slot())
    }

    /// Which slots were run, in the order in which they were.
    pub fn runs(&self, machine: &str) -> Vec<String> {
        lines(&self.world.path(machine).join("runs"))
    }

    /// What the ledger says of a job's slots, by slot.
    pub fn history(&self, job: &str) -> Vec<Value> {
        let said = self.run("a", &["--json", "history", job]).is(0, "").out;
        let mut rows: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        // Ranges of dropped slots are listed as well, and what people typed.
        rows.retain(|row| row["item"].is_string() && row["kind"] != "retry");
        rows.sort_by_key(|row| row["item"].as_str().unwrap().to_owned());
        rows
    }

    /// Outcome, attempts and what was said of one slot.
    pub fn outcome(&self, job: &str, slot: &str) -> Option<Value> {
        // A run of another machine may have been skipped beside the one that did the slot.
        let rows = || self.history(job).into_iter().filter(|row| row["item"] == slot);
        rows().find(|row| row["outcome"] != "skipped").or_else(|| rows().next())
    }

    /// Waits for the outcome of a slot.
    #[track_caller]
    pub fn becomes(&self, job: &str, slot: &str, outcome: &str) -> Value {
        until(&format!("{job}@{slot} is {outcome}"), || {
            self.outcome(job, slot).filter(|row| row["outcome"] == outcome)
        })
    }
}

pub fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(Into::into).collect()
}

/// Whether a line of what was printed is this message of `docs/messages.md`.
pub fn tells(text: &str, message: &str) -> bool {
    assert!(messages::is_name(message), "{message}");
    messages::says(&format!("{text}\n"), message)
}

/// Ends a daemon in the ordinary way.
#[track_caller]
pub fn drained(daemon: Running) -> Ended {
    daemon.signal(rustix::process::Signal::TERM);
    let ended = daemon.ended();
    assert_eq!(ended.code, 0, "{ended:#?}");
    ended
}
