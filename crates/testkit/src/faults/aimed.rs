//! A store that chooses the faults: before each write it arms a fault of the proxy for it, and afterwards it
//! reads past the proxy whether the write landed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::clock;
use leasehold::core::ids::WriteId;
use leasehold::core::record::LeaseRecord;
use leasehold::core::time::BootTime;
use leasehold::stores::{Cas, Failure, Listed, Store, StoreFacts, Stored, Version};
use pollster::block_on;

use super::FaultMode;
use super::lane::{FaultRun, Lane, Late, When};
use super::report::Violation;
use crate::proxy::{Fault, Strike, lock};

/// The index of releases in [`super::FaultReport::struck`].
const RELEASE: usize = 2;

/// A store that several sessions use, one after the other, so that its connection stays open.
pub(super) type WarmStore = Arc<Mutex<Box<dyn Store>>>;

/// One attempt to write. The session sent it between `after` and `entered`.
pub(super) struct Sent {
    pub write: WriteId,
    pub after: BootTime,
    pub entered: BootTime,
    pub landed: bool,
}

/// The calls of one session.
pub(super) struct Log {
    pub attempts: Vec<Sent>,
    pub late: Vec<Late>,
    /// The job runs, so its writes are no claims any more.
    pub granted: bool,
    /// The time of the last call.
    last: BootTime,
    /// The last fault.
    pub fault: Option<Fault>,
    /// A write of this kind was hit. The next one of this kind passes, so that the session gets on.
    spared: Option<usize>,
}

impl Log {
    pub fn new() -> Self {
        let (attempts, late) = (Vec::new(), Vec::new());
        Self { attempts, late, granted: false, last: clock::boot_time(), fault: None, spared: None }
    }

    fn landed(&mut self, write: WriteId) {
        self.attempts.iter_mut().filter(|a| a.write == write).for_each(|a| a.landed = true);
    }
}

/// The store of one session.
pub(super) struct Aimed {
    pub inner: WarmStore,
    pub direct: WarmStore,
    pub lane: Arc<Lane>,
    pub run: Arc<FaultRun>,
    pub log: Arc<Mutex<Log>>,
}

impl Aimed {
    fn stored(&self) -> Option<WriteId> {
        self.lane.stored(&self.run, lock(&self.direct).as_mut()).map(|(record, _)| record.write)
    }

    /// Lets the writes land that are held for this moment. `newer`: a write that they must not replace.
    fn deliver(&self, when: When, newer: Option<WriteId>) {
        let due: Vec<Late> = lock(&self.log).late.extract_if(.., |l| l.when == when).collect();
        for late in due {
            let (write, result) = (late.write, late.held.deliver());
            if let Err(e) = result {
                self.run.violated(Violation::Outcome, format!("a late write was not answered: {e}"));
            }
            if self.stored() != Some(write) {
                continue;
            }
            lock(&self.log).landed(write);
            self.run.note(|r| r.landed += 1);
            if let Some(newer) = newer.filter(|newer| *newer != write) {
                self.run.violated(Violation::DoubleGrant, format!("{write} landed late over {newer}"));
            }
        }
    }

    fn choose(&self, body: &[u8]) -> Option<(usize, Fault)> {
        let mut log = lock(&self.log);
        let kind = self.kind(&log, body);
        if log.spared.take() == Some(kind) {
            return None;
        }
        let turn = self.run.take_fault()?;
        log.spared = Some(kind);
        let http = self.run.proxy.is_http();
        // Of two equal releases the second is refused. If another run took the lease meanwhile, that looks like a
        // lost lease.
        let once = kind == RELEASE;
        let fault = match (self.run.mode, turn % 10) {
            // One in forty waits until its sender gives up, which takes long.
            (FaultMode::Late, _) => Fault::Hold { hang_up: turn % 40 != 7 },
            (FaultMode::Dropped, 0..3) => Fault::Cut,
            (FaultMode::Dropped, 3) => Fault::HalfClose,
            (FaultMode::Dropped, 4) if http && !once => Fault::Duplicate,
            (FaultMode::Dropped, 5) if http => Fault::answer([409, 429, 500, 503][turn / 10 % 4], true),
            (FaultMode::Dropped, 6) if http => Fault::answer([409, 429, 500, 503][turn / 10 % 4], false),
            (FaultMode::Dropped, _) => Fault::DropReply,
        };
        log.fault = Some(fault.clone());
        Some((turn, fault))
    }

    /// Claim, renewal or release, as [`super::FaultReport::struck`] counts them.
    fn kind(&self, log: &Log, body: &[u8]) -> usize {
        match LeaseRecord::decode(&self.lane.name, body) {
            Ok(record) if record.hold.is_none() => RELEASE,
            _ => usize::from(log.granted),
        }
    }

    /// Finds out whether a write that was hit landed, and whether the store gave a right answer.
    fn judge(
        &self,
        (turn, fault): (usize, Fault),
        strike: &Strike,
        write: WriteId,
        answer: &Cas,
        body: &[u8],
    ) {
        if !strike.struck() {
            self.run.proxy.disarm(strike);
            return self.run.return_fault();
        }
        let landed = self.stored() == Some(write);
        let mut log = lock(&self.log);
        let kind = self.kind(&log, body);
        self.run.note(|r| {
            r.struck[kind] += 1;
            r.landed += usize::from(landed);
        });
        if landed {
            log.landed(write);
        }
        if let Some(held) = strike.held() {
            let when = [When::BeforeRead, When::BeforeWrite, When::AfterWrite, When::AfterOthers][turn % 4];
            log.late.push(Late { held, write, when });
        }
        match answer {
            // Another run may have taken a released lease by now.
            Cas::Written { .. } if !landed && kind != RELEASE => {
                self.run.violated(Violation::Answer, format!("said written, and it was not ({fault:?})"));
            }
            Cas::Conflict if landed && fault != Fault::Duplicate => {
                self.run.violated(Violation::Answer, format!("said conflict, and it had landed ({fault:?})"));
            }
            Cas::Written { .. } | Cas::Conflict | Cas::Unknown(_) => {}
        }
    }
}

#[async_trait(?Send)]
impl Store for Aimed {
    fn facts(&self) -> StoreFacts {
        lock(&self.inner).facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        lock(&self.log).last = clock::boot_time();
        self.deliver(When::BeforeRead, None);
        let found = block_on(lock(&self.inner).read(key));
        if let Ok(Some(stored)) = &found
            && let Ok(record) = LeaseRecord::decode(&self.lane.name, &stored.body)
        {
            // A late write of this session.
            lock(&self.log).landed(record.write);
        }
        found
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let entered = clock::boot_time();
        {
            let mut log = lock(&self.log);
            let after = std::mem::replace(&mut log.last, entered);
            log.attempts.push(Sent { write, after, entered, landed: false });
        }
        self.run.note(|r| r.writes += 1);
        self.deliver(When::BeforeWrite, None);
        let aim = self.choose(body);
        let strike =
            aim.as_ref().map(|(_, fault)| self.run.proxy.arm_on(write.to_string().as_bytes(), fault.clone()));
        let answer = block_on(lock(&self.inner).cas(key, expected, write, body));
        let struck = strike.as_ref().is_some_and(Strike::struck);
        if let (Some(aim), Some(strike)) = (aim, strike) {
            self.judge(aim, &strike, write, &answer, body);
        }
        match &answer {
            Cas::Written { .. } if !struck => lock(&self.log).landed(write),
            Cas::Unknown(_) if !struck && self.stored() == Some(write) => lock(&self.log).landed(write),
            Cas::Written { .. } | Cas::Conflict | Cas::Unknown(_) => {}
        }
        if matches!(answer, Cas::Written { .. }) {
            self.deliver(When::AfterWrite, Some(write));
        }
        answer
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        block_on(lock(&self.inner).list(prefix, after, limit))
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        block_on(lock(&self.inner).remove(key, version))
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        lock(&self.inner).limit_calls(each)
    }
}
