//! What a job says of its own command and its own slot reaches that, and nothing else.

use super::kit::{RARE, Site, lines};

/// A state directory, a home or an endpoint of the job's own would lead its wrapper to another store.
#[test]
fn a_jobs_variables_are_for_its_command_alone() {
    let site = Site::new();
    let said = "printf '%s\\n' \"$XDG_STATE_HOME\" \"$WORD\" \"$LEASEHOLD_JOB\" > said";
    // Only on the path that the job has.
    site.world.script("bin/say", &format!("#!/bin/sh\n{said}\n"));
    let (elsewhere, bin) = (site.world.at("elsewhere"), site.world.at("bin"));
    let path = std::env::var("PATH").unwrap();
    let env = format!("XDG_STATE_HOME = \"{elsewhere}\", PATH = \"{bin}:{path}\", WORD = 'a \"b\" {{c}}'");
    let job = format!("[[job]]\nname = \"site\"\n{RARE}\nrun = [\"say\"]\nenv = {{ {env} }}\n");
    site.jobs("a", &job);
    site.tick("a").is(0, "daemon.new_job");
    let slot = site.make_due("site");
    site.tick("a").is(0, "");
    assert_eq!(site.outcome("site", &slot).unwrap()["outcome"], "ok");
    let said = lines(&site.world.path("a/said"));
    assert_eq!(said, [elsewhere.as_str(), "a \"b\" {c}", "site"]);
    assert!(!site.world.path("elsewhere").exists(), "the run has kept its state there");
}

/// A slot that is run months late: what it seals is what it writes, and what an earlier run of it would write.
#[test]
fn a_late_slot_seals_the_target_of_its_own_day() {
    let site = Site::new();
    let write = format!("\"{}\" write file:{{date}}.txt --from note", crate::world::binary().display());
    site.world.write("a/note", "hello");
    site.jobs("a", &super::kit::job("site", RARE, "fence = [\"file:{date}.txt\"]", &write));
    site.tick("a").is(0, "daemon.new_job");
    let slot = site.make_due("site");
    site.tick("a").is(0, "");
    assert_eq!(site.outcome("site", &slot).unwrap()["outcome"], "ok");
    assert_eq!(lines(&site.world.path(&format!("a/{}.txt", &slot[..10]))), ["hello"]);
    // The same by hand, and of the key.
    let write = format!("\"{}\" write file:2025-12-31.txt --from note", crate::world::binary().display());
    let slot = ["run", "by-hand", "--slot", "2026-01-01T05:00+09:00", "--key", "day-{date}"];
    site.run("a", &[&slot[..], &["--fence", "file:{date}.txt", "--", "sh", "-c", &write]].concat()).is(0, "");
    let row = site.run("a", &["--json", "why", "day-2025-12-31"]).is(0, "").first();
    assert_eq!((&row["kind"], &row["outcome"]), (&"key".into(), &"ok".into()), "{row}");
}
