//! What a page costs where the log is long.

use std::time::Duration;

use leasehold::clock;
use leasehold::core::run_log::{LogEvent, LogRecord};
use leasehold::run_log::{Scope, Window, each, newest};

use super::Board;
use super::night::{log, open, run};
use crate::world::{World, long};

/// The median of five.
fn median(mut measure: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..5)
        .map(|_| {
            let begun = clock::boot_time();
            measure();
            clock::boot_time().since(begun)
        })
        .collect();
    times.sort_unstable();
    times[2]
}

/// The first byte comes no later than twice the time that the store takes for its records.
#[test]
fn a_long_log_costs_what_the_store_takes() {
    let many = if long() { 100_000 } else { 20_000 };
    for days in [1, 90] {
        let world = World::new();
        let url = world.store("sqlite");
        let now = clock::wall().as_secs();
        let step = days * 86_000 / many;
        let records: Vec<LogRecord> = (0..many)
            .map(|n| {
                let at = now - n * step - n % 7;
                run(at, LogEvent::Ok, &format!("job-{}", n % 20), "vm", 1_000_000 - n, 3)
            })
            .collect();
        log(&url, &records);
        let mut store = open(&url);
        let week = Window::last(Duration::from_secs(7 * 86_400));
        let page = median(|| {
            let found = newest(store.as_mut(), Scope::All, week, 50, |_| true).unwrap();
            assert_eq!((found.0.len(), found.1), (50, true));
        });
        let all = median(|| {
            let mut found = 0;
            each(store.as_mut(), Scope::All, week, 1_000, |_| {
                found += 1;
                true
            })
            .unwrap();
            assert!(found >= many / days);
        });
        let board = Board::of(world, url, &[]);
        let list = median(|| drop(board.get("/log").is(200)));
        // Only the first look of a server reads all of the week.
        let now = (0..3).map(|_| {
            let fresh = Board::of(World::new(), board.url.clone(), &[]);
            let begun = clock::boot_time();
            fresh.get("/").is(200);
            clock::boot_time().since(begun)
        });
        let now = now.min().unwrap();
        eprintln!("{days} days: Log {list:?} (store {page:?}), Now {now:?} (store {all:?})");
        // What a page costs in itself is little, and on a busy machine not nothing.
        let itself = Duration::from_millis(50);
        assert!(list <= page * 2 + itself, "{days} days: Log {list:?}, the store alone {page:?}");
        assert!(now <= all * 2 + itself, "{days} days: Now {now:?}, the store alone {all:?}");
    }
}
