//! Whether every slot came to exactly one end, by what the store says and by what the jobs wrote themselves.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use leasehold::core::ledger::job_record::DroppedRange;
use leasehold::core::ledger::{ItemState, Subject};
use leasehold::core::name::Name;
use leasehold::stores::Store;
use leasehold_run::job_records::{read, recorded, told};

/// The slots that are looked at.
pub struct Slots {
    pub jobs: Vec<Name>,
    /// For each job, the second after which its slots count.
    pub begun: Vec<i64>,
    pub end: i64,
}

impl Slots {
    /// Whether a job is run again if nobody knows what became of a slot.
    pub fn again(n: usize) -> bool {
        n % 4 == 1
    }

    /// When the slots of a job are due.
    fn due(&self, n: usize) -> impl Iterator<Item = i64> + use<> {
        let (every, begun, end) = (1 + (n % 2) as i64, self.begun[n], self.end);
        (begun + 1..=end).filter(move |second| second % every == 0)
    }

    pub fn all_settled(&self, store: &mut dyn Store) -> bool {
        (0..self.jobs.len()).all(|n| {
            let (own, ranges) = records(store, self, n);
            let counted = ranges.iter().all(|range| !range.counting || range.first > self.end);
            counted
                && self
                    .due(n)
                    .all(|at| own.get(&at).is_some_and(|s| terminal(*s)) || covering(&ranges, at).is_some())
        })
    }
}

fn terminal(state: ItemState) -> bool {
    !matches!(state, ItemState::Started | ItemState::Planned)
}

fn covering(ranges: &[DroppedRange], at: i64) -> Option<usize> {
    ranges.iter().position(|range| (range.first..=range.last).contains(&at))
}

fn records(store: &mut dyn Store, slots: &Slots, n: usize) -> (BTreeMap<i64, ItemState>, Vec<DroppedRange>) {
    let job = &slots.jobs[n];
    let job_record = read(store, job).unwrap().unwrap();
    let (entries, bad) = recorded(store, job, slots.begun[n], slots.end).unwrap();
    assert!(bad.is_empty(), "{bad:?}");
    let entries = entries.into_iter().map(|(entry, _)| entry).collect();
    let entries = told(entries, std::slice::from_ref(&job_record));
    let own = entries.into_iter().map(|entry| match entry.subject {
        Subject::Slot { at, .. } => (at, entry.state),
        other => panic!("{other:?}"),
    });
    (own.collect(), job_record.dropped)
}

/// Begins and ends, by job and slot.
type Ran = BTreeMap<(String, i64), (u32, u32)>;

pub struct Audit<'a> {
    slots: &'a Slots,
    own: Vec<BTreeMap<i64, ItemState>>,
    ranges: Vec<Vec<DroppedRange>>,
    ran: Ran,
    pub ok: usize,
    states: BTreeMap<&'static str, usize>,
    dropped: u64,
}

impl fmt::Display for Audit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots: usize = (0..self.slots.jobs.len()).map(|n| self.slots.due(n).count()).sum();
        write!(f, "{slots} slots: {:?}, {} dropped", self.states, self.dropped)
    }
}

impl<'a> Audit<'a> {
    pub fn new(slots: &'a Slots, store: &mut dyn Store, ran: &str) -> Self {
        let (own, ranges): (Vec<_>, Vec<_>) = (0..slots.jobs.len()).map(|n| records(store, slots, n)).unzip();
        let mut audit =
            Self { slots, own, ranges, ran: parsed(ran), ok: 0, states: BTreeMap::new(), dropped: 0 };
        for (n, own) in audit.own.iter().enumerate() {
            for at in slots.due(n) {
                match own.get(&at) {
                    Some(state) => *audit.states.entry(state.word()).or_default() += 1,
                    None => audit.dropped += 1,
                }
            }
        }
        audit.ok = audit.states.get("ok").copied().unwrap_or(0);
        audit
    }

    /// What is wrong, slot by slot.
    pub fn wrong(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for n in 0..self.slots.jobs.len() {
            self.slots.due(n).for_each(|at| wrong.extend(self.slot(n, at)));
            wrong.extend(self.ranges[n].iter().filter_map(|range| self.range(n, range)));
        }
        wrong
    }

    fn slot(&self, n: usize, at: i64) -> Option<String> {
        let job = &self.slots.jobs[n];
        let (begins, ends) = self.ran.get(&(job.to_string(), at)).copied().unwrap_or_default();
        let again = Slots::again(n);
        let fits = match self.own[n].get(&at) {
            None if covering(&self.ranges[n], at).is_none() => {
                return Some(format!("{job}@{at}: lost without a reason"));
            }
            None | Some(ItemState::Skipped) => begins == 0,
            Some(ItemState::Ok | ItemState::Failed) => {
                begins == 1 && ends == 1 || again && begins >= 1 && ends >= 1
            }
            Some(ItemState::Lost | ItemState::Killed | ItemState::Unknown) => begins <= 1 || again,
            Some(ItemState::Started | ItemState::Planned) => false,
        };
        let word = self.own[n].get(&at).map_or("dropped", |state| state.word());
        (!fits).then(|| format!("{job}@{at}: {word}, begun {begins} times, ended {ends} times"))
    }

    /// Whether the number of a range is that of its slots without a record.
    fn range(&self, n: usize, range: &DroppedRange) -> Option<String> {
        let within = |at: &i64| (range.first..=range.last).contains(at);
        // What is due after the end is not looked at, and may be in the range.
        if range.last > self.slots.end {
            return None;
        }
        let bare = self.slots.due(n).filter(within).filter(|at| !self.own[n].contains_key(at)).count();
        let job = &self.slots.jobs[n];
        (bare as u64 != range.count).then(|| format!("{job}: {range:?}, but {bare} of them have no record"))
    }

    /// The same findings, falsified: they must be caught.
    pub fn is_no_pushover(&mut self) {
        let (n, at) = (0..self.slots.jobs.len())
            .find_map(|n| {
                let plain = !Slots::again(n);
                let ok = self.own[n].iter().find(|(_, state)| plain && **state == ItemState::Ok);
                ok.map(|(at, _)| (n, *at))
            })
            .expect("a slot that ran");
        let ran = (self.slots.jobs[n].to_string(), at);
        self.ran.get_mut(&ran).unwrap().0 += 1;
        assert_eq!(self.wrong().len(), 1, "a slot that ran twice");
        self.ran.get_mut(&ran).unwrap().0 -= 1;
        self.own[n].remove(&at);
        assert!(
            self.wrong().iter().any(|w| w.contains("lost without a reason")),
            "a slot that nobody tells of"
        );
    }
}

fn parsed(ran: &str) -> Ran {
    let mut all = Ran::new();
    for line in ran.lines() {
        let [what, job, slot] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        let at = slot.parse::<Timestamp>().unwrap().as_second();
        let times = all.entry((job.to_owned(), at)).or_default();
        match what {
            "begin" => times.0 += 1,
            "end" => times.1 += 1,
            _ => panic!("{line:?}"),
        }
    }
    all
}
