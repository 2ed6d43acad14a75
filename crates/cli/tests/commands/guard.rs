//! `leasehold guard`, and runs whose jobs write tables with SQL of their own.

use crate::world::{Ended, World};
use leasehold_testkit::server;

/// A database of its own; the server that it is in goes with the tests.
struct Database {
    world: World,
    url: String,
    target: String,
}

impl Database {
    fn new() -> Self {
        let (world, owner) = (World::new(), server("POSTGRES"));
        let name = format!("g{:x}", leasehold::random::seed());
        let url = format!("{}/{name}", owner.rsplit_once('/').unwrap().0);
        let this = Self { target: format!("pg:{url}#public.stock"), world, url };
        this.psql_at(&server("PG_SUPER"), &[], &format!("CREATE DATABASE {name} OWNER lease")).quiet();
        let tables = "CREATE TABLE stock (id int, n int) PARTITION BY RANGE (id);
            CREATE TABLE stock_low PARTITION OF stock FOR VALUES FROM (0) TO (10);
            INSERT INTO stock VALUES (1, 0); CREATE VIEW seen AS SELECT * FROM stock";
        this.psql(&[], tables).quiet();
        this
    }

    fn psql_at(&self, url: &str, environment: &[(&str, &str)], sql: &str) -> Ended {
        let mut psql = self.world.program("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", url, "-c", sql]);
        psql.envs(environment.iter().copied()).output().unwrap().into()
    }

    fn psql(&self, environment: &[(&str, &str)], sql: &str) -> Ended {
        self.psql_at(&self.url, environment, sql)
    }

    fn guard(&self, args: &[&str]) -> Ended {
        let mut all = vec!["guard", args[0], &self.target];
        all.extend(&args[1..]);
        self.world.run(&all)
    }

    /// A run that fences the table.
    fn run(&self, command: &[&str]) -> Ended {
        let mut all = vec!["run", "shop", "--fence", &self.target, "--"];
        all.extend(command);
        self.world.run(&all)
    }

    fn stock(&self) -> String {
        self.psql(&[], "SELECT n FROM stock").out.trim().to_owned()
    }
}

#[test]
fn a_job_that_only_knows_psql_is_fenced() {
    let db = Database::new();
    let update = "UPDATE stock SET n = n + 1";
    db.run(&["true"]).is(78, "").names(&["has no guard", "Nothing was run"]);
    db.guard(&["install", "--others", "refuse"]).is(0, "guard.installed");
    db.psql(&[], update).is(1, "").names(&["this session belongs to no run"]);
    db.run(&["psql", "-X", "-q", &db.url, "-c", update]).quiet();
    assert_eq!(db.stock(), "1");
    // What is left of an earlier run has its environment still, and no more than that.
    let shown = db.run(&["sh", "-c", "echo $PGAPPNAME"]).out;
    let zombie = [("PGAPPNAME", shown.trim())];
    db.psql(&zombie, update).quiet();
    db.run(&["true"]).quiet();
    let refused = db.psql(&zombie, update).is(1, "token 3 is older than 4");
    assert!(refused.err.contains("run it again"), "{refused:?}");
    db.psql(&zombie, "UPDATE stock_low SET n = 9").is(1, "").names(&["token 3 is older than 4"]);
    // For programs that name the application themselves.
    let local = format!("BEGIN; SET LOCAL leasehold.run = '{}'; {update}", shown.trim());
    db.psql(&[], &local).is(1, "").names(&["token 3 is older than 4"]);
    assert_eq!(db.stock(), "2");
    // And a script as the whole of a write.
    let line = format!("echo 'UPDATE stock SET n = 7' | \"$0\" write '{}'", db.target);
    let binary = crate::world::binary();
    db.run(&["sh", "-c", &line, binary.to_str().unwrap()]).quiet();
    assert_eq!(db.stock(), "7");
}

#[test]
fn shown_printed_and_taken_down() {
    let db = Database::new();
    db.guard(&["show"]).is(78, "").names(&["has no guard"]);
    db.guard(&["install"]).is(64, "--others");
    db.guard(&["install", "--others", "maybe"]).is(64, "maybe");
    let printed = db.guard(&["install", "--others", "allow", "--print-sql"]);
    assert!(
        printed.code == 0 && printed.out.starts_with("BEGIN;\nCREATE SCHEMA leasehold_guard;"),
        "{printed:?}"
    );
    db.guard(&["show"]).is(78, "").names(&["has no guard"]);
    db.psql(&[], &printed.out).quiet();
    let shown = db.guard(&["show"]);
    for part in ["never fenced", "others      allow", "public.stock_low: guarded", "logical replication"] {
        assert!(shown.code == 0 && shown.out.contains(part), "{part}: {shown:?}");
    }
    db.psql(&[], "CREATE TABLE stock_high PARTITION OF stock FOR VALUES FROM (10) TO (20)").quiet();
    let open = db.guard(&["show"]).is(79, "guard.partly_guarded");
    assert!(open.out.contains("public.stock_high: not guarded"), "{open:?}");
    let json = db.world.run(&["--json", "guard", "show", &db.target]).json();
    assert_eq!((&json["others"], &json["tables"][1]["guarded"]), (&"allow".into(), &false.into()));
    db.run(&["true"]).is(0, "public.stock_high is not guarded");
    db.guard(&["install", "--others", "allow"]).is(0, "1 more of its tables");
    db.guard(&["show"]).quiet();
    let gone = db.guard(&["remove", "--print-sql"]);
    assert!(gone.out.contains("DROP TRIGGER leasehold_guard ON public.stock_high;"), "{gone:?}");
    db.guard(&["remove"]).is(0, "guard.removed").names(&["lease shop, token 1"]);
    db.guard(&["remove"]).is(78, "has no guard");
}

#[test]
fn bad_input() {
    let db = Database::new();
    let at = |table: &str| format!("pg:{}#{table}", db.url);
    let install = |target: &str| db.world.run(&["guard", "install", target, "--others", "refuse"]);
    install(&at("nope")).is(78, "").names(&["no table nope"]);
    install(&at("seen")).is(78, "").names(&["is a view"]);
    install(&at("stock_low")).is(78, "").names(&["Name public.stock instead"]);
    install("file:/tmp/x").is(78, "").names(&["is not a table"]);
    install("pg:nowhere").is(78, "").names(&["names no table"]);
    install("sqlite:/nowhere/at.db#t").is(78, "").names(&["does not exist"]);
    install("pg:postgres://lease@127.0.0.1:1/x#t").is(69, "").names(&["connection refused"]);
    let reader = at("stock").replace("//lease@", "//reader@");
    install(&reader)
        .is(77, "")
        .names(&["does not own public.stock"])
        .is(77, "")
        .names(&["may not create a schema"]);
    // Who may not can still print it for somebody who may.
    let printed = db.world.run(&["guard", "install", &reader, "--others", "refuse", "--print-sql"]);
    assert!(printed.code == 0 && printed.out.contains("CREATE TRIGGER leasehold_guard"), "{printed:?}");
    install(&db.target).is(0, "guard.installed");
    install(&db.target).is(0, "guard.installed");
    db.run(&["true"]).quiet();
    let other = db.world.run(&["run", "other", "--fence", &db.target, "--", "true"]);
    other.is(78, "targets.other_lease");
    db.psql(&[], "UPDATE leasehold_guard.fences SET token = 77").quiet();
    db.run(&["true"]).is(79, "targets.bad_fence");
}

/// A guard on the records of leases would refuse every claim and every renewal.
#[test]
fn leaseholds_own_store_is_not_guarded() {
    let db = Database::new();
    let install = |target: &str| db.world.run(&["guard", "install", target, "--others", "refuse"]);
    let file = format!("sqlite:{}", db.world.at("leases.db"));
    for (store, target) in
        [(&file, format!("{file}#records")), (&db.url, format!("pg:{}#leasehold.records", db.url))]
    {
        let run = || db.world.run(&["--store", store, "run", "site", "true"]);
        run().is(0, "");
        install(&target).is(78, "");
        run().is(0, "");
    }
    let made = db.psql(&[], "SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold_guard'");
    assert_eq!(made.out.trim(), "0");
    // Control: beside it a table is guarded.
    install(&db.target).is(0, "guard.installed");
}

#[test]
fn sqlite_too() {
    let world = World::new();
    let path = world.at("shop.db");
    let target = format!("sqlite:{path}#stock");
    let sql = |text: &str| Ended::from(world.program("sqlite3").args([&path, text]).output().unwrap());
    sql("CREATE TABLE stock (id INTEGER, n INTEGER); INSERT INTO stock VALUES (1, 0)").quiet();
    world.run(&["guard", "install", &target, "--others", "refuse"]).is(0, "guard.installed");
    sql("UPDATE stock SET n = 9").is(1, "").names(&["no such function: leasehold_grant"]);
    let job = "import os, sqlite3\n\
        db = sqlite3.connect(os.environ['DB'])\n\
        db.create_function('leasehold_grant', 0, lambda: os.environ.get('LEASEHOLD_SQL_GRANT'))\n\
        db.execute('UPDATE stock SET n = n + 1')\n\
        db.commit()\n";
    let job = world.write("job.py", job).display().to_string();
    let run = |command: &[&str]| {
        let mut args = vec!["run", "shop", "--fence", &target, "--"];
        args.extend(command);
        Ended::from(world.command(&args).env("DB", &path).output().unwrap())
    };
    run(&["python3", &job]).quiet();
    let shown = run(&["sh", "-c", "echo $LEASEHOLD_SQL_GRANT"]).out;
    run(&["true"]).quiet();
    let mut zombie = world.program("python3");
    zombie.arg(&job).env("DB", &path).env("LEASEHOLD_SQL_GRANT", shown.trim());
    Ended::from(zombie.output().unwrap()).is(1, "").names(&["your token is older"]);
    assert_eq!(sql("SELECT n FROM stock").out.trim(), "1");
    let shown = world.run(&["guard", "show", &target]);
    assert!(shown.out.contains("lease shop, token 3, enforce") && shown.code == 0, "{shown:?}");
    world.run(&["guard", "remove", &target]).is(0, "guard.removed");
    sql("UPDATE stock SET n = 9").quiet();
}
