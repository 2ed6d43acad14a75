//! `leasehold demo`, and `leasehold demo --git`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What the demo says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "demo",
    about: "`leasehold demo` and `leasehold demo --git`.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    with() "with leasehold";
    without() "without";
    in_turn(left, right) "First {left}, then {right}, step by step.";

    about(lease, ttl, file)
        "Real processes and a real lease on {lease} (TTL {ttl}), in a directory that is removed at the end. \
         Every run writes its figures to the file {file}.";
    race() "1. 09:00. Two machines start the same job at the same moment.";
    one_runs(token, pid) "One runs, with token {token} (pid {pid}).";
    other_skipped(code) "The other is skipped, exit {code}:";
    both_run() "Both run.";
    about_to_repeat(first, figures, second)
        "pid {first} has written {figures}, and pid {second} is about to write them again.";
    freeze() "2. The run is frozen just before it writes, as by a closed lid or a stalled VM (here: SIGSTOP).";
    frozen_with(pid, token)
        "pid {pid} and its job are frozen. Nothing renews the lease with token {token}, so it will expire.";
    frozen(pid) "pid {pid} is frozen.";
    take_over() "3. 10:00. The next run starts.";
    waits(waited) "It waits {waited} until the lease has expired.";
    fences_and_writes(token, figures) "It gets token {token}, fences the file with it and writes {figures}.";
    writes(figures) "It writes {figures}.";
    wake() "4. The first run wakes up and writes. It does not know what happened meanwhile.";
    refused(code) "Refused, exit {code}:";
    lost(code, lease) "`leasehold run` notices it too: exit {code}, {lease} lost.";
    written(code) "Written, exit {code}.";
    nobody_notices() "Nobody notices.";
    compare(file) "What is in {file} now:";
    nothing() "nothing";
    newer_gone() "The newer figures are gone.";
    next() "What to type next:";
    next_run() "leasehold run NAME -- your-command";
    next_run_does() "hold NAME while it runs";
    next_status() "leasehold status";
    next_status_does() "who holds what";
    next_codes() "leasehold help exit-codes";
    next_codes_does() "75, 76 and the others";
    took(time) "(That took {time}. Its processes and files are all gone.)";

    git_about()
        "A real git repository with two clones, one for each machine, in a directory that is removed at the \
         end. On both machines a script publishes a post for every slot: it fetches, checks whether the post \
         is there, commits and pushes. If the push is rejected, it rebases and pushes again.";
    slot(number, case) "Slot {number}: {case}.";
    slot_alone() "one machine runs it";
    slot_overlap() "both machines start at the same moment";
    slot_repeated() "the other machine starts it again, later";
    slot_frozen() "one is frozen just before its push, the other takes over, and the first wakes up";
    published_once() "Published once.";
    published_twice() "Published twice.";
    not_published_once() "Not published once.";
    woken_refused() "The run that woke up was refused.";
    woken_refused_with() "The run that woke up was refused:";
    git_next() "What to type next, in one of your clones:";
    git_next_run() "leasehold run site --fence git:origin -- ./publish.sh";
    git_next_run_does() "  git push in it is fenced";
    git_took(skipped, refused, time)
        "({skipped} runs were skipped, {refused} refused. That took {time}. Its files are all gone.)";

    not_skipped(code, outcome, printed)
        "the second run was not skipped: exit {code}, {outcome}; it printed: {printed}";
    wrong_token(first, second) "token {second} came after token {first}";
    take_over_failed(code, printed) "the run that took over ended with exit {code}: {printed}";
    not_lost(code) "`leasehold run` did not notice that it lost the lease: exit {code}";
    not_refused(line, code, printed)
        "the stale write was not refused as it should be: {line}, exit {code}: {printed}";
    without_failed(code, printed) "the run without leasehold ended with exit {code}: {printed}";
    wrong_with(content) "with leasehold the file holds: {content}";
    wrong_before(content) "without leasehold the file held, before the first run woke up: {content}";
    wrong_without(content) "without leasehold the file holds: {content}";
    wrong_git(with, without) "with leasehold: {with}; without: {without}";
    unexpected(run, what, printed) "{run}: {what}; it printed: {printed}";
    ended_without(word) "it ended without {word}";
    too_slow(seconds) "nothing more happened within {seconds} s";
    no_pipes() "a process has no pipes";
    no_token() "there is no token";
    git_failed(arguments, printed) "git {arguments}: {printed}";
}

failures! {
    system(why) Unreachable "system" { "the system refused: {why}" "Nothing of the demo is left" "" }
    no_git(why) Unreachable "system" { "cannot run git: {why}" "Nothing of the demo is left" "" }
    differs(what) NeedsYou "demo_differs"
        { "the demo did not go as it should: {what}" ""
          "On a machine under heavy load, try it again. If it happens again, please report it" }
    /// `demo-actor`, typed by a person.
    actor_alone() Usage "usage" { "demo-actor is a part of `leasehold demo`" "" "Run: leasehold demo" }
    actor_unwritten(why) Unreachable "write" { "cannot write: {why}" "" "" }
}

explanations! {
    interrupted() { "interrupted" "Nothing of the demo is left" "" }
}
