//! The item of one run, as its session sees it: opened before the command, recorded after it.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Amended, Opened, Subject};

/// The result of opening the item of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ItemOpened {
    /// The item.
    pub item: Opened,
    /// The key that is done together with a slot, if it was opened.
    pub key: Option<Opened>,
    /// An item that this machine saw started or done on another store, and that store.
    pub other_store: Option<(Subject, String)>,
    /// Items that this machine could not note for other stores, and why.
    pub unnoted: Vec<(Subject, String)>,
    /// The result of recording the slot, if its key keeps it from being run.
    pub recorded: Option<ItemRecorded>,
}

impl ItemOpened {
    /// The item or key that keeps the command from being executed.
    pub fn held_off(&self) -> Option<&Opened> {
        [Some(&self.item), self.key.as_ref()].into_iter().flatten().find(|opened| !opened.is_begun())
    }

    /// Whether the command may be executed.
    pub fn is_to_start(&self) -> bool {
        self.held_off().is_none() && self.other_store.is_none()
    }

    /// Whether the record says that this run has started the item.
    pub fn is_ours(&self) -> bool {
        self.item.is_begun() && self.recorded.is_none()
    }
}

/// The result of recording how the item of a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ItemRecorded {
    /// The item; none: it was not ours.
    pub item: Option<Amended>,
    /// The key of a slot.
    pub key: Option<Amended>,
    /// Items that this machine could not note for other stores, and why.
    pub unnoted: Vec<(Subject, String)>,
}
