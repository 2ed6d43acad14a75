//! Ten thousand jobs.

use std::fmt::Write;
use std::time::Duration;

use leasehold::clock::boot_time;

use super::kit::{Site, drained};
use crate::world::{pause, until};

const MANY: usize = 10_000;

/// Daily jobs, none of which is due within the hour.
fn daily() -> String {
    let hour = (super::kit::now().div_euclid(3600) + 12).rem_euclid(24);
    let mut text = String::from("timezone = \"UTC\"\n");
    for n in 0..MANY {
        let minute = n % 60;
        let _ =
            write!(text, "[[job]]\nname = \"job-{n}\"\ncron = \"{minute} {hour} * * *\"\nrun = [\"true\"]\n");
    }
    text
}

/// Time on a processor in hundredths of a second, and how often it went to sleep.
fn spent(pid: u32) -> (u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let slept = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    (ticks, slept.trim().parse().unwrap())
}

#[test]
fn they_are_taken_quickly_and_cost_nothing_until_they_are_due() {
    let site = Site::new();
    site.jobs("a", &daily());
    for (which, said) in [("first", "daemon.new_jobs"), ("second", "")] {
        let begun = boot_time();
        site.tick("a").is(0, said);
        println!("{MANY} jobs, {which} tick: {:?}", boot_time().since(begun));
    }
    let begun = boot_time();
    let daemon = site.daemon("a");
    println!("{MANY} jobs, a daemon is up after {:?}", boot_time().since(begun));
    let mut before = spent(daemon.pid());
    until("it rests", || {
        pause(Duration::from_millis(500));
        let now = spent(daemon.pid());
        (std::mem::replace(&mut before, now) == now).then_some(())
    });
    pause(Duration::from_secs(5));
    let after = spent(daemon.pid());
    println!(
        "idle for 5 s: {} ms on a processor, woken {} times",
        (after.0 - before.0) * 10,
        after.1 - before.1
    );
    assert!(after.0 - before.0 <= 5, "at most a hundredth of the time");
    assert_eq!(after.1, before.1, "nothing is due, and it woke up");
    drained(daemon);
}
