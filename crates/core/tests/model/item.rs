//! The item of the runs in the model: read and decided on in one step, written in another, recorded in a third.

use leasehold_core::ids::WriteId;
use leasehold_core::ledger::{
    Ending, Entry, FoundEntry, IfUnknown, ItemClaim, ItemOpened, ItemRequest, ItemState as Word, ItemVerdict,
    Opened, Subject, begin, finish,
};
use leasehold_core::record::Holder;
use leasehold_core::rules::Rules;
use leasehold_core::session::{Granted, Input};
use leasehold_core::store::Version;

use crate::Leases;
use crate::state::{Flaw, State, grant_of};

/// A client's progress with the item.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    #[default]
    None,
    /// It has to be opened.
    Open(Granted),
    /// It was read, and this replaces it next.
    Write(Granted, Option<WriteId>, Box<Entry>),
    /// It was started, and its end is not recorded yet.
    Ours(Box<Entry>),
    /// This replaces the started entry next.
    Record(WriteId, Box<Entry>),
}

/// The item, and what really happened to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Item {
    row: Option<Entry>,
    writes: u32,
    started: Vec<usize>,
    executed: Vec<usize>,
    ended: Vec<usize>,
    pub(crate) executed_unstarted: bool,
    pub(crate) executed_twice: bool,
    pub(crate) released_first: bool,
    pub(crate) foreign_close: bool,
}

fn opened(item: Opened) -> Input {
    let (key, other_store, unnoted, recorded) = (None, None, Vec::new(), None);
    Input::ItemOpened(Box::new(ItemOpened { item, key, other_store, unnoted, recorded }))
}

fn begun(entry: &Entry) -> Input {
    opened(Opened::Begun(entry.clone(), Version(entry.write.to_string())))
}

impl<R: Rules> State<R> {
    fn fresh(&mut self, c: usize) -> WriteId {
        self.item.writes += 1;
        WriteId(((c as u128) << 32) | u128::from(self.item.writes))
    }

    /// Reads the item and decides on it.
    pub(crate) fn open_item(&mut self, model: &Leases<R>, c: usize) {
        let Task::Open(granted) = std::mem::take(&mut self.client(c).task) else { return };
        let write = self.fresh(c);
        let holder = Holder {
            host: String::new(),
            pid: 0,
            run: String::new(),
            job: String::new(),
            since: String::new(),
            slot: None,
        };
        let Granted { lease, epoch, token, grant, .. } = granted.clone();
        let job = lease.clone();
        let claim = ItemClaim { lease, epoch, token, grant, holder };
        let again = model.flaw == Flaw::RetriesUnknown;
        let if_unknown = if again { IfUnknown::Retry } else { IfUnknown::Refuse };
        let ask = ItemRequest {
            subject: Subject::Key("k".into()),
            job,
            claim,
            if_unknown,
            attempts: 1,
            keep: None,
        };
        let found = self.item.row.clone();
        let before = found.as_ref().map(|entry| entry.write);
        match (begin(found.as_ref().map(|entry| FoundEntry { entry, age: None }), &ask, None, write), found) {
            (ItemVerdict::Begin(entry), _) => {
                let early = (model.flaw == Flaw::StartsFirst).then(|| begun(&entry));
                self.client(c).task = Task::Write(granted, before, Box::new(entry));
                if let Some(early) = early {
                    self.step(model, c, early);
                }
            }
            (ItemVerdict::Done, Some(found)) => self.step(model, c, opened(Opened::Done(found))),
            (ItemVerdict::InProgress, Some(found)) => self.step(model, c, opened(Opened::InProgress(found))),
            (ItemVerdict::Quarantined, Some(found)) => {
                self.step(model, c, opened(Opened::Quarantined(found)))
            }
            (ItemVerdict::Unknown(entry, doubt), _) => {
                self.item.row = Some(entry.clone());
                self.step(model, c, opened(Opened::Unknown(entry, doubt)));
            }
            (verdict, _) => unreachable!("{verdict:?}"),
        }
    }

    /// The write lands, or meets another's.
    pub(crate) fn item_lands(&mut self, model: &Leases<R>, c: usize) {
        match std::mem::take(&mut self.client(c).task) {
            Task::Write(granted, expected, entry) => {
                if self.item.row.as_ref().map(|row| row.write) != expected {
                    return self.client(c).task = Task::Open(granted);
                }
                self.item.row = Some((*entry).clone());
                self.item.started.push(c);
                let input = begun(&entry);
                self.client(c).task = Task::Ours(entry);
                if model.flaw != Flaw::StartsFirst {
                    self.step(model, c, input);
                }
            }
            Task::Record(expected, entry) => {
                let ours = self.item.row.as_ref().is_some_and(|row| row.write == expected);
                if ours || model.flaw == Flaw::ClosesBlind {
                    let before = self.item.row.as_ref().map(|row| (row.state, row.claim.grant));
                    self.item.foreign_close |= before != Some((Word::Started, grant_of(c)));
                    self.item.row = Some(*entry);
                    self.item.ended.push(c);
                }
                if model.flaw != Flaw::RecordsLast {
                    self.item.ended.push(c);
                    self.step(model, c, Input::ItemRecorded(Box::default()));
                }
            }
            task => self.client(c).task = task,
        }
    }

    pub(crate) fn record_item(&mut self, model: &Leases<R>, c: usize, state: Word, ending: Ending) {
        match std::mem::take(&mut self.client(c).task) {
            Task::Ours(entry) => {
                let write = self.fresh(c);
                let ended = Entry { write, ..finish(&entry, state, ending) };
                self.client(c).task = Task::Record(entry.write, Box::new(ended));
                if model.flaw == Flaw::RecordsLast {
                    self.step(model, c, Input::ItemRecorded(Box::default()));
                }
            }
            // It was never started.
            _ => {
                self.item.ended.push(c);
                self.step(model, c, Input::ItemRecorded(Box::default()));
            }
        }
    }

    pub(crate) fn executes(&mut self, c: usize) {
        self.item.executed_unstarted |= !self.item.started.contains(&c);
        self.item.executed_twice |= !self.item.executed.is_empty();
        self.item.executed.push(c);
    }

    pub(crate) fn releases(&mut self, c: usize) {
        let executed = self.item.executed.contains(&c);
        self.item.released_first |= executed && !self.item.ended.contains(&c);
    }
}
