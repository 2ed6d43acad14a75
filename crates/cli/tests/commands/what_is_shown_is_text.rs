//! Keys, host names and job outputs of anybody reach a terminal as text: no control character but our own colours, no
//! line that we did not make.

use std::path::Path;

use leasehold::core::ids::{Token, WriteId};
use leasehold::core::ledger::Subject;
use leasehold::core::name::Name;
use leasehold::core::record::Holder;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord, RefusedWrite};
use leasehold::core::session::lease_key;
use leasehold::ledger::key_of;
use leasehold::run_log::creation;
use leasehold::stores::{self, BatchWrite, Cas};
use leasehold_testkit::git::{SETTINGS, Yard, must, script};
use pollster::block_on;
use serde_json::Value;

use crate::world::{Ended, World, binary};

const KEYS: usize = 10_000;
const LEASES: usize = 1_000;
/// So many are asked about one by one.
const EACH: usize = 12;

/// What a terminal acts on, and some of what people write.
const PARTS: [&str; 24] = [
    "\x1b[2J",
    "\x1b]0;t\x07",
    "\x1b[31m",
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\x08",
    "\x7f",
    "\u{85}",
    "\u{9b}1m",
    "\u{9d}",
    "\u{202e}",
    "\u{2066}",
    "\u{200f}",
    "\u{61c}",
    "\u{2028}",
    "\u{2029}",
    "\x0b",
    "\x0e",
    "a b",
    "ä",
    "🦀",
    "\x01",
];

/// A text that no two records share.
fn nasty(seed: &mut u64, number: usize) -> String {
    let mut text = format!("{number}");
    for _ in 0..6 {
        // As good as any for choosing parts (Knuth's MMIX).
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text += PARTS[usize::try_from(*seed >> 33).unwrap() % PARTS.len()];
    }
    text
}

/// The lines of what a terminal was sent, if it was sent nothing but text and our own colours.
fn lines(sent: &str) -> Result<Vec<String>, String> {
    let mut text = sent.replace("\r\n", "\n").replace("\r\x1b[K", "");
    for colour in ["\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m"] {
        text = text.replace(colour, "");
    }
    let acts = |c: char| {
        let turns = matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || c.is_control() && c != '\n'
    };
    match text.lines().find(|line| line.contains(acts)) {
        Some(line) => Err(line.into()),
        None => Ok(text.lines().map(Into::into).collect()),
    }
}

/// One line of shell, however nasty the words.
fn shell(words: &[&str]) -> String {
    let quoted = words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''")));
    quoted.collect::<Vec<_>>().join(" ")
}

struct Terminal {
    world: World,
    store: String,
}

impl Terminal {
    fn new() -> Self {
        let world = World::new();
        let store = format!("sqlite:{}", world.at("store.db"));
        Self { world, store }
    }

    /// Runs it at a terminal; what was sent there.
    fn sent(&self, args: &[&str]) -> Ended {
        self.sent_from(&self.world.path(""), args)
    }

    fn sent_from(&self, dir: &Path, args: &[&str]) -> Ended {
        let binary = binary();
        let line = shell(&[&[binary.to_str().unwrap(), "--store", &self.store], args].concat());
        let mut command = self.world.program("script");
        command.args(["-qec", &line, "/dev/null"]).env("SHELL", "/bin/sh").env("TERM", "xterm");
        command.envs(SETTINGS).current_dir(dir).output().unwrap().into()
    }

    /// … which is text: how many lines.
    #[track_caller]
    fn shows(&self, code: i32, args: &[&str]) -> usize {
        let ended = self.sent(args);
        assert_eq!(ended.code, code, "{args:?}: {ended:#?}");
        let lines = lines(&ended.out).unwrap_or_else(|line| panic!("{args:?} shows {line:?}"));
        assert!(!lines.is_empty(), "{args:?}: {ended:#?}");
        lines.len()
    }

    fn log(&self, records: &[LogRecord]) {
        let mut store = stores::open(&self.store).unwrap_or_else(|e| panic!("{e}"));
        let writes: Vec<BatchWrite> = records.iter().map(creation).collect();
        let written = block_on(store.cas_many(&writes));
        assert!(written.iter().all(|cas| matches!(cas, Cas::Written { .. })), "{written:?}");
    }

    fn record(&self, key: &str) -> Value {
        let mut store = stores::open(&self.store).unwrap_or_else(|e| panic!("{e}"));
        serde_json::from_slice(&block_on(store.read(key)).unwrap().expect("a record").body).unwrap()
    }

    fn put(&self, records: &[(String, Value)]) {
        let mut store = stores::open(&self.store).unwrap_or_else(|e| panic!("{e}"));
        let write = |(key, record): &(String, Value)| {
            let write: String = serde_json::from_value(record["write"].clone()).unwrap();
            let (write, body) = (WriteId::parse(&write).unwrap(), serde_json::to_vec(record).unwrap());
            BatchWrite { key: key.clone(), expected: None, write, body }
        };
        let writes: Vec<BatchWrite> = records.iter().map(write).collect();
        let wrong =
            block_on(store.cas_many(&writes)).into_iter().find(|cas| !matches!(cas, Cas::Written { .. }));
        assert!(wrong.is_none(), "{wrong:?}");
    }
}

/// Records as a run makes them, with other words in them.
fn fill(there: &Terminal, of_each: [usize; 2], seed: &mut u64) -> (Vec<String>, Vec<String>) {
    there
        .world
        .run(&["--store", &there.store, "once", "a", "--tail", "sh", "-c", "echo no; exit 3"])
        .is(3, "");
    there.world.run(&["--store", &there.store, "run", "b", "true"]).is(0, "");
    there.world.run(&["--store", &there.store, "acquire", "b"]).is(0, "");
    let (item, lease) = (there.record("keys/a"), there.record("leases/b"));
    let (mut keys, mut leases, mut records, mut log) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for number in 0..of_each[0] {
        let key = nasty(seed, number);
        let mut record = item.clone();
        record["item"] = serde_json::to_value(Subject::Key(key.clone())).unwrap();
        record["claim"]["holder"]["host"] = nasty(seed, number).into();
        record["ending"]["said"] = nasty(seed, number).into();
        record["state"] = ["ok", "failed", "skipped"][number % 3].into();
        records.push((key_of(&Subject::Key(key.clone())), record));
        log.push(logged(seed, number, Subject::Key(key.clone())));
        keys.push(key);
    }
    for number in 0..of_each[1] {
        let name = format!("held-{number}");
        let mut record = lease.clone();
        record["lease"] = name.clone().into();
        if number == 0 {
            record["ttl_ms"] = 2_000.into();
        }
        for field in ["host", "job"] {
            record["holder"][field] = nasty(seed, number).into();
        }
        records.push((lease_key(&Name::new(&name).unwrap()), record));
        leases.push(name);
    }
    there.put(&records);
    there.log(&log);
    (keys, leases)
}

/// A record of the run log as a run with a key writes it, with other words in it.
fn logged(seed: &mut u64, number: usize, key: Subject) -> LogRecord {
    let (name, mut word) = (Name::new("a.once").unwrap(), || nasty(seed, number));
    let holder = Holder { host: word(), run: word(), ..leasehold::host::holder("r-0000000000000000", &name) };
    let events = [LogEvent::Failed, LogEvent::Refused, LogEvent::Skipped, LogEvent::Break];
    let (event, id) = (events[number % events.len()], LogId::of(number as u128));
    LogRecord {
        reason: Some(word()),
        lease: Some(name.clone()),
        token: Token::new(7),
        item: Some(key),
        target: Some(RefusedWrite { target: word(), fence: Token::new(8) }),
        said: word(),
        ..LogRecord::new(leasehold::clock::wall(), event, name, id, holder)
    }
}

#[test]
fn whatever_is_recorded_is_shown_as_one_line_of_text() {
    let (there, mut seed) = (Terminal::new(), leasehold::random::seed() as u64);
    println!("seed {seed}");
    fill(&there, [KEYS, LEASES], &mut seed);
    // A head and a sum for each table of a thousand; the key and the run that were first.
    assert_eq!(there.shows(0, &["history", "--limit", "99999"]), 2 + KEYS + 2);
    assert_eq!(there.shows(0, &["history"]), 1 + 50 + 2);
    assert_eq!(there.shows(0, &["--json", "history"]), KEYS + 2);
    // The name of the store and a head; two leases of those.
    assert_eq!(there.shows(0, &["status"]), 2 + LEASES + 2);
    let there = Terminal::new();
    let (keys, leases) = fill(&there, [EACH, EACH], &mut seed);
    for key in &keys {
        assert_eq!(there.shows(0, &["history", key]), 4, "{key:?}");
        there.shows(0, &["why", key]);
        there.shows(64, &["why", &format!("{key}?")]);
        // Exact, for programs, and as text.
        assert_eq!(there.shows(0, &["--json", "history", key]), 2, "{key:?}");
        for told in there.world.run(&["--store", &there.store, "--json", "history", key]).objects() {
            assert_eq!(told["item"], **key);
        }
    }
    for (number, key) in keys.iter().enumerate() {
        match number % 3 {
            0 => assert_eq!(there.shows(0, &["once", key, "true"]), 1),
            1 => assert_eq!(there.shows(0, &["retry", key]), 1),
            _ => drop(there.shows(0, &["run", "own", "--key", key, "true"])),
        }
    }
    for name in &leases[1..] {
        assert_eq!(there.shows(0, &["run", name, "true"]), 1);
        assert_eq!(there.shows(11, &["acquire", name]), 1);
        there.shows(0, &["status", name]);
        there.shows(0, &["why", name]);
    }
    there.shows(0, &["break", &leases[0]]);
}

#[test]
fn what_is_typed_is_repeated_as_text() {
    let there = Terminal::new();
    let nasty = "x\x1b[2J\nleasehold: all is well\u{9b}\u{202e}";
    let option = format!("--{nasty}");
    there.shows(64, &["run", "a", &option, "true"]);
    there.shows(64, &["status", &option]);
    there.shows(64, &["run", "a", "--ttl", nasty, "true"]);
    assert_eq!(there.shows(64, &["run", nasty, "true"]), 1);
    assert_eq!(there.shows(64, &["run", "a", "--fence", &format!("{{{nasty}}}"), "true"]), 1);
    assert_eq!(there.shows(78, &["run", "a", "--fence", nasty, "true"]), 1);
    assert_eq!(there.shows(127, &["run", "a", nasty]), 1);
    assert_eq!(there.shows(78, &["--config", nasty, "plan"]), 1);
    assert_eq!(there.shows(64, &["help", nasty]), 1);
    there.shows(0, &["fence", "ls", &format!("file:{nasty}")]);
    there.world.write("leasehold.toml", "[[job]]\nname = \"\u{9b}\u{202e}\"\n\"a\\u001B[2J\\nb\" = 1\n");
    assert_eq!(there.shows(78, &["plan"]), 1);
    // Where the store is.
    let elsewhere = Terminal { store: format!("sqlite:{}", there.world.at(nasty)), world: there.world };
    elsewhere.shows(0, &["doctor"]);
    elsewhere.shows(0, &["status"]);
}

/// What jobs wait for is told by a daemon, and what a server says by git.
#[test]
fn what_others_say_is_passed_on_as_text() {
    let there = Terminal::new();
    fill(&there, [4, 4], &mut 1);
    let job = "[[job]]\nname = \"held-3\"\nevery = \"1s\"\nrun = [\"true\"]\n";
    there.world.write("leasehold.toml", job);
    there.shows(0, &["tick"]);
    crate::world::until("a slot is due and its lease is found held", || {
        let ended = there.sent(&["tick"]);
        lines(&ended.out).unwrap_or_else(|line| panic!("{line:?}"));
        ended.out.contains("held by").then_some(())
    });
    there.shows(0, &["plan"]);
    there.shows(0, &["pause", "held-3"]);
    there.shows(0, &["why", "held-3"]);
    let yard = Yard::new(&std::env::temp_dir());
    must(yard.dir(), &["clone", "--quiet", yard.bare().to_str().unwrap(), "clone"]);
    yard.commit(&yard.dir().join("clone"), "one");
    script(
        &yard.bare().join("hooks/pre-receive"),
        "#!/bin/sh\nprintf 'no \\033[2J\\302\\233 way\\n'; exit 1\n",
    );
    let words = ["run", "site", "--fence", "git:origin", "git", "push", "origin", "main"];
    let ended = there.sent_from(&yard.dir().join("clone"), &words);
    assert!(ended.out.contains("no ") && ended.out.contains(" way"), "{ended:#?}");
    lines(&ended.out).unwrap_or_else(|line| panic!("{line:?}"));
}

/// The search finds what it looks for.
#[test]
fn a_character_that_acts_is_found() {
    for part in PARTS {
        assert_eq!(
            lines(&format!("a{part}b\r\n")).is_err(),
            !matches!(part, "a b" | "ä" | "🦀" | "\n" | "\r\n" | "\x1b[31m"),
            "{part:?}"
        );
    }
    let there = Terminal::new();
    let sent = there.sent(&["run", "a", "printf", "\\033[2J"]);
    assert!(lines(&sent.out).is_err(), "{sent:#?}");
}
