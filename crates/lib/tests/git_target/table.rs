//! Core's table against a real repository.

use std::collections::HashMap;
use std::fs;

use leasehold::backends::git::{BranchUpdate, FENCE_REF, GitTarget};
use leasehold::core::fence::{Bearer, Fence, FenceMode, FenceOffer, FenceVerdict};
use leasehold::core::fence_record::FenceRecord;
use leasehold::targets::conformance::{OLD, TargetBench, replay, some_of_each_kind, whole};
use leasehold::targets::{Class, Content, Sealed, Target, TargetError, Written};
use leasehold_testkit::git::{Yard, must};

use crate::kit::{at, commit, plant, yard};

const MAIN: &str = "refs/heads/main";

/// Bytes stand for commits that say them.
#[derive(Debug)]
struct Pushing {
    target: GitTarget,
    commits: HashMap<String, String>,
}

impl Target for Pushing {
    fn shown(&self) -> &str {
        self.target.shown()
    }

    fn class(&self) -> Class {
        self.target.class()
    }

    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        self.target.seal(bearer, mode)
    }

    fn write(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        content: Content<'_>,
    ) -> Result<Written, TargetError> {
        let Content::Bytes(bytes) = content else { panic!("bytes only") };
        let oid = &self.commits[std::str::from_utf8(bytes).unwrap()];
        self.target.push(bearer, seq, BranchUpdate::Forced, &[(MAIN, oid)])
    }

    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
        self.target.show()
    }

    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError> {
        self.target.set_mode(mode)
    }
}

struct GitBench {
    yard: Yard,
    pushing: Pushing,
}

impl GitBench {
    fn new() -> Self {
        let yard = yard();
        let texts = [OLD, "", "d", "d1", "d2", "d3", "x"];
        let commits: HashMap<String, String> =
            texts.iter().map(|text| ((*text).into(), commit(text))).collect();
        let bare = yard.bare();
        for (number, oid) in commits.values().enumerate() {
            must(
                crate::kit::workshop(),
                &["push", "-q", bare.to_str().unwrap(), &format!("{oid}:refs/keep/{number}")],
            );
        }
        let target = at(&yard);
        Self { yard, pushing: Pushing { target, commits } }
    }
}

impl TargetBench for GitBench {
    fn install(&mut self, stored: Option<&FenceRecord>, content: &str) -> Option<Fence> {
        match stored {
            Some(record) => drop(plant(&self.yard, FENCE_REF, &record.encode())),
            None => drop(fs::remove_file(self.yard.bare().join(FENCE_REF))),
        }
        fs::write(self.yard.bare().join(MAIN), format!("{}\n", self.pushing.commits[content])).unwrap();
        stored.map(|record| record.fence.clone())
    }

    fn content(&mut self) -> String {
        let oid = fs::read_to_string(self.yard.bare().join(MAIN)).unwrap();
        let found = self.pushing.commits.iter().find(|(_, commit)| **commit == oid.trim());
        found.map(|(text, _)| text.clone()).unwrap()
    }

    fn target(&mut self) -> &mut dyn Target {
        &mut self.pushing
    }

    fn digest(&self, content: &str) -> String {
        GitTarget::digest([(MAIN, self.pushing.commits[content].as_str())])
    }
}

#[test]
fn the_rule_is_kept_case_by_case() {
    let mut bench = GitBench::new();
    let long = std::env::var_os("LEASEHOLD_LONG").is_some();
    let mut cases = if long { whole() } else { some_of_each_kind(1) };
    if !long {
        // Every answer to every kind of offer in each mode, and some more; the rest takes minutes.
        let (mut count, mut seen) = (0, std::collections::BTreeSet::new());
        cases.retain(|case| {
            count += 1;
            let seal = matches!(case.offer, FenceOffer::Seal(_));
            let verdict = match &case.verdict {
                FenceVerdict::Accept(_) => "accept".into(),
                FenceVerdict::Repeat => "repeat".into(),
                FenceVerdict::Refuse(reason) => format!("refuse {}", reason.word()),
                FenceVerdict::LetIn(reason, _) => format!("let in {}", reason.word()),
            };
            seen.insert((case.stored.as_ref().map(|fence| fence.mode == FenceMode::Observe), seal, verdict))
                || count % 16 == 1
        });
    }
    let replayed = replay(&mut bench, &cases);
    println!("replayed {replayed} cases");
    assert!(replayed >= 40, "{replayed}");
}
