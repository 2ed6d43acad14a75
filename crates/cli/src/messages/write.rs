//! `leasehold write`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What `write` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "write", about: "`leasehold write`.", entries: &[NOTES, FAILURES, EXPLANATIONS] };

notes! {
    wrote(target, token, number) "wrote {target} (token {token}, write {number})";
    /// The answer to a retry.
    repeated(target, number) "{target} already has this write (number {number})";
    would_be_refused(what) "this write {what}";
    exited(code) "exited with {code}";
    signalled(signal) "was ended by signal {signal}";
    no_output() "the output of the command cannot be read";
}

failures! {
    unreadable(path, why) Usage "from" { "cannot read {path}: {why}" "Nothing was written" "" }
    empty(target) Usage "empty"
        { "standard input was empty" "Nothing was written to {target}"
          "To write what a command prints if it succeeds: leasehold write {target} -- CMD. \
           To empty the target: leasehold write {target} --from /dev/null" }
}

explanations! {
    /// The command was not found, or cannot be executed.
    no_command(why) { "{why}" "Nothing was written" "" }
    command_failed(command, how, target)
        { "the command {command} {how}"
          "Nothing was written to {target}, because the output of the command may be incomplete" "" }
}
