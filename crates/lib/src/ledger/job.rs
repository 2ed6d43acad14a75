//! The part of a job's record that a run of one of its slots needs.

use leasehold_core::ledger::job_record::JobRecord;
use leasehold_core::name::Name;
use leasehold_core::store::{Failure, FailureKind};
use pollster::block_on;

use super::plain;
use crate::stores::Store;

/// Prefix of the records of jobs.
pub const PREFIX: &str = "jobs/";

/// The store's key of the record of a job.
pub fn job_record_key(job: &Name) -> String {
    format!("{PREFIX}{}", plain(job.as_str()))
}

/// Reads the record of a job.
pub fn decoded(job: &Name, body: &[u8]) -> Result<JobRecord, Failure> {
    JobRecord::decode(job, body)
        .map_err(|bad| Failure::new(FailureKind::Unusable, format!("the record of the job {job}: {bad}")))
}

/// The record of a job.
pub fn read(store: &mut dyn Store, job: &Name) -> Result<Option<JobRecord>, Failure> {
    let stored = block_on(store.read(&job_record_key(job)))?;
    stored.map(|stored| decoded(job, &stored.body)).transpose()
}

/// Whether a slot is settled: it was run or will not be.
pub(crate) fn is_settled(store: &mut dyn Store, job: &Name, at: i64) -> Result<bool, Failure> {
    Ok(read(store, job)?.is_some_and(|job_record| job_record.is_settled(at)))
}
