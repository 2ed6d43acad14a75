//! `history --timeline`, `--svg` and `--html`: the run log as a picture.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use leasehold::clock;
use leasehold::core::ids::Token;
use leasehold::core::ledger::Subject;
use leasehold::core::name::Name;
use leasehold::core::record::Holder;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord, RefusedWrite};
use leasehold::run_log::creation;
use leasehold::stores::{self, BatchWrite, Cas};
use leasehold_testkit::messages::{note_seen, note_wrapped};
use pollster::block_on;
use roxmltree::{Document, ParsingOptions};

use crate::world::{Ended, World, until};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

/// A world with a store.
struct Night {
    world: World,
    url: String,
}

/// A record of so many seconds ago.
fn record(ago: u64, event: LogEvent, job: &str, host: &str, token: u64) -> LogRecord {
    let name = Name::new(job).unwrap();
    let holder = Holder {
        host: host.into(),
        pid: 4711,
        run: format!("{host}/4711"),
        job: job.into(),
        since: String::new(),
        slot: None,
    };
    let at = clock::wall() - Duration::from_secs(ago);
    // One hold, one id.
    let id = LogId::of(job.bytes().fold(u128::from(token), |id, byte| id * 31 + u128::from(byte)));
    LogRecord {
        lease: Some(name.clone()),
        token: Token::new(token),
        ..LogRecord::new(at, event, name, id, holder)
    }
}

fn run(ago: u64, event: LogEvent, job: &str, host: &str, token: u64) -> LogRecord {
    LogRecord {
        took: Some(Duration::from_secs(5 * MINUTE)),
        exit: Some(0),
        ..record(ago, event, job, host, token)
    }
}

impl Night {
    fn new(scheme: &str) -> Self {
        let world = World::new();
        let url = world.store(scheme);
        Self { world, url }
    }

    /// Puts records into the store.
    fn log(&self, records: &[LogRecord]) {
        let writes: Vec<BatchWrite> = records.iter().map(creation).collect();
        self.write(&writes);
    }

    fn write(&self, writes: &[BatchWrite]) {
        let mut store = stores::open(&self.url).unwrap();
        let written = block_on(store.cas_many(writes));
        assert!(written.iter().all(|cas| matches!(cas, Cas::Written { .. })), "{:?}", written.first());
    }

    fn run(&self, args: &[&str]) -> Ended {
        self.world.run(&[&["--store", &self.url], args].concat())
    }

    /// The timeline on stdout, with these arguments.
    fn timeline(&self, args: &[&str]) -> String {
        let ended = self.run(&[&["history", "--timeline"], args].concat()).quiet();
        note_wrapped(&ended.out);
        ended.out
    }

    /// A page of these arguments, as text: what stands in each element.
    fn page(&self, args: &[&str]) -> Vec<String> {
        let path = self.world.at("night.html");
        self.run(&[&["history", "--html", &path], args].concat()).quiet();
        let texts = texts(&fs::read_to_string(&path).unwrap());
        note_seen(&texts.join("\n"));
        texts
    }
}

/// The texts of an XML document.
fn texts(xml: &str) -> Vec<String> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(xml, options).unwrap_or_else(|e| panic!("{e}: {xml}"));
    let texts = document.descendants().filter(|node| node.is_text()).filter_map(|node| node.text());
    texts.map(str::trim).filter(|text| !text.is_empty()).map(String::from).collect()
}

/// The line of a timeline with the row of this job.
#[track_caller]
fn row<'t>(timeline: &'t str, job: &str) -> &'t str {
    let found = timeline.lines().find(|line| line.trim_start().starts_with(job));
    found.unwrap_or_else(|| panic!("no {job}: {timeline}"))
}

/// Everything that a picture can show.
fn all() -> Vec<LogRecord> {
    let mini = |ago, event, token| run(ago, event, "publish", "mac-mini", token);
    let book = |ago, event, token| run(ago, event, "publish", "macbook", token);
    let job = |minutes: u64, event, job: &str, token| run(minutes * MINUTE, event, job, "sandbox-7", token);
    let due = i64::try_from((clock::wall() - Duration::from_secs(2 * HOUR)).as_secs()).unwrap();
    vec![
        mini(5 * HOUR, LogEvent::Ok, 39),
        LogRecord {
            reason: Some("overlap".into()),
            said: "mac-mini/4711".into(),
            took: None,
            id: LogId::of(1),
            ..book(5 * HOUR + 200, LogEvent::Skipped, 39)
        },
        // It sleeps, and is overtaken.
        LogRecord { took: Some(Duration::from_secs(HOUR)), ..book(3 * HOUR, LogEvent::Lost, 41) },
        LogRecord { took: None, ..book(3 * HOUR + 10 * MINUTE, LogEvent::Unknown, 41) },
        mini(3 * HOUR + 6 * MINUTE, LogEvent::Ok, 42),
        LogRecord {
            id: LogId::of(2),
            took: None,
            reason: Some("stale".into()),
            target: Some(RefusedWrite { target: "file:/srv/today.json".into(), fence: Token::new(42) }),
            ..book(3 * HOUR + MINUTE, LogEvent::Refused, 41)
        },
        LogRecord { id: LogId::of(3), took: None, ..book(4 * HOUR + 20 * MINUTE, LogEvent::Refused, 41) },
        // Nobody has the lease for ten minutes.
        job(100, LogEvent::Lost, "premium", 7),
        job(85, LogEvent::Ok, "premium", 8),
        LogRecord { exit: Some(3), ..job(80, LogEvent::Failed, "charges", 9) },
        LogRecord { exit: None, ..job(70, LogEvent::Failed, "charges", 10) },
        job(60, LogEvent::Killed, "charges", 11),
        LogRecord { reason: Some("max-run".into()), ..job(50, LogEvent::Killed, "charges", 12) },
        record(40 * MINUTE, LogEvent::Unknown, "charges", "sandbox-7", 13),
        record(30 * MINUTE, LogEvent::Unsealed, "charges", "sandbox-7", 14),
        job(60, LogEvent::Released, "by-hand", 15),
        LogRecord { reason: Some("overlapped".into()), ..job(50, LogEvent::Observed, "by-hand", 16) },
        record(20 * MINUTE, LogEvent::Pause, "by-hand", "sandbox-7", 17),
        LogRecord {
            reason: Some("missed".into()),
            count: Some(3),
            item: Some(Subject::Slot {
                job: Name::new("north").unwrap(),
                at: due,
                id: "2026-11-18T03:00Z".into(),
            }),
            ..record(HOUR, LogEvent::Dropped, "north", "mac-mini", 18)
        },
        record(HOUR, LogEvent::Dropped, "south", "mac-mini", 19),
    ]
}

#[test]
fn all_that_the_log_has_is_in_the_picture() {
    for scheme in ["sqlite", "dir"] {
        let night = Night::new(scheme);
        night.log(&all());
        // A record of a later version.
        let later = creation(&record(10 * MINUTE, LogEvent::Ok, "by-hand", "sandbox-7", 20));
        night.write(&[BatchWrite {
            key: later.key.replace(".ok.", ".borrowed."),
            body: b"{}".to_vec(),
            ..later
        }]);
        let timeline = night.timeline(&["--since", "6h"]);
        assert!(timeline.is_ascii() && timeline.lines().all(|line| line.len() <= 80), "{timeline}");
        for lane in ["mac-mini", "macbook", "sandbox-7", "nobody"] {
            assert!(timeline.lines().any(|line| line == lane), "{lane}: {timeline}");
        }
        assert!(row(&timeline, "premium").contains('!'), "{timeline}");
        assert!(timeline.contains("41 < 42"), "{timeline}");
        let texts = night.page(&["--since", "6h"]);
        for word in ["refused", "lost", "dropped", "observed", "pause", "borrowed"] {
            assert!(texts.iter().any(|text| text == word), "{word}: {texts:?}");
        }
        assert!(!texts.iter().any(|text| text.contains("token 41) did not")), "it told its end: {texts:?}");
    }
}

#[test]
fn a_name_a_time_and_words_are_asked_for() {
    let night = Night::new("sqlite");
    night.log(&all());
    let has = |args: &[&str], job: &str| {
        let timeline = night.timeline(args);
        timeline.lines().any(|line| line.trim_start().starts_with(job))
    };
    assert!(has(&[], "premium") && has(&["premium"], "premium") && !has(&["publish"], "premium"));
    assert!(!has(&["--since", "70m"], "publish") && has(&["--since", "70m"], "charges"));
    assert!(has(&["--only", "refused"], "publish") && !has(&["--only", "refused"], "premium"));
    assert!(has(&["--only", "lost"], "premium") && !has(&["--only", "lost"], "charges"));
    night.log(&[LogRecord { lease: Name::new("repo").ok(), ..run(60, LogEvent::Ok, "job", "here", 30) }]);
    assert!(has(&["repo"], "job"), "also the name of a lease");
    let nothing = night.timeline(&["no-such-job"]);
    assert!(leasehold_testkit::messages::hears(&nothing, "timeline.empty"), "{nothing}");
    // In the last day by itself.
    let old = Night::new("sqlite");
    old.log(&[run(25 * HOUR, LogEvent::Ok, "site", "mac-mini", 1)]);
    assert!(!old.timeline(&[]).contains("mac-mini"));
    assert!(old.timeline(&["--since", "26h"]).contains("mac-mini"));
    let quiet = Night::new("sqlite");
    quiet.log(&[run(HOUR, LogEvent::Ok, "site", "mac-mini", 1)]);
    assert!(quiet.page(&[]).len() > 10);
}

#[test]
fn what_really_ran_is_drawn() {
    let night = Night::new("sqlite");
    night.run(&["run", "site", "--", "true"]).quiet();
    assert_eq!(night.run(&["run", "site", "--", "sh", "-c", "exit 3"]).code, 3);
    night.run(&["once", "<script>alert(1)</script>", "--", "true"]).quiet();
    let held = night.run(&["acquire", "site", "--ttl", "1h"]).token();
    night.run(&["run", "site", "--", "true"]).is(0, "run.skipped");
    night.run(&["release", "site", "--token", &held.to_string()]).is(0, "");
    let timeline = night.timeline(&["--since", "1h"]);
    for sign in ["F", "."] {
        assert!(timeline.contains(sign), "{timeline}");
    }
    let path = night.world.path("night.html");
    let texts = night.page(&[]);
    let page = fs::read_to_string(path).unwrap();
    assert!(!page.contains("<script"), "{page}");
    assert!(texts.iter().any(|text| text.contains("<script>alert(1)</script>")), "{texts:?}");
    let coloured = night.run(&["history", "--timeline", "--color", "always"]).quiet().out;
    assert!(coloured.contains("\x1b[34m") && !timeline.contains('\x1b'), "{coloured}");
    let mut command = night.world.command(&["--store", &night.url, "history", "--timeline"]);
    let none = Ended::from(command.env("NO_COLOR", "1").output().unwrap()).quiet().out;
    assert!(!none.contains('\x1b'));
}

/// At a terminal of this width.
#[test]
fn at_a_terminal_it_is_as_wide_as_that() {
    let night = Night::new("sqlite");
    night.log(&all());
    let shown = |locale: &str, size: &str| {
        let line =
            format!("stty {size}; exec {} --store {} history --timeline", "\"$LEASEHOLD_BIN\"", night.url);
        let mut command = night.world.program("script");
        command.args(["-qec", &line, "/dev/null"]).env("LEASEHOLD_BIN", crate::world::binary());
        Ended::from(
            command.env("SHELL", "/bin/sh").env("LC_ALL", locale).env("TERM", "xterm").output().unwrap(),
        )
        .out
    };
    let plain = |text: &str| -> Vec<String> {
        let mut parts = text.split('\x1b');
        let first = parts.next().unwrap_or_default().to_owned();
        let all = parts.fold(first, |all, part| all + part.split_once('m').map_or("", |(_, rest)| rest));
        all.lines().map(|line| line.trim_end().to_owned()).collect()
    };
    for columns in [40, 100, 160] {
        let text = shown("C.UTF-8", &format!("cols {columns}"));
        let lines = plain(&text);
        let widest = lines.iter().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= columns && widest > columns - 15, "{widest} of {columns}: {text}");
        assert!(text.contains('━') && text.contains("\x1b[35m"), "{text}");
    }
    assert!(shown("C", "cols 100").is_ascii(), "no letters that the terminal does not have");
}

#[test]
fn a_file_is_replaced_as_a_whole_or_not_at_all() {
    let night = Night::new("sqlite");
    night.log(&all());
    let world = &night.world;
    let svg = world.at("night.svg");
    night.run(&["-v", "history", "--svg", &svg, "--html", &world.at("night.html")]).is(0, "timeline.wrote");
    let drawn = fs::read_to_string(&svg).unwrap();
    assert!(texts(&drawn).iter().any(|text| text == "macbook"), "{drawn}");
    let mode = fs::metadata(&svg).unwrap().permissions().mode();
    assert_eq!(mode & 0o444, 0o444, "others may read it, as a web server would: {mode:o}");
    // A link stays one, and nothing is left beside it.
    symlink(&svg, world.path("link.svg")).unwrap();
    night.run(&["history", "--svg", &world.at("link.svg"), "--since", "1s"]).quiet();
    assert!(fs::symlink_metadata(world.path("link.svg")).unwrap().is_symlink());
    assert_ne!(fs::read_to_string(&svg).unwrap(), drawn, "what it leads to was replaced");
    let names: Vec<String> = fs::read_dir(world.path("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".svg") || name.contains(".tmp"))
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    // Whoever reads it while it is written finds a whole picture.
    let reader = until("a picture is read whole", || {
        let writer = world.start(&["--store", &night.url, "history", "--svg", &svg]);
        let whole = (0..50).all(|_| fs::read_to_string(&svg).is_ok_and(|text| text.ends_with("</svg>\n")));
        writer.ended();
        Some(whole)
    });
    assert!(reader);
}

#[test]
fn what_cannot_be_written_is_said() {
    let night = Night::new("sqlite");
    night.log(&all());
    let world = &night.world;
    let missing = world.at("no/such/night.svg");
    world
        .unchanged(|| night.run(&["history", "--svg", &missing]))
        .is(78, "timeline.unwritable")
        .names(&[&missing]);
    night.run(&["history", "--html", &world.at(".")]).is(78, "timeline.unwritable");
    night.run(&["history", "--svg", "/dev/null"]).is(78, "timeline.unwritable");
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    for args in [["--timeline", "--json"], ["--json", "--timeline"]] {
        night.run(&[&["history"], &args[..]].concat()).is(64, "timeline.with_json");
    }
    night.run(&["--json", "history", "--svg", &world.at("x.svg")]).is(64, "timeline.with_json");
    assert!(!world.path("x.svg").exists());
    night.run(&["history", "--timeline", "--only", "okay"]).is(64, "history.bad_outcome");
    // A store that does not answer leaves the old picture.
    let kept = world.write("kept.svg", "<svg/>");
    let away = ["--store", "redis://127.0.0.1:1", "history", "--svg", kept.to_str().unwrap()];
    assert_eq!(world.run(&away).code, 69);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "<svg/>");
}

#[test]
fn ten_thousand_records_are_a_picture() {
    let night = Night::new("sqlite");
    let hosts: Vec<String> = (0..30).map(|n| format!("sandbox-{n}")).collect();
    let jobs: Vec<String> = (0..90).map(|n| format!("job-{n}")).collect();
    let records: Vec<LogRecord> = (0..10_050u64)
        .map(|n| {
            let at = usize::try_from(n).unwrap();
            let event = if n % 100 == 0 { LogEvent::Failed } else { LogEvent::Ok };
            run(n * 8, event, &jobs[at % 90], &hosts[at * 7 % 30], n + 1)
        })
        .collect();
    night.log(&records);
    let timeline = night.timeline(&[]);
    assert!(timeline.lines().count() < 150, "{timeline}");
    assert!(leasehold_testkit::messages::hears(&timeline, "timeline.cut"), "{timeline}");
    let svg = night.world.at("night.svg");
    night.run(&["history", "--svg", &svg]).quiet();
    assert!(fs::metadata(&svg).unwrap().len() < 1_500_000);
    let texts = night.page(&[]);
    assert!(texts.len() > 1_000);
}
