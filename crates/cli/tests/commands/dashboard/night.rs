//! A store with a day of runs in it, made up.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::clock;
use leasehold::core::ids::{Token, WriteId};
use leasehold::core::ledger::Subject;
use leasehold::core::name::Name;
use leasehold::core::record::{Holder, LeaseRecord};
use leasehold::core::run_log::{LogEvent, LogId, LogRecord, RefusedWrite};
use leasehold::random;
use leasehold::run_log::creation;
use leasehold::stores::{self, BatchWrite, Cas, Store};
use pollster::block_on;

use crate::world::World;

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;
const EVERY: u64 = 45 * MINUTE;
const MACHINES: [&str; 3] = ["mac-mini", "macbook", "sandbox-7"];
/// Each site, and when its slots are due.
const SITES: [(&str, u64); 4] = [("claudelab", 0), ("gemilab", 10), ("antigravitylab", 20), ("rorklab", 30)];

pub fn open(url: &str) -> Box<dyn Store> {
    stores::open(url).unwrap_or_else(|e| panic!("{e}"))
}

/// A record of a time since 1970.
pub fn record(at: u64, event: LogEvent, job: &str, host: &str, token: u64) -> LogRecord {
    let name = Name::new(job).unwrap();
    let holder = Holder {
        host: host.into(),
        pid: 4711,
        run: format!("{host}/4711"),
        job: job.into(),
        since: String::new(),
        slot: None,
    };
    let id = job.bytes().fold(u128::from(token * 64 + event as u64), |id, byte| id * 31 + u128::from(byte));
    LogRecord {
        lease: Some(name.clone()),
        token: Token::new(token),
        ..LogRecord::new(Duration::from_secs(at), event, name, LogId::of(id), holder)
    }
}

/// The same of a run.
pub fn run(at: u64, event: LogEvent, job: &str, host: &str, token: u64, took: u64) -> LogRecord {
    let exit = if event == LogEvent::Ok { 0 } else { 1 };
    LogRecord {
        took: Some(Duration::from_secs(took)),
        exit: Some(exit),
        ..record(at, event, job, host, token)
    }
}

pub fn log(url: &str, records: &[LogRecord]) {
    let mut store = open(url);
    for part in records.chunks(500) {
        let writes: Vec<BatchWrite> = part.iter().map(creation).collect();
        let written = block_on(store.cas_many(&writes));
        assert!(written.iter().all(|cas| matches!(cas, Cas::Written { .. })), "{:?}", written.first());
    }
}

/// Numbers that look random, the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Four sites on three machines. One of them slept and lost its lease, and its late write was refused; three slots were
/// dropped; one run failed; one charge began and never reported; one site is at work.
pub fn fill(world: &World, url: &str) {
    let now = clock::wall().as_secs();
    let mut dice = Dice(7);
    let mut records = Vec::new();
    let mut tokens = BTreeMap::new();
    for (site, offset) in SITES {
        let first = (now - DAY).div_euclid(EVERY) * EVERY + offset * MINUTE;
        let mut token = 40 + dice.roll(200);
        for (turn, due) in (first..now - 20 * MINUTE).step_by(EVERY as usize).enumerate() {
            let host = MACHINES[dice.roll(3) as usize];
            let took = 4 * MINUTE + dice.roll(5 * MINUTE) + dice.roll(4 * MINUTE);
            let slot = |record: LogRecord| LogRecord {
                item: Some(Subject::Slot {
                    job: Name::new(site).unwrap(),
                    at: due as i64,
                    id: jiff::Timestamp::from_second(due as i64).unwrap().to_string(),
                }),
                ..record
            };
            let why = |why: &str, record: LogRecord| LogRecord { reason: Some(why.into()), ..record };
            match (site, turn) {
                // Its newest run: nobody has repaired that.
                ("rorklab", _) if due + 65 * MINUTE > now => {
                    token += 1;
                    let failed = run(due + 95, LogEvent::Failed, site, "mac-mini", token, 95);
                    let said = "Fetching the feed\nerror: 503 from the origin\ngiving up after 3 tries";
                    records.push(slot(LogRecord { said: said.into(), ..failed }));
                }
                ("claudelab", 22) => {
                    token += 1;
                    let lost = run(due + 4 * MINUTE, LogEvent::Lost, site, "macbook", token, 4 * MINUTE);
                    records.push(slot(why("renewal", lost)));
                    let refused = record(due + 41 * MINUTE, LogEvent::Refused, site, "macbook", token);
                    token += 1;
                    let target = RefusedWrite { target: "git:origin main".into(), fence: Token::new(token) };
                    records.push(why("stale", LogRecord { target: Some(target), ..refused }));
                    records.push(slot(run(due + 13 * MINUTE, LogEvent::Ok, site, "sandbox-7", token, 442)));
                }
                ("claudelab", 23) => {
                    let skipped = record(due + 2, LogEvent::Skipped, site, "mac-mini", token);
                    let skipped = LogRecord { said: "sandbox-7/311".into(), ..skipped };
                    records.push(slot(why("overlap", skipped)));
                }
                ("gemilab", 24) => {
                    let dropped = record(due + EVERY, LogEvent::Dropped, site, "mac-mini", token);
                    records.push(slot(why("missed", LogRecord { count: Some(3), ..dropped })));
                }
                ("antigravitylab", 11) => {
                    token += 1;
                    records.push(slot(run(due + 3_100, LogEvent::Ok, site, host, token, 3_100)));
                }
                _ => {
                    token += 1;
                    records.push(slot(run(due + took, LogEvent::Ok, site, host, token, took)));
                }
            }
        }
        tokens.insert(site, token);
    }
    log(url, &records);
    // The schedules.
    let jobs: String = SITES
        .iter()
        .map(|(site, offset)| {
            format!("[[job]]\nname = \"{site}\"\nevery = \"45m\"\noffset = \"{offset}m\"\nrun = [\"true\"]\n")
        })
        .collect();
    world.write("leasehold.toml", &jobs);
    world.run(&["--store", url, "tick"]).is(0, "");
    // A charge that never reported, and what found that.
    let charge = ["--store", url, "run", "charges", "--key", "charge-4711", "--ttl", "2s", "--", "sh", "-c"];
    assert_eq!(world.run(&[&charge[..], &["kill -9 $PPID"]].concat()).code, 137);
    world.run(&[&charge[..], &["true"]].concat()).is(79, "items.unknown");
    hold(world, url, ("gemilab", "10m"), "mac-mini/9034", tokens["gemilab"] + 1);
    hold(world, url, ("antigravitylab", "1h"), "macbook/2391", tokens["antigravitylab"] + 1);
}

/// A run on this machine has had the lease for six minutes.
pub fn hold(world: &World, url: &str, (lease, ttl): (&str, &str), holder: &str, token: u64) {
    world.run(&["--store", url, "acquire", lease, "--ttl", ttl]).token();
    let (host, pid) = holder.rsplit_once('/').unwrap();
    let mut store = open(url);
    let (name, key) = (Name::new(lease).unwrap(), format!("leases/{lease}"));
    let stored = block_on(store.read(&key)).unwrap().unwrap();
    let mut record = LeaseRecord::decode(&name, &stored.body).unwrap();
    record.write = WriteId(random::seed());
    record.holder.host = host.into();
    record.holder.pid = pid.parse().unwrap();
    let since = clock::wall().as_secs() as i64 - 372;
    record.holder.since = jiff::Timestamp::from_second(since).unwrap().to_string();
    record.token = Token::new(token).unwrap();
    let written = block_on(store.cas(&key, Some(&stored.version), record.write, &record.encode()));
    assert!(matches!(written, Cas::Written { .. }), "{written:?}");
}
