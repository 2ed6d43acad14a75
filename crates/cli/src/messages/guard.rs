//! `leasehold guard`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

/// What `guard` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue { name: "guard", about: "`leasehold guard`.", entries: &[NOTES] };

notes! {
    installed(target, remarks, sessions)
        "{target} is guarded{remarks}; {sessions}. Fence it: leasehold run NAME --fence '{target}' -- COMMAND";
    others_write(sessions) "{sessions} that belong to no run may write as before";
    others_refused(sessions) "{sessions} that belong to no run are refused";
    removed(target, remarks) "the guard of {target} was removed{remarks}. Nothing is fenced there any more";
    remark(text) "; {text}";
    partly_guarded(target, others)
        "not every table is guarded, so direct writes to the others are not fenced. Run: leasehold guard \
         install '{target}' --others {others}";
    never_fenced() "never fenced; a run with --fence fences it";
    fence(lease, token, mode, accepted) "lease {lease}, token {token}, {mode}{accepted}";
    bad_fence(why) "not readable ({why}): every run is refused until it is restored";
    table(name, state) "{name}: {state}";
}
