//! The house style, as a test. Every check is also shown a bad sample, which it must catch.

mod source;

use std::path::{Path, PathBuf};
use std::process::Command;

use source::{block_end, code, line, without_test_modules, words};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;
const MAIN_LINES: usize = 60;

const CLOCK_FILE: &str = "crates/lib/src/clock.rs";
const CLOCK_CALLS: [&str; 3] = ["clock_gettime", "Instant::now", "SystemTime::now"];
const UNSAFE_FILE: &str = "crates/lib/src/runner/spawn.rs";
const CORE_DEPENDENCIES: [&str; 2] = ["serde", "serde_json"];

/// Written in two halves, so that this file does not contain what it forbids.
const MARKERS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
/// Absolute paths of somebody's machine.
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

/// Rust that is shipped: not integration tests, benchmarks or examples.
fn shipped(path: &str) -> bool {
    rust(path) && path.contains("/src/")
}

/// One complaint for every time one of `words_banned` stands in `text`.
fn banned(file: &File, text: &str, words_banned: &[&str], why: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for word in words_banned {
        for at in words(text, word) {
            complaints.push(format!("{}:{}: {word}: {why}", file.path, line(text, at)));
        }
    }
    complaints
}

fn long_file(file: &File) -> Vec<String> {
    let main = shipped(&file.path) && file.path.ends_with("/main.rs");
    let limit = if main { MAIN_LINES } else { FILE_LINES };
    let lines = file.text.lines().count();
    let complaint = format!("{}: {lines} lines, the limit is {limit}", file.path);
    (lines > limit).then_some(complaint).into_iter().collect()
}

#[test]
fn files_are_short() {
    all(rust, long_file);
    catches(long_file, "crates/a/src/a.rs", &"\n".repeat(501), 1);
    catches(long_file, "crates/a/src/a.rs", &"\n".repeat(500), 0);
    catches(long_file, "crates/a/src/main.rs", &"\n".repeat(61), 1);
}

fn long_function(file: &File) -> Vec<String> {
    let code = without_test_modules(&code(&file.text));
    let mut complaints = Vec::new();
    for at in words(&code, "fn") {
        let name = code[at + 2..].trim_start();
        let named = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let end = block_end(&code, at).filter(|_| named);
        let lines = end.map_or(0, |end| code[at..end].lines().count());
        if lines > FUNCTION_LINES {
            let place = line(&code, at);
            complaints.push(format!("{}:{place}: a function of {lines} lines", file.path));
        }
    }
    complaints
}

#[test]
fn functions_are_short() {
    all(shipped, long_function);
    let filler = "g('{', \"}\"); // }\n";
    let function = |lines| format!("fn f(a: [u8; 2]) {{\n{}}}\n", filler.repeat(lines));
    let (fine, long) = (function(68), function(69));
    catches(long_function, "a.rs", &fine, 0);
    catches(long_function, "a.rs", &long, 1);
    let module = format!("#[cfg(test)]\nmod t {{\n{long}}}\n");
    catches(long_function, "a.rs", &module, 0);
    catches(long_function, "a.rs", &format!("{module}{long}"), 1);
    catches(long_function, "a.rs", &format!("#[cfg(test)]\nuse a;\n{long}"), 1);
    catches(long_function, "a.rs", &format!("trait T {{ fn g(); }}\n{long}"), 1);
}

fn std_in_core(file: &File) -> Vec<String> {
    let code = code(&file.text);
    let mut complaints = banned(file, &code, &["std"], "core has no clock and no I/O");
    if file.path.ends_with("/lib.rs") && !code.contains("#![no_std]") {
        complaints.push(format!("{}: #![no_std] is gone", file.path));
    }
    complaints
}

#[test]
fn core_is_pure() {
    let core = |path: &str| rust(path) && path.starts_with("crates/core/src/");
    all(core, std_in_core);
    catches(std_in_core, "src/a.rs", "use std::time::Instant; // std::", 1);
    catches(std_in_core, "src/lib.rs", "//! #![no_std]\npub mod a;", 1);
    catches(std_in_core, "src/lib.rs", "//! Not std::.\n#![no_std]\npub mod a;", 0);
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

fn clock_call(file: &File) -> Vec<String> {
    let code = without_test_modules(&code(&file.text));
    banned(file, &code, &CLOCK_CALLS, "only the clock module asks what time it is")
}

#[test]
fn one_file_asks_the_time() {
    all(|path| shipped(path) && path != CLOCK_FILE, clock_call);
    catches(clock_call, "a.rs", "let t = std::time::Instant::now();", 1);
    catches(clock_call, "a.rs", "clock_gettime(x); SystemTime::now();", 2);
    catches(clock_call, "a.rs", "// Instant::now is not for us.", 0);
    catches(clock_call, "a.rs", "#[cfg(test)]\nmod t { fn f() { Instant::now(); } }", 0);
}

fn unsafe_code(file: &File) -> Vec<String> {
    banned(file, &code(&file.text), &["unsafe"], "only the spawn module may")
}

#[test]
fn one_file_is_unsafe() {
    all(|path| rust(path) && path != UNSAFE_FILE, unsafe_code);
    catches(unsafe_code, "a.rs", "fn f() { unsafe { g() } }", 1);
    catches(unsafe_code, "a.rs", "#![forbid(unsafe_code)] // unsafe", 0);
    catches(unsafe_code, "a.rs", "let a = r#\"unsafe \"quoted\" unsafe\"#; let b = 'u';", 0);
    catches(unsafe_code, "a.rs", "fn f<'a>(x: &'a str) { /* /* */ */ unsafe { g(x) } }", 1);
}

fn left_over(file: &File) -> Vec<String> {
    let code = code(&file.text);
    let compact: String = code.split_whitespace().collect();
    let mut complaints = banned(file, &file.text, &MARKERS, "do it, or file it");
    complaints.extend(banned(file, &code, &["dbg!"], "left over"));
    if compact.contains("#[ignore]") || compact.contains("#[ignore=") {
        complaints.push(format!("{}: an ignored test", file.path));
    }
    complaints
}

#[test]
fn nothing_is_left_over() {
    all(rust, left_over);
    catches(left_over, "a.rs", concat!("// TO", "DO: later"), 1);
    catches(left_over, "a.rs", concat!("fn f() {} // FIX", "ME"), 1);
    catches(left_over, "a.rs", "dbg!(x);", 1);
    catches(left_over, "a.rs", "#[test]\n#[ ignore = \"slow\"]\nfn f() {}", 1);
    catches(left_over, "a.rs", "#[ignore]\nfn f() {}", 1);
    catches(left_over, "a.rs", "// Nothing is #[ignore]d.", 0);
}

fn private_place(file: &File) -> Vec<String> {
    let mut complaints = banned(file, &file.text, &HOSTS, "name the package, not its host");
    let inside = |c: char| c.is_alphanumeric() || "._-}".contains(c);
    for path in PATHS {
        for (at, _) in file.text.match_indices(path) {
            if !file.text[..at].ends_with(inside) {
                let line = line(&file.text, at);
                complaints.push(format!("{}:{line}: a path of one machine", file.path));
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
        let declares = |text: &str| {
            let (text, line) = (code(text), format!("mod {name};"));
            words(&text, "mod").into_iter().any(|at| text[at..].starts_with(&line))
        };
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
