//! Checks with many callers at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use leasehold_core::ids::WriteId;

use super::{BrokenRule, Effort, Harness, StoreHandle, ensure, fresh};
use crate::clock::boot_time;
use crate::stores::{Cas, Version};

const KEY: &str = "leases/raced";

/// The least number of rounds, even if there is no time left.
const LEAST: usize = 3;

/// One attempt of one thread.
type Attempt = (WriteId, Cas);

/// In each round many writers create one record at once, and exactly one wins.
pub fn racing_creates(harness: &Harness) -> Result<(), BrokenRule> {
    race_to_create(harness).map(drop)
}

/// The same; gives the number of rounds.
pub fn race_to_create(harness: &Harness) -> Result<usize, BrokenRule> {
    race(harness, &|_| Ok(None), &|round| format!("leases/raced/{round}"))
}

/// In each round many writers update one version at once, and exactly one wins.
pub fn racing_updates(harness: &Harness) -> Result<(), BrokenRule> {
    race_to_update(harness).map(drop)
}

/// The same; gives the number of rounds.
pub fn race_to_update(harness: &Harness) -> Result<usize, BrokenRule> {
    harness.open().write(KEY, None, b"start")?;
    race(harness, &|store| Ok(Some(store.get(KEY)?.version)), &|_| KEY.into())
}

/// Reads the version that the attempts of a round expect, before the first of them.
type Expect<'a> = &'a (dyn Fn(&mut StoreHandle) -> Result<Option<Version>, BrokenRule> + Sync);

fn race(
    harness: &Harness,
    expect: Expect<'_>,
    key: &(dyn Fn(usize) -> String + Sync),
) -> Result<usize, BrokenRule> {
    let races = harness.effort;
    let barrier = Barrier::new(races.writers);
    let over = AtomicBool::new(false);
    let run = |mut store: StoreHandle| -> Result<Vec<Attempt>, BrokenRule> {
        let mut attempts = Vec::new();
        let mut fault = None;
        for round in 0..races.rounds {
            // A thread with a fault must go on, because the others wait for it at the barrier.
            let expected = expect(&mut store);
            barrier.wait();
            let attempt = expected.and_then(|expected| {
                let write = fresh()?;
                let body = write.to_string();
                let got = store.cas_as(&key(round), expected.as_ref(), write, body.as_bytes())?;
                Ok((write, got))
            });
            match attempt {
                Ok(attempt) => attempts.push(attempt),
                Err(e) => fault = Some(e),
            }
            if round + 1 >= LEAST && races.until.is_some_and(|until| boot_time() >= until) {
                over.store(true, Ordering::SeqCst);
            }
            // No thread sets it between these two, so all leave after the same round.
            barrier.wait();
            let leave = over.load(Ordering::SeqCst);
            barrier.wait();
            if leave {
                break;
            }
        }
        fault.map_or(Ok(attempts), Err)
    };
    judge(harness, &on_threads(harness, &run)?, key)
}

/// Checks every round; gives the worst result.
fn judge(
    harness: &Harness,
    all: &[Vec<Attempt>],
    key: &dyn Fn(usize) -> String,
) -> Result<usize, BrokenRule> {
    let rounds = all.first().map_or(0, Vec::len);
    let of_round = |round: usize| all.iter().map(move |thread| &thread[round]);
    let winners: Vec<usize> = (0..rounds)
        .map(|round| of_round(round).filter(|a| matches!(a.1, Cas::Written { .. })).count())
        .collect();
    let many = winners.iter().filter(|won| **won > 1).count();
    if many > 0 {
        let (most, writers) = (winners.iter().max().unwrap_or(&0), all.len());
        let text = format!(
            "{most} of {writers} writers won the same round; {many} of {rounds} rounds had more than one winner."
        );
        return Err(BrokenRule { many_winners: true, ..text.into() });
    }
    let mut store = harness.open();
    for (round, won) in winners.iter().enumerate() {
        let attempts: Vec<&Attempt> = of_round(round).collect();
        let unsure = attempts.iter().any(|a| matches!(a.1, Cas::Unknown(_)));
        ensure(*won == 1 || unsure, || {
            format!("In round {round} all of {} writers were told that another one won.", attempts.len())
        })?;
        // Only the last round of a raced update can still be read.
        if round + 1 == rounds || key(round) != key(rounds - 1) {
            stored_by_winner(round, &attempts, &store.get(&key(round))?.body)?;
        }
    }
    // A store that never answers proves nothing.
    let silent = || all.iter().flatten().find_map(|(_, got)| matches!(got, Cas::Unknown(_)).then_some(got));
    match silent() {
        Some(got) if winners.iter().all(|won| *won == 0) => {
            Err(BrokenRule::answer("Every write of a race", got))
        }
        _ => Ok(rounds),
    }
}

fn stored_by_winner(round: usize, attempts: &[&Attempt], body: &[u8]) -> Result<(), BrokenRule> {
    let owner = attempts.iter().find(|(write, _)| write.to_string().as_bytes() == body);
    let won = attempts.iter().any(|(_, cas)| matches!(cas, Cas::Written { .. }));
    let good = match owner.map(|(_, cas)| cas) {
        Some(Cas::Written { .. }) => true,
        Some(Cas::Unknown(_)) => !won,
        Some(Cas::Conflict) | None => false,
    };
    ensure(good, || format!("In round {round}, what is stored is not what the winner wrote."))
}

/// Writers that read, add a line and retry on conflict lose no line and add none twice.
pub fn no_lost_update(harness: &Harness) -> Result<(), BrokenRule> {
    let Effort { writers, lines: wanted, until, .. } = harness.effort;
    harness.open().write(KEY, None, b"")?;
    let run = |mut store: StoreHandle| -> Result<Vec<Attempt>, BrokenRule> {
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut added = 0;
        while added < wanted && until.is_none_or(|until| boot_time() < until) {
            // Every conflict is the success of another writer, so there cannot be this many.
            ensure(attempts.len() <= 2 * wanted * writers, || "A writer met conflicts without end.".into())?;
            let before = store.get(KEY)?;
            let write = fresh()?;
            let mut body = before.body;
            body.extend_from_slice(format!("{write}\n").as_bytes());
            let got = store.cas_as(KEY, Some(&before.version), write, &body)?;
            added += usize::from(got != Cas::Conflict);
            attempts.push((write, got));
        }
        Ok(attempts)
    };
    let attempts = on_threads(harness, &run)?.concat();
    let body = String::from_utf8_lossy(&harness.open().get(KEY)?.body).into_owned();
    let lines: Vec<&str> = body.lines().collect();
    for (write, got) in &attempts {
        let times = lines.iter().filter(|line| **line == write.to_string()).count();
        let good = match got {
            Cas::Written { .. } => times == 1,
            Cas::Conflict => times == 0,
            Cas::Unknown(_) => times <= 1,
        };
        ensure(good, || {
            let told = match got {
                Cas::Written { .. } => "acknowledged",
                Cas::Conflict => "refused",
                Cas::Unknown(_) => "not answered",
            };
            format!("A write that was {told} is stored {times} times: updates are lost, or land twice.")
        })?;
    }
    ensure(lines.len() <= attempts.len(), || "More lines are stored than were written.".into())
}

/// Runs `run` on every thread with a handle of its own.
fn on_threads<T: Send>(
    harness: &Harness,
    run: &(dyn Fn(StoreHandle) -> Result<Vec<T>, BrokenRule> + Sync),
) -> Result<Vec<Vec<T>>, BrokenRule> {
    // Opened before any thread starts: if one could not be opened later, the others would wait for its thread.
    let handles: Vec<StoreHandle> = (0..harness.effort.writers).map(|_| harness.open()).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = handles.into_iter().map(|handle| scope.spawn(|| run(handle))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err("A thread of the race panicked.".into())))
            .collect()
    })
}
