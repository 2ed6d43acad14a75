//! Targets behind a network: the table of core, zombies frozen in flight, lost answers, odd fences, and
//! for each the variant that must leak.

mod examined;
mod firestore;
mod kit;
mod manners;
mod objects;
mod redis;
mod zombies;
