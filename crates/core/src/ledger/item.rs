//! The item of one run, as its session sees it: opened before the command, recorded after it.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Amended, Opened, Subject};

/// What came of opening the item of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ItemOpened {
    /// Of the item.
    pub item: Opened,
    /// Of the key that is done together with a slot, if it was asked for.
    pub key: Option<Opened>,
    /// What this machine saw begun or done on another store, and on which.
    pub other_store: Option<(Subject, String)>,
    /// What this machine could not note, and why.
    pub unnoted: Vec<(Subject, String)>,
    /// What came of recording a slot whose key is not to be run.
    pub recorded: Option<ItemRecorded>,
}

impl ItemOpened {
    /// What keeps the command from being executed.
    pub fn held_off(&self) -> Option<&Opened> {
        [Some(&self.item), self.key.as_ref()].into_iter().flatten().find(|opened| !opened.is_begun())
    }

    /// Whether the command is to be executed.
    pub fn is_to_start(&self) -> bool {
        self.held_off().is_none() && self.other_store.is_none()
    }

    /// Whether the record says that this run is at the item.
    pub fn is_ours(&self) -> bool {
        self.item.is_begun() && self.recorded.is_none()
    }
}

/// What came of recording how the item of a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ItemRecorded {
    /// Of the item; nothing: it was not ours.
    pub item: Option<Amended>,
    /// Of the key of a slot.
    pub key: Option<Amended>,
    /// What this machine could not note, and why.
    pub unnoted: Vec<(Subject, String)>,
}
