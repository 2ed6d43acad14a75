//! Checks with many callers at once.

use std::sync::Barrier;
use std::thread;

use leasehold_core::ids::WriteId;

use super::{Broken, Handle, Harness, ensure, fresh};
use crate::stores::{Cas, Version};

const THREADS: usize = 32;
const ROUNDS: usize = 20;
const KEY: &str = "leases/raced";

/// One attempt of one thread.
type Attempt = (WriteId, Cas);

/// Of many creates at once, exactly one wins, round after round.
pub fn racing_creates(harness: &Harness) -> Result<(), Broken> {
    race(harness, &|_| Ok(None), &|round| format!("leases/raced/{round}"))
}

/// Of many updates off one version, exactly one wins, round after round.
pub fn racing_updates(harness: &Harness) -> Result<(), Broken> {
    harness.open().write(KEY, None, b"start")?;
    race(harness, &|store| Ok(Some(store.get(KEY)?.version)), &|_| KEY.into())
}

/// What the attempts of a round expect, read before any of them is made.
type Expect<'a> = &'a (dyn Fn(&mut Handle) -> Result<Option<Version>, Broken> + Sync);

fn race(harness: &Harness, expect: Expect<'_>, key: &(dyn Fn(usize) -> String + Sync)) -> Result<(), Broken> {
    let barrier = Barrier::new(THREADS);
    let run = |mut store: Handle| -> Result<Vec<Attempt>, Broken> {
        let mut attempts = Vec::new();
        let mut fault = None;
        for round in 0..ROUNDS {
            // A thread that met a fault goes on meeting the others at the barrier.
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
            barrier.wait();
        }
        fault.map_or(Ok(attempts), Err)
    };
    let all = on_threads(harness, &run)?;
    let mut store = harness.open();
    let last = store.get(&key(ROUNDS - 1))?.body;
    for round in 0..ROUNDS {
        let attempts: Vec<&Attempt> = all.iter().map(|thread| &thread[round]).collect();
        one_winner(round, &attempts)?;
        let body = if key(round) == key(ROUNDS - 1) {
            // Only the last round of a raced update can still be read.
            (round == ROUNDS - 1).then(|| last.clone())
        } else {
            Some(store.get(&key(round))?.body)
        };
        if let Some(body) = body {
            stored_by_winner(round, &attempts, &body)?;
        }
    }
    Ok(())
}

fn one_winner(round: usize, attempts: &[&Attempt]) -> Result<(), Broken> {
    let count = |wanted: fn(&Cas) -> bool| attempts.iter().filter(|a| wanted(&a.1)).count();
    let won = count(|cas| matches!(cas, Cas::Written { .. }));
    let unsure = count(|cas| matches!(cas, Cas::Unknown(_)));
    ensure(won == 1 || (won == 0 && unsure > 0), || {
        format!("In round {round}, {won} of {THREADS} attempts on one version were told that they won.")
    })
}

fn stored_by_winner(round: usize, attempts: &[&Attempt], body: &[u8]) -> Result<(), Broken> {
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
pub fn no_lost_update(harness: &Harness) -> Result<(), Broken> {
    const LINES: usize = 6;
    harness.open().write(KEY, None, b"")?;
    let run = |mut store: Handle| -> Result<Vec<Attempt>, Broken> {
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut added = 0;
        while added < LINES {
            // Every conflict is somebody else's success, so this many cannot be.
            ensure(attempts.len() <= 2 * LINES * THREADS, || "A writer met conflicts without end.".into())?;
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
        ensure(good, || format!("A write that gave {got:?} is stored {times} times."))?;
    }
    ensure(lines.len() <= attempts.len(), || "More lines are stored than were written.".into())
}

/// Runs `run` on every thread with a handle of its own.
fn on_threads<T: Send>(
    harness: &Harness,
    run: &(dyn Fn(Handle) -> Result<Vec<T>, Broken> + Sync),
) -> Result<Vec<Vec<T>>, Broken> {
    // Opened before any thread starts: one that could not open would leave the others waiting.
    let handles: Vec<Handle> = (0..THREADS).map(|_| harness.open()).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = handles.into_iter().map(|handle| scope.spawn(|| run(handle))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err("A thread of the race panicked.".into())))
            .collect()
    })
}
