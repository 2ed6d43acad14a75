//! The identity of a server: its process, its replication id and its role.

use redis::{Cmd, Value, cmd, from_redis_value_ref};

use super::config::Config;
use crate::stores::{Failure, FailureKind};

/// How many characters of each id are used: enough to be unique, and short enough for every record.
const ID_LENGTH: usize = 16;

/// A server's identity, from INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerIdentity {
    /// The run id, which is new for each process.
    run: Option<String>,
    /// The replication id, which is new after a failover or when a replica becomes a primary.
    replication: Option<String>,
    replica: bool,
    sentinel: bool,
}

/// The number of commands in [`questions`].
pub(super) const QUESTIONS: usize = 2;

/// The commands whose answers [`ServerIdentity::of`] reads.
pub(super) fn questions() -> Vec<Cmd> {
    let sections: [&str; QUESTIONS] = ["server", "replication"];
    sections.map(info).into()
}

/// The command for one section of INFO.
pub(super) fn info(section: &str) -> Cmd {
    let mut command = cmd("INFO");
    command.arg(section);
    command
}

impl ServerIdentity {
    /// Reads the answers. One that is missing or refused leaves its field empty.
    pub fn of(answers: &[Value]) -> Self {
        let text: Vec<String> = answers.iter().filter_map(|a| from_redis_value_ref(a).ok()).collect();
        let text = text.join("\n");
        let id = |name| field(&text, name).map(str::to_owned);
        Self {
            run: id("run_id"),
            replication: id("master_replid"),
            replica: field(&text, "role") == Some("slave"),
            sentinel: field(&text, "redis_mode") == Some("sentinel"),
        }
    }

    /// The name of this instance; "unknown" if the server does not allow INFO.
    pub fn instance(&self) -> String {
        let short =
            |id: &Option<String>| id.as_ref().map(|id| id.chars().take(ID_LENGTH).collect::<String>());
        match (short(&self.run), short(&self.replication)) {
            (Some(run), Some(replication)) => format!("{run}-{replication}"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => "unknown".into(),
        }
    }

    /// The replication id, if it is known.
    pub fn replication(&self) -> Option<&str> {
        self.replication.as_deref()
    }

    /// A warning if the identity is unknown.
    pub fn caution(&self) -> Option<String> {
        let known = self.run.is_some() || self.replication.is_some();
        (!known).then(|| {
            "This user may not run INFO there. So a restart or failover that loses leases is noticed only by a machine \
             that remembers a higher token. The token also skips 1000 each time a user with INFO takes the lease after \
             one without it, or the other way round. Allow INFO with ACL SETUSER NAME +info."
                .into()
        })
    }

    /// Refuses a Sentinel and a replica.
    pub fn usable(&self, config: &Config) -> Result<(), Failure> {
        let what = match self {
            Self { sentinel: true, .. } => "is a Sentinel, which keeps no data",
            Self { replica: true, .. } => "is a replica, and leases are kept on the primary only",
            _ => return Ok(()),
        };
        let message = format!("{} {what}; name the primary in the URL", config.url);
        Err(Failure::new(FailureKind::Unusable, message))
    }
}

/// The value of a line `name:value`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    info.lines().find_map(value).map(str::trim).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> ServerIdentity {
        ServerIdentity::of(&[Value::BulkString(text.as_bytes().to_vec()), Value::Nil])
    }

    #[test]
    fn an_instance_is_a_process_and_a_history() {
        let one = of(
            "# Server\r\nrun_id:aaaaaaaaaaaaaaaaaaaa\r\nrole:master\r\nmaster_replid:bbbbbbbbbbbbbbbbbbbb\r\n",
        );
        assert_eq!(one.instance(), "aaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb");
        assert!(one.caution().is_none());
        assert_eq!(of("").instance(), "unknown");
        assert!(of("").caution().is_some());
        assert_eq!(of("xrun_id:z\nrun_id:\nmaster_replid:c").instance(), "c");
    }
}
