use std::fs;
use std::os::unix::fs::PermissionsExt;

use jiff::Timestamp;
use leasehold::random;

use super::*;
use crate::placeholders::{Moment, filled as filled_target};

const PLAIN: &str = "name = \"site\"\nevery = \"45m\"\nrun = [\"true\"]\n";

/// The jobs of a text, or what is wrong with it.
fn jobs(text: &str) -> Result<Vec<Job>, String> {
    let jobs = parse(text, Path::new("/srv/leasehold.toml"), |_| None);
    jobs.map_err(|bad| bad.to_string())
}

/// A plain job that says this too; its own lines come first.
fn with(more: &str) -> String {
    format!("[[job]]\n{PLAIN}{more}\n")
}

fn one(text: &str) -> Job {
    let mut jobs = jobs(text).unwrap();
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

fn cron(more: &str) -> Job {
    one(&format!("[[job]]\nname = \"site\"\nrun = [\"true\"]\n{more}\n"))
}

/// Refused in this line, with these words.
#[track_caller]
fn refused(text: &str, line: usize, said: &str) {
    let message = jobs(text).expect_err(text);
    let place = format!("/srv/leasehold.toml:{line}: ");
    assert!(message.starts_with(&place) && message.contains(said), "{text}\n{message}\nwanted {place}{said}");
}

/// The same for what a plain job says in its fifth line.
#[track_caller]
fn refused_with(more: &str, said: &str) {
    refused(&with(more), 5, said);
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn what_is_not_said_has_a_default() {
    let job = one(&with(""));
    assert_eq!((job.name.as_str(), job.written.as_str()), ("site", "every 45m"));
    assert_eq!((job.leases, job.busy), (vec![Name::new("site").unwrap()], IfBusy::Skip));
    assert_eq!((job.dir, job.stagger), (PathBuf::from("/srv"), Duration::ZERO));
    assert_eq!((job.key, job.fence.len(), job.env.len()), (None, 0, 0));
    assert_eq!((job.wishes.ttl, job.max_run), (Some(secs(90)), Some(secs(6 * 3600))));
    assert_eq!((job.catch_up, job.catch_up_max_age), (1, None));
    assert_eq!((job.retry, job.attempts, job.keep), (false, 1, 90 * DAY));
}

#[test]
fn a_full_file_is_read() {
    let text = r#"
        store = "postgres://ops@db.example/ops"
        timezone = "Asia/Tokyo"
        [defaults]
        ttl = "80m"
        max_run = "none"
        keep = "30d"
        [[job]]
        name = "one"
        every = "45m"
        offset = "10m"
        stagger = "5m"
        run = ["./generate.sh", "{job}"]
        fence = ["git:origin", "file:out/{lease}.json", "tree:/srv/site"]
        env = { LANG = "C", "A.B" = "1" }
        dir = "sites"
        [[job]]
        name = "two"
        cron = "0  7 * * *"
        gap = "skip"
        overlap = "last"
        run = ["./charge.py", "--key", "{key}"]
        key = "charge-{slot}"
        resources = ["a", "b"]
        on_busy = "switch"
        wait = "2m"
        ttl = "3m"
        heartbeat = "30s"
        grace = "10s"
        max_run = "2h"
        catch_up = 0
        catch_up_max_age = "1d"
        retry = true
        attempts = 0x3
        keep = "1d"
    "#;
    let all = jobs(text).unwrap();
    let (first, second) = (&all[0], &all[1]);
    assert_eq!((first.written.as_str(), first.stagger), ("every 45m + 10m", secs(300)));
    assert_eq!((first.wishes.ttl, first.max_run, first.keep), (Some(secs(4800)), None, 30 * DAY));
    assert_eq!(first.dir, Path::new("/srv/sites"));
    assert_eq!(first.env.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(), ["A.B=1", "LANG=C"]);
    assert_eq!(first.fence, ["git:origin", "file:/srv/sites/out/{lease}.json", "tree:/srv/site"]);
    assert_eq!(second.written, "cron 0 7 * * * in Asia/Tokyo, gap skip, overlap last");
    assert_eq!(second.leases.iter().map(Name::as_str).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(second.busy, IfBusy::Wait(secs(120)));
    let wishes = TimingWishes { ttl: Some(secs(180)), heartbeat: Some(secs(30)), grace: Some(secs(10)) };
    assert_eq!((second.wishes, second.max_run), (wishes, Some(secs(7200))));
    assert_eq!((second.catch_up, second.catch_up_max_age), (0, Some(DAY)));
    assert_eq!((second.retry, second.attempts, second.keep), (true, 3, DAY));
}

#[test]
fn unknown_keys() {
    refused_with("on_bussy = \"skip\"", "unknown key \"on_bussy\" (did you mean \"on_busy\"?)");
    refused("[defaults]\nrun = [\"a\"]\n", 2, "unknown key \"run\"");
    refused("# mine\ntimezon = \"UTC\"\n", 2, "unknown key \"timezon\" (did you mean \"timezone\"?)");
    refused("[[jobs]]\nname = \"a\"\n", 1, "unknown key \"jobs\" (did you mean \"job\"?)");
    refused("\n[job]\nname = \"a\"\n", 2, "job must be written [[job]]");
    refused("[[defaults]]\n", 1, "defaults must be a table: [defaults]");
    refused("\nevery = \n", 2, "");
}

#[test]
fn when_it_is_due() {
    let refused_when = |more: &str, said: &str| {
        refused(&format!("\n[[job]]\nname = \"site\"\nrun = [\"true\"]\n{more}\n"), 5, said);
    };
    refused(
        "\n[[job]]\nname = \"a\"\nrun = [\"true\"]\n",
        2,
        "does not say when it is due; write every = \"45m\" or cron",
    );
    refused(
        "\n[[job]]\nevery = \"1m\"\nrun = [\"true\"]\n",
        2,
        "this job has no name; write name = \"publish\"",
    );
    refused_when("every = \"0s\"", "the interval is zero; write at least 1s");
    refused_when("every = \"1500ms\"", "whole seconds");
    refused_when("every = \"45\"", "every: \"45\" has no unit; write 45s, 45m or 45h");
    refused_when("every = 45", "every must be a text in quotes");
    refused_when("offset = \"45m\"\nevery = \"45m\"", "the offset must be shorter than the interval");
    refused_when("cron = \"0 7 * * *\"", "cron needs a time zone; write timezone = \"Asia/Tokyo\" here");
    refused_when("timezone = \"Asia/Tokio\"\ncron = \"0 7 * * *\"", "Asia/Tokio");
    refused_when("timezone = \"Asia/Tokio\"\ncron = \"0 7 * * *\"", "did you mean Asia/Tokyo?");
    refused_when("timezone = \"Etc/Unknown\"\ncron = \"0 7 * * *\"", "not a time zone");
    refused_when("cron = \"*/45 * * * *\"\ntimezone = \"UTC\"", "write every = \"45m\"");
    refused_when("cron = \"0 0 31 4 *\"\ntimezone = \"UTC\"", "never happens");
    refused_when("cron = \"0 7 * *\"\ntimezone = \"UTC\"", "cron: ");
    refused_when("gap = \"later\"\ncron = \"0 7 * * *\"\ntimezone = \"UTC\"", "must be \"run\" or \"skip\"");
    refused_when("overlap = \"both\"\ncron = \"0 7 * * *\"\ntimezone = \"UTC\"", "\"first\" or \"last\"");
    refused_when("offset = \"1m\"\ncron = \"0 7 * * *\"\ntimezone = \"UTC\"", "offset needs every");
    refused_with("cron = \"0 7 * * *\"", "every and cron are both set; keep one");
    for wall in ["timezone = \"UTC\"", "gap = \"run\"", "overlap = \"last\""] {
        refused_with(wall, "needs cron");
    }
    refused(&format!("timezone = \"Mars\"\n{}", with("")), 1, "Mars");
    refused(&format!("[defaults]\ntimezone = \"Mars\"\n{}", with("")), 2, "Mars");
}

#[test]
fn the_nearest_time_zone_counts() {
    let text = |top, defaults, own| {
        format!(
            "{top}\n[defaults]\n{defaults}\n[[job]]\nname = \"a\"\ncron = \"0 7 * * *\"\nrun = [\"true\"]\n{own}\n"
        )
    };
    let (utc, rome, tokyo) =
        ("timezone = \"UTC\"", "timezone = \"Europe/Rome\"", "timezone = \"Asia/Tokyo\"");
    assert_eq!(one(&text(utc, rome, tokyo)).written, "cron 0 7 * * * in Asia/Tokyo");
    assert_eq!(one(&text(utc, rome, "")).written, "cron 0 7 * * * in Europe/Rome");
    assert_eq!(one(&text(utc, "", "")).written, "cron 0 7 * * * in UTC");
    // Intervals do not mind.
    assert_eq!(one(&format!("{utc}\n[defaults]\n{rome}\n{}", with(""))).written, "every 45m");
}

#[test]
fn the_schedule_is_what_was_written() {
    let zone = "timezone = \"America/New_York\"\ncron = \"30 2 * * *\"\n";
    let before: Timestamp = "2026-03-08T00:00-05:00".parse().unwrap();
    let next = |more: &str| cron(&format!("{zone}{more}")).schedule.next_after(before).unwrap().id();
    assert_eq!(next(""), "2026-03-08T02:30-05:00");
    assert_eq!(next("gap = \"run\""), "2026-03-08T02:30-05:00");
    assert_eq!(next("gap = \"skip\""), "2026-03-09T02:30-04:00");
    let autumn = "timezone = \"America/New_York\"\ncron = \"30 1 * * *\"\n";
    let before: Timestamp = "2026-11-01T00:00-04:00".parse().unwrap();
    let next = |more: &str| cron(&format!("{autumn}{more}")).schedule.next_after(before).unwrap().id();
    assert_eq!(next("overlap = \"first\""), "2026-11-01T01:30-04:00");
    assert_eq!(next("overlap = \"last\""), "2026-11-01T01:30-05:00");
    let written = |more: &str| cron(&format!("{zone}{more}")).written;
    assert_eq!(written("gap = \"run\"\noverlap = \"first\""), written(""));
}

#[test]
fn a_stagger_stays_within_its_interval() {
    assert_eq!(one(&with("stagger = \"44m\"")).stagger, secs(44 * 60));
    refused_with("stagger = \"45m\"", "must be shorter than the interval of 45m");
    let zone = "timezone = \"UTC\"\ncron = \"0 7 * * *\"\n";
    assert_eq!(cron(&format!("{zone}stagger = \"1h\"")).stagger, secs(3600));
    let text = "[[job]]\nname = \"a\"\nevery = \"1d\"\nrun = [\"true\"]\nstagger = \"61m\"\n";
    refused(text, 5, "must be at most 1h");
    refused(
        &text.replace("every = \"1d\"", "cron = \"@daily\"\ntimezone = \"UTC\""),
        6,
        "must be at most 1h",
    );
}

#[test]
fn commands() {
    let text = |run: &str| format!("[[job]]\nname = \"a\"\nevery = \"1m\"\n{run}\n");
    refused(&text("run = \"./publish.sh site\""), 4, "run must be a list of the program");
    refused(&text("run = \"./publish.sh site\""), 4, "[\"sh\", \"-c\", \"…\"]");
    refused(&text("run = []"), 4, "does not say what to run; write run = [");
    refused(&text("run = [\"\"]"), 4, "does not say what to run");
    refused(&text(""), 1, "does not say what to run");
    refused(&text("run = [\"sleep\", 5]"), 4, "run must be a list of texts");
    refused(&text("run = [\"echo\", \"a\\u0000b\"]"), 4, "NUL");
    refused_with("env = { LEASEHOLD_TOKEN = \"9\" }", "the run sets all LEASEHOLD_ variables");
    refused_with("env = { \"A=B\" = \"9\" }", "a name without = or NUL");
    refused_with("env = { A = 9 }", "A must be a text in quotes");
    refused_with("dir = \"~/sites\"", "~ is not expanded");
    refused_with("name = \"b\"", "duplicate key");
    refused("[[job]]\nname = \"A b\"\nevery = \"1m\"\nrun = [\"true\"]\n", 2, "not a valid name");
}

#[test]
fn two_jobs_of_one_name() {
    let second = with("").replace("45m", "50m");
    refused(&format!("{}{second}", with("")), 7, "two jobs are named site");
}

#[test]
fn numbers_and_durations() {
    for bad in ["-1", "1.5", "\"3\"", "10001", "99999999999999999999"] {
        let text = with(&format!("catch_up = {bad}"));
        let message = jobs(&text).expect_err(bad);
        assert!(message.starts_with("/srv/leasehold.toml:5: "), "{message}");
    }
    refused_with("catch_up = -1", "catch_up must be a whole number from 0 to 10000");
    refused_with("attempts = 0", "attempts must be a whole number from 1 to 1000");
    refused_with("attempts = 1001", "from 1 to 1000");
    refused_with("retry = \"yes\"", "retry must be true or false");
    refused_with("retry = 3", "For how often a slot may fail, write attempts");
    refused_with("keep = \"23h\"", "is too short; write at least 1d");
    refused_with("catch_up_max_age = \"0s\"", "is too short");
    refused_with("max_run = \"0s\"", "write none for no limit");
    refused_with("max_run = \"never\"", "not a duration");
    refused_with("ttl = \"5s\"\ngrace = \"60s\"", "Make the ttl at least");
    refused_with("heartbeat = \"60s\"", "two heartbeats");
    refused(&format!("[defaults]\nttl = \"1s\"\ngrace = \"1m\"\n{}", with("")), 2, "ttl");
    // A mistake in the defaults is found even if no job needs them.
    refused(&format!("[defaults]\nmax_run = \"2\"\n{}", with("max_run = \"1h\"")), 2, "has no unit");
}

#[test]
fn what_a_busy_lease_means() {
    let busy = |defaults: &str, own: &str| one(&format!("[defaults]\n{defaults}\n{}", with(own))).busy;
    let (skip, wait) = ("on_busy = \"skip\"", "on_busy = \"wait\"\nwait = \"2m\"");
    let two = IfBusy::Wait(secs(120));
    assert_eq!(busy("", ""), IfBusy::Skip);
    assert_eq!(busy("", skip), IfBusy::Skip);
    assert_eq!(busy("", wait), two);
    assert_eq!(busy(wait, ""), two);
    assert_eq!(busy(wait, "wait = \"3m\""), IfBusy::Wait(secs(180)));
    assert_eq!(busy(wait, skip), IfBusy::Skip);
    assert_eq!(busy("wait = \"2m\"", "on_busy = \"wait\""), two);
    let switch = "on_busy = \"switch\"\nresources = [\"a\", \"b\"]";
    assert_eq!(busy("", switch), IfBusy::Skip);
    assert_eq!(busy("wait = \"2m\"", switch), two);
    refused_with("on_busy = \"wait\"", "does not say how long; add wait = \"2m\"");
    refused(&format!("[defaults]\non_busy = \"wait\"\n{}", with("")), 2, "does not say how long");
    refused_with("wait = \"2m\"", "wait needs on_busy");
    refused_with("wait = \"2m\"\non_busy = \"skip\"", "wait needs on_busy");
    refused(&format!("[defaults]\nwait = \"2m\"\n{}", with("")), 2, "wait needs on_busy");
    refused(&format!("[defaults]\nwait = \"2m\"\non_busy = \"skip\"\n{}", with(skip)), 2, "wait needs");
    refused(
        &format!("[defaults]\non_busy = \"wait\"\nwait = \"1h\"\n{}", with("")),
        3,
        "a wait of 1h is longer than the interval of 45m",
    );
    // One that does not wait is no obstacle.
    assert_eq!(busy("on_busy = \"wait\"\nwait = \"1h\"", skip), IfBusy::Skip);
    refused(
        &with("on_busy = \"wait\"\nwait = \"45m\""),
        6,
        "a wait of 45m is as long as the interval of 45m",
    );
    refused_with("on_busy = \"retry\"", "must be \"skip\" or \"wait\" or \"switch\"");
}

#[test]
fn where_every_slot_counts_a_busy_lease_loses_none() {
    let busy = |defaults: &str, own: &str| one(&format!("[defaults]\n{defaults}\n{}", with(own))).busy;
    let (skip, wait) = ("on_busy = \"skip\"", "on_busy = \"wait\"\nwait = \"2m\"");
    assert_eq!(busy("", "catch_up = 2"), IfBusy::Open);
    assert_eq!(busy("", "catch_up = 1"), IfBusy::Skip);
    assert_eq!(busy("", "catch_up = 0"), IfBusy::Skip);
    assert_eq!(busy("catch_up = 2", ""), IfBusy::Open);
    assert_eq!(busy("catch_up = 2", "catch_up = 1"), IfBusy::Skip);
    // The more particular word counts.
    assert_eq!(busy(skip, "catch_up = 2"), IfBusy::Open);
    assert_eq!(busy(wait, "catch_up = 2"), IfBusy::Open);
    assert_eq!(busy("catch_up = 2", skip), IfBusy::Skip);
    assert_eq!(busy("catch_up = 2", wait), IfBusy::Wait(secs(120)));
    assert_eq!(busy(wait, "catch_up = 2\nwait = \"3m\""), IfBusy::Wait(secs(180)));
    assert_eq!(busy("", &format!("catch_up = 2\n{wait}")), IfBusy::Wait(secs(120)));
    assert_eq!(busy(&format!("catch_up = 2\n{wait}"), ""), IfBusy::Wait(secs(120)));
    refused_with(&format!("{skip}\ncatch_up = 2"), "says that every slot counts. Leave out on_busy");
    refused_with(&format!("{skip}\ncatch_up = 48"), "or write catch_up = 1");
    refused(&format!("[defaults]\n{skip}\ncatch_up = 2\n{}", with(wait)), 2, "every slot counts");
}

#[test]
fn leases_to_switch_between() {
    refused_with("resources = [\"a\", \"b\"]", "add on_busy = \"switch\"");
    refused_with("on_busy = \"switch\"", "nothing to switch to; add resources");
    refused_with("resources = [\"a\"]\non_busy = \"switch\"", "two or more");
    refused_with("resources = [\"a\", \"b\", \"a\"]\non_busy = \"switch\"", "a is named twice");
    refused_with("resources = [\"a\", \"B\"]\non_busy = \"switch\"", "not a valid name");
    refused_with("resources = [\"a\", \"b\"]\nlease = \"c\"", "both set; keep one");
    refused(&format!("[defaults]\non_busy = \"switch\"\n{}", with("")), 3, "nothing to switch to");
    assert_eq!(one(&with("lease = \"repo\"")).leases[0].as_str(), "repo");
}

fn filled(more: &str) -> templates::FilledJob {
    let due = "2026-03-28T23:30:00Z".parse().unwrap();
    one(&format!("[[job]]\nname = \"a\"\nevery = \"30m\"\n{more}\n"))
        .filled("2026-03-28T23:30:00Z", due)
        .unwrap()
}

#[test]
fn arguments_are_filled_in() {
    let args = |argument: &str| filled(&format!("run = [\"echo\", '{argument}']")).run[1].clone();
    assert_eq!(args("{job}/{slot}"), "a/2026-03-28T23:30:00Z");
    assert_eq!(args("{date} {date@Europe/Berlin}"), "2026-03-28 2026-03-29");
    for kept in [
        "{\"a\":{\"b\":[1]}}",
        "${job}",
        "{{job}}",
        "{}",
        "{ print }",
        "a}{b",
        "@{upstream}",
        "{x,y}",
        "{",
        "ü}",
    ] {
        assert_eq!(args(kept), kept);
    }
    assert_eq!(args("{\"job\":\"{job}\"}"), "{\"job\":\"a\"}");
    assert_eq!(args("}{job}{job}"), "}aa");
    let keyed = filled("key = \"k-{lease}-{slot}\"\nrun = [\"./{job}\", \"{key}\"]");
    assert_eq!(keyed.key.as_deref(), Some("k-a-2026-03-28T23:30:00Z"));
    assert_eq!(keyed.run, ["./a", "k-a-2026-03-28T23:30:00Z"]);
}

#[test]
fn placeholders_that_nothing_fills_in() {
    let run = |argument: &str, said: &str| {
        refused(
            &format!("[[job]]\nname = \"a\"\nevery = \"1m\"\nrun = [\"echo\", \"{argument}\"]\n"),
            4,
            said,
        );
    };
    run("{slto}", "{slto} is not a placeholder (did you mean {slot}?)");
    run("{hostname}", "{hostname} is not a placeholder;");
    run("{lease}", "$LEASEHOLD_LEASE");
    run("{resource}", "$LEASEHOLD_LEASE");
    run("{key}", "this job has no key");
    run("{date@Mars}", "Mars");
    refused("[[job]]\nname = \"a\"\nevery = \"1m\"\nrun = [\"./{slot}\"]\n", 4, "the same for every slot");
    refused_with("key = \"k-{slto}\"", "did you mean {slot}?");
    refused_with("key = \"k-{slot\"", "never closed");
    refused_with("fence = [\"file:/{jop}\"]", "did you mean {job}?");
    refused_with("fence = [\"fil:/a\"]", "Did you mean file:?");
    refused_with("fence = [\"/a\"]", "is not a target");
    refused_with("fence = [\"file:~/a\"]", "begins with ~");
    refused_with("fence = \"file:/a\"", "fence must be a list of texts");
}

/// The job and the process that fences must mean the same file.
#[test]
fn targets_are_seen_from_where_the_job_runs() {
    let job = one(&with("dir = \"a{b}\"\nfence = [\"file:./x/{slot}\", \"sqlite:d.db#t\", \"tree:/t\"]"));
    let when = Moment { slot: Some("S".into()), at: Timestamp::UNIX_EPOCH };
    let fill = |target: &String| filled_target(target, &job.leases[0], &job.name, &when).unwrap();
    let targets: Vec<String> = job.fence.iter().map(fill).collect();
    assert_eq!(targets, ["file:/srv/a{b}/x/S", "sqlite:/srv/a{b}/d.db#t", "tree:/t"]);
}

#[test]
fn each_slot_has_a_key_of_its_own() {
    for fixed in ["charge", "{job}-{lease}", "{{slot}}"] {
        refused_with(&format!("key = \"{fixed}\""), "only the first slot would be run");
    }
    for good in ["{slot}", "{date}", "{date@Asia/Tokyo}-{job}"] {
        assert_eq!(one(&with(&format!("key = \"{good}\""))).key.as_deref(), Some(good));
    }
    refused_with(&format!("key = \"{}{{slot}}\"", "x".repeat(255)), "a key has 1 to 255 bytes");
    refused_with(&format!("key = \"{}{{slot}}\"", "x".repeat(240)), "a key has 1 to 255 bytes");
    refused_with("key = \"\"", "a key has 1 to 255 bytes");
    let other = with("key = \"k-{slot}\"").replace("\"site\"", "\"other\"");
    refused(&format!("{}{other}", with("key = \"k-{slot}\"")), 10, "site and other would have the same keys");
    let (first, second) = (with("key = \"{job}-{slot}\""), other.replace("k-", "{job}-"));
    assert_eq!(jobs(&format!("{first}{second}")).unwrap().len(), 2);
}

/// A directory of this test.
struct TestDir(PathBuf);

impl TestDir {
    fn new() -> TestDir {
        let dir = std::env::temp_dir().join(format!("leasehold-jobs-{:032x}", random::seed()));
        fs::create_dir(&dir).unwrap();
        TestDir(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.join("leasehold.toml")
    }

    fn load(&self, text: impl AsRef<[u8]>) -> Result<Vec<Job>, String> {
        fs::write(self.path(), text).unwrap();
        load(&self.path()).map_err(|bad| bad.to_string())
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_that_cannot_be_read() {
    let scratch = TestDir::new();
    let read = |path: &Path| load(path).unwrap_err().to_string();
    assert!(read(&scratch.path()).contains("there is no leasehold.toml in "));
    assert!(read(&scratch.0).ends_with("it is a directory"));
    assert!(scratch.load(b"# a\nstore = \"\xff\"\n").unwrap_err().contains("line 2 is not UTF-8"));
    assert!(scratch.load("store = \"sqlite:\"\n").unwrap_err().starts_with("there is no [[job]] in "));
    assert!(scratch.load("").unwrap_err().starts_with("there is no [[job]] in "));
}

#[test]
fn a_program_that_is_missing() {
    let scratch = TestDir::new();
    let text =
        |run: &str, more: &str| format!("[[job]]\nname = \"a\"\nevery = \"1m\"\nrun = [{run:?}]\n{more}\n");
    let wrong = |run: &str, more: &str, line: usize, said: &str| {
        let message = scratch.load(text(run, more)).unwrap_err();
        assert!(message.contains(&format!("leasehold.toml:{line}: ")) && message.contains(said), "{message}");
    };
    wrong("./a.sh", "", 4, "the program of a cannot be run");
    wrong("no-such-command-here", "", 4, "not found");
    wrong("sh", "env = { PATH = \"/nowhere\" }", 4, "not found");
    wrong("sh", "dir = \"nowhere\"", 5, "that directory does not exist");
    fs::create_dir(scratch.0.join("in")).unwrap();
    fs::write(scratch.0.join("in/a.sh"), "").unwrap();
    wrong("./a.sh", "dir = \"in\"", 4, "chmod +x");
    fs::set_permissions(scratch.0.join("in/a.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    wrong("./a.sh", "", 4, "no such file");
    let found = scratch.load(text("./{job}.sh", "dir = \"in\"")).unwrap()[0].program().unwrap();
    assert_eq!((found.name.to_str(), fs::metadata(&found.path).is_ok()), (Some("./a.sh"), true));
    assert_eq!(scratch.load(text("sh", "")).unwrap()[0].program().unwrap().name, "sh");
    fs::write(scratch.path(), text("./gone", "")).unwrap();
    assert_eq!(load_elsewhere(&scratch.path()).unwrap().len(), 1);
}

/// What people copy from the documentation is right.
#[test]
fn the_example_of_the_documentation() {
    let text = include_str!("../../../../docs/schedule.md");
    let example = text.split("```toml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let all = jobs(example).unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!((all[2].busy, all[3].busy), (IfBusy::Wait(secs(300)), IfBusy::Open));
    for Key { name: key, .. } in KEYS {
        assert!(text.contains(&format!("`{key}`")), "{key} is not explained");
    }
}

#[test]
fn a_pattern_that_many_jobs_have_is_read_once() {
    let job = |n: usize| {
        let (minute, zone) = (n % 7, ["UTC", "Asia/Tokyo"][n % 2]);
        format!(
            "[[job]]\nname = \"j{n}\"\ncron = \"{minute} 4 * * *\"\ntimezone = \"{zone}\"\nrun = [\"true\"]\n"
        )
    };
    let text: String = (0..1000).map(job).collect();
    let patterns = when::Patterns::default();
    let all = parse_with(&text, Path::new("/srv/leasehold.toml"), |_| None, &patterns).unwrap_or_default();
    assert_eq!((all.len(), patterns.count()), (1000, 7));
    assert_eq!((all[0].schedule == all[14].schedule, all[0].schedule == all[7].schedule), (true, false));
}
