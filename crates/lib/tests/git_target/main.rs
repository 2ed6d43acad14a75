//! A git repository as a target, for real: git itself, over paths and HTTP, races and servers that say no.
#![cfg(target_os = "linux")]

mod hook;
mod kit;
mod liars;
mod lost;
mod nest;
mod races;
mod table;
mod trouble;
