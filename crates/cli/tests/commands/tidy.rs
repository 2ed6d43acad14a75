//! The rules of the repository that neither compiler nor clippy knows. Every check is also shown a bad sample, which it
//! must catch.

use std::path::{Path, PathBuf};
use std::process::Command;

const CORE_DEPENDENCIES: [&str; 2] = ["serde", "serde_json"];

/// Absolute paths of one machine. Written in two halves, so that this file does not contain them.
const PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
/// Hosts of package registries: name packages, not where they come from.
const HOSTS: [&str; 5] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("deb.debian", ".org"),
];

struct File {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every text file that is tracked, or would be after `git add`.
fn files() -> Vec<File> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others"])
        .arg("--exclude-standard")
        .current_dir(root())
        .env_remove("GIT_DIR")
        .env_remove("GIT_INDEX_FILE")
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files: {output:?}");
    let names = String::from_utf8(output.stdout).expect("names are UTF-8");
    let read = |path: &str| {
        let text = String::from_utf8(std::fs::read(root().join(path)).ok()?).ok()?;
        let path = path.to_string();
        Some(File { path, text })
    };
    let files: Vec<File> = names.split_terminator('\0').filter_map(read).collect();
    assert!(files.len() > 10, "git ls-files names few files");
    files
}

/// Runs `check` over the files that `wanted` picks; what it says is the failure.
fn all(wanted: impl Fn(&str) -> bool, check: impl Fn(&File) -> Vec<String>) {
    let files: Vec<File> = files().into_iter().filter(|f| wanted(&f.path)).collect();
    assert!(!files.is_empty(), "no file to check");
    let complaints: Vec<String> = files.iter().flat_map(check).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Asserts that `check` finds exactly `count` faults in a sample.
fn catches(check: impl Fn(&File) -> Vec<String>, path: &str, text: &str, count: usize) {
    let (path, text) = (path.to_string(), text.to_string());
    let complaints = check(&File { path, text });
    assert_eq!(complaints.len(), count, "{complaints:?}");
}

fn rust(path: &str) -> bool {
    path.ends_with(".rs")
}

/// The names of what a manifest depends on, tests apart.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut listing = false;
    for line in manifest.lines().map(str::trim) {
        let key = line.split(['=', '.', ' ']).next().unwrap_or("");
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            let found = table.rsplit_once("dependencies");
            let found = found.filter(|(head, _)| !head.ends_with("dev-"));
            listing = found.is_some_and(|(_, name)| name.is_empty());
            names.extend(found.and_then(|(_, name)| name.strip_prefix('.')).map(String::from));
        } else if listing && !key.is_empty() && !key.starts_with('#') {
            names.push(key.to_string());
        }
    }
    names
}

fn heavy_core(file: &File) -> Vec<String> {
    let mut names = dependencies(&file.text);
    names.retain(|name| !CORE_DEPENDENCIES.contains(&name.as_str()));
    names
}

#[test]
fn core_depends_on_serde_only() {
    all(|path| path == "crates/core/Cargo.toml", heavy_core);
    let fine = "[dependencies]\nserde.workspace = true\n# x\n[dev-dependencies]\nproptest = \"1\"\n";
    catches(heavy_core, "Cargo.toml", fine, 0);
    catches(heavy_core, "Cargo.toml", "[dependencies]\nserde = \"1\"\nlibc = \"1\"\n", 1);
    catches(heavy_core, "Cargo.toml", "[dependencies.libc]\nversion = \"1\"\n", 1);
    catches(heavy_core, "Cargo.toml", "[target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n", 1);
}

fn private_place(file: &File) -> Vec<String> {
    let line = |at: usize| file.text[..at].matches('\n').count() + 1;
    let mut complaints = Vec::new();
    for host in HOSTS {
        for (at, _) in file.text.match_indices(host) {
            complaints.push(format!("{}:{}: {host}: name the package, not its host", file.path, line(at)));
        }
    }
    let inside = |c: char| c.is_alphanumeric() || "._-}".contains(c);
    for path in PATHS {
        for (at, _) in file.text.match_indices(path) {
            if !file.text[..at].ends_with(inside) {
                complaints.push(format!("{}:{}: a path of one machine", file.path, line(at)));
            }
        }
    }
    complaints
}

#[test]
fn no_private_places_are_named() {
    // The lock file names the registry by itself.
    all(|path| path != "Cargo.lock", private_place);
    let paths = concat!("see /wo", "rk/x and `/ro", "ot/.cargo`");
    catches(private_place, "a.md", paths, 2);
    let host = concat!("https://static.crates", ".io/x");
    catches(private_place, "a.md", host, 1);
    catches(private_place, "a.md", "docs/work/x, $root/x, at work", 0);
}

/// What stands in backticks outside code blocks and looks like a file.
fn named_files(text: &str) -> Vec<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let known = ["rs", "toml", "md", "sh", "sql", "lua", "json", "py"];
    let file = |name: &&str| {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        let looks = extension.is_some_and(|e| known.contains(&e)) || name.starts_with("crates/");
        looks && name.chars().all(plain) && !name.starts_with('/')
    };
    let prose = text.split("```").step_by(2);
    let spans = prose.flat_map(|p| p.split('`').skip(1).step_by(2));
    spans.filter(file).map(String::from).collect()
}

/// The files a document names that are not there; a bare name may be anywhere.
fn missing(text: &str, files: &[File]) -> Vec<String> {
    let mut names = named_files(text);
    names.retain(|name| {
        let tail = format!("/{name}");
        !root().join(name).exists() && !files.iter().any(|f| f.path.ends_with(&tail))
    });
    names
}

#[test]
fn documents_name_files_that_exist() {
    let files = files();
    for document in [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "README.md",
        "docs/guarantees.md",
        "docs/protocol.md",
        "docs/schedule.md",
    ] {
        if let Some(file) = files.iter().find(|f| f.path == document) {
            let missing = missing(&file.text, &files);
            assert!(missing.is_empty(), "{document} names {missing:?}");
        }
    }
    let sample = "`crates/core/gone.rs`, `clock.rs`, `nope.rs`, `a b.rs`\n```\n`x.rs`\n```\n`crates/cli`";
    assert_eq!(missing(sample, &files), ["crates/core/gone.rs", "nope.rs"]);
}

/// The files that no other declares: the compiler has never seen them, nor a test in them.
fn undeclared(files: &[File]) -> Vec<&str> {
    let rust_files = || files.iter().filter(|f| rust(&f.path));
    let named_elsewhere = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        rust_files().any(|f| f.text.contains(&format!("#[path = \"{name}\"]")))
    };
    let declared = |path: &str| {
        let parts: Vec<&str> = path.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
        let [place @ .., name] = &parts[..] else { return false };
        let place = place.join("/");
        let parents = ["/mod.rs", "/main.rs", "/lib.rs", ".rs"].map(|end| format!("{place}{end}"));
        let lines = ["", "pub ", "pub(crate) ", "pub(super) "].map(|seen| format!("{seen}mod {name};"));
        let declares = |text: &str| text.lines().any(|line| lines.iter().any(|l| line.trim() == l));
        rust_files().any(|f| parents.contains(&f.path) && declares(&f.text))
    };
    let root = |path: &str| {
        let parts: Vec<&str> = path.split('/').skip(2).collect();
        matches!(
            parts[..],
            ["src", "main.rs" | "lib.rs"] | ["build.rs"] | ["tests" | "examples" | "benches", _]
        ) || matches!(parts[..], ["tests", _, "main.rs"])
    };
    let alone = |path: &&str| !root(path) && !declared(path) && !named_elsewhere(path);
    rust_files().map(|f| f.path.as_str()).filter(alone).collect()
}

#[test]
fn every_file_is_compiled() {
    // What several programs share is named by its path alone.
    let shared = |path: &&str| path.starts_with("crates/lib/tests/common/");
    let files = files();
    let alone: Vec<&str> = undeclared(&files).into_iter().filter(|path| !shared(path)).collect();
    assert!(alone.is_empty(), "no `mod` declares {alone:?}");
    let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
    let sample = [
        file("crates/a/tests/t/main.rs", "mod good;\n// mod bad;\nmod deep;"),
        file("crates/a/tests/t/good.rs", ""),
        file("crates/a/tests/t/bad.rs", ""),
        file("crates/a/tests/t/deep/mod.rs", "mod inner;"),
        file("crates/a/tests/t/deep/inner.rs", ""),
        file("crates/a/tests/t/deep/good.rs", ""),
    ];
    assert_eq!(undeclared(&sample), ["crates/a/tests/t/bad.rs", "crates/a/tests/t/deep/good.rs"]);
}
