//! Leasehold stops scheduled jobs and agents from running twice or writing twice. It keeps leases with
//! fencing tokens in any store that can compare-and-set.
//!
//! ```
//! # fn main() -> Result<(), leasehold::Error> { pollster::block_on(async {
//! # let dir = std::env::temp_dir().join(format!("leasehold-doc-{}", std::process::id()));
//! # let url = format!("sqlite:{}", dir.display());
//! let leases = leasehold::open(&url)?;
//! let Some(lease) = leases.lease("site").acquire().await?.lease() else {
//!     return Ok(()); // another run holds it: not an error
//! };
//! lease.run(async |held| {
//!     let token = held.token()?; // fails once the lease may have expired
//!     println!("publishing with token {token}");
//!     Ok::<_, leasehold::Lost>(())
//! }).await??; // cancelled if the lease is lost; otherwise it is released at the end
//! # for suffix in ["", "-wal", "-shm"] { let _ = std::fs::remove_file(format!("{}{suffix}", dir.display())); }
//! # Ok(()) }) }
//! ```
//!
//! - [`lease`] is the API above.
//! - [`backends`] are the stores that keep leases and the targets that they fence.
//! - [`core`](crate::core) re-exports [`leasehold_core`], the rules without I/O. This crate does all I/O.
//! - Another crate, `leasehold-run`, runs commands under a lease.

#![forbid(unsafe_code)]

pub mod backends;
pub mod clock;
pub mod clock_offset;
#[cfg(all(unix, feature = "doctor"))]
pub mod doctor;
pub mod driver;
pub mod forget;
pub mod host;
pub mod lease;
pub mod ledger;
#[cfg(unix)]
pub mod liveness;
pub mod manual;
pub mod messages;
pub mod other_stores;
#[cfg(unix)]
pub mod poll;
pub mod random;
pub mod run_fences;
pub mod run_files;
pub mod run_log;
pub mod seen_tokens;
pub mod state;
pub mod store_thread;
pub mod stores;
pub mod targets;
pub mod text;
pub mod update;

pub use lease::{Acquired, Error, Lease, Leases, Lost, open};
pub use leasehold_core as core;
