//! What lies beside a fenced file or tree, and what is told of one that was changed past its fence.

use std::fs;
use std::os::unix::fs::symlink;

use crate::world::{World, binary};

/// Runs a shell line under the lease, in which `$LEASEHOLD` is the binary; how much of it went round the fence.
fn went_round(world: &World, fence: &str, line: &str) -> usize {
    let line = line.replace("$LEASEHOLD", binary().to_str().unwrap());
    world.run(&["run", "site", "--fence", fence, "--report", "report", "sh", "-c", &line]).is(0, "");
    let report = fs::read_to_string(world.path("report")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["outcome"], "ok", "{report}");
    report["went_round"].as_array().map_or(0, Vec::len)
}

#[test]
fn a_plain_redirection_is_told_at_the_end() {
    let world = World::new();
    world.write("page", "by hand");
    world.write("new/page", "of a tree");
    let publish = "echo one | $LEASEHOLD write file:page";
    for (fence, line) in [
        ("file:page", "echo past >page"),
        ("file:page", &format!("{publish}; echo past >page")),
        ("file:page", "echo past >other; mv other page"),
        ("file:first", "echo past >first"),
        ("tree:site", "$LEASEHOLD write tree:site --from new; echo past >site/page"),
    ] {
        assert_eq!(went_round(&world, fence, line), 1, "{fence}: {line}");
    }
    world.write("page", "changed before the run began");
    for (fence, line) in [
        ("file:page", "cat page"),
        ("file:page", "chmod 600 page; ln page another"),
        ("file:page", publish),
        ("file:page", &format!("{publish}; {publish}; cat page")),
        ("file:page", &format!("echo past >page; {publish}")),
        ("file:none", "true"),
        ("tree:site", "$LEASEHOLD write tree:site --from new; cat site/page"),
        ("tree:site", "cat site/page"),
        ("gate:mail", "$LEASEHOLD gate mail -- true"),
    ] {
        assert_eq!(went_round(&world, fence, line), 0, "{fence}: {line}");
    }
}

/// What was never sealed is refused without a trace.
#[test]
fn a_write_that_is_refused_leaves_no_lock() {
    let world = World::new();
    let line = format!("echo x | {} write file:page", binary().display());
    world.run(&["run", "site", "sh", "-c", &line]).is(76, "targets.never_named");
    let names = |dir: &str| fs::read_dir(world.path(dir)).unwrap().count();
    fs::create_dir(world.path("empty")).unwrap();
    let line = line.replace("file:page", "file:empty/page");
    world.run(&["run", "site", "sh", "-c", &line]).is(76, "");
    assert_eq!(names("empty"), 0);
}

/// A link that a deployment swaps: the fence stays where it pointed to.
#[test]
fn a_refused_write_leaves_nothing_behind() {
    let world = World::new();
    world.write("site/index.html", "old");
    let write = "echo new | leasehold write file:site/new.txt";
    let write = write.replace("leasehold", crate::world::binary().to_str().unwrap());
    let before = world.snapshot("site");
    world.run(&["run", "site", "--", "sh", "-c", &write]).is(76, "targets.never_named");
    assert_eq!(world.snapshot("site"), before);
}

#[test]
fn a_link_on_the_way_to_a_target_is_told() {
    let world = World::new();
    fs::create_dir_all(world.path("releases/1")).unwrap();
    symlink("releases/1", world.path("current")).unwrap();
    let run = |target: &str| world.run(&["run", "site", "--fence", target, "true"]);
    for target in ["file:current/page", "tree:current/site"] {
        let link = format!("is behind the link {}", world.at("current"));
        assert_eq!(run(target).is(0, "").names(&[&link]).err.lines().count(), 1, "{target}");
    }
    run("file:releases/1/page").quiet();
}

const PATTERN: &str = ".*.leasehold-[!v]*";

#[test]
fn a_fence_is_not_committed_with_what_it_fences() {
    let world = World::new();
    let publish = r#"--fence file:page --fence tree:site -- sh -c 'echo x | "$0" write file:page && "$0" write tree:site --from new' "$LEASEHOLD_BIN""#;
    let commit = "git -c user.name=me -c user.email=me@localhost commit -qm x";
    let made = world.sh(&format!(
        "git init -q repo && cd repo && mkdir new && echo x >new/page && leasehold run site {publish} && \
         git add . && {commit} && git worktree add -q ../linked && cd ../linked && \
         leasehold run other --fence file:more -- sh -c 'echo x | \"$0\" write file:more' \"$LEASEHOLD_BIN\" && git add . && {commit}"
    ));
    made.is(0, "").quiet();
    let files = world.sh("cd linked && git ls-tree -r --name-only HEAD").out;
    let (versions, files): (Vec<&str>, Vec<&str>) = files.lines().partition(|name| name.contains("-v-"));
    assert_eq!(files, ["more", "new/page", "page", "site"]);
    assert_eq!(versions.len(), 1, "what the link of a tree points to belongs to it: {versions:?}");
    let excluded = fs::read_to_string(world.path("repo/.git/info/exclude")).unwrap();
    assert_eq!(excluded.lines().filter(|line| *line == PATTERN).count(), 1, "{excluded}");
    world.sh("cd repo && git clean -qfd").quiet();
    assert!(world.path("repo/.page.leasehold-fence").exists(), "what is ignored is not cleaned away");
    // Without it they would be.
    fs::write(world.path("repo/.git/info/exclude"), "").unwrap();
    let seen = world.sh("cd repo && git status --porcelain").out;
    assert!(seen.contains(".page.leasehold-fence") && seen.contains(".page.leasehold-lock"), "{seen}");
    // The next run puts it back, as it does where the repository is younger than the fence.
    world.sh("cd repo && leasehold run site --fence file:page true").quiet();
    let seen = world.sh("cd repo && git status --porcelain").out;
    assert!(!seen.contains("leasehold-"), "{seen}");
}

#[test]
fn an_exclude_file_that_cannot_be_written_is_told() {
    let world = World::new();
    world.sh("git init -q . && rm .git/info/exclude && mkdir .git/info/exclude").quiet();
    assert_eq!(went_round(&world, "file:page", "true"), 1);
    assert_eq!(went_round(&world, "file:page", "true"), 0, "once");
}
