//! What `plan` and `why` tell of how a job stands.

use serde_json::Value;

use super::kit::{NOTE, RARE, Site, job, named, now, rare_slot, tells};
use crate::world::until;

fn standing(site: &Site, job: &str) -> String {
    let row: Value = serde_json::from_str(&site.run("a", &["--json", "plan", job]).is(0, "").out).unwrap();
    row["standing"].as_str().unwrap().to_owned()
}

/// Also if a newer slot is always due just now.
#[test]
fn a_job_that_is_due_every_minute_is_overdue_while_nothing_runs() {
    let site = Site::with(&job("minutely", "every = \"1m\"", "", NOTE));
    assert_eq!(standing(&site, "minutely"), "ok");
    site.rewind("minutely", now() - 3 * 60);
    assert_eq!(standing(&site, "minutely"), "ok", "the control: so long it may take");
    site.rewind("minutely", now() - 60 * 60);
    let said = standing(&site, "minutely");
    assert!(said.starts_with("overdue by 59m") || said.starts_with("overdue by 1h"), "{said}");
    assert!(tells(&said, "plan.overdue") && said.contains(", 60 slots"), "{said}");
    let table = site.run("a", &["plan"]).is(0, "").out;
    assert!(table.contains("overdue by "), "{table}");
    site.tick("a").is(0, "daemon.dropped");
    assert_eq!(standing(&site, "minutely"), "ok");
}

#[test]
fn what_runs_is_told_although_newer_slots_gave_way() {
    let long = "until test -e go; do sleep 0.02; done";
    let site = Site::new();
    site.jobs("a", &job("often", "every = \"1s\"", "", long));
    let mut daemon = site.daemon("a");
    until("it runs, and one gave way", || {
        let rows = site.history("often");
        let is = |word: &str| rows.iter().any(|row| row["outcome"] == word);
        (is("started") && is("skipped")).then_some(())
    });
    let row: Value =
        serde_json::from_str(&site.run("a", &["--json", "plan", "often"]).is(0, "").out).unwrap();
    assert_eq!(row["last"]["outcome"], "started", "{row}");
    let said = row["standing"].as_str().unwrap();
    assert!(tells(said, "plan.running") || tells(said, "plan.stuck"), "{row}");
    daemon.said("daemon.stuck");
    until("it is stuck", || {
        let said = standing(&site, "often");
        (tells(&said, "plan.stuck") && said.contains("by its own run")).then_some(())
    });
    site.world.write("a/go", "");
    super::kit::drained(daemon);
}

/// One whose work was done by somebody else found no lease held.
#[test]
fn slots_whose_key_is_done_are_not_stuck() {
    let more = "key = \"day-{date}\"\ncatch_up = 5\nlease = \"other\"";
    let site = Site::with(&job("keyed", "every = \"1h\"", more, "true"));
    let day = now().div_euclid(86_400) * 86_400;
    site.rewind("keyed", day - 86_401);
    for hour in 0..5 {
        let slot = named(day - 86_400 + hour * 3600);
        let key = format!("day-{}", &slot[..10]);
        site.run("a", &["run", "other", "--job", "keyed", "--slot", &slot, "--key", &key, "--", "true"])
            .is(0, "");
    }
    let rows = site.history("keyed");
    let slots = rows.iter().filter(|row| row["kind"] == "slot");
    let words: Vec<&Value> = slots.map(|row| &row["outcome"]).collect();
    assert_eq!(words, ["ok", "skipped", "skipped", "skipped", "skipped"]);
    site.rewind("keyed", now());
    assert_eq!(standing(&site, "keyed"), "ok");
}

#[test]
fn what_failed_before_a_good_one_is_not_forgotten() {
    let site = Site::with(&job("rare", RARE, "", NOTE));
    let run = |days: i64, command: &str| {
        let slot = named(rare_slot() - days * 366 * 86_400);
        site.run("a", &["run", "rare", "--slot", &slot, "--attempts", "1", "--", command])
    };
    // As if it had been settled then: what is older than a month before that is not looked at.
    site.rewind("rare", rare_slot() - 2 * 366 * 86_400);
    run(1, "false").is(1, "");
    let said = standing(&site, "rare");
    assert!(said.starts_with("overdue by "), "the newest counts for more: {said}");
    run(0, "true").is(0, "");
    let said = standing(&site, "rare");
    assert_eq!(said, "1 slot waits for you, see: leasehold history rare --only failed,unknown,lost,killed");
    let listed = site.run("a", &["history", "rare", "--only", "failed,unknown,lost,killed"]).is(0, "").out;
    assert!(listed.ends_with("\n1 failed\n"), "{listed}");
    site.run("a", &["retry", "--done", &format!("rare@{}", named(rare_slot() - 366 * 86_400))]).is(0, "");
    assert_eq!(standing(&site, "rare"), "ok");
}

fn why(site: &Site, args: &[&str]) -> String {
    site.run("a", &[&["why"], args].concat()).is(0, "").out
}

#[test]
fn a_slot_is_the_same_however_it_is_typed() {
    let site = Site::with(&job("rare", RARE, "", NOTE));
    let slot = site.make_due("rare");
    let both = || [why(&site, &["rare", &slot]), why(&site, &[&format!("rare@{slot}")])];
    let [apart, together] = both();
    assert!(tells(&apart, "why.not_started") && apart == together, "{apart}\n{together}");
    site.tick("a").is(0, "");
    let [apart, together] = both();
    assert!(apart.contains(": ok, by ") && apart == together, "{apart}\n{together}");
    site.run("a", &["why", "rare@2026-11-16Tnonsense"]).is(64, "why.no_time");
    let wrong = site.run("a", &["why", "rare", "soon"]).is(64, "why.no_time");
    assert!(!wrong.err.contains("--slot"), "{wrong:#?}");
    // A key may look like anything.
    site.run("a", &["once", "me@example.org", "--", "true"]).is(0, "");
    assert!(why(&site, &["me@example.org"]).contains("me@example.org: ok, by "));
}

#[test]
fn a_name_that_nobody_knows_is_told_so() {
    let site = Site::with(&job("rare", RARE, "lease = \"site/north\"", NOTE));
    for command in [
        &["why", "rate"][..],
        &["why", "rate", "2026-11-16T05:45Z"],
        &["history", "rate"],
        &["status", "rate"],
    ] {
        let ended = site.run("a", command).is(64, "history.unknown_name");
        assert!(ended.err.ends_with("; jobs there: rare. Did you mean rare?\n"), "{ended:#?}");
        let ended = site.run("a", &[&["--json"], command].concat()).is(64, "");
        let error: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
        assert_eq!((ended.out.as_str(), &error["error"]["code"]), ("", &"unknown_name".into()));
    }
    // What the file here says is known, though nothing has come of it.
    site.run("a", &["status", "site/north"]).is(0, "");
    site.run("a", &["history", "site/north"]).is(0, "");
    assert!(!site.run("a", &["history", "rare"]).is(0, "").out.contains("no record of"));
    // A lease is not unknown, whoever has used it.
    assert_eq!(why(&site, &["site/north"]).lines().next(), Some("jobs here that use site/north: rare."));
    site.make_due("rare");
    site.tick("a").is(0, "");
    let said = why(&site, &["site/north"]);
    for part in ["the lease site/north is free", "jobs here that use site/north: rare.", "rare@", ": ok, by "]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn that_something_is_left_out_is_told() {
    let site = Site::with(&job("rare", RARE, "", NOTE));
    for n in 0..7 {
        let (slot, key) = (format!("2026-11-16T0{n}:00Z"), format!("k{n}"));
        site.run("a", &["run", "other", "--slot", &slot, "--key", &key, "--", "true"]).is(0, "");
    }
    let said = why(&site, &["other"]);
    assert!(tells(&said, "why.more") && said.contains("leasehold history other"), "{said}");
    assert!(!tells(&why(&site, &["other", "2026-11-16T01:00Z"]), "why.more"));
    // The control: where nothing is left out, nothing is said of it.
    site.run("a", &["run", "few", "--slot", "2026-11-16T00:00Z", "--", "true"]).is(0, "");
    assert!(!tells(&why(&site, &["few"]), "why.more"));
}

/// Both are told by the rule that schedulers act by.
#[test]
fn what_is_gone_on_with_is_not_left_to_a_person() {
    let line = "\"$LEASEHOLD\" step first -- true; kill -9 $PPID";
    let site = Site::with(&job("stepped", RARE, "", line));
    let slot = site.make_due("stepped");
    let mut tick = site.on("a", &["run", "stepped", "--ttl", "1s", "--grace", "100ms", "--slot", &slot]);
    tick.args(["--", "sh", "-c", line]).env("LEASEHOLD", crate::world::binary());
    tick.output().unwrap();
    site.becomes("stepped", &slot, "unknown");
    let said = why(&site, &["stepped", &slot]);
    assert!(said.contains("1 of its steps is done"), "{said}");
    site.jobs("a", "");
    let said = why(&site, &["stepped", &slot]);
    assert!(said.contains("the next run continues it"), "{said}");
}

/// It was to be ended two hours ago, and is still there.
#[test]
fn a_run_that_nobody_can_end_is_told() {
    let site = Site::with(&job("long", RARE, "max_run = \"1h\"", NOTE));
    let slot = site.make_due("long");
    let mut run =
        site.start("a", &["run", "long", "--slot", &slot, "--", "sh", "-c", "echo begun; exec cat"]);
    assert_eq!(run.line(), "begun");
    let plan = || site.run("a", &["plan", "long"]).is(0, "").out;
    assert!(plan().contains("running, started by"), "{}", plan());
    site.edit(&format!("slots/long@{:012}", rare_slot()), |entry| {
        entry["claim"]["holder"]["since"] = named(now() - 3 * 3_600).into();
    });
    let said = plan();
    assert!(said.contains("stuck: its run, started by ") && said.contains(" after 1h"), "{said}");
}

#[test]
fn a_time_that_never_comes_is_told_so() {
    let berlin = "cron = \"30 2 * * *\"\ntimezone = \"Europe/Berlin\"";
    let skips = job("skips", berlin, "gap = \"skip\"", NOTE);
    let site = Site::with(&(job("night", berlin, "", NOTE) + &skips));
    let said = why(&site, &["night", "2027-03-28T02:30"]);
    let skipped = ["2027-03-28T02:30+01:00", "2027-03-28T01:00:00Z"];
    assert!(tells(&said, "why.moved_by_the_clock"), "{said}");
    assert!(skipped.iter().all(|time| said.contains(time)), "{said}");
    let said = why(&site, &["skips", "2027-03-28T02:30"]);
    assert!(tells(&said, "why.skipped_by_the_clock") && said.contains("2027-03-28T02:30"), "{said}");
    assert!(!tells(&why(&site, &["night", "2027-03-29T02:30"]), "why.moved_by_the_clock"));
}

/// Half past two never comes on that day: `plan` names the slot by it, records by when it is due.
#[test]
fn what_plan_shows_names_the_same_slot_everywhere() {
    let berlin = "cron = \"30 2,3 * * *\"\ntimezone = \"Europe/Berlin\"";
    let site = Site::with(&job("night", berlin, "", NOTE));
    let (shown, due) = ("2027-03-28T02:30+01:00", "2027-03-28T01:00:00Z");
    // Half past three is the instant that half past two would have been.
    let other = "2027-03-28T01:30:00Z";
    let run = |slot: &str| site.run("a", &["run", "night", "--slot", slot, "--", "false"]).is(1, "");
    run(shown);
    let known = || site.history("night").iter().map(|row| row["item"].clone()).collect::<Vec<_>>();
    assert_eq!(known(), [due]);
    run("2027-03-28T03:30+02:00");
    assert_eq!(known(), [due, other]);
    assert!(why(&site, &["night", shown]).contains(&format!("night@{due}: failed")));
    let retry = |slot: &str| site.run("a", &["retry", &format!("night@{slot}")]).is(0, "retry.again").err;
    assert!(retry(shown).contains(&format!("night@{due} ")));
    assert!(retry(other).contains(&format!("night@{other} ")));
    // The control: where nobody knows the job it is the instant.
    site.jobs("a", "");
    run(shown);
    assert_eq!(site.outcome("night", other).unwrap()["attempt"], 2);
}

/// A slot whose run is refused by its target is tried once in a tick, and everybody tells why it is not run.
#[test]
fn a_slot_whose_target_refuses_it_is_told_and_not_tried_in_vain() {
    let site = Site::with(&job("rare", RARE, "fence = [\"file:out.txt\"]", "true"));
    site.run("a", &["run", "other", "--fence", "file:out.txt", "true"]).is(0, "");
    assert_eq!(standing(&site, "rare"), "ok");
    site.make_due("rare");
    let ticked = site.tick("a").is(1, "targets.other_lease");
    assert_eq!(ticked.err.matches("fencing refused").count(), 1, "{}", ticked.err);
    let said = standing(&site, "rare");
    assert!(tells(&said, "plan.not_fenced") && said.contains("(token 1)"), "{said}");
    assert!(said.ends_with(": leasehold why rare"), "{said}");
    let why = site.run("a", &["why", "rare"]).is(0, "").out;
    assert!(tells(&why, "why.last_not_fenced"), "{why}");
    let rows = site.history("rare");
    assert_eq!(rows.iter().map(|row| &row["outcome"]).collect::<Vec<_>>(), ["unsealed"]);
    let only = site.run("a", &["history", "--only", "unsealed"]).is(0, "").out;
    assert!(only.ends_with("1 unsealed\n"), "{only}");
    // Once the target is free for it, nobody speaks of that any more.
    site.run("a", &["fence", "reset", "file:out.txt"]).is(0, "");
    site.tick("a").is(0, "");
    assert_eq!(standing(&site, "rare"), "ok");
    let why = site.run("a", &["why", "rare"]).is(0, "").out;
    assert!(why.contains("it is not run again") && !tells(&why, "why.last_not_fenced"), "{why}");
}

/// However many of its slots are due, and whatever other jobs do under the same lease.
#[test]
fn a_job_whose_target_refuses_it_is_tried_once_and_told_beside_others() {
    let hourly = |name: &str, more: &str| job(name, "every = \"1h\"", more, "true");
    let site = Site::with(
        &[hourly("site", "catch_up = 3\nfence = [\"file:out.txt\"]"), hourly("b", "lease = \"site\"")]
            .concat(),
    );
    site.run("a", &["run", "other", "--fence", "file:out.txt", "true"]).is(0, "");
    site.rewind("site", now() - 5 * 3600);
    let ticked = site.tick("a").is(1, "targets.other_lease");
    assert_eq!(ticked.err.matches("fencing refused").count(), 1, "{}", ticked.err);
    let slot = named((now() - 3600).div_euclid(3600) * 3600);
    site.rewind("b", now() - 7200);
    site.run("a", &["run", "site", "--job", "b", "--slot", &slot, "--", "true"]).is(0, "");
    assert_eq!(site.history("b").last().map(|row| row["outcome"].clone()), Some("ok".into()));
    let said = standing(&site, "site");
    assert!(said.starts_with("overdue by ") && tells(&said, "plan.not_fenced"), "{said}");
    let why = site.run("a", &["why", "site"]).is(0, "").out;
    assert!(tells(&why, "why.last_not_fenced"), "{why}");
    // Asked about a slot that nobody could begin.
    let why = site.run("a", &["why", "site", &slot]).is(0, "").out;
    assert!(tells(&why, "why.last_not_fenced"), "{why}");
}
