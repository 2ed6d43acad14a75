//! Every console block of these documents is typed at a terminal, and must print what it says. Each document has a
//! home of its own.
//!
//! `$ ` starts a command; the lines below it are what it prints, with other holders and durations, at home
//! in `/home/me`. Lines may be broken anywhere, as a terminal does. A command that ends in ` &` is left running,
//! and the next one waits until it holds its lease. A block of TOML is saved as leasehold.toml.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

struct World {
    dir: PathBuf,
    running: Vec<Child>,
}

impl World {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("leasehold-readme-{:032x}", leasehold::random::seed()));
        std::fs::create_dir(&dir).unwrap();
        let bin = dir.join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(binary(), bin.join("leasehold")).unwrap();
        Self { dir, running: Vec::new() }
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", line]);
        self.here(command)
    }

    /// The same at a terminal of its own.
    fn terminal(&self, line: &str) -> Command {
        let mut command = Command::new("script");
        command.args(["-qec", line, "/dev/null"]);
        self.here(command)
    }

    fn here(&self, mut command: Command) -> Command {
        let path = format!("{}:{}", self.dir.join("bin").display(), std::env::var("PATH").unwrap());
        command.current_dir(&self.dir).env_clear().env("HOME", &self.dir).env("PATH", path);
        command.env("SHELL", "/bin/bash").stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// What a command prints. One that is left running prints as much as is expected of it.
    fn type_line(&mut self, line: &str, expected: &str) -> String {
        let left = line.strip_suffix(" &");
        let typed = left.map_or_else(|| line.into(), |line| format!("exec {line}"));
        let mut child = self.terminal(&typed).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let printed = if left.is_some() {
            self.running.push(child);
            self.wait_until_held();
            words_of(&mut stdout, expected.split_whitespace().count())
        } else {
            let mut printed = String::new();
            stdout.read_to_string(&mut printed).unwrap();
            child.wait().unwrap();
            printed
        };
        printed.replace(self.dir.to_str().unwrap(), "/home/me")
    }

    fn wait_until_held(&self) {
        let end = leasehold::clock::boot_time().plus(Duration::from_secs(60));
        loop {
            let output = self.shell("leasehold status --json").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            // For a while: what is held since this very second is told without a time.
            if text.contains("\"held\"") && !text.contains("\"held_s\":0.0") {
                return;
            }
            assert!(leasehold::clock::boot_time() < end, "nothing took the lease");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.running {
            // A terminal that is killed ends nothing that runs in it.
            let pid = child.id();
            let inside = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            for pid in inside.unwrap_or_default().split_whitespace() {
                let _ = kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::TERM);
            }
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Whole lines with so many words at least, or all there are.
fn words_of(stdout: &mut impl Read, count: usize) -> String {
    let (mut printed, mut byte) = (Vec::new(), [0]);
    loop {
        let text = String::from_utf8_lossy(&printed);
        let whole = text.is_empty() || text.ends_with('\n');
        if whole && text.split_whitespace().count() >= count || stdout.read(&mut byte).unwrap() == 0 {
            return text.into_owned();
        }
        printed.extend(byte);
    }
}

fn binary() -> PathBuf {
    let named = std::env::var_os("LEASEHOLD_BIN").map(PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    named.map_or_else(|| env!("CARGO_BIN_EXE_leasehold").into(), |path| root.join(path))
}

/// The commands of a document's console blocks, each with what it should print.
fn commands(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let (mut inside, mut saving) = (false, false);
    for line in text.lines() {
        if line.starts_with("```") {
            if saving && let Some((command, _)) = found.last_mut() {
                command.push_str("END");
            }
            (inside, saving) = (line == "```console", line == "```toml");
            if saving {
                found.push(("cat > leasehold.toml <<'END'\n".into(), String::new()));
            }
        } else if let (true, Some((command, _))) = (saving, found.last_mut()) {
            command.push_str(line);
            command.push('\n');
        } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            found.push((command.into(), String::new()));
        } else if let (true, Some((_, expected))) = (inside, found.last_mut()) {
            expected.push_str(line);
            expected.push('\n');
        }
    }
    found
}

/// What stands in a document's blocks of this language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    text.split(&begin).skip(1).filter_map(|rest| rest.split_once("```").map(|(block, _)| block)).collect()
}

/// Whether the text is as expected: the same words, where any holder stands for any other, any duration for any
/// other, and any time.
fn matches(expected: &str, actual: &str) -> bool {
    plain(expected) == plain(actual)
}

fn plain(text: &str) -> Vec<String> {
    let words = text.split_whitespace().map(|word| {
        let bare = word.trim_end_matches([',', ')', '.']);
        let tail = &word[bare.len()..];
        if is_time(bare) {
            format!("TIME{tail}")
        } else if is_holder(bare) {
            format!("HOLDER{tail}")
        } else if is_duration(bare) {
            format!("DURATION{tail}")
        } else {
            word.to_owned()
        }
    });
    words.collect()
}

fn is_holder(word: &str) -> bool {
    let parts = word.split_once('/');
    parts.is_some_and(|(host, pid)| {
        !host.is_empty() && !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit())
    })
}

/// As 3s, 1.5s, 19h31m53s.
fn is_duration(word: &str) -> bool {
    let parts = word.split_inclusive(|c: char| c.is_ascii_lowercase());
    let part = |part: &str| {
        let number = part.strip_suffix("ms").unwrap_or(part).trim_end_matches(['s', 'm', 'h', 'd']);
        let digits = |c: char| c.is_ascii_digit() || c == '.';
        part == "s" || !number.is_empty() && number.len() < part.len() && number.chars().all(digits)
    };
    word.starts_with(|c: char| c.is_ascii_digit()) && parts.into_iter().all(part)
}

/// As 2026-11-16T05:45:00Z or 2026-11-17T06:30+01:00.
fn is_time(word: &str) -> bool {
    let shape: String = word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    ["0000-00-00T00:00:00Z", "0000-00-00T00:00+00:00", "0000-00-00T00:00-00:00"].contains(&shape.as_str())
}

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
}

fn does_not_lie(name: &str) {
    let commands = commands(&document(name));
    assert!(commands.len() >= 3, "{name} has lost its console blocks");
    let mut world = World::new();
    for (command, expected) in commands {
        let printed = world.type_line(&command, &expected);
        assert!(matches(&expected, &printed), "$ {command}\nexpected:\n{expected}\nprinted:\n{printed}");
    }
}

#[test]
fn the_readme_does_not_lie() {
    does_not_lie("README.md");
}

#[test]
fn the_page_on_stores_does_not_lie() {
    does_not_lie("docs/stores.md");
}

#[test]
fn the_files_in_the_readme_work() {
    let text = document("README.md");
    let (jobs, programs) = (blocks(&text, "toml"), blocks(&text, "python"));
    assert_eq!((jobs.len(), programs.len()), (1, 1));
    let mut world = World::new();
    std::fs::write(world.dir.join("leasehold.toml"), jobs[0]).unwrap();
    let plan = world.type_line("leasehold plan", "");
    assert!(plan.lines().count() == 5 && plan.contains("\nnorth "), "{plan}");
    std::fs::write(world.dir.join("job.py"), programs[0]).unwrap();
    let printed = world.type_line("python3 job.py && cat blog.html", "");
    assert!(printed.contains("leasehold: wrote file:blog.html") && printed.ends_with("</h1>"), "{printed}");
}

#[test]
fn a_readme_that_lies_is_caught() {
    assert!(matches("held by mac/8 (token 2) for 3s, ends\n", "held by vm/17 (token 2) for 1.5s,  ends\n"));
    assert!(!matches("held by mac/8 (token 2)\n", "held by vm/17 (token 3)\n"));
    assert!(!matches("held by mac/8 for 3s\n", "held by somebody for 3s\n"));
    assert!(matches(
        "next 2026-11-17T06:30+01:00 (in 19h31m53s)\n",
        "next 2027-01-01T06:30+02:00 (in 300ms)\n"
    ));
    assert!(!matches("next 2026-11-17T06:30+01:00 (in 3s)\n", "next never (in 3s)\n"));
    assert!(!matches("in 3s\n", "in s\n") && !matches("in 3s\n", "in 3x\n") && !matches("in 3s\n", "in 3\n"));
    assert!(!matches("published\n", ""));
    assert!(!matches("", "published\n"));
    assert!(!matches("a\n", "a b\n"));
    assert!(matches("a\n  b\n", "a b\r\n"));
    let mut world = World::new();
    let printed = world.type_line("leasehold run site -- echo published", "");
    assert!(printed.contains("published") && !matches("published twice\n", &printed), "{printed}");
    let printed = world.type_line("leasehold run site -- sleep 60 &", "three words only");
    assert!(printed.starts_with("leasehold: took site: token 2") && printed.ends_with('\n'), "{printed}");
}
