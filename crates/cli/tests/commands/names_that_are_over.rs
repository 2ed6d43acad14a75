//! `leasehold forget`: names that are over go, and nothing else does; no lease is lost, no token comes twice, and other
//! machines are told.
//!
//! Records are made old by changing when they were written. On a store of one machine that is before its last start, so these
//! commands run in a time namespace that began ten days ago.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::world::places::fresh;
use crate::world::{Ended, Running, World, until};
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::text::shell_quoted;
use leasehold_testkit::server;
use rusqlite::{Connection, params};

/// Machines that share a store, each with a home of its own.
struct Site {
    world: World,
    shell: Running,
    db: PathBuf,
    calls: u32,
}

const TEN_DAYS: &str = "864000";

impl Site {
    fn new() -> Self {
        let world = World::new();
        for home in ["one", "two"] {
            fs::create_dir(world.path(home)).unwrap();
        }
        let db = world.path("leases.db");
        let mut command = world.program("unshare");
        let root = rustix::process::geteuid().is_root();
        command.arg(if root { "-T" } else { "-rT" }).args(["--boottime", TEN_DAYS, "bash"]);
        let shell = Running::new(command);
        Self { world, shell, db, calls: 0 }
    }

    fn typed(home: &str, db: &std::path::Path, args: &[&str]) -> String {
        let binary = crate::world::binary().display().to_string();
        let store = format!("sqlite:{}", db.display());
        let words = [&[binary.as_str(), "--store", &store], args].concat();
        let words: Vec<String> = words.iter().map(|word| shell_quoted(word).to_string()).collect();
        format!("HOME=$PWD/{home} {}", words.join(" "))
    }

    /// A line in the shell.
    fn sh(&mut self, line: &str) -> Ended {
        self.calls += 1;
        let (out, err) = (format!("out{}", self.calls), format!("err{}", self.calls));
        self.shell.type_in(&format!("( {line} ) >{out} 2>{err} </dev/null; echo $?\n"));
        let code = self.shell.line().parse().unwrap();
        let text = |name: &str| fs::read_to_string(self.world.path(name)).unwrap();
        let ended = Ended { code, out: text(&out), err: text(&err) };
        crate::world::messages::note_seen(&ended.err);
        ended
    }

    /// A command on one of the machines.
    fn on(&mut self, home: &str, args: &[&str]) -> Ended {
        let line = Self::typed(home, &self.db, args);
        self.sh(&line)
    }

    /// Makes records two hours older.
    fn age(&self, keys: &str) {
        let db = Connection::open(&self.db).unwrap();
        let mut found = db.prepare("SELECT key, stamp FROM records WHERE key GLOB ?1").unwrap();
        let rows = found.query_map([keys], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let rows: Vec<(String, String)> = rows.map(Result::unwrap).collect();
        assert!(!rows.is_empty(), "{keys}");
        for (key, stamp) in rows {
            let (domain, at) = stamp.rsplit_once('/').unwrap();
            let (secs, rest) = at.split_once('.').unwrap();
            let older = format!("{domain}/{}.{rest}", secs.parse::<u64>().unwrap() - 7_200);
            db.execute("UPDATE records SET stamp = ?2 WHERE key = ?1", params![key, older]).unwrap();
        }
    }

    fn keys(&self, like: &str) -> Vec<String> {
        let db = Connection::open(&self.db).unwrap();
        let mut found = db.prepare("SELECT key FROM records WHERE key GLOB ?1 ORDER BY key").unwrap();
        found.query_map([like], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn lease(&self, name: &str) -> Option<LeaseRecord> {
        let db = Connection::open(&self.db).unwrap();
        let body =
            db.query_row("SELECT body FROM records WHERE key = ?1", [format!("leases/{name}")], |row| {
                row.get::<_, Vec<u8>>(0)
            });
        Some(LeaseRecord::decode(&Name::new(name).unwrap(), &body.ok()?).unwrap())
    }

    fn note(&self, home: &str, name: &str) -> PathBuf {
        self.world.path(&format!("{home}/.local/state/leasehold/memory/{name}.json"))
    }
}

const FORGET: [&str; 3] = ["forget", "--older-than", "1h"];

fn forget(name: &str) -> Vec<&str> {
    [&FORGET[..], &[name]].concat()
}

#[test]
fn a_name_that_is_over_goes_and_may_begin_again_everywhere() {
    let mut site = Site::new();
    for home in ["one", "two", "one"] {
        site.on(home, &["run", "site", "true"]).is(0, "");
    }
    let before = site.lease("site").unwrap();
    assert_eq!(before.token.get(), 3);
    site.age("leases/site");
    site.age("log/*");
    let told = site.on("one", &[&["--json"], &forget("site")[..]].concat());
    assert_eq!(told.code, 0, "{told:#?}");
    let told = told.is(0, "forget.forgot").json();
    assert_eq!((&told["leases"], &told["keys"], &told["log"]), (&1.into(), &0.into(), &3.into()), "{told}");
    assert_eq!(site.lease("site"), None);
    assert!(!site.note("one", "site").exists() && site.note("two", "site").exists());
    let log = site.keys("log/*");
    assert!(log.len() == 1 && log[0].contains(".forget."), "{log:?}");
    site.on("one", &forget("site")).is(0, "forget.before");
    // The machine that was not there is told when it comes.
    site.on("two", &["run", "site", "true"]).is(0, "").lacks("store.vanished");
    let after = site.lease("site").unwrap();
    assert_eq!(after.token.get(), 1);
    assert_ne!(after.epoch, before.epoch);
    site.on("one", &["run", "site", "true"]).is(0, "");
    // A record that goes without a word is refused, as ever; also one that is newer than what was forgotten.
    Connection::open(&site.db).unwrap().execute("DELETE FROM records WHERE key = 'leases/site'", []).unwrap();
    for home in ["one", "two"] {
        site.on(home, &["run", "site", "true"]).is(79, "store.vanished");
    }
}

#[test]
fn what_is_not_over_is_left_and_listed() {
    let mut site = Site::new();
    let free = ["x/free", "x/young"];
    for name in free {
        site.on("one", &["run", name, "true"]).is(0, "");
    }
    for key in ["x/done", "x/done-young"] {
        site.on("one", &["once", key, "true"]).is(0, "");
    }
    site.on("one", &["once", "x/failed", "false"]).is(1, "");
    site.on("one", &["once", "x/gone", "--ttl", "2s", "--", "sh", "-c", "kill -9 $PPID"]);
    site.on("one", &["acquire", "x/held", "--ttl", "1d"]).is(0, "");
    site.on("one", &["acquire", "x/expired", "--ttl", "5s"]).is(0, "");
    site.on("one", &["run", "y", "true"]).is(0, "");
    for key in ["leases/*", "keys/*"] {
        site.age(key);
    }
    // As if they had been changed just now.
    for young in ["run x/young true", "once --keep 1s x/done-young true"] {
        let args: Vec<&str> = young.split(' ').collect();
        site.on("one", &args);
    }
    let dry = site.on("two", &[&["--json", "--quiet"], &forget("x/")[..], &["--dry-run"]].concat()).json();
    let before = site.keys("*");
    let told = site.on("two", &[&["--json"], &forget("x/")[..]].concat()).is(0, "forget.forgot").json();
    assert_eq!(
        (&dry["leases"], &dry["keys"], &dry["dry_run"]),
        (&told["leases"], &told["keys"], &true.into())
    );
    let left: BTreeSet<String> = told["left"]
        .as_array()
        .unwrap()
        .iter()
        .map(|left| {
            let word = |name: &str| left[name].as_str().unwrap().to_owned();
            format!("{} {} {}", word("kind"), word("name"), word("why"))
        })
        .collect();
    let expected: BTreeSet<String> = [
        "lease x/young young",
        "lease x/held held",
        "lease x/expired expired",
        "lease x/failed.once failed",
        "lease x/gone.once expired",
        "lease x/done-young.once young",
        "key x/failed failed",
        "key x/gone open",
        "key x/done-young young",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(left, expected);
    assert_eq!((&told["leases"], &told["keys"]), (&2.into(), &1.into()), "x/free, x/done.once, and x/done");
    let after = site.keys("*");
    let gone: Vec<&String> = before.iter().filter(|key| !after.contains(key)).collect();
    assert_eq!(gone, ["keys/x/done", "leases/x/done.once", "leases/x/free"]);
    assert!(site.keys("leases/y").len() == 1 && site.keys("forgotten/*") == ["forgotten/x/"]);
    // What was forgotten can be done again. What was not is still done.
    let again = site.on("one", &["once", "x/done", "--", "echo", "again"]);
    assert_eq!(again.out, "again\n", "{again:#?}");
    assert_eq!(site.on("one", &["once", "x/done-young", "--", "echo", "again"]).out, "");
}

#[test]
fn bad_requests_remove_nothing() {
    let mut site = Site::new();
    site.on("one", &["run", "site", "true"]).is(0, "");
    site.age("leases/*");
    let before = site.keys("*");
    assert_eq!(site.on("one", &["forget", "site"]).code, 64);
    assert_eq!(site.on("one", &["forget", "--older-than", "1h"]).code, 64);
    assert_eq!(site.on("one", &["forget", "site", "--older-than", "soon"]).code, 64);
    site.on("one", &["forget", "site", "--older-than", "59m"]).is(64, "forget.too_young");
    site.on("one", &["forget", "sight", "--older-than", "1h"]).is(64, "history.unknown_name");
    site.on("one", &["forget", "Sight seeing", "--older-than", "1h"]).is(64, "history.unknown_name");
    site.on("one", &["forget", "", "--older-than", "1h"]).is(64, "items.bad_key");
    site.on("one", &["forget", "pr/", "--older-than", "1h"]).is(0, "forget.nothing");
    site.on("one", &["forget", "site", "--older-than", "3h"]).is(0, "forget.nothing");
    site.on("one", &[&forget("site")[..], &["--dry-run"]].concat()).is(0, "forget.would");
    assert_eq!(site.keys("*"), before);
    // A record that this version cannot read is left alone, and nothing is removed that it would have to cover.
    let db = Connection::open(&site.db).unwrap();
    let newer = r#"{"leasehold_forgotten":9,"names":"site","by":"x","at":"x","write":"00"}"#;
    let insert = "INSERT INTO records SELECT 'forgotten/site', 'v', ?1, stamp FROM records LIMIT 1";
    db.execute(insert, [newer.as_bytes()]).unwrap();
    site.on("one", &forget("site")).is(79, "forget.bad_record");
    assert!(site.lease("site").is_some());
}

#[test]
fn a_long_list_of_what_is_left_is_cut() {
    let mut site = Site::new();
    for n in 0..22 {
        site.on("one", &["run", &format!("pr/{n}"), "true"]).is(0, "");
    }
    let told = site.on("one", &forget("pr/")).is(0, "forget.more_left");
    assert_eq!(told.out.lines().count(), 21, "{told:#?}");
}

/// A fence remembers the lease as it was, and only a person may make it forget.
#[test]
fn targets_that_still_have_the_fence_are_named() {
    let mut site = Site::new();
    let write = "run site --fence file:page -- sh -c 'echo x | \"$0\" write file:page'";
    let write = format!("{} ", write.replace("$0", &crate::world::binary().display().to_string()));
    let line = |site: &Site| {
        format!(
            "HOME=$PWD/one {} --store sqlite:{} {write}",
            crate::world::binary().display(),
            site.db.display()
        )
    };
    let run = line(&site);
    site.sh(&run).is(0, "");
    site.age("leases/*");
    let told =
        site.on("one", &[&["--json"], &forget("site")[..]].concat()).is(0, "forget.still_fenced").json();
    let target = told["fenced"][0].as_str().unwrap().to_owned();
    assert!(target.ends_with("/page"), "{told}");
    assert_ne!(site.sh(&run).code, 0, "the fence refuses a lease that began again");
    site.on("one", &["fence", "reset", &target]).is(0, "fence.reset");
    site.sh(&run).is(0, "");
}

/// A store that is behind what this machine has seen lost the newest run, which may be at work.
#[test]
fn a_store_that_was_rewound_forgets_nothing_here() {
    let mut site = Site::new();
    site.on("one", &["run", "site", "true"]).is(0, "");
    let backup = site.world.path("backup.db");
    let db = Connection::open(&site.db).unwrap();
    db.execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
    drop(db);
    site.on("one", &["run", "site", "true"]).is(0, "");
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{end}", site.db.display()));
    }
    fs::copy(&backup, &site.db).unwrap();
    site.age("leases/site");
    let told = site.on("one", &[&["--json"], &forget("site")[..]].concat()).is(0, "forget.nothing").json();
    assert_eq!(told["left"][0]["why"], "rewound", "{told}");
    site.on("one", &["run", "site", "true"]).is(79, "store.rewound");
    // A machine that does not know better may; the other one still refuses, because it has seen a later token.
    site.on("two", &forget("site")).is(0, "forget.forgot");
    site.on("one", &["run", "site", "true"]).is(79, "store.vanished");
}

/// Whoever gets the lease keeps it, and every grant has a token of its own.
fn race(rounds: usize, mut both: impl FnMut() -> (Ended, Ended), mut record: impl FnMut() -> LeaseRecord) {
    let (mut seen, mut began, mut left) = (BTreeSet::new(), 0, 0);
    for round in 0..rounds {
        let (acquired, forgot) = both();
        assert_eq!(acquired.code, 0, "round {round}: {acquired:#?} {forgot:#?}");
        assert_eq!(forgot.code, 0, "round {round}: {forgot:#?}");
        let held = record();
        assert!(held.hold.is_some(), "round {round}: {held:?}");
        assert_eq!(held.token.get(), acquired.token(), "round {round}");
        assert!(seen.insert((held.epoch.to_string(), held.token)), "round {round}: {held:?} came twice");
        let removed = forgot.json()["leases"].as_u64().unwrap();
        assert!(removed <= 1);
        // A lease that was removed began again, and only such a one did.
        assert_eq!(held.token.get() == 1, removed == 1, "round {round}: {held:?} {forgot:#?}");
        (began, left) = (began + removed, left + 1 - removed);
    }
    println!("{rounds} rounds: {began} began again, {left} were left");
}

#[test]
fn an_acquire_that_races_with_it_keeps_its_lease() {
    let mut site = Site::new();
    site.on("one", &["run", "site", "true"]).is(0, "");
    let mut token = String::new();
    let site = std::cell::RefCell::new(site);
    let both = || {
        let mut site = site.borrow_mut();
        if !token.is_empty() {
            site.on("two", &["release", "site", "--token", &token]).is(0, "");
        }
        site.age("leases/site");
        let acquire = Site::typed("two", &site.db, &["acquire", "site"]);
        let forget = Site::typed("one", &site.db, &[&["--json"], &forget("site")[..]].concat());
        let line = format!(
            "{acquire} >a.out 2>a.err & p=$!; {forget} >f.out 2>f.err & q=$!; wait $p; echo $? >a.code; \
             wait $q; echo $? >f.code"
        );
        assert_eq!(site.sh(&line).code, 0);
        let read = |name: &str| fs::read_to_string(site.world.path(name)).unwrap();
        let ended = |of: &str| Ended {
            code: read(&format!("{of}.code")).trim().parse().unwrap(),
            out: read(&format!("{of}.out")),
            err: read(&format!("{of}.err")),
        };
        let (acquired, forgot) = (ended("a"), ended("f"));
        token = acquired.out.trim().to_owned();
        (acquired, forgot)
    };
    race(20, both, || site.borrow().lease("site").unwrap());
}

#[test]
fn the_same_on_postgres_and_redis() {
    for (url, age) in [
        (server("POSTGRES"), age_in_postgres as fn(&World, &str, &str)),
        (server("REDIS_AUTH"), age_in_redis as fn(&World, &str, &str)),
    ] {
        let world = World::new();
        let name = fresh("over");
        let at = |args: &[&str]| {
            [&["--store", &url], args].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        world.run(&at(&["run", &name, "true"]).iter().map(String::as_str).collect::<Vec<_>>()).is(0, "");
        let mut token = String::new();
        let both = || {
            let run = |args: &[&str]| {
                let args = at(args);
                world.start(&args.iter().map(String::as_str).collect::<Vec<_>>())
            };
            if !token.is_empty() {
                run(&["release", &name, "--token", &token]).ended().is(0, "");
            }
            age(&world, &url, &name);
            let (acquire, forget) =
                (run(&["acquire", &name]), run(&[&["--json"], &forget(&name)[..]].concat()));
            let (acquired, forgot) = (acquire.ended(), forget.ended());
            token = acquired.out.trim().to_owned();
            (acquired, forgot)
        };
        let record = || {
            let mut store = leasehold::stores::open(&url).unwrap_or_else(|e| panic!("{e}"));
            let stored = pollster::block_on(store.read(&format!("leases/{name}"))).unwrap().unwrap();
            LeaseRecord::decode(&Name::new(&name).unwrap(), &stored.body).unwrap()
        };
        race(20, both, record);
    }
}

fn age_in_postgres(world: &World, url: &str, lease: &str) {
    let sql = format!(
        "UPDATE leasehold.records SET written = written - interval '2 hours' WHERE key = 'leases/{lease}'"
    );
    let mut psql = world.program("psql");
    let ended: Ended =
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", url, "-c", &sql]).output().unwrap().into();
    ended.quiet();
}

fn age_in_redis(world: &World, url: &str, lease: &str) {
    let key = format!("leasehold:{{main}}/leases/{lease}");
    let mut cli = world.program("redis-cli");
    let ended: Ended = cli
        .args(["-u", url, "--no-auth-warning", "HINCRBY", &key, "t", "-7200000000"])
        .output()
        .unwrap()
        .into();
    assert!(ended.out.trim().parse::<u64>().is_ok_and(|t| t > 0), "{ended:#?}");
}

/// A finished key is one record. Its lease goes without being asked for, and takes nothing with it.
#[test]
fn the_leases_of_finished_keys_are_swept() {
    let mut site = Site::new();
    let key = |n: usize| format!("invoice-{n}");
    for n in 0..12 {
        let home = if n % 2 == 0 { "one" } else { "two" };
        site.on(home, &["once", &key(n), "true"]).is(0, "");
    }
    site.on("one", &["once", "invoice-failed", "false"]).is(1, "");
    site.on("one", &["once", "invoice-daily", "--keep", "1d", "true"]).is(0, "");
    site.on("one", &["run", "invoice.once", "true"]).is(0, "");
    site.age("leases/*");
    let mut n = 12;
    until("they are swept", || {
        for _ in 0..8 {
            n += 1;
            site.on("one", &["once", &key(n), "true"]).is(0, "");
        }
        (0..12).all(|n| site.lease(&format!("{}.once", key(n))).is_none()).then_some(())
    });
    println!("swept after {} more runs", n - 12);
    for kept in ["invoice-failed.once", "invoice-daily.once", "invoice.once", &format!("{}.once", key(n))] {
        assert!(site.lease(kept).is_some(), "{kept}");
    }
    assert_eq!(site.keys("forgotten/*"), ["forgotten/.once"]);
    assert_eq!(
        site.keys("keys/invoice-[0-9]*").len(),
        n,
        "every key is still done: there is none of the number 12"
    );
    assert!(!site.note("one", "invoice-0.once").exists(), "this machine forgets them too");
    for home in ["one", "two"] {
        let again = site.on(home, &["once", &key(1), "--", "echo", "again"]);
        assert_eq!((again.code, again.out.as_str()), (0, ""), "{again:#?}");
    }
    // The machine that has seen the lease may use it again, if its key comes again.
    assert!(site.note("two", "invoice-1.once").exists());
    site.age("keys/invoice-1");
    let again = site.on("two", &["once", &key(1), "--keep", "1h", "--", "echo", "again"]);
    assert_eq!((again.code, again.out.as_str()), (0, "again\n"), "{again:#?}");
    assert_eq!(site.lease("invoice-1.once").unwrap().token.get(), 1);
}

/// Through a server it is an operation of its own, with its own right.
#[test]
fn only_an_admin_bearer_may_forget() {
    use std::os::unix::fs::PermissionsExt;
    let mut site = Site::new();
    site.on("one", &["run", "site", "true"]).is(0, "");
    site.age("leases/site");
    let (plain, admin) = ("plain-bearer-0123456789", "admin-bearer-0123456789");
    let files = [
        ("tokens", format!("{plain} *\n{admin} * admin\n")),
        ("plain", plain.into()),
        ("admin", admin.into()),
    ];
    for (name, text) in &files {
        let path = site.world.write(name, text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let serve = Site::typed(
        "one",
        &site.db,
        &["--json", "serve", "--store-api", "--listen", "127.0.0.1:0", "--tokens", "tokens"],
    );
    site.shell.type_in(&format!("{serve} >served 2>said </dev/null & echo $!\n"));
    let pid: u32 = site.shell.line().parse().unwrap();
    let listen = until("it listens", || {
        let told = fs::read_to_string(site.world.path("served")).ok()?;
        let told: serde_json::Value = serde_json::from_str(told.lines().next()?).ok()?;
        Some(format!("http://{}", told["listen"].as_str()?))
    });
    let as_bearer = |bearer: &str, args: &[&str]| -> Ended {
        let mut command = site.world.command(&["--store", &listen]);
        command.args(args).env("LEASEHOLD_AUTH_FILE", site.world.path(bearer)).output().unwrap().into()
    };
    let refused = as_bearer("plain", &forget("site"));
    assert_eq!(refused.code, 77, "{refused:#?}");
    assert!(site.lease("site").is_some() && site.keys("forgotten/*").is_empty());
    as_bearer("admin", &forget("site")).is(0, "forget.forgot");
    assert_eq!(site.lease("site"), None);
    as_bearer("plain", &["run", "site", "true"]).is(0, "");
    crate::world::kill(pid, rustix::process::Signal::TERM);
}
