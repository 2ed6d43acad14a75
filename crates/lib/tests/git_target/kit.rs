//! What the tests share: a clone to push from, repositories to push to, bearers.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use leasehold::backends::git::GitTarget;
use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::core::fence_record::FenceRecord;
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::name::Name;
use leasehold::state::StateDir;
use leasehold::targets::Target;
use leasehold_testkit::git::{Yard, git, must};

/// Where everything is made: in memory where that is to be had.
pub(crate) fn base() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.into() } else { env!("CARGO_TARGET_TMPDIR").into() }
}

/// The clone that the whole process works in: the library pushes from the repository around it.
pub(crate) fn workshop() -> &'static Path {
    static WORKSHOP: OnceLock<PathBuf> = OnceLock::new();
    WORKSHOP.get_or_init(|| {
        // One place for all runs of the tests: nothing here knows when the last test has ended.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("workshop");
        std::fs::create_dir_all(&dir).unwrap();
        must(&dir, &["init", "--quiet"]);
        std::env::set_current_dir(&dir).unwrap();
        dir
    })
}

/// A commit that says this; the same every time.
pub(crate) fn commit(text: &str) -> String {
    let mut command = git(workshop());
    command.args(["commit-tree", "4b825dc642cb6eb9a060e54bf8d69288fbee4904", "-m", text]);
    command.env("GIT_AUTHOR_DATE", "1700000000 +0000").env("GIT_COMMITTER_DATE", "1700000000 +0000");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub(crate) fn yard() -> Yard {
    workshop();
    let yard = Yard::new(&base());
    must(&yard.bare(), &["config", "receive.autogc", "false"]);
    yard
}

/// A state directory of the tests' own.
pub(crate) fn state(name: &str) -> StateDir {
    StateDir::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("git-state").join(name))
}

pub(crate) fn target(url: &str) -> GitTarget {
    GitTarget::open(url).unwrap().keeping_in(state("shared"))
}

pub(crate) fn at(yard: &Yard) -> GitTarget {
    target(yard.bare().to_str().unwrap())
}

/// The run with this token; every token has one grant.
pub(crate) fn bearer(token: u64) -> Bearer {
    of("site", token)
}

pub(crate) fn of(lease: &str, token: u64) -> Bearer {
    Bearer {
        lease: Name::new(lease).unwrap(),
        epoch: Epoch { generation: 1, id: 7 },
        token: Token::new(token).unwrap(),
        grant: Grant(1000 + u128::from(token)),
    }
}

/// A repository sealed with this token.
pub(crate) fn sealed(token: u64) -> (Yard, GitTarget) {
    let yard = yard();
    let mut target = at(&yard);
    target.seal(&bearer(token), FenceMode::Enforce).unwrap();
    (yard, target)
}

/// A commit with this message, as git keeps it.
pub(crate) fn commit_text(message: &[u8]) -> Vec<u8> {
    let head =
        "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\n";
    [head.as_bytes(), message].concat()
}

/// Puts a commit with this message behind a ref of the bare repository.
pub(crate) fn plant(yard: &Yard, name: &str, message: &[u8]) -> String {
    let file = yard.dir().join("planted");
    std::fs::write(&file, commit_text(message)).unwrap();
    let oid = must(&yard.bare(), &["hash-object", "-t", "commit", "-w", file.to_str().unwrap()]);
    let path = yard.bare().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{oid}\n")).unwrap();
    oid
}

pub(crate) fn stored(yard: &Yard) -> FenceRecord {
    at(yard).show().unwrap().unwrap()
}
