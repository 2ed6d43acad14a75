//! Every stored state of a fence against every offer.

use alloc::vec::Vec;

use super::{Bearer, Fence, FenceMode, FenceOffer, FenceVerdict, JUMP_MAX, verdict};
use crate::ids::{Epoch, Grant, Token};
use crate::name::Name;

/// One case of the verdict table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceCase {
    /// The fence of the target.
    pub stored: Option<Fence>,
    /// The writer.
    pub bearer: Bearer,
    /// Its offer.
    pub offer: FenceOffer,
    /// The answer that the target must give.
    pub verdict: FenceVerdict,
}

/// Every stored state against every offer, to be replayed against targets that run a copy of the rule.
pub fn table() -> Vec<FenceCase> {
    let mut cases = Vec::new();
    for stored in stored_states() {
        for bearer in bearers() {
            for offer in offers() {
                let verdict = verdict(stored.as_ref(), &bearer, &offer);
                cases.push(FenceCase { stored: stored.clone(), bearer: bearer.clone(), offer, verdict });
            }
        }
    }
    cases
}

fn lease(text: &str) -> Option<Name> {
    Name::new(text).ok()
}

fn stored_states() -> Vec<Option<Fence>> {
    let mut states = alloc::vec![None];
    let writes = [(0, "", true), (1, "d1", true), (1, "d1", false), (2, "d2", true)];
    for generation in [1, 2] {
        for token in [1, 5, Token::MAX] {
            for (seq, digest, done) in writes {
                let (Some(lease), Some(token)) = (lease("site"), Token::new(token)) else {
                    continue;
                };
                let epoch = Epoch { generation, id: 7 };
                let digest = digest.into();
                let (mode, let_in) = (FenceMode::Enforce, 0);
                let grant = Grant(50);
                let fence = Fence { lease, epoch, token, grant, seq, digest, done, mode, let_in };
                // The mode does not depend on the epoch, so one generation is enough.
                let watching = Fence { mode: FenceMode::Observe, let_in: 3, ..fence.clone() };
                states.extend((generation == 1).then_some(Some(watching)));
                states.push(Some(fence));
            }
        }
    }
    states
}

fn bearers() -> Vec<Bearer> {
    let mut bearers = Vec::new();
    let epochs = [(1, 7), (1, 8), (2, 7), (3, 9)];
    for name in ["site", "other"] {
        for (generation, id) in epochs {
            for token in [1, 4, 5, 6, 5 + JUMP_MAX, 6 + JUMP_MAX, Token::MAX] {
                for grant in [50, 60] {
                    let (Some(lease), Some(token)) = (lease(name), Token::new(token)) else {
                        continue;
                    };
                    bearers.push(Bearer {
                        lease,
                        epoch: Epoch { generation, id },
                        token,
                        grant: Grant(grant),
                    });
                }
            }
        }
    }
    bearers
}

fn offers() -> Vec<FenceOffer> {
    let write = |seq, digest: &str| FenceOffer::Write { seq, digest: digest.into() };
    alloc::vec![
        FenceOffer::Seal(FenceMode::Enforce),
        FenceOffer::Seal(FenceMode::Observe),
        write(0, ""),
        write(1, "d1"),
        write(1, "x"),
        write(2, "d2"),
        write(2, "x"),
        write(3, "d3"),
        write(u64::MAX, "d"),
    ]
}
