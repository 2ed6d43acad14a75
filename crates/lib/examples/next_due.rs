//! When ten thousand jobs are due next: as a scheduler asks, and the bare patterns, in turns.

use std::hint::black_box;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold::clock::boot_time;
use leasehold::schedule::{Cron, Policy, Schedule};

const JOBS: usize = 10_000;
const TURNS: usize = 15;
const BAR: f64 = 1.2;

/// One job: its own schedule beside what else a job has.
struct Job {
    schedule: Schedule,
    wake: Option<i64>,
    _rest: [u64; 64],
}

fn pattern(n: usize) -> String {
    format!("{} {} * * {}", n % 60, n / 60 % 24, ["*", "MON-FRI", "5L", "1#2"][n % 4])
}

/// In nanoseconds.
fn took(act: impl FnOnce()) -> u128 {
    let begun = boot_time();
    act();
    boot_time().since(begun).as_nanos()
}

fn main() -> std::process::ExitCode {
    let zone = TimeZone::get("Europe/Berlin").unwrap_or(TimeZone::UTC);
    let schedule =
        |n: usize| Cron::parse(&pattern(n)).map(|cron| Schedule::cron(cron, zone.clone(), Policy::default()));
    let Ok(bare) = (0..JOBS).map(schedule).collect::<Result<Vec<_>, _>>() else {
        return std::process::ExitCode::FAILURE;
    };
    let job = |schedule: &Schedule| Job { schedule: schedule.clone(), wake: None, _rest: [0; 64] };
    let mut jobs: Vec<Job> = bare.iter().map(job).collect();
    let now = Timestamp::from_second(1_800_000_000).unwrap_or_default();
    let (mut raw, mut ours) = (u128::MAX, u128::MAX);
    for _ in 0..TURNS {
        raw = raw.min(took(|| {
            for schedule in &bare {
                black_box(schedule.next_after(black_box(now)));
            }
        }));
        ours = ours.min(took(|| {
            for job in &mut jobs {
                job.wake = job.schedule.next_after(black_box(now)).map(|slot| slot.due().as_millisecond());
            }
            black_box(jobs.iter().filter_map(|job| job.wake).min());
        }));
    }
    let ratio = ours as f64 / raw as f64;
    println!(
        "next due of {JOBS} jobs: {} µs; the bare patterns: {} µs; ratio {ratio:.2} (bar {BAR})",
        ours / 1000,
        raw / 1000
    );
    if ratio <= BAR { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
