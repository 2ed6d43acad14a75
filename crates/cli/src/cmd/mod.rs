//! One file per command; each returns the exit code. Below the commands: what they share.

pub mod adopt;
pub mod break_;
pub mod check;
pub mod daemon;
pub mod demo;
pub mod doctor;
pub mod fence;
pub mod forget;
pub mod gate;
pub mod guard;
pub mod help;
pub mod history;
pub mod manual;
pub mod metrics;
pub mod once;
pub mod pause;
pub mod plan;
pub mod push;
pub mod read;
pub mod retry;
pub mod run;
pub mod run_log;
#[cfg(feature = "http")]
pub mod serve;
pub mod stats;
pub mod status;
pub mod step;
pub mod trigger;
pub mod uninstall;
pub mod use_;
pub mod why;
pub mod write;

pub mod dispatch;
pub mod holder;
pub mod item_args;
pub mod job_status;
pub mod lease_failures;
pub mod needs;
pub mod opened_store;
pub mod other_stores;
pub mod outer_run;
pub mod past_runs;
pub mod slow_store_notice;
pub mod target_args;
pub mod times;

pub use holder::{held_by, names};
pub use lease_failures::{LeasePurpose, bad_record, name, not_started, store_failed, unconfirmed};
pub use opened_store::{OpenedStore, open, open_tested, remember_store, timing, warn_unremembered};
#[cfg(feature = "http")]
pub use opened_store::{open_for, tested};
pub use outer_run::{is_on_the_runs_store, within};
pub use slow_store_notice::SlowStoreNotice;
pub use times::{held_for, now};

pub use crate::exit::by_kind;
