//! `leasehold help`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `help` says; the help of each command stands with its flags in `args.rs`.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "help",
    about: "`leasehold help`, `leasehold help exit-codes` and `leasehold man`.",
    entries: &[NOTES, FAILURES],
};

notes! {
    /// `--token`.
    bad_token(text) "{text} is not a token: a token is a whole number from 1 to 2^53 - 1";

    /// `run -- COMMAND`.
    read_as_name(word)
        "the first word, {word}, was read as NAME, so no command is left. Give the lease a name: leasehold run \
         NAME -- {word}";

    exit_codes() "The exit code is that of the command if it ran to its end. Otherwise:";
    exit_0()
        "skipped, because the lease is held, or the item is done or cooling down (-E CODE for another code)";
    exit_1() "tick: a run failed, was lost or could not be started, or the store stopped answering";
    exit_11() "the lease is held (acquire, break, fence reset); adopt: a job of the lease still runs here";
    exit_64() "usage: the command line is wrong, or names something unknown";
    exit_69() "the store or a target cannot be reached";
    exit_75() "the lease was lost, and the job was stopped or not started; or renew found that it was lost";
    exit_76() "a write, a step or a start at a gate was refused: a later run has taken over, or this one did not name the target";
    exit_77() "permission or credentials";
    exit_78() "configuration, a bad URL or path, an unsafe store, the wrong store";
    exit_79() "a person must decide: outcome unknown, failed too often, or the store was rewound";
    exit_126() "the command cannot be executed";
    exit_127() "the command was not found";
    exit_128() "signal n ended the command; if --max-run did, it is 143 or 137, and `killed` in --report";
    exit_codes_of_commands()
        "A command may itself exit with one of these numbers; `run --json` and `--report-append FILE` tell which it was.";
}

failures! {
    no_command(name) Usage "usage" { "there is no command {name}" "" "See: leasehold --help" }
}
