//! The rules of Leasehold, and nothing else.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod ids;
pub mod name;
pub mod record;
pub mod store;
pub mod time;
