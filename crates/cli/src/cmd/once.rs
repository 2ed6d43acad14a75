//! `leasehold once KEY -- CMD`: a run whose lease is named after its key.

use leasehold::core::name::Name;
use leasehold::ledger;
use leasehold::messages::Explanation;
use leasehold_run::placeholders::{Moment, filled, literal};

use super::{item_args, run};
use crate::args::{Everywhere, OnceArgs, RunArgs};
use crate::exit::Failed;
use crate::messages::once as say;
use crate::out::Out;

/// Runs it.
pub fn run(flags: &Everywhere, args: &OnceArgs, out: &Out) -> Result<u8, Failed> {
    let key = key(args)?;
    let once = RunArgs {
        name: ledger::lease_of(&key).to_string(),
        manner: args.manner.clone(),
        or: Vec::new(),
        run_id: None,
        observe: false,
        no_history: false,
        // Filled in once: a run at midnight keeps its key.
        key: Some(literal(&key)),
        slot: None,
        cooldown: None,
        doing: args.doing,
        command: args.command.clone(),
    };
    run::run(flags, &once, out)
}

/// The key with its date filled in; there is no lease and no job to name it after.
fn key(args: &OnceArgs) -> Result<String, Failed> {
    for word in ["{lease}", "{job}", "{slot}"] {
        if args.key.contains(word) {
            return Err(say::not_in_a_key(word));
        }
    }
    let nobody = Name::new("once").map_err(|e| Failed::usage(Explanation::of(e)))?;
    let key = filled(&args.key, &nobody, &nobody, &Moment::at(super::now()))?;
    item_args::checked(key)
}
