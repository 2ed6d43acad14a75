//! The server's hook: core's table, replayed where the rule runs in a script.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use leasehold::backends::git::{BranchUpdate, FENCE_REF, hook};
use leasehold::core::fence::{Bearer, Fence, FenceCase, FenceMode, FenceOffer, FenceVerdict};
use leasehold::core::fence_record::FenceRecord;
use leasehold::targets::Target;
use leasehold::targets::conformance::{some_of_each_kind, whole};
use leasehold_testkit::git::{Yard, git, must, said};

use crate::kit::{at, bearer, commit, commit_text, plant, sealed, workshop, yard};

const MAIN: &str = "refs/heads/main";

/// What somebody would push who does not ask the rule first.
fn offered(stored: Option<&Fence>, bearer: &Bearer, offer: &FenceOffer) -> Fence {
    let Bearer { lease, epoch, token, grant } = bearer.clone();
    let (seq, digest) = match offer {
        FenceOffer::Seal(_) => (0, String::new()),
        FenceOffer::Write { seq, digest } => (*seq, digest.clone()),
    };
    let mode = match offer {
        FenceOffer::Seal(FenceMode::Enforce) => FenceMode::Enforce,
        _ => stored.map_or(FenceMode::Enforce, |fence| fence.mode),
    };
    let let_in = stored.map_or(0, |fence| fence.let_in);
    Fence { lease, epoch, token, grant, seq, digest, done: true, mode, let_in }
}

/// What is offered to the hook in one case, and whether it must let it through.
fn questions(case: &FenceCase) -> Vec<(Fence, bool)> {
    let mut asked = offered(case.stored.as_ref(), &case.bearer, &case.offer);
    // A retry moves nothing, so nothing comes here. (To change the mode alone is another question.)
    if let (FenceVerdict::Repeat, Some(stored)) = (&case.verdict, &case.stored) {
        asked.mode = stored.mode;
    }
    let mut all = vec![(asked, matches!(case.verdict, FenceVerdict::Accept(_)))];
    // What is let in while watching comes with the count, and with no other.
    if let FenceVerdict::LetIn(_, counted) = &case.verdict {
        let more = Fence { let_in: counted.let_in + 1, ..counted.clone() };
        let less = Fence { let_in: counted.let_in - 1, ..counted.clone() };
        all.extend([(counted.clone(), true), (more, false), (less, false)]);
    }
    all
}

/// What is said by a commit of its own, old or new: no two fences are the same commit.
fn body(fence: &Fence, old: bool) -> Vec<u8> {
    let text = String::from_utf8(commit_text(&FenceRecord::done(fence.clone()).encode())).unwrap();
    text.replace("author a", if old { "author old" } else { "author new" }).into_bytes()
}

/// Each as a commit in the bare repository, by one git for all.
fn planted(yard: &Yard, bodies: impl Iterator<Item = Vec<u8>>) -> BTreeMap<Vec<u8>, String> {
    let mut oids: BTreeMap<Vec<u8>, String> = bodies.map(|body| (body, String::new())).collect();
    let mut paths = String::new();
    for (number, body) in oids.keys().enumerate() {
        let path = yard.dir().join(format!("fence-{number}"));
        std::fs::write(&path, body).unwrap();
        paths.push_str(&format!("{}\n", path.display()));
    }
    std::fs::write(yard.dir().join("paths"), paths).unwrap();
    let mut command = git(&yard.bare());
    command.args(["hash-object", "-t", "commit", "-w", "--stdin-paths"]);
    let output = command.stdin(std::fs::File::open(yard.dir().join("paths")).unwrap()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), oids.len(), "{}", String::from_utf8_lossy(&output.stderr));
    oids.values_mut().zip(text.lines()).for_each(|(oid, line)| line.clone_into(oid));
    oids
}

/// Whether the hook lets this move through, on its own.
fn lets(yard: &Yard, lines: &str) -> bool {
    let input = yard.dir().join("lines");
    std::fs::write(&input, lines).unwrap();
    let mut command = Command::new(yard.bare().join("hooks/reference-transaction"));
    command.arg("prepared").current_dir(yard.bare()).env("GIT_DIR", ".").stderr(Stdio::null());
    command.stdin(std::fs::File::open(input).unwrap()).status().unwrap().success()
}

/// Replays these cases; how many questions the hook was asked.
fn replay(cases: &[FenceCase]) -> usize {
    let yard = yard();
    hook::install(&yard.bare()).unwrap();
    let all: Vec<(&FenceCase, Fence, bool)> = cases
        .iter()
        .flat_map(|case| questions(case).into_iter().map(move |(fence, lets)| (case, fence, lets)))
        .collect();
    let stored = cases.iter().filter_map(|case| case.stored.as_ref().map(|fence| body(fence, true)));
    let oids = planted(&yard, all.iter().map(|(_, fence, _)| body(fence, false)).chain(stored));
    let (place, zero) = (yard.bare().join(FENCE_REF), "0".repeat(40));
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    for (case, fence, wanted) in &all {
        match &case.stored {
            Some(stored) => std::fs::write(&place, format!("{}\n", oids[&body(stored, true)])).unwrap(),
            None => drop(std::fs::remove_file(&place)),
        }
        let new = &oids[&body(fence, false)];
        let branch = match case.offer {
            FenceOffer::Seal(_) => String::new(),
            FenceOffer::Write { .. } => format!("{zero} {new} {MAIN}\n"),
        };
        let lets = lets(&yard, &format!("{branch}{zero} {new} {FENCE_REF}\n"));
        assert_eq!(lets, *wanted, "{case:?} with {fence:?}");
    }
    all.len()
}

#[test]
fn the_rule_in_the_hook_is_the_rule() {
    // An unfinished write, number zero with content or without a name cannot be said by a fence here.
    let sayable = |case: &FenceCase| {
        let finished = case.stored.as_ref().is_none_or(|fence| fence.done);
        finished && !matches!(&case.offer, FenceOffer::Write { seq: 0, .. })
    };
    let cases = if std::env::var_os("LEASEHOLD_LONG").is_some() { whole() } else { some_of_each_kind(1) };
    let cases: Vec<FenceCase> = cases.into_iter().filter(sayable).collect();
    let asked: usize = std::thread::scope(|scope| {
        let parts = cases.chunks(cases.len().div_ceil(4));
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || replay(part))).collect();
        parts.into_iter().map(|part| part.join().unwrap()).sum()
    });
    println!("{} cases, {asked} questions", cases.len());
    let mut answers: Vec<String> = cases.iter().map(|case| word(&case.verdict)).collect();
    answers.sort();
    answers.dedup();
    let reasons = ["epoch", "fork", "jump", "not-sealed", "other-lease", "sequence", "stale"];
    let each = |answer: &str| reasons.map(|reason| format!("{answer} {reason}"));
    let all = [&["accept".to_owned()], &each("let in")[..], &each("refuse")[..], &["repeat".to_owned()]];
    assert_eq!(answers, all.concat(), "an answer was never asked for");
}

fn word(verdict: &FenceVerdict) -> String {
    match verdict {
        FenceVerdict::Accept(_) => "accept".into(),
        FenceVerdict::Repeat => "repeat".into(),
        FenceVerdict::Refuse(reason) => format!("refuse {}", reason.word()),
        FenceVerdict::LetIn(reason, _) => format!("let in {}", reason.word()),
    }
}

/// A plain `git push`; whether it went well, and all that was said.
fn raw(bare: &Path, refspecs: &[&str]) -> (bool, String) {
    let output = git(workshop()).arg("push").arg(bare).args(refspecs).output().unwrap();
    (output.status.success(), said(&output))
}

#[test]
fn a_guarded_branch_moves_with_its_fence_only() {
    let (yard, mut target) = sealed(7);
    hook::install(&yard.bare()).unwrap();
    target.push(&bearer(7), None, BranchUpdate::Forced, &[(MAIN, &commit("a"))]).unwrap();
    let bare = yard.bare();
    let (ok, text) = raw(&bare, &[&format!("+{}:{MAIN}", commit("b"))]);
    assert!(
        !ok && text.contains("cannot move without the fence: this repository belongs to the lease site"),
        "{text}"
    );
    assert!(text.contains("leasehold run site --fence git:URL"), "{text}");
    let (ok, text) = raw(&bare, &[&format!(":{FENCE_REF}")]);
    assert!(!ok && text.contains("never deleted by a push. To stop fencing"), "{text}");
    assert!(text.contains("docs/targets/git.md"), "{text}");
    // A mirror that brings an older fence back.
    let old = must(&bare, &["rev-parse", FENCE_REF]);
    at(&yard).seal(&bearer(8), FenceMode::Enforce).unwrap();
    must(workshop(), &["fetch", "-q", bare.to_str().unwrap(), FENCE_REF]);
    let (ok, text) = raw(&bare, &[&format!("+{old}:{FENCE_REF}"), &format!("+{}:{MAIN}", commit("b"))]);
    assert!(!ok && (text.contains("token 7 is older than 8") || text.contains("bad object")), "{text}");
    assert_eq!(yard.at(MAIN), commit("a"));
    // The holder gets through.
    at(&yard).push(&bearer(8), None, BranchUpdate::Forced, &[(MAIN, &commit("c"))]).unwrap();
    assert_eq!(yard.at(MAIN), commit("c"));
    // The owner's way out, as it is documented.
    must(&bare, &["-c", "core.hooksPath=/dev/null", "update-ref", "-d", FENCE_REF]);
    let (ok, text) = raw(&bare, &[&format!("+{}:{MAIN}", commit("b"))]);
    assert!(ok, "{text}");
}

/// The negative control: without the hooks all of that lands.
#[test]
fn without_the_hooks_a_plain_push_lands() {
    let (yard, _target) = sealed(7);
    must(workshop(), &["push", "-q", yard.bare().to_str().unwrap(), &format!("+{}:{MAIN}", commit("b"))]);
    assert_eq!(yard.at(MAIN), commit("b"));
}

/// A fence that only watches refuses nobody, and still never goes back; one that enforces ends that.
#[test]
fn a_fence_that_watches_refuses_nobody() {
    let yard = yard();
    let (bare, mut target) = (yard.bare(), at(&yard));
    hook::install(&bare).unwrap();
    target.seal(&bearer(7), FenceMode::Observe).unwrap();
    let (ok, text) =
        raw(&bare, &[&format!("{}:{MAIN}", commit("a")), &format!("{}:refs/tags/v", commit("a"))]);
    assert!(ok && yard.at(MAIN) == commit("a"), "{text}");
    let (ok, text) = raw(&bare, &[&format!(":{FENCE_REF}")]);
    assert!(!ok && text.contains("never deleted"), "{text}");
    at(&yard).seal(&bearer(8), FenceMode::Enforce).unwrap();
    let (ok, text) = raw(&bare, &[&format!("+{}:{MAIN}", commit("b"))]);
    assert!(!ok && yard.at(MAIN) == commit("a"), "{text}");
}

/// A fence that nobody can read lets nobody in, whatever it is, and is called by its name.
#[test]
fn a_fence_that_is_none_is_called_that() {
    let (yard, _target) = sealed(7);
    let bare = yard.bare();
    hook::install(&bare).unwrap();
    let blob = must(&bare, &["hash-object", "-w", "--stdin"]);
    plant(&yard, FENCE_REF, b"hello\n");
    for round in 0..2 {
        let (ok, text) = raw(&bare, &[&format!("+{}:{MAIN}", commit("b"))]);
        assert!(!ok && text.contains("is not one of our fences"), "{round}: {text}");
        assert_eq!(yard.at(MAIN), "");
        // Not even a commit.
        std::fs::write(bare.join(FENCE_REF), format!("{blob}\n")).unwrap();
    }
}

/// Whatever is not ours stays as it is.
#[test]
fn nothing_foreign_is_replaced() {
    let yard = yard();
    let hooks = yard.bare().join("hooks");
    let path = hooks.join("pre-receive");
    let shared = yard.dir().join("shared");
    std::fs::write(&shared, hook::SCRIPT).unwrap();
    let foreign: [(&str, &[u8]); 3] = [
        ("a program", b"\x7fELF\xff\xfe\x00"),
        ("a wrapper", b"#!/bin/sh\n# calls leasehold\nexec leasehold-fence\n"),
        ("an empty file", b""),
    ];
    for (what, content) in foreign {
        std::fs::write(&path, content).unwrap();
        let refused = hook::install(&yard.bare()).unwrap_err().to_string();
        assert!(refused.contains("is there already; call Leasehold's hook from it"), "{what}: {refused}");
        assert_eq!(std::fs::read(&path).unwrap(), content, "{what}");
    }
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&shared, &path).unwrap();
    let refused = hook::install(&yard.bare()).unwrap_err().to_string();
    assert!(refused.contains("is a link"), "{refused}");
    assert!(path.is_symlink());
    // A second file that is in the way keeps the first from being written.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(hooks.join("reference-transaction")).unwrap();
    assert!(hook::install(&yard.bare()).is_err() && !path.exists());
    std::fs::remove_dir(hooks.join("reference-transaction")).unwrap();
    // Our own, of whatever age, is.
    std::fs::write(&path, &hook::SCRIPT[..100]).unwrap();
    hook::install(&yard.bare()).unwrap();
    hook::install(&yard.bare()).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), hook::SCRIPT);
    let left: Vec<_> = std::fs::read_dir(&hooks).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("leasehold")), "{left:?}");
    let nowhere = hook::install(yard.dir()).unwrap_err().to_string();
    assert!(nowhere.contains("not a git repository"), "{nowhere}");
}

/// Where git looks for them, not where they usually are.
#[test]
fn hooks_go_where_git_looks_for_them() {
    let (yard, _target) = sealed(7);
    let bare = yard.bare();
    must(&bare, &["config", "core.hooksPath", "elsewhere/hooks"]);
    let paths = hook::install(&bare).unwrap();
    assert!(paths.iter().all(|path| path.starts_with(bare.join("elsewhere/hooks"))), "{paths:?}");
    let (ok, text) = raw(&bare, &[&format!("{}:{MAIN}", commit("b"))]);
    assert!(!ok && text.contains("cannot move without the fence"), "{text}");
    // A clone, and a work tree of it.
    must(yard.dir(), &["init", "--quiet", "clone"]);
    let clone = yard.dir().join("clone");
    must(&clone, &["commit", "--quiet", "--allow-empty", "-m", "one"]);
    must(&clone, &["worktree", "add", "--quiet", "../tree"]);
    let paths = hook::install(&yard.dir().join("tree")).unwrap();
    assert_eq!(paths[0].canonicalize().unwrap(), clone.join(".git/hooks/pre-receive"));
}

/// What is copied to a server by hand is a file of its own: a link would lead nowhere there, in silence.
#[test]
fn the_script_that_is_shipped_is_a_plain_file() {
    use std::os::unix::fs::PermissionsExt;
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/git-hooks/leasehold-fence");
    let found = std::fs::symlink_metadata(&shipped).unwrap();
    assert!(found.is_file() && found.permissions().mode() & 0o111 == 0o111, "{found:?}");
}
