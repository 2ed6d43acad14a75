//! The remarks of `leasehold doctor` about a server's settings, which a compare-and-set cannot test.

use redis::{Cmd, Value, cmd, from_redis_value_ref};

use super::RedisStore;
use crate::backends::redis::identity::{ServerIdentity, field, info};
use crate::stores::{Failure, Remark, RemarkLevel};

/// The sections of INFO that are read, in this order.
const SECTIONS: [&str; 4] = ["server", "replication", "memory", "persistence"];
const SETTINGS: [&str; 4] = ["maxmemory", "maxmemory-policy", "appendfsync", "save"];
/// The oldest version in which a script may write after TIME.
const OLDEST: u32 = 5;

/// The answers; empty where the server does not allow the question.
#[derive(Default)]
struct ServerFacts {
    info: String,
    settings: Vec<(&'static str, String)>,
}

impl ServerFacts {
    fn info(&self, name: &str) -> Option<&str> {
        field(&self.info, name)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str())
    }
}

impl RedisStore {
    pub(super) async fn look_closely(&mut self) -> Result<Vec<Remark>, Failure> {
        let setting = |name: &str| {
            let mut command = cmd("CONFIG");
            command.arg("GET").arg(name);
            command
        };
        let commands: Vec<Cmd> = SECTIONS.map(info).into_iter().chain(SETTINGS.map(setting)).collect();
        let answers = self.connection.ask(&commands).await?;
        let found = read(&answers);
        let known = self.connection.identity.as_ref().and_then(ServerIdentity::caution);
        let mut remarks = vec![version(&found), eviction(&found), durability(&found), replication(&found)];
        remarks.extend(known.map(|text| Remark { about: "identity", verdict: RemarkLevel::Weak, text }));
        if self.connection.config.exposed {
            let text =
                "The password crosses the network in the clear; use rediss: if the server speaks TLS.".into();
            remarks.push(Remark { about: "privacy", verdict: RemarkLevel::Weak, text });
        }
        Ok(remarks)
    }
}

fn read(answers: &[Value]) -> ServerFacts {
    let (sections, settings) = answers.split_at(SECTIONS.len());
    let known: Vec<String> = sections.iter().filter_map(|a| from_redis_value_ref(a).ok()).collect();
    let value = |(name, answer): (&&'static str, &Value)| {
        let pair: Vec<String> = from_redis_value_ref(answer).ok()?;
        Some((*name, pair.into_iter().nth(1)?))
    };
    ServerFacts {
        info: known.join("\n"),
        settings: SETTINGS.iter().zip(settings).filter_map(value).collect(),
    }
}

fn version(found: &ServerFacts) -> Remark {
    let remark = |verdict, text| Remark { about: "version", verdict, text };
    let valkey = found.info("valkey_version").map(|v| ("Valkey", v));
    let Some((name, version)) = valkey.or(found.info("redis_version").map(|v| ("Redis", v))) else {
        return remark(RemarkLevel::Weak, "The server does not show its version.".into());
    };
    let mode = match found.info("redis_mode") {
        Some("cluster") => ", a node of a cluster; all leases of this URL are in one slot",
        _ => "",
    };
    let major: Option<u32> = version.split('.').next().and_then(|v| v.parse().ok());
    match major {
        Some(major) if major < OLDEST => {
            remark(RemarkLevel::Unsafe, format!("{name} {version} is too old: {OLDEST} or newer is needed."))
        }
        _ => remark(RemarkLevel::Good, format!("{name} {version}{mode}.")),
    }
}

fn eviction(found: &ServerFacts) -> Remark {
    let remark = |verdict, text: String| Remark { about: "eviction", verdict, text };
    let limit = found.setting("maxmemory").or(found.info("maxmemory"));
    let policy = found.setting("maxmemory-policy").or(found.info("maxmemory_policy"));
    match (limit, policy) {
        (_, Some("noeviction")) => {
            remark(RemarkLevel::Good, "The server evicts nothing (noeviction).".into())
        }
        (Some("0"), _) => {
            remark(RemarkLevel::Good, "The server has no maxmemory, so it evicts nothing.".into())
        }
        (_, Some(policy)) if policy.starts_with("volatile") => remark(
            RemarkLevel::Good,
            format!("The server evicts only keys with an expiry ({policy}); leases have none."),
        ),
        (_, Some(policy)) => remark(
            RemarkLevel::Unsafe,
            format!(
                "With maxmemory-policy {policy} the server removes leases when memory is short, while their jobs run. Set \
                 maxmemory-policy noeviction."
            ),
        ),
        (_, None) => remark(
            RemarkLevel::Weak,
            "It is unknown whether the server evicts keys. Check that maxmemory-policy is noeviction.".into(),
        ),
    }
}

fn durability(found: &ServerFacts) -> Remark {
    let remark = |verdict, text: &str| Remark { about: "durability", verdict, text: text.into() };
    match (found.info("aof_enabled"), found.setting("appendfsync"), found.setting("save")) {
        (Some("1"), Some("always"), _) => remark(
            RemarkLevel::Good,
            "Every write is on disk before it is acknowledged (appendfsync always).",
        ),
        (Some("1"), Some("everysec"), _) => remark(
            RemarkLevel::Weak,
            "A crash of the machine can lose about the last second of acknowledged writes (appendfsync everysec). \
             With appendfsync always it loses none.",
        ),
        (Some("1"), Some(_), _) => remark(
            RemarkLevel::Weak,
            "A crash of the machine can lose acknowledged writes (appendfsync no). With appendfsync always it loses none.",
        ),
        (Some("1"), None, _) => remark(
            RemarkLevel::Weak,
            "The server writes an append-only file, but it is unknown how often the file is flushed. Unless \
             appendfsync is always, a crash can lose the last acknowledged writes.",
        ),
        (Some(_), _, Some("")) => remark(
            RemarkLevel::Weak,
            "Nothing is kept on disk, so a restart loses every lease. A machine that remembers a lease then refuses to run it \
             until you decide. Another machine starts it again, while the old job may run until its next renewal. Targets \
             still tell the two apart. Set appendonly yes.",
        ),
        (Some(_), _, _) => remark(
            RemarkLevel::Weak,
            "Only snapshots are kept on disk, so a crash loses every lease since the last one. The next token then skips 1000, or \
             is refused on a machine that remembers a higher one; the old job may run until its next renewal. Set \
             appendonly yes.",
        ),
        (None, _, _) => remark(
            RemarkLevel::Weak,
            "It is unknown what the server keeps on disk. Without appendonly yes, a restart loses leases.",
        ),
    }
}

fn replication(found: &ServerFacts) -> Remark {
    let remark = |verdict, text: String| Remark { about: "replication", verdict, text };
    let cluster = found.info("redis_mode") == Some("cluster");
    match found.info("connected_slaves").and_then(|n| n.parse::<u32>().ok()) {
        Some(0) if !cluster => {
            remark(RemarkLevel::Good, "The server has no replicas, so no failover can lose a write.".into())
        }
        Some(count) => remark(
            RemarkLevel::Weak,
            format!(
                "Replicas ({count} now) are asynchronous, so a failover can lose acknowledged writes. The next token then skips \
                 ahead, and a fenced target still refuses the old holder."
            ),
        ),
        None => remark(
            RemarkLevel::Weak,
            "It is unknown whether the server has replicas. A failover can lose acknowledged writes.".into(),
        ),
    }
}
