//! Measures the cost of a guard: single-row UPDATEs of a guarded and a plain table, in turns, over one connection.
//!
//! `benches/guard` runs it against its own PostgreSQL. It prints both medians and their ratio, and exits with 1 if the
//! ratio is above the bar. The bar is for a server with default settings, whose commits wait for the disk. The ratio
//! without that wait shows the guard's work alone, and is printed too.

use std::time::Duration;

use leasehold::backends::postgres::PgTarget;
use leasehold::clock::boot_time;
use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::name::Name;
use leasehold::targets::Target;
use leasehold::targets::guard::{Guard, Others};
use leasehold::targets::sql::carrier;
use tokio_postgres::{Client, NoTls, Statement};

const BAR: f64 = 1.3;
const TURNS: usize = 60;
/// Statements in one turn.
const EACH: i32 = 20;

async fn turn(client: &Client, update: &Statement) -> Duration {
    let start = boot_time();
    for id in 1..=EACH {
        client.execute(update, &[&id]).await.expect("an update");
    }
    boot_time().since(start) / EACH.unsigned_abs()
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

async fn measure(url: &str, shown: &str, commit: &str) -> Vec<(&'static str, Duration)> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server");
    let driver = tokio::spawn(connection);
    let session = format!("SET application_name = '{shown}'; SET synchronous_commit = {commit}");
    client.batch_execute(&session).await.expect("a session");
    let names = ["cost_plain", "cost_guarded"];
    let mut updates = Vec::new();
    for name in names {
        let sql = format!("UPDATE {name} SET n = n + 1 WHERE id = $1");
        updates.push(client.prepare(&sql).await.expect("a statement"));
    }
    let mut taken = [Vec::new(), Vec::new()];
    for n in 0..TURNS + 10 {
        // The order alternates.
        for which in if n % 2 == 0 { [0, 1] } else { [1, 0] } {
            let time = turn(&client, &updates[which]).await;
            if n >= 10 {
                taken[which].push(time);
            }
        }
    }
    driver.abort();
    names.into_iter().zip(taken).map(|(name, taken)| (name, median(taken))).collect()
}

fn main() {
    let url =
        format!("{}?sslmode=disable", std::env::var("LEASEHOLD_TEST_POSTGRES").expect("see benches/guard"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let setup = |sql: &str| {
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a server");
            tokio::spawn(connection);
            client.batch_execute(sql).await.expect("tables");
        });
    };
    let tables = ["cost_plain", "cost_guarded"].map(|name| {
        format!(
            "CREATE TABLE {name} (id int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 50); \
             INSERT INTO {name} SELECT n, 0 FROM generate_series(1, 1000) n; ANALYZE {name};"
        )
    });
    setup(&format!("DROP TABLE IF EXISTS cost_plain, cost_guarded; {}", tables.concat()));
    let rest = format!("{url}#public.cost_guarded");
    let mut target = PgTarget::open(&format!("pg:{rest}"), &rest).expect("a target");
    let bearer = Bearer {
        lease: Name::new("cost").expect("a name"),
        epoch: Epoch::first(1),
        token: Token::FIRST,
        grant: Grant(1),
    };
    target.install(Others::Refuse, true).expect("a guard");
    target.seal(&bearer, FenceMode::Enforce).expect("a seal");
    let mut kept = true;
    for (commit, bar) in [("off", None), ("on", Some(BAR))] {
        let found = runtime.block_on(measure(&url, &carrier(&bearer), commit));
        let micros = |at: usize| found[at].1.as_secs_f64() * 1e6;
        let ratio = micros(1) / micros(0);
        kept &= bar.is_none_or(|bar| ratio <= bar);
        let bar = bar.map_or("no bar".into(), |bar| format!("bar {bar}"));
        println!(
            "synchronous_commit={commit}: plain {:.0} us, guarded {:.0} us: {ratio:.2} ({bar})",
            micros(0),
            micros(1)
        );
    }
    target.remove(true).expect("the guard goes");
    setup("DROP TABLE cost_plain, cost_guarded");
    if !kept {
        std::process::exit(1);
    }
}
