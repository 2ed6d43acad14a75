//! The server's hook: core's table, replayed where the rule runs in a script.

use leasehold::core::fence::{Bearer, Case, Fence, Mode, Offer, Verdict, table};
use leasehold::core::fence_record::FenceRecord;
use leasehold::targets::Target;
use leasehold::targets::git::{FENCE_REF, Update, hook};
use leasehold_testkit::git::{Yard, git, must, said};

use crate::kit::{at, bearer, commit, plant, sealed, workshop, yard};

const MAIN: &str = "refs/heads/main";

/// What somebody would push who does not ask the rule first.
fn offered(stored: Option<&Fence>, bearer: &Bearer, offer: &Offer) -> Fence {
    let Bearer { lease, epoch, token, grant } = bearer.clone();
    let (seq, digest) = match offer {
        Offer::Seal(_) => (0, String::new()),
        Offer::Write { seq, digest } => (*seq, digest.clone()),
    };
    let mode = match offer {
        Offer::Seal(Mode::Enforce) => Mode::Enforce,
        _ => stored.map_or(Mode::Enforce, |fence| fence.mode),
    };
    let let_in = stored.map_or(0, |fence| fence.let_in);
    Fence { lease, epoch, token, grant, seq, digest, done: true, mode, let_in }
}

/// Whether the hook lets this move through, on its own.
fn lets(yard: &Yard, lines: &str) -> bool {
    let input = yard.dir().join("lines");
    std::fs::write(&input, lines).unwrap();
    let mut command = std::process::Command::new(yard.bare().join("hooks/reference-transaction"));
    command.arg("prepared").current_dir(yard.bare()).env("GIT_DIR", ".");
    command.stdin(std::fs::File::open(input).unwrap()).output().unwrap().status.success()
}

fn agrees(yard: &Yard, case: &Case) {
    let fence = offered(case.stored.as_ref(), &case.bearer, &case.offer);
    let new = plant(yard, "refs/keep/new", &FenceRecord::done(fence).encode());
    match &case.stored {
        Some(stored) => drop(plant(yard, FENCE_REF, &FenceRecord::done(stored.clone()).encode())),
        None => drop(std::fs::remove_file(yard.bare().join(FENCE_REF))),
    }
    let zero = "0".repeat(40);
    let branch = match case.offer {
        Offer::Seal(_) => String::new(),
        Offer::Write { .. } => format!("{zero} {new} {MAIN}\n"),
    };
    let lets = lets(yard, &format!("{branch}{zero} {new} {FENCE_REF}\n"));
    // A retry moves nothing, so nothing comes here; what is let in while watching comes with a count.
    let wanted = matches!(case.verdict, Verdict::Accept(_));
    assert_eq!(lets, wanted, "{case:?}");
}

#[test]
fn the_rule_in_the_hook_is_the_rule() {
    let yard = yard();
    hook::install(&yard.bare()).unwrap();
    // An unfinished write, number zero with content or without a name cannot be said by a fence here.
    let sayable = |case: &Case| {
        let finished = case.stored.as_ref().is_none_or(|fence| fence.done);
        finished && !matches!(&case.offer, Offer::Write { seq: 0, .. })
    };
    let every = if std::env::var_os("LEASEHOLD_LONG").is_some() { 1 } else { 151 };
    let cases: Vec<Case> = table().into_iter().filter(sayable).step_by(every).collect();
    cases.iter().for_each(|case| agrees(&yard, case));
    println!("{} cases", cases.len());
    assert!(cases.len() >= 50);
}

#[test]
fn a_guarded_branch_moves_with_its_fence_only() {
    let (yard, mut target) = sealed(7);
    hook::install(&yard.bare()).unwrap();
    target.push(&bearer(7), None, Update::Forced, &[(MAIN, &commit("a"))]).unwrap();
    let bare = yard.bare();
    let raw = |refspecs: &[&str]| {
        let output = git(workshop()).arg("push").arg(&bare).args(refspecs).output().unwrap();
        (output.status.success(), said(&output))
    };
    let (ok, text) = raw(&[&format!("+{}:{MAIN}", commit("b"))]);
    assert!(!ok && text.contains("cannot move without the fence"), "{text}");
    let (ok, text) = raw(&[&format!(":{FENCE_REF}")]);
    assert!(!ok && text.contains("never deleted"), "{text}");
    // A mirror that brings an older fence back.
    let old = must(&bare, &["rev-parse", FENCE_REF]);
    at(&yard).seal(&bearer(8), Mode::Enforce).unwrap();
    must(workshop(), &["fetch", "-q", bare.to_str().unwrap(), FENCE_REF]);
    let (ok, text) = raw(&[&format!("+{old}:{FENCE_REF}"), &format!("+{}:{MAIN}", commit("b"))]);
    assert!(!ok && (text.contains("token 7 is older than 8") || text.contains("bad object")), "{text}");
    assert_eq!(yard.at(MAIN), commit("a"));
    // The holder gets through.
    at(&yard).push(&bearer(8), None, Update::Forced, &[(MAIN, &commit("c"))]).unwrap();
    assert_eq!(yard.at(MAIN), commit("c"));
}

/// The negative control: without the hooks all of that lands.
#[test]
fn without_the_hooks_a_plain_push_lands() {
    let (yard, _target) = sealed(7);
    must(workshop(), &["push", "-q", yard.bare().to_str().unwrap(), &format!("+{}:{MAIN}", commit("b"))]);
    assert_eq!(yard.at(MAIN), commit("b"));
}
