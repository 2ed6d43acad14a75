//! `leasehold demo`: it tells what happened, and nothing of it is left.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use leasehold::{clock, random};
use leasehold_testkit::messages;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

const MARK: &str = "DEMO_TEST_MARK";

fn binary() -> PathBuf {
    std::env::var_os("LEASEHOLD_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_leasehold").into()).into()
}

/// Keeps which messages it said.
fn noted(output: Output) -> Output {
    for bytes in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(bytes);
        messages::note_seen(&text);
        messages::note_wrapped(&text);
    }
    output
}

/// A place for everything the demo makes, and a mark on everything it starts.
struct Place {
    dir: PathBuf,
    mark: String,
}

impl Place {
    fn new() -> Self {
        let mark = format!("{:032x}", random::seed());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-{mark}"));
        std::fs::create_dir_all(&dir).unwrap();
        Self { dir, mark }
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env(MARK, &self.mark).env("TMPDIR", &self.dir).env("HOME", &self.dir);
        command.env_remove("NO_COLOR").env_remove("COLUMNS").stdin(Stdio::null());
        command
    }

    fn demo(&self, args: &[&str]) -> Output {
        noted(self.command(binary()).arg("demo").args(args).output().unwrap())
    }

    /// Whoever carries the mark in its environment.
    fn processes(&self) -> Vec<i32> {
        let wanted = format!("{MARK}={}", self.mark);
        let numbers = std::fs::read_dir("/proc").unwrap().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let marked = |pid: &i32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        numbers.filter(marked).collect()
    }

    fn assert_nothing_left(&self) {
        let left = self.processes();
        assert!(left.is_empty(), "processes are left: {left:?}");
        let files: Vec<_> = std::fs::read_dir(&self.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(files.is_empty(), "files are left: {files:?}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn the_facts() {
    let rounds = if std::env::var_os("LEASEHOLD_LONG").is_some() { 20 } else { 1 };
    for _ in 0..rounds {
        let place = Place::new();
        let began = clock::boot_time();
        let output = place.demo(&["--json"]);
        let lasted = clock::boot_time().since(began);
        place.assert_nothing_left();
        assert!(output.status.success(), "{output:?}");
        assert!(lasted < Duration::from_secs(60), "{lasted:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&facts["v"], &facts["ok"]), (&1.into(), &true.into()), "{facts}");
        let with = &facts["with"];
        assert_eq!((&with["first_token"], &with["second_token"]), (&1.into(), &2.into()), "{facts}");
        assert_eq!(
            (&with["waved_off"]["exit"], &with["waved_off"]["outcome"]),
            (&0.into(), &"skipped".into())
        );
        assert!(with["waited_s"].as_f64().unwrap() > 1.0, "nothing was waited for: {facts}");
        let refusal = &with["refusal"];
        assert_eq!((&refusal["token"], &refusal["sealed"]), (&1.into(), &2.into()), "{facts}");
        assert_eq!((&refusal["exit"], &refusal["reason"]), (&76.into(), &"stale".into()), "{facts}");
        let message = refusal["message"].as_str().unwrap();
        let named = crate::world::messages::named(message.lines());
        assert_eq!(named, ["targets.stale_write"], "{message}");
        assert!(message.contains("file:today.txt"), "{message}");
        assert_eq!((&with["wrapper"]["exit"], &with["wrapper"]["outcome"]), (&75.into(), &"lost".into()));
        assert_eq!(with["artefact"], "the figures of 10:00");
        assert_eq!(facts["without"]["artefact_before"], "the figures of 10:00");
        assert_eq!(facts["without"]["artefact"], "the figures of 09:00");
    }
}

fn assert_readable(text: &str, width: usize) {
    for line in text.lines() {
        assert!(line.trim_end_matches('\r').chars().count() <= width, "{line:?}");
    }
    let words: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for needed in
        ["token 1", "token 2", "exit 76", "What to type next:", "leasehold run NAME -- your-command"]
    {
        assert!(words.contains(needed), "{needed:?} is not in:\n{text}");
    }
}

#[test]
fn readable_at_80_columns_and_below() {
    let place = Place::new();
    let wide = place.demo(&[]);
    assert!(wide.status.success(), "{wide:?}");
    let text = String::from_utf8(wide.stdout).unwrap();
    assert!(!text.contains('\x1b'), "colour without a terminal");
    assert!(text.lines().any(|line| line.starts_with("with leasehold  ") && line.ends_with(" without")));
    assert_readable(&text, 80);
    let narrow = noted(place.command(binary()).args(["demo"]).env("COLUMNS", "40").output().unwrap());
    let text = String::from_utf8(narrow.stdout).unwrap();
    assert!(text.lines().any(|line| line == "without:"), "{text}");
    assert_readable(&text, 40);
    place.assert_nothing_left();
}

#[test]
fn coloured_on_a_terminal_unless_told_otherwise() {
    let place = Place::new();
    let on_terminal = |command: &mut Command| {
        // script(1) gives it a terminal.
        let line = format!("'{}' demo", binary().display());
        let output = command.args(["-qec", &line, "/dev/null"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let coloured = on_terminal(place.command("script").env("TERM", "xterm"));
    assert!(coloured.contains("\x1b[32m") && coloured.contains("\x1b[31m"), "{coloured}");
    let plain = on_terminal(place.command("script").env("TERM", "xterm").env("NO_COLOR", "1"));
    assert!(!plain.contains('\x1b'), "{plain}");
    place.assert_nothing_left();
}

#[test]
fn interrupted_it_leaves_nothing() {
    let place = Place::new();
    let mut demo = place.command(binary());
    let mut demo = demo.arg("demo").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    // From here on processes stand still, and one waits for their lease.
    assert!(lines.any(|line| line.unwrap().starts_with("3. 10:00")));
    let stopped = place.processes();
    assert!(stopped.len() >= 4, "{stopped:?}");
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    let ended = noted(demo.wait_with_output().unwrap());
    assert_eq!(ended.status.code(), Some(130));
    // A job that was just started ends with its input, a moment later.
    for pid in place.processes() {
        let Ok(handle) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else { continue };
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        let ended = rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&patience));
        assert_eq!(ended, Ok(1), "{pid} is left");
    }
    place.assert_nothing_left();
}

/// The negative control: without a shell no job can run, and the demo says what was different.
#[test]
fn a_story_that_goes_otherwise_is_not_told_as_true() {
    let place = Place::new();
    let mut command = place.command(binary());
    let output = noted(command.args(["demo", "--json"]).env("PATH", &place.dir).output().unwrap());
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(facts["ok"], false);
    assert!(facts["differences"][0].as_str().unwrap().contains("command not found"), "{facts}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("demo_differs"));
    place.assert_nothing_left();
}
