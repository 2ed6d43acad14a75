//! `leasehold fence`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `fence` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "fence", about: "`leasehold fence`.", entries: &[NOTES, FAILURES] };

notes! {
    nothing_fenced() "your runs have fenced no target on this machine yet. A run fences the targets that --fence names";
    never_fenced() "never fenced";
    no_password()
        "Leasehold does not keep the password of this target. To see its fence, name the target with its password";
    nothing_observed() "your runs have observed nothing on this machine yet. A run with --observe takes notes";
    observed(time, job, code, seen) "{time}  {job}  exit {code}  {seen}";
    no_overlap() "no overlap seen";
    no_fence(target) "{target} has no fence, so there is nothing to reset";
    holder_unknown(lease, why) "it is unknown whether {lease} is held: {why}";
    reset(target, lease, token, typed)
        "the fence of {target} was reset (lease {lease}, token {token}). Writes with a token are refused until \
         a run fences it again: leasehold run {lease} --fence {typed} -- COMMAND";
    enforces(target) "{target} refuses stale writes from now on";
    observes(target)
        "{target} accepts stale writes from now on and counts them, until a run with --fence and without \
         --observe names it";
}

failures! {
    no_notes(path, why) Unreachable "state" { "cannot read {path}: {why}" "" "" }
    held(lease, target) Busy "busy"
        { "{lease} is held, and its run may be writing {target}" "Nothing was reset"
          "Wait until the run has ended: leasehold status {lease}" }
}
