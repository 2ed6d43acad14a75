//! The pages. Each works without a script; the script only keeps them up to date.

mod histogram;
mod job;
mod jobs;
mod log;
mod matters;
mod now;
mod parts;
mod timeline;

pub use job::{WINDOW as JOB_WINDOW, job};
pub use jobs::jobs;
pub use log::{log, read as read_log};
pub use matters::told;
pub use now::{content as now_content, now};
pub use parts::{Kept, nothing_here, state, text};
pub use timeline::{read as read_timeline, timeline};
