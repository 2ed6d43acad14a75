//! Sixteen processes race on one store: on its first start, on creates and on updates.
//!
//! The processes are this test binary again; they do one step at a time, on a line from the parent.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::Scratch;
use leasehold::core::ids::WriteId;
use leasehold::stores::{Cas, Store, Version, open};
use pollster::block_on;

const PROCESSES: usize = 16;
const ROUNDS: usize = 50;
const FRESH_STORES: usize = 10;

/// Set for the racers, so that it does nothing when the whole file is run.
const RACER: &str = "LEASEHOLD_TEST_RACER";
/// Starts every answer, since the test harness prints in front of the first one.
const ANSWER: char = '@';

struct Racer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Racer {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["store_processes::racer", "--exact", "--nocapture"])
            .env(RACER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            orders: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").unwrap();
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "a racer died");
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.trim().to_owned();
            }
        }
    }
}

/// Gives all racers one order at once and collects what they say.
fn all(racers: &mut [Racer], order: &str) -> Vec<String> {
    for racer in racers.iter_mut() {
        racer.order(order);
    }
    racers.iter_mut().map(Racer::answer).collect()
}

fn race(scheme: &str) {
    let scratch = Scratch::new();
    let mut racers: Vec<Racer> = (0..PROCESSES).map(|_| Racer::start()).collect();
    let mut url = String::new();
    for number in 0..FRESH_STORES {
        url = format!("{scheme}:{}", scratch.join(&format!("store-{number}")));
        let mut instances = all(&mut racers, &format!("open {url}"));
        instances.dedup();
        assert!(instances.len() == 1 && instances[0].starts_with("instance "), "{instances:?}");
    }
    let mut store = open(&url).unwrap();
    for round in 0..ROUNDS {
        let key = format!("created/{round}");
        check(&mut *store, &key, &all(&mut racers, &format!("create {key}")));
    }
    let key = "created/0";
    for _ in 0..ROUNDS {
        let version = block_on(store.read(key)).unwrap().unwrap().version.0;
        check(&mut *store, key, &all(&mut racers, &format!("update {key} {version}")));
    }
    for mut racer in racers {
        drop(racer.orders);
        assert!(racer.child.wait().unwrap().success());
    }
}

/// Exactly one won, nobody is unsure on a healthy store, and the winner's write is what is stored.
fn check(store: &mut dyn Store, key: &str, answers: &[String]) {
    let won: Vec<&str> = answers.iter().filter_map(|a| a.strip_prefix("won ")).collect();
    let lost = answers.iter().filter(|a| *a == "lost").count();
    assert_eq!((won.len(), lost), (1, PROCESSES - 1), "{answers:?}");
    let stored = block_on(store.read(key)).unwrap().unwrap();
    assert_eq!(stored.version.0, won[0]);
    assert_eq!(stored.body, won[0].as_bytes());
}

#[test]
fn sqlite() {
    race("sqlite");
}

#[test]
fn dir() {
    race("dir");
}

/// The other side. Does nothing by itself: it answers orders until there are no more.
#[test]
fn racer() {
    if std::env::var_os(RACER).is_none() {
        return;
    }
    let mut store: Option<Box<dyn Store>> = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["open", url] => match open(url) {
                Ok(opened) => {
                    let instance = opened.facts().instance;
                    store = Some(opened);
                    format!("instance {instance}")
                }
                Err(e) => format!("failed: {e}"),
            },
            ["create", key] => attempt(store.as_mut(), key, None),
            ["update", key, version] => attempt(store.as_mut(), key, Some(Version(version.into()))),
            _ => "no such order".into(),
        };
        println!("{ANSWER}{answer}");
    }
}

fn attempt(store: Option<&mut Box<dyn Store>>, key: &str, expected: Option<Version>) -> String {
    let write = WriteId(leasehold::random::seed());
    let body = write.to_string();
    let cas = store.unwrap().cas(key, expected.as_ref(), write, body.as_bytes());
    match block_on(cas) {
        Cas::Written { version, .. } => format!("won {}", version.0),
        Cas::Conflict => "lost".into(),
        Cas::Unknown(f) => format!("unsure: {}", f.message),
    }
}
