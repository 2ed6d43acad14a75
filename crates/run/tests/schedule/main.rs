//! The schedule evaluator against a naive one: every time zone, ten years, and around each change of a clock
//! every minute. Evaluators that are broken on purpose show that the checks would notice.
//!
//! `LEASEHOLD_LONG=1` looks at every minute of the ten years; `LEASEHOLD_SEED=n` replays one random pattern.

mod catch_up;
mod checks;
mod mutants;
mod names;
mod oracle;
mod patterns;
mod random;
mod table;
mod zones;
