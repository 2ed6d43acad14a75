//! Many writers, many rounds: one winner each.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use leasehold::core::ids::WriteId;
use leasehold::stores::{Cas, Version};
use leasehold_testkit::race::{Meeting, Raced};
use leasehold_testkit::{count, server};

use super::{GcsDouble, Spot, alone, fresh_prefix};

const WRITERS: usize = 32;
const KEY: &str = "leases/raced";

/// Every round all writers replace the version that won the round before. The first round is a create.
fn one_winner_each_round(spot: &Spot) {
    let _alone = alone();
    let rounds = count(200, 5_000);
    let raced = Raced::begin(spot.scheme, WRITERS, rounds);
    let prefix = fresh_prefix();
    let barrier = Meeting::new(WRITERS);
    let winner = Mutex::new(Vec::<Version>::new());
    let unclear = Mutex::new(Vec::<String>::new());
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let (barrier, winner, unclear, prefix) = (&barrier, &winner, &unclear, &prefix);
            scope.spawn(move || {
                let mut store = spot.open(prefix);
                for round in 0..rounds {
                    // All have seen the end of the round before.
                    barrier.wait();
                    if number == 0 {
                        raced.reached(round);
                    }
                    let expected = winner.lock().unwrap().last().cloned();
                    barrier.wait();
                    let write = WriteId(leasehold::random::seed());
                    let got = pollster::block_on(store.cas(KEY, expected.as_ref(), write, b"mine"));
                    match got {
                        Cas::Written { version, .. } => winner.lock().unwrap().push(version),
                        Cas::Conflict => {}
                        // Goes on meeting the others, who would wait for ever.
                        Cas::Unknown(f) => {
                            unclear.lock().unwrap().push(format!("round {round}: {}", f.message))
                        }
                    }
                }
            });
        }
    });
    assert_eq!(unclear.into_inner().unwrap(), [""; 0]);
    let won = winner.into_inner().unwrap();
    assert_eq!(won.len(), rounds, "more or fewer winners than rounds");
    let distinct: BTreeSet<_> = won.iter().collect();
    assert_eq!(distinct.len(), rounds, "a version came twice");
    let last = pollster::block_on(spot.open(&prefix).read(KEY)).unwrap().unwrap().version;
    assert_eq!(Some(&last), won.last());
    println!("{raced}");
}

#[test]
fn s3() {
    one_winner_each_round(&Spot::s3(&server("S3")));
}

#[test]
fn azure() {
    one_winner_each_round(&Spot::azure(&server("AZURE")));
}

#[test]
fn google_protocol() {
    let double = GcsDouble::start();
    one_winner_each_round(&Spot::google(&double));
}
