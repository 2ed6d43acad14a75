//! A file that is wrong: nothing is started, nothing is changed, and one line says where.

use super::kit::{NOTE, RARE, Site, job};

/// What is wrong, on which line, and what is said of it.
fn wrong() -> Vec<(String, u32, &'static str)> {
    let with = |due: &str, more: &str| job("site", due, more, NOTE);
    let long = format!("key = \"{}-{{slot}}\"", "k".repeat(250));
    vec![
        (with(RARE, "catchup = 3"), 4, "(did you mean \"catch_up\"?)"),
        (with("cron = \"0 7 * * *\"", ""), 3, "cron needs a time zone"),
        (with("cron = \"0 0 31 4 *\"", "timezone = \"UTC\""), 3, "never"),
        (with("cron = \"*/45 * * * *\"", "timezone = \"UTC\""), 3, "every = \"45m\""),
        (with("cron = \"0 7 * * *\"", "timezone = \"Europe/Berlni\""), 4, "Europe/Berlni"),
        (with("every = \"0s\"", ""), 3, "interval"),
        (with("every = \"5\"", ""), 3, "every"),
        (with(RARE, "catch_up = -1"), 4, "from 0 to 10000"),
        (with(RARE, "key = \"{slto}\""), 4, "did you mean {slot}?"),
        (with(RARE, &long), 4, "of 276 bytes"),
        (with(RARE, "on_busy = \"switch\""), 4, "has nothing to switch to"),
        (with(RARE, "") + &with(RARE, ""), 7, "two jobs are named site"),
        (with(RARE, "") + "\n[[job]\n", 7, ""),
    ]
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let site = Site::with(&job("seen", RARE, "", NOTE));
    for (text, line, said) in wrong() {
        site.jobs("a", &text);
        for command in ["daemon", "tick", "plan"] {
            let ended = site.world.unchanged(|| site.run("a", &[command])).is(78, said);
            let place = format!("leasehold.toml:{line}: ");
            assert!(ended.err.contains(&place), "{command}: {place:?}: {ended:#?}");
            assert_eq!(ended.err.lines().count(), 1, "{command}: {ended:#?}");
        }
        assert!(site.agenda("site").is_none());
    }
    // The control: the same file in order is taken.
    site.jobs("a", &job("site", RARE, "catch_up = 3", NOTE));
    site.tick("a").is(0, "daemon.new_job");
    assert!(site.agenda("site").is_some());
}

#[test]
fn a_program_that_is_not_there_is_told_before_anything_starts() {
    let site = Site::with(&job("seen", RARE, "", NOTE));
    let missing = "[[job]]\nname = \"site\"\nevery = \"1h\"\nrun = [\"./publish.sh\"]\n";
    site.jobs("a", missing);
    for command in ["daemon", "tick"] {
        let ended = site.world.unchanged(|| site.run("a", &[command]));
        ended.is(78, "").names(&["leasehold.toml:4: ", "publish.sh: no such file"]);
    }
    // Whoever only looks need not be able to run it.
    site.run("a", &["plan"]).is(0, "");
    assert!(site.agenda("site").is_none());
    site.world.script("a/publish.sh", "#!/bin/sh\n");
    site.tick("a").is(0, "daemon.new_job");
    assert!(site.agenda("site").is_some());
}

#[test]
fn a_file_that_cannot_be_read_is_told() {
    let site = Site::with(&job("seen", RARE, "", NOTE));
    std::fs::create_dir(site.world.path("a/dir.toml")).unwrap();
    for (file, said) in [("dir.toml", "dir.toml"), ("none.toml", "none.toml")] {
        for command in ["daemon", "tick", "plan"] {
            site.world.unchanged(|| site.run("a", &["--config", file, command])).is(78, said);
        }
    }
    site.jobs("a", "store = \"sqlite:elsewhere.db\"\n");
    for command in ["daemon", "tick", "plan"] {
        site.world
            .unchanged(|| site.run("a", &[command]))
            .is(78, "")
            .names(&["[[job]]", "leasehold help leasehold.toml"]);
    }
}
