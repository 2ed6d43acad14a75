//! Broken variants, of the store and of what is around the rules: the checks must catch each of them.

use leasehold::core::ids::WriteId;
use leasehold::core::ledger::job_record::{Account, JobRecord};
use leasehold::core::store::Stored;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// Records of jobs are written whatever is there.
    PutsJobs,
    /// Records of slots are.
    PutsSlots,
    /// What a run withdraws stays.
    KeepsWithdrawn,
    /// Runs find no slot settled.
    NothingIsSettled,
    /// Lists are answered from some time ago.
    StaleLists,
    /// An account is taken although another one has been written since.
    AccountsTwice,
    /// Records are removed that are not settled.
    SweepsUnsettled,
    /// What is to be tried again is not written down.
    LosesRetries,
    /// The lease is given back before the record says how it ended.
    ReleasesFirst,
    /// A lease is taken that has not run out.
    TakesEarly,
    /// The command is executed before the record says so.
    ExecutesFirst,
    /// Slots that are not over are forgotten when those around them are settled.
    ForgetsOpen,
    /// What is dropped is not written down.
    ForgetsRanges,
    /// Of what was missed, the newest is run first.
    NewestFirst,
    /// More is made up for than was asked for.
    CatchesUpAll,
    /// A run that was frozen past its deadline continues its command.
    IgnoresDeadline,
}

pub const FLAWS: [Flaw; 16] = [
    Flaw::PutsJobs,
    Flaw::PutsSlots,
    Flaw::KeepsWithdrawn,
    Flaw::NothingIsSettled,
    Flaw::StaleLists,
    Flaw::AccountsTwice,
    Flaw::SweepsUnsettled,
    Flaw::LosesRetries,
    Flaw::ReleasesFirst,
    Flaw::TakesEarly,
    Flaw::ExecutesFirst,
    Flaw::ForgetsOpen,
    Flaw::ForgetsRanges,
    Flaw::NewestFirst,
    Flaw::CatchesUpAll,
    Flaw::IgnoresDeadline,
];

/// A job's record with all that it says but one thing.
pub fn altered(body: &[u8], change: impl FnOnce(&mut JobRecord)) -> Vec<u8> {
    let mut job_record = JobRecord::decode_any(body).unwrap();
    change(&mut job_record);
    job_record.encode()
}

/// The account of one writer on top of another writer's record.
pub fn merged(there: &Stored, wanted: &[u8], write: WriteId) -> Option<Vec<u8>> {
    let (there, wanted) = (JobRecord::decode_any(&there.body).ok()?, JobRecord::decode_any(wanted).ok()?);
    let fresh = wanted.dropped.iter().filter(|range| !there.dropped.contains(range)).copied();
    let (upto, open) = (wanted.settled, wanted.open.clone());
    let account = Account { upto, dropped: fresh.collect(), open };
    Some(there.with_account(&account, write).encode())
}
