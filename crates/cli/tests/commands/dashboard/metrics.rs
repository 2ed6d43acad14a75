//! `/metrics`, as a Prometheus meets it.

use std::collections::BTreeSet;

use leasehold::clock;
use serde_json::Value;

use super::Board;
use crate::what_the_log_adds_up_to::parsed;
use crate::world::until;

/// All samples but those of the calls that were made for them.
fn samples(board: &Board, text: &str) -> Value {
    let mut found = parsed(&board.world, text);
    found.as_object_mut().unwrap().retain(|sample, _| !sample.starts_with("leasehold_store_op"));
    found
}

#[test]
fn metrics_are_those_of_the_command() {
    let board = Board::of_a_night();
    let scrape = board.get("/metrics").is(200);
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(scrape.head.contains(kind), "{scrape:?}");
    let found = samples(&board, &scrape.body);
    let told = board.run(&["metrics"]).is(0, "").out;
    assert_eq!(found, samples(&board, &told));
    assert_eq!(found[r#"leasehold_skips_total{"job": "claudelab", "reason": "overlap"}"#], 1.0, "{found:#}");
    assert_eq!(board.ask("HEAD", "/metrics", &[]).is(200).body, "");
}

/// Each text has the times of the calls that were made for it.
#[test]
fn scrapes_read_the_store_once_in_ten_seconds() {
    let board = Board::new();
    let begun = clock::boot_time();
    let texts: BTreeSet<String> = (0..20).map(|_| board.get("/metrics").is(200).body).collect();
    let most = 1 + clock::boot_time().since(begun).as_secs() / 10;
    assert!(texts.len() as u64 <= most, "{texts:?}");
    // The control: what is new is told then.
    board.run(&["run", "site", "--", "true"]).is(0, "");
    let told = "leasehold_runs_total{job=\"site\",outcome=\"ok\"} 1\n";
    until("a run that is counted", || board.get("/metrics").body.contains(told).then_some(()));
}
