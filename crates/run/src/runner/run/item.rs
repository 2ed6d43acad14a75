//! What a job's environment says about its item.

use std::ffi::OsString;

use leasehold_core::ledger::Subject;

use super::Process;
use crate::steps;

impl Process<'_> {
    /// What the job's environment says about its item. What an outer run said about its own is removed, also if this
    /// one has none: its job would take that key for its own, and do its steps in that run's name.
    pub(super) fn about(&self) -> Vec<(OsString, Option<OsString>)> {
        let entry = self.entry();
        let beside = self.spec.key.as_ref().map(|item| &item.subject);
        let (mut key, mut slot) = (None, None);
        for subject in entry.iter().map(|entry| &entry.subject).chain(beside) {
            match subject {
                Subject::Key(text) => key = Some(text.into()),
                Subject::Slot { id, .. } => slot = Some(id.into()),
                Subject::Latest(_) => {}
            }
        }
        let attempt = entry.map(|entry| entry.attempt.to_string().into());
        let socket = self.steps.as_ref().map(|steps| steps.path().into());
        let all = [
            ("LEASEHOLD_KEY", key),
            ("LEASEHOLD_SLOT", slot),
            ("LEASEHOLD_ATTEMPT", attempt),
            ("LEASEHOLD_STEP", None),
            (steps::SOCKET, socket),
        ];
        all.map(|(name, value)| (name.into(), value)).into()
    }
}
