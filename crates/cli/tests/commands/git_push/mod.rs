//! Pushing under a fence, with the real binary and real git: frozen writers, and a job that knows only git.
#![cfg(target_os = "linux")]

mod controls;
mod fences;
mod frozen;
mod kit;
mod manners;
mod names;
mod past;
mod publishing;
