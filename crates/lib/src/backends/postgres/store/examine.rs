//! The remarks of `leasehold doctor` about a PostgreSQL server.

use tokio_postgres::Row;

use super::sql::IdentityDetail;
use super::{ME, PostgresStore, Resend, foreign, sql};
use crate::stores::{Failure, Remark, RemarkLevel};

/// Settings that a compare-and-set cannot test.
struct Settings {
    version: String,
    fsync: String,
    full_pages: String,
    commit: String,
    standbys: String,
    replicas: i64,
    encrypted: bool,
}

impl Settings {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            version: row.try_get(ME)?,
            fsync: row.try_get(ME + 1)?,
            full_pages: row.try_get(ME + 2)?,
            commit: row.try_get(ME + 3)?,
            standbys: row.try_get(ME + 4)?,
            replicas: row.try_get(ME + 5)?,
            encrypted: row.try_get(ME + 6)?,
        })
    }
}

pub(super) async fn examine(store: &mut PostgresStore) -> Result<Vec<Remark>, Failure> {
    let rows = store.ask(sql::examine, &[], Resend::Reads).await.map_err(|f| f.failure)?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let settings = Settings::of(row).map_err(|e| foreign(&e))?;
    let mut remarks = vec![Remark {
        about: "server",
        verdict: RemarkLevel::Good,
        text: format!("PostgreSQL {}, a primary.", settings.version),
    }];
    remarks.push(durability(&settings));
    remarks.push(failover(&settings, store.identity));
    remarks.push(pooler(store));
    if store.pooled != Some(true) && !settings.encrypted && store.config.hosts.iter().any(|h| !h.is_near()) {
        remarks.push(Remark {
            about: "encryption",
            verdict: RemarkLevel::Weak,
            text: "The connection is not encrypted; use sslmode=verify-full in the URL.".into(),
        });
    }
    Ok(remarks)
}

fn durability(settings: &Settings) -> Remark {
    let (verdict, text) = match (
        settings.fsync.as_str(),
        settings.full_pages.as_str(),
        settings.commit.as_str(),
    ) {
        ("on", "on", "on" | "remote_apply") => {
            (RemarkLevel::Good, "Every write is on disk before it is acknowledged.".into())
        }
        ("on", "on", other) => (
            RemarkLevel::Good,
            format!(
                "synchronous_commit is {other} here. Every write of a lease turns it on, so the write is on disk before \
                 it is acknowledged."
            ),
        ),
        ("on", ..) => (
            RemarkLevel::Weak,
            "full_page_writes is off: after a power failure tables may be damaged, unless the file system \
             writes whole pages."
                .into(),
        ),
        _ => (
            RemarkLevel::Unsafe,
            "fsync is off: after a power failure the server may have lost leases that it acknowledged."
                .into(),
        ),
    };
    Remark { about: "durability", verdict, text }
}

fn failover(settings: &Settings, identity: IdentityDetail) -> Remark {
    let seen = match identity {
        IdentityDetail::Full | IdentityDetail::Timeline => "a failover is noticed by the timeline",
        IdentityDetail::Database => "this server does not show its timeline, so a failover goes unnoticed",
    };
    let (verdict, text) = match (settings.replicas, settings.standbys.is_empty()) {
        (0, true) => (RemarkLevel::Good, format!("No replica is connected; {seen}.")),
        (_, false) => {
            (RemarkLevel::Good, format!("Replicas are synchronous (synchronous_standby_names); {seen}."))
        }
        (n, true) => (
            RemarkLevel::Weak,
            format!("{n} replicas are asynchronous, so a failover can lose the last writes; {seen}."),
        ),
    };
    let verdict = if identity == IdentityDetail::Database { RemarkLevel::Weak } else { verdict };
    Remark { about: "failover", verdict, text }
}

/// A remark about a pooler. Whether waiters are notified is measured by the doctor itself.
fn pooler(store: &PostgresStore) -> Remark {
    let (verdict, text) = match store.pooled {
        Some(true) => (
            RemarkLevel::Weak,
            "A pooler is in between (the server process is not the one that was named at the start), so \
             waiting runs keep asking instead of being notified. Nothing else differs.",
        ),
        _ => (RemarkLevel::Good, "No pooler is in between."),
    };
    Remark { about: "pooler", verdict, text: text.into() }
}
