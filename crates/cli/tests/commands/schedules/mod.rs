//! The jobs of leasehold.toml, carried out by real schedulers: what is due is run once, oldest first, and what is
//! not run is told.
#![cfg(target_os = "linux")]

mod accounts;
mod again;
mod clocks;
mod ends;
pub mod handoff;
mod input;
pub mod kit;
mod long;
mod many;
mod missed;
mod own;
mod paused;
mod secrets;
mod switch;
mod told;
mod triggered;
