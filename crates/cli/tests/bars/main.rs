//! The bars: what the product promises, measured on the real binary.
//!
//! The binary is the one that `LEASEHOLD_BIN` names, else the one cargo built. Each test keeps its
//! state in a directory of its own and ends what it started by recorded pid.

mod common;
mod counts;
mod crash;
mod lost;
mod restarts;
mod round;
