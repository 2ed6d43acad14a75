//! Several at once.

use std::sync::Barrier;
use std::thread;

use leasehold::backends::git::BranchUpdate;
use leasehold::core::fence::{FenceMode, RefusalReason};
use leasehold::targets::{Target, TargetError};
use leasehold_testkit::git::{RepoAccess, Server};

use crate::kit::{bearer, commit, of, sealed, stored, target, yard};

/// Two leases want the same repository, which has no fence yet: one gets it, the other is told whose it is.
#[test]
fn the_first_seal_is_raced() {
    for way in [RepoAccess::File, RepoAccess::Http] {
        let yard = yard();
        let server = Server::start(way, yard.dir());
        let (url, barrier) = (server.url(), Barrier::new(2));
        let results: Vec<_> = thread::scope(|scope| {
            let one = |lease: &'static str| {
                let (url, barrier) = (&url, &barrier);
                scope.spawn(move || {
                    let mut target = target(url);
                    barrier.wait();
                    target.seal(&of(lease, 1), FenceMode::Enforce)
                })
            };
            let both = [one("a"), one("b")];
            both.map(|thread| thread.join().unwrap()).into()
        });
        let refused: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        let [TargetError::Refused(refused)] = refused[..] else { panic!("{way:?}: {results:?}") };
        assert_eq!(refused.reason, RefusalReason::OtherLease);
        assert_eq!(refused.fence.as_ref().map(|fence| &fence.lease), Some(&stored(&yard).fence.lease));
    }
}

/// Runs of one lease seal at once: the later token stays.
#[test]
fn the_later_token_stays() {
    let (yard, _) = sealed(1);
    let url = yard.bare().to_str().unwrap().to_owned();
    thread::scope(|scope| {
        for token in 2..=4 {
            let url = &url;
            scope.spawn(move || match target(url).seal(&bearer(token), FenceMode::Enforce) {
                Ok(_) => {}
                Err(TargetError::Refused(refused)) => assert_eq!(refused.reason, RefusalReason::Stale),
                Err(other) => panic!("{other}"),
            });
        }
    });
    assert_eq!(stored(&yard).fence.token.get(), 4);
}

/// Two pushes of one run at once: both land, one after the other.
#[test]
fn two_pushes_of_one_run() {
    let (yard, _) = sealed(5);
    let url = yard.bare().to_str().unwrap().to_owned();
    let (barrier, commits) = (Barrier::new(2), [commit("one"), commit("two")]);
    let mut numbers: Vec<u64> = thread::scope(|scope| {
        let push = |name: &'static str, oid: &'static str| {
            let (url, barrier) = (&url, &barrier);
            scope.spawn(move || {
                let mut target = target(url);
                target.show().unwrap();
                barrier.wait();
                target.push(&bearer(5), None, BranchUpdate::Forced, &[(name, oid)]).unwrap().seq
            })
        };
        let [one, two] = commits.clone().map(|oid| &*oid.leak());
        let both = [push("refs/heads/one", one), push("refs/heads/two", two)];
        both.map(|thread| thread.join().unwrap()).into()
    });
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    assert_eq!([yard.at("refs/heads/one"), yard.at("refs/heads/two")], commits);
    assert_eq!(stored(&yard).fence.seq, 2);
}
