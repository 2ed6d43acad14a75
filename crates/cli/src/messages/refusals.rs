//! Why a write was refused that the run log tells of.

use std::fmt::Display;

use leasehold::core::fence::RefusalReason;
#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

/// What they share.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "refusals",
    about: "Shared by `check`, `why`, the pictures, the dashboard and alerts: why a write was refused.",
    entries: &[NOTES],
};

notes! {
    newer_run() "a run tried to write after a newer one had taken over";
    not_named(target) "that run did not name {target}; name it with --fence";
    other_lease() "it belongs to another lease";
    other_reason(reason) "the reason is {reason}";
}

/// Whether a record says that a newer run had taken over.
pub fn is_stale(reason: Option<&str>) -> bool {
    reason.and_then(RefusalReason::parse) == Some(RefusalReason::Stale)
}

/// In words, what a record has as the reason.
pub fn because(reason: Option<&str>, target: impl Display) -> String {
    match reason.and_then(RefusalReason::parse) {
        Some(RefusalReason::Stale) => newer_run(),
        Some(RefusalReason::NotSealed) => not_named(target),
        Some(RefusalReason::OtherLease) => other_lease(),
        _ => other_reason(reason.unwrap_or("?")),
    }
}
