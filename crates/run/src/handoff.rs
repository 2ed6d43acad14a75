//! What a scheduler hands to the process that runs a slot, and what that process hands back.
//!
//! Standard input of the process is its end of a socket. The process replaces it at once, so that the job does not
//! inherit it. A command line would show the store's password to everybody on the machine; a socket does not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold_core::ledger::{Entry, ItemState};
use leasehold_core::name::Name;
use rustix::fs::{FileType, fstat};
use serde::{Deserialize, Serialize};

/// The subcommand that runs a description. Its arguments are only for lists of processes.
pub const COMMAND: &str = "run-slot";

/// The version of both descriptions. A program refuses any other: it was replaced while its scheduler ran.
pub const VERSION: u32 = 1;

/// Longest wait for the process to read its description. Mostly the socket's buffer holds all of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The run of one slot, with every placeholder replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// [`VERSION`]
    pub version: u32,
    /// The id of the run.
    pub run_id: String,
    /// The job.
    pub job: Name,
    /// When the slot is due, in seconds since 1970.
    pub at: i64,
    /// The name of the slot.
    pub slot: String,
    /// The leases that it may take, in order of preference; never empty.
    pub leases: Vec<LeaseAndTargets>,
    /// The key that is done once together with the slot.
    pub key: Option<String>,
    /// The URL of the store, with its credentials.
    pub store: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables of the command alone.
    pub env: BTreeMap<String, String>,
    /// How long the lease lasts unless renewed.
    pub ttl: Option<Duration>,
    /// Time between renewals.
    pub heartbeat: Option<Duration>,
    /// Time between TERM and KILL.
    pub grace: Option<Duration>,
    /// How long it waits for a busy lease.
    pub wait: Duration,
    /// The command is ended after this long.
    pub max_run: Option<Duration>,
    /// A slot whose outcome is unknown is run again.
    pub retry: bool,
    /// How often the slot may fail.
    pub attempts: u32,
    /// Keys and slots that this machine saw done on another store are run again on this one.
    pub new_here: bool,
    /// It prints more.
    pub verbose: bool,
}

/// A lease, and the targets that are fenced before the command starts under it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseAndTargets {
    /// The lease.
    pub lease: Name,
    /// The targets.
    pub targets: Vec<String>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunOutcome {
    /// [`VERSION`]
    pub version: u32,
    /// The id of the run.
    pub run_id: String,
    /// The outcome for the slot.
    pub slot: SlotOutcome,
    /// The exit code.
    pub exit: u8,
}

/// The outcome of a run for its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotOutcome {
    /// The run started it. With its record at the end, if the store has confirmed that.
    Begun(Option<SlotRecord>),
    /// The run did not start it.
    NotBegun(NotBegun),
}

/// What a scheduler needs of the record of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotRecord {
    /// Its state.
    pub state: ItemState,
    /// How many runs have started it.
    pub attempt: u32,
    /// How many of them have failed.
    pub failures: u32,
}

impl From<&Entry> for SlotRecord {
    fn from(entry: &Entry) -> Self {
        Self { state: entry.state, attempt: entry.attempt, failures: entry.failures }
    }
}

/// Why a run did not start its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotBegun {
    /// It was skipped: the lease is held, or the slot is done.
    Skipped,
    /// No run of any slot of the job can start until a person acts.
    InVain,
    /// A person must decide about the slot.
    NeedsYou,
    /// Something failed that may succeed next time.
    Failed,
}

/// The scheduler's end.
#[derive(Debug)]
pub struct Handed(UnixStream);

impl Handed {
    /// Both ends; the second becomes the standard input of the process.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, its) = UnixStream::pair()?;
        ours.set_write_timeout(Some(PATIENCE))?;
        Ok((Self(ours), its.into()))
    }

    /// Hands the description over.
    pub fn describe(&self, description: &Description) -> io::Result<()> {
        (&self.0).write_all(&serde_json::to_vec(description)?)?;
        self.0.shutdown(Shutdown::Write)
    }

    /// What an ended process has handed back; `None` if it was killed, or has another version.
    pub fn outcome(&self) -> Option<RunOutcome> {
        // Does not wait: the process has ended, and no other process has its end.
        self.0.set_nonblocking(true).ok()?;
        let mut text = Vec::new();
        // If it died without reading its description, an error follows the text.
        let _ = (&self.0).read_to_end(&mut text);
        serde_json::from_slice(&text).ok().filter(|outcome: &RunOutcome| outcome.version == VERSION)
    }
}

/// The end of the process that runs the slot.
#[derive(Debug)]
pub struct OutcomeSender(UnixStream);

/// Why there is no description.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// A person typed the command.
    #[error(
        "only `leasehold daemon` and `leasehold tick` can start {COMMAND}, because they tell it what to run"
    )]
    NoScheduler,
    /// The scheduler died while it wrote, or has another version.
    #[error(
        "this version of the program cannot read what the scheduler handed over ({0}). Was the program replaced? \
         Restart the daemon"
    )]
    Unreadable(String),
    /// The system refused.
    #[error("the system refused: {0}")]
    System(#[from] io::Error),
}

/// Takes the description from standard input, and puts /dev/null there for the job.
pub fn receive() -> Result<(Description, OutcomeSender), ReceiveError> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let mode = fstat(&stdin).map_err(io::Error::from)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::Socket {
        return Err(ReceiveError::NoScheduler);
    }
    rustix::stdio::dup2_stdin(File::open("/dev/null")?).map_err(io::Error::from)?;
    let mut stream = UnixStream::from(stdin);
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    Ok((read(&text)?, OutcomeSender(stream)))
}

fn read(text: &[u8]) -> Result<Description, ReceiveError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let unreadable = |e: serde_json::Error| ReceiveError::Unreadable(e.to_string());
    let Versioned { version } = serde_json::from_slice(text).map_err(unreadable)?;
    if version != VERSION {
        return Err(ReceiveError::Unreadable(format!(
            "it has version {version}, but this program knows version {VERSION}"
        )));
    }
    serde_json::from_slice(text).map_err(unreadable)
}

impl OutcomeSender {
    /// Hands back the outcome. If the scheduler is gone, the record still has it.
    pub fn send(mut self, outcome: &RunOutcome) {
        if let Ok(text) = serde_json::to_vec(outcome) {
            let _ = self.0.write_all(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        let name = Name::new("site").unwrap();
        Description {
            version: VERSION,
            run_id: "mac-1-a".into(),
            job: name.clone(),
            at: 0,
            slot: "1970-01-01T00:00:00Z".into(),
            leases: vec![LeaseAndTargets { lease: name, targets: vec!["file:/a{b}".into()] }],
            key: Some("a-{b}".into()),
            store: "postgres://me:secret@db/ops".into(),
            command: vec!["sh".into(), "-c".into(), "echo \"{}\"\n".into()],
            env: BTreeMap::from([("A".into(), "ü \0".into())]),
            ttl: Some(Duration::from_nanos(90_000_000_001)),
            heartbeat: None,
            grace: Some(Duration::ZERO),
            wait: Duration::from_millis(1),
            max_run: None,
            retry: true,
            attempts: 3,
            new_here: false,
            verbose: true,
        }
    }

    #[test]
    fn what_is_handed_over_arrives_as_it_was() {
        let text = serde_json::to_vec(&description()).unwrap();
        assert_eq!(read(&text).unwrap(), description());
    }

    #[test]
    fn another_version_and_half_a_description_are_refused() {
        let refused = |text: &[u8]| read(text).unwrap_err().to_string();
        let text = serde_json::to_string(&description()).unwrap();
        let other = text.replace("\"version\":1,", "\"version\":2,\"color\":7,");
        assert!(refused(other.as_bytes()).contains("it has version 2, but this program knows version 1"));
        let more = text.replace("\"version\":1,", "\"version\":1,\"color\":7,");
        assert!(refused(more.as_bytes()).contains("color"));
        for half in [&b""[..], &text.as_bytes()[..text.len() / 2]] {
            assert!(refused(half).contains("Restart the daemon"));
        }
    }

    #[test]
    fn what_came_of_it_comes_back_and_nothing_if_nobody_says_so() {
        let outcome = RunOutcome {
            version: VERSION,
            run_id: "mac-1-a".into(),
            slot: SlotOutcome::Begun(Some(SlotRecord { state: ItemState::Failed, attempt: 2, failures: 1 })),
            exit: 3,
        };
        let told = |send: &dyn Fn(OutcomeSender)| {
            let (ours, its) = Handed::pair().unwrap();
            ours.describe(&description()).unwrap();
            send(OutcomeSender(UnixStream::from(its)));
            ours.outcome()
        };
        assert_eq!(told(&|reply| reply.send(&outcome)), Some(outcome.clone()));
        assert_eq!(told(&|reply| reply.send(&RunOutcome { version: 2, ..outcome.clone() })), None);
        assert_eq!(told(&drop), None);
    }
}
