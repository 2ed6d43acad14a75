//! What earlier versions left is read, and goes on to be used; what later versions add is carried along.
//! `scripts/fixture` made the fixtures, each with the binary of that version.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use leasehold::core::additions::Additions;
use leasehold::core::fence_record::FenceRecord;
use leasehold::core::ids::WriteId;
use leasehold::core::ledger::Entry;
use leasehold::core::ledger::job_record::JobRecord;
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::run_log::LogRecord;
use leasehold::ledger::key_of;
use leasehold::random;
use leasehold::stores::{Cas, Store};
use pollster::block_on;

use crate::world::World;

const JOBS: &str = r#"
[[job]]
name = "often"
every = "2s"
run = ["true"]

[[job]]
name = "resting"
every = "2s"
run = ["true"]

[[job]]
name = "nightly"
cron = "30 6 * * MON-FRI"
timezone = "Europe/Berlin"
run = ["true"]
"#;

fn fixtures() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut found: Vec<PathBuf> = all.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(found.len() >= 2, "one for each release");
    found
}

fn records(fixture: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(fixture.join("records")).unwrap();
    let pair = |line: &str| line.split_once('\t').map(|(key, body)| (key.to_owned(), body.to_owned()));
    text.lines().map(|line| pair(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

/// The record as this version reads it, written again; nothing if it is no record that anybody decodes.
fn again(key: &str, body: &str) -> Option<String> {
    let (kind, name) = key.split_once('/').unwrap();
    let why = |why: &dyn std::fmt::Display| -> String { panic!("{key}: {why}: {body}") };
    let bytes = match kind {
        "leases" => {
            let name = Name::new(name).unwrap();
            LeaseRecord::decode(&name, body.as_bytes())
                .map_or_else(|e| why(&e).into(), |record| record.encode())
        }
        "keys" | "slots" | "latest" => {
            let entry = Entry::decode(body.as_bytes()).unwrap_or_else(|e| panic!("{}", why(&e)));
            assert_eq!(key_of(&entry.subject), key);
            entry.encode().unwrap()
        }
        "jobs" => JobRecord::decode_any(body.as_bytes())
            .map_or_else(|e| why(&e).into(), |job_record| job_record.encode()),
        "gates" => {
            FenceRecord::decode(body.as_bytes()).map_or_else(|e| why(&e).into(), |fence| fence.encode())
        }
        "log" => {
            let record =
                LogRecord::decode(body.as_bytes()).unwrap_or_else(|e| panic!("{key}: {e:?}: {body}"));
            assert_eq!(record.key(), key);
            record.encode()
        }
        "examined" | "probe" => return None,
        _ => panic!("a kind of record that nobody reads here: {key}"),
    };
    Some(String::from_utf8(bytes).unwrap().trim_end().to_owned())
}

/// It is read, and written again as it was.
#[track_caller]
fn read(key: &str, body: &str) {
    let Some(again) = again(key, body) else { return };
    // Format 1 has no field for the reason, and 2 is the first that has one.
    let reason = body.starts_with(r#"{"leasehold_item":1,"#) && again.contains(r#""reason":"#);
    assert!(again == body || reason, "{key}\n{body}\n{again}");
}

#[test]
fn records_of_every_release_are_read_and_written_as_they_were() {
    for fixture in fixtures() {
        let mut kinds = BTreeSet::new();
        for (key, body) in records(&fixture) {
            kinds.insert(key.split_once('/').unwrap().0.to_owned());
            read(&key, &body);
        }
        for kind in ["leases", "keys", "slots", "latest", "jobs"] {
            assert!(kinds.contains(kind), "{}: {kinds:?}", fixture.display());
        }
        let first = fixture.ends_with("0.1.0");
        assert!(first || kinds.contains("gates") && kinds.contains("examined"), "{kinds:?}");
    }
}

/// A fixture, unpacked: the store in it, and a machine that has used it.
fn unpacked(fixture: &Path, scheme: &str) -> (World, String) {
    let mut world = World::new();
    let tar = world.program("tar").arg("xzf").arg(fixture.join("world.tgz")).output().unwrap();
    assert!(tar.status.success(), "{tar:?}");
    let home = world.at(&format!("home/{scheme}"));
    for kind in ["memory", "grants"] {
        for file in Path::new(&home).join(".local/state/leasehold").join(kind).read_dir().unwrap() {
            let file = file.unwrap().path();
            let text =
                std::fs::read_to_string(&file).unwrap().replace("@HERE@", world.at("").trim_end_matches('/'));
            std::fs::write(&file, text).unwrap();
        }
    }
    let path = if scheme == "sqlite" { "leases.db" } else { "leases" };
    let store = format!("{scheme}:{}", world.at(path));
    world.variables = vec![("HOME".into(), home), ("LEASEHOLD_STORE".into(), store.clone())];
    (world, store)
}

fn stored(store: &str) -> Vec<(String, String)> {
    let mut store = leasehold::stores::open(store).unwrap_or_else(|e| panic!("{e}"));
    let listed = block_on(store.list("", "", 9_999)).unwrap();
    let text = |key: String, store: &mut dyn Store| {
        let body = block_on(store.read(&key)).unwrap().unwrap().body;
        (key, String::from_utf8(body).unwrap().trim_end().to_owned())
    };
    listed.into_iter().map(|listed| text(listed.key, store.as_mut())).collect()
}

/// Every command that reads, and then those that write.
fn used(world: &World, store: &str, scheme: &str) {
    let says = |args: &[&str], what: &str| {
        let ended = world.run(args);
        assert!(ended.code == 0 && ended.out.contains(what) && ended.err.is_empty(), "{what}: {ended:#?}");
    };
    for lease in ["free", "held", "expired", "asked-to-stop", "silent", "slotted"] {
        says(&["status", "--json"], &format!("\"{lease}\""));
    }
    for item in ["key-ok", "key-failed", "key by hand", "key-again", "key-unknown", "key-steps"] {
        says(&["history", "--json", item], &format!("\"{item}\""));
    }
    says(&["history", "often"], "dropped (");
    says(&["history", "busy"], "skipped (overlap)");
    stored(store).iter().for_each(|(key, body)| read(key, body));
    let ran = |args: &[&str]| world.run(args).out.trim().to_owned();
    let job = ["--", "sh", "-c", "echo $LEASEHOLD_TOKEN"];
    assert_eq!(ran(&[&["run", "free"][..], &job].concat()), "3", "the token goes on");
    for done in ["key-ok", "key by hand"] {
        world.run(&["once", done, "--", "touch", "twice"]).is(0, "").names(&["skipped"]);
    }
    world.run(&["once", "key-unknown", "--", "touch", "twice"]).is(79, "items.unknown");
    assert!([0, 79].contains(&world.run(&["once", "key-started", "--", "touch", "twice"]).code));
    world.run(&["once", "key-failed", "--", "touch", "failed-before"]).quiet();
    world.run(&["once", "key-again", "--", "touch", "asked-for"]).quiet();
    let steps = "leasehold step one -- false && leasehold step two --keep-output -- false";
    let steps = steps.replace("leasehold", crate::world::binary().to_str().unwrap());
    let ended = world.run(&["once", "key-steps", "--", "sh", "-c", &steps]);
    assert_eq!((ended.code, ended.out.trim()), (0, "4711"), "{ended:#?}");
    world
        .run(&["run", "slotted", "--slot", "2026-11-18T06:00Z", "--", "touch", "twice"])
        .is(0, "")
        .names(&["skipped"]);
    world.run(&["run", "slotted", "--slot", "2026-11-18T07:00Z", "--", "touch", "failed-slot"]).quiet();
    assert!(!world.path("twice").exists());
    for once in ["failed-before", "asked-for", "failed-slot"] {
        assert!(world.path(once).exists(), "{once}");
    }
    world.write("leasehold.toml", JOBS);
    world.run(&["tick"]).lacks("daemon.new_job").lacks("daemon.new_jobs").lacks("format");
    world.run(&["pause", "nightly"]).is(0, "");
    world.run(&["resume", "nightly"]).is(0, "");
    says(&["plan"], "paused");
    for job in ["often", "resting", "nightly"] {
        let (_, record) = stored(store).into_iter().find(|(key, _)| *key == format!("jobs/{job}")).unwrap();
        assert!(record.starts_with(r#"{"leasehold_job":2,"#) && record.contains(r#""key":{"#), "{record}");
    }
    if scheme == "sqlite" {
        at_its_targets(world);
    }
    stored(store).iter().for_each(|(key, body)| read(key, body));
}

fn at_its_targets(world: &World) {
    for (target, write) in [
        ("file:site/today.json", "echo newer | leasehold write file:site/today.json"),
        ("tree:site/pages", "leasehold write tree:site/pages --from site/pages.new"),
        ("gate:./site/gate", "leasehold gate ./site/gate -- true"),
    ] {
        let write = write.replace("leasehold", crate::world::binary().to_str().unwrap());
        world.run(&["run", "other", "--fence", target, "--", "touch", "twice"]).is(78, "targets.other_lease");
        world.run(&["run", "page", "--fence", target, "--", "sh", "-c", &write]).is(0, "");
    }
    assert_eq!(std::fs::read_to_string(world.path("site/today.json")).unwrap(), "newer\n");
    world.run(&["run", "watched", "--fence", "file:site/watched.json", "--", "true"]).is(0, "");
    world.run(&["run", "prices", "--fence", "sqlite:app.db#prices", "--", "true"]).is(0, "");
    let enter = format!("{} gate mail -- true", crate::world::binary().display());
    world.run(&["run", "mailer", "--fence", "gate:mail", "--", "sh", "-c", &enter]).is(0, "");
    let fences = world.run(&["fence", "ls", "--json"]);
    assert_eq!(fences.code, 0, "{fences:#?}");
}

#[test]
fn a_store_that_an_earlier_version_filled_is_read_and_upgraded_by_use() {
    for fixture in fixtures() {
        for scheme in ["sqlite", "dir"] {
            let (world, store) = unpacked(&fixture, scheme);
            used(&world, &store, scheme);
        }
    }
}

const MORE: &str = r#""more":{"colour":["red",7]}"#;

/// What a later version could have written.
fn with_more(key: &str, body: &str) -> String {
    let more: Additions =
        serde_json::from_str(&format!("{{{}", &MORE[MORE.find('{').unwrap() + 1..])).unwrap();
    let (kind, name) = key.split_once('/').unwrap();
    let bytes = match kind {
        "leases" => {
            let record = LeaseRecord::decode(&Name::new(name).unwrap(), body.as_bytes()).unwrap();
            LeaseRecord { more, ..record }.encode()
        }
        "jobs" => {
            let mut job_record = JobRecord::decode_any(body.as_bytes()).unwrap();
            job_record.more = more;
            job_record.encode()
        }
        "gates" => FenceRecord { more, ..FenceRecord::decode(body.as_bytes()).unwrap() }.encode(),
        "examined" => format!("{},{MORE}}}", body.strip_suffix('}').unwrap()).into_bytes(),
        _ => Entry { more, ..Entry::decode(body.as_bytes()).unwrap() }.encode().unwrap(),
    };
    String::from_utf8(bytes).unwrap()
}

#[test]
fn what_a_later_version_adds_survives_every_use() {
    for fixture in fixtures() {
        for scheme in ["sqlite", "dir"] {
            let (world, store) = unpacked(&fixture, scheme);
            // A job of format 1 has no place for it, and is not written by any later version.
            let has_place = |key: &str, body: &str| {
                !key.starts_with("probe/") && !body.starts_with(r#"{"leasehold_job":1,"#)
            };
            let before: Vec<(String, String)> =
                stored(&store).into_iter().filter(|(key, body)| has_place(key, body)).collect();
            let mut handle = leasehold::stores::open(&store).unwrap_or_else(|e| panic!("{e}"));
            for (key, body) in &before {
                let version = block_on(handle.read(key)).unwrap().unwrap().version;
                let body = with_more(key, body);
                let put = handle.cas(key, Some(&version), WriteId(random::seed()), body.as_bytes());
                assert!(matches!(block_on(put), Cas::Written { .. }), "{key}");
            }
            drop(handle);
            let fences = ["today.json", "pages", "gate", "watched.json"]
                .map(|name| format!("site/.{name}.leasehold-fence"));
            for fence in &fences {
                let text = std::fs::read_to_string(world.path(fence)).unwrap();
                world.write(fence, &with_more("gates/", &text));
            }
            used(&world, &store, scheme);
            let taken = world.run(&["acquire", "free"]);
            world.run(&["renew", "free", "--token", taken.out.trim()]).is(0, "");
            world.run(&["break", "free", "--now"]).is(0, "");
            let after = stored(&store);
            // Records of slots are removed when they are old.
            for (key, body) in before.iter().filter(|(key, _)| !key.starts_with("slots/")) {
                let now = after.iter().find(|(other, _)| other == key);
                let Some((_, now)) = now else { panic!("{key} is gone") };
                assert!(now.contains(MORE), "{key}: {now}");
                let used = ["leases/free", "keys/key-failed", "keys/key-again", "gates/mail"]
                    .contains(&key.as_str());
                assert!(
                    !used || scheme == "dir" || *now != with_more(key, body).trim_end(),
                    "{key} was not used"
                );
            }
            for fence in fences.iter().filter(|_| scheme == "sqlite") {
                let text = std::fs::read_to_string(world.path(fence)).unwrap();
                assert!(text.contains(MORE), "{fence}: {text}");
            }
        }
    }
}
