//! Every message of `docs/messages.md` was said in some test. Run it after the other tests, which note what they see.

use std::collections::BTreeSet;

use leasehold_testkit::messages::{seen_in, sentences};

/// Messages that no test can bring about, and why.
const OUT_OF_REACH: &[(&str, &[&str])] = &[
    (
        "a thread, a pipe or another thing of the system that fails",
        &[
            "demo.no_pipes",
            "demo.system",
            "push.git_gone",
            "run.system",
            "serve.no_thread",
            "serve.system",
            "write.no_output",
        ],
    ),
    (
        "a disk that fails between two writes of one command",
        &[
            "adopt.not_written",
            "other_stores.loss_unnoted",
            "other_stores.new_here_unnoted",
            "targets.write_unknown",
            "use_store.not_new_here",
        ],
    ),
    (
        "a demo that goes otherwise than it should",
        &[
            "demo.actor_unwritten",
            "demo.not_lost",
            "demo.not_published_once",
            "demo.not_refused",
            "demo.not_skipped",
            "demo.take_over_failed",
            "demo.too_slow",
            "demo.without_failed",
            "demo.wrong_before",
            "demo.wrong_git",
            "demo.wrong_token",
            "demo.wrong_with",
            "demo.wrong_without",
        ],
    ),
    ("a process that the kernel does not end", &["run.stop_stuck"]),
    ("a build without HTTP", &["notify.no_http"]),
    ("a file of the system", &["uninstall.edit_file"]),
    ("a process of another user", &["run.another_users"]),
    ("a store whose clock jumps", &["run.lost_store_clock", "run.stop_store_clock"]),
    ("a store without a clock", &["doctor.no_age", "forget.no_ages", "items.no_age", "items.no_clock"]),
    ("a scheduler that names no command", &["run.empty_slot"]),
    ("a signal that whoever starts the daemon has blocked", &["daemon.signals_blocked"]),
    ("a server that listens beyond this machine", &["serve.plain_http"]),
    ("a fault of the doctor", &["doctor.panicked", "doctor.thread_panicked"]),
    (
        "a store that answers as none here does",
        &[
            "doctor.interrupted_and_left",
            "doctor.nameless",
            "doctor.no_settings",
            "doctor.no_ttl",
            "doctor.p3_broken",
            "doctor.refused_write",
            "doctor.ttl_longer",
            "doctor.undeclared_age",
            "store.returned",
        ],
    ),
    ("a mount that caches names", &["doctor.caching_mount", "doctor.seen_late"]),
];

/// Messages that a test may bring about or not, as a race goes.
const BY_CHANCE: &[&str] = &[
    "break_lease.not_released",
    "by_hand.lost_at_once",
    "by_hand.not_given_back",
    "daemon.outcome_unasked",
    "doctor.clock_behind",
    "doctor.coarse_age",
    "doctor.missing_age",
    "doctor.too_young",
    "items.over",
    "items.maybe_recorded",
    "items.unrecorded",
    "items.unrecorded_silent",
    "retry.changed",
    "retry.unconfirmed",
    "run.already_released",
    "run.stop_rest",
    "serve.failed",
    "serve.late",
    "serve.too_many",
    "store.claim_in_doubt",
    "targets.reset_in_doubt",
    "targets.sequence",
    "trigger.changed",
];

/// Messages that no test of the commands says yet. Take one off when a test says it; add none.
const NOT_YET: &[&str] = &[
    "daemon.clock_unsure",
    "daemon.clocks_unknown",
    "daemon.jobs_stay_until_clocks_agree",
    "daemon.not_started",
    "daemon.store_silent",
    "doctor.age_stands",
    "doctor.age_went_back",
    "doctor.clock_ahead",
    "doctor.compares",
    "doctor.far",
    "doctor.few_connections",
    "doctor.not_examined",
    "doctor.not_raced",
    "doctor.push_missed",
    "doctor.removal",
    "doctor.renewed_too_old",
    "doctor.too_old",
    "fence.holder_unknown",
    "fenced.accepted",
    "guard.bad_fence",
    "items.bad_record",
    "observe.accepted_writes",
    "observe.lost",
    "observe.no_gates",
    "observe.not_noted",
    "other_stores.unnoted",
    "plan.some_wait",
    "run.lost_given_up",
    "run.lost_kept",
    "run.lost_not_started",
    "run.recreated",
    "run.slept",
    "run.still_held",
    "serve.failed_see_log",
    "serve.short_body",
    "serve.store_failed",
    "status.unanswered",
    "step.full",
    "step.not_executed",
    "store.not_fenced",
    "targets.busy",
    "targets.evict",
    "targets.fence_in_doubt",
    "targets.fork",
    "targets.guard_in_doubt",
    "targets.jump",
    "targets.mode_in_doubt",
    "targets.stale_fence",
    "why.steps",
    "write.repeated",
];

/// As many more may go unsaid in one run, because a race went another way.
const CHANCE: usize = 5;

fn excused(name: &str) -> bool {
    BY_CHANCE.contains(&name)
        || NOT_YET.contains(&name)
        || OUT_OF_REACH.iter().any(|(_, names)| names.contains(&name))
}

fn all() -> BTreeSet<String> {
    sentences().iter().filter(|sentence| sentence.can_be_told()).map(|s| s.name.clone()).collect()
}

fn seen() -> BTreeSet<String> {
    let place = seen_in();
    let files = std::fs::read_dir(&place)
        .unwrap_or_else(|e| panic!("SKIPPED: {}: {e}; run the other test programs first", place.display()));
    let text =
        |file: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(file.unwrap().path()).unwrap();
    files.flat_map(|file| text(file).lines().map(String::from).collect::<Vec<_>>()).collect()
}

fn unseen(all: &BTreeSet<String>, seen: &BTreeSet<String>) -> Vec<String> {
    all.difference(seen).filter(|name| !excused(name)).cloned().collect()
}

#[test]
fn every_message_is_reached_by_a_test() {
    let all = all();
    assert!(all.len() > 100, "the page names few messages");
    let unseen = unseen(&all, &seen());
    println!("{} of {} messages were said in no test: {}", unseen.len(), all.len(), unseen.join(" "));
    assert!(
        unseen.len() <= CHANCE,
        "{} of {} were said in no test:\n{}",
        unseen.len(),
        all.len(),
        unseen.join("\n")
    );
}

#[test]
fn the_lists_name_messages() {
    let all = all();
    let listed = OUT_OF_REACH.iter().flat_map(|(_, names)| *names).chain(BY_CHANCE).chain(NOT_YET);
    let unknown: Vec<_> = listed.filter(|name| !all.contains(**name)).collect();
    assert!(unknown.is_empty(), "no messages, or too short to be told apart: {unknown:?}");
}

#[test]
fn a_message_that_no_test_reaches_is_caught() {
    let all = [String::from("run.skipped"), String::from("run.never")].into();
    assert_eq!(unseen(&all, &[String::from("run.skipped")].into()), ["run.never"]);
}
