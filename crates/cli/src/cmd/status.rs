//! `leasehold status`: who holds what.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::name::Name;
use leasehold::core::record::{BadRecord, LeaseRecord};
use leasehold::core::rules::{LeaseStanding, Rules, Standard, View};
use leasehold::core::run_log::LogId;
use leasehold::core::session::{LEASE_PREFIX, lease_key};
use leasehold::core::store::Stored;
use leasehold::poll::{self, Timer};
use leasehold::stores::{Store, StoreFacts, each_stored};
use serde_json::json;

use super::{OpenedStore, held_for, history, store_failed};
use crate::args::{Everywhere, StatusArgs};
use crate::config::{Chosen, scope};
use crate::exit::{self, FailKind, Failed};
use crate::messages::{run::system, status as say};
use crate::out::{self, Out};

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// No run holds it.
    Free,
    /// It was not renewed in time.
    Expired,
    /// A run holds it.
    Held,
    /// Held, and its holder was asked to stop.
    Revoked,
    /// Its record cannot be used.
    Bad,
}

impl LeaseState {
    /// As `--json` says it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Expired => "expired",
            Self::Held => "held",
            Self::Revoked => "revoked",
            Self::Bad => "bad",
        }
    }

    /// Whether a run holds it.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Held | Self::Revoked)
    }
}

/// One lease as shown.
#[derive(Clone, Debug)]
pub struct LeaseRow {
    /// Its name.
    pub lease: String,
    /// Its state.
    pub state: LeaseState,
    /// The token of its holder, or of the last one.
    pub token: Option<u64>,
    /// The machine and process that has it, or had it when it expired.
    pub holder: Option<String>,
    /// The job of that run.
    pub job: Option<String>,
    /// Its id in the run log.
    #[cfg_attr(not(feature = "http"), allow(dead_code))] // only the dashboard asks for it
    pub run: Option<LogId>,
    /// The slot of that run.
    pub slot: Option<String>,
    /// For how long it has been held.
    pub held: Option<Duration>,
    /// How long ago it was renewed.
    pub renewed: Option<Duration>,
    /// When it ends, unless it is renewed.
    pub ends_in: Option<Duration>,
    /// How long it lasts after a renewal.
    #[cfg_attr(not(feature = "http"), allow(dead_code))] // only the dashboard shows it
    pub ttl: Option<Duration>,
    /// Why its record cannot be used.
    pub problem: Option<String>,
}

impl LeaseRow {
    /// A lease of which only the problem is known.
    pub fn bad(lease: String, problem: String) -> Self {
        Self {
            lease,
            state: LeaseState::Bad,
            token: None,
            holder: None,
            job: None,
            run: None,
            slot: None,
            held: None,
            renewed: None,
            ends_in: None,
            ttl: None,
            problem: Some(problem),
        }
    }
}

/// Shows it once, or every second.
pub fn run(flags: &Everywhere, args: &StatusArgs, out: &Out) -> Result<u8, Failed> {
    let below = args.name.as_deref().filter(|name| name.ends_with('/'));
    let only = args.name.as_deref().filter(|_| below.is_none()).map(super::name).transpose()?;
    // A prefix is checked like a name.
    below.map(|prefix| super::name(prefix.trim_end_matches('/'))).transpose()?;
    let which = Which { only: only.as_ref(), below, held: args.held };
    let mut opened = super::open(flags, &[])?;
    let timer = Timer::new().map_err(system)?;
    // A failure of the store is shown once, until it answers again.
    let (mut answered, mut failing) = (false, false);
    loop {
        let found = rows(opened.store.as_mut(), &opened.chosen, which);
        let mut rows = match found {
            Ok(rows) => rows,
            // With --watch, go on until the store is back.
            Err(failed) if answered && failed.kind == FailKind::Unreachable => {
                if !std::mem::replace(&mut failing, true) {
                    out.fail(&failed);
                    out.warn(&say::unanswered());
                }
                tick(&timer)?;
                continue;
            }
            Err(failed) => return Err(failed),
        };
        answered = true;
        if std::mem::take(&mut failing) {
            out.warn(&say::answered());
        }
        if let (true, Some(lease), false) = (rows.is_empty(), &only, args.held) {
            rows.extend(vanished(lease, &opened));
        }
        if let (true, Some(lease), false) = (rows.is_empty(), &only, args.watch)
            && !args.held
            && !history::is_known_here(flags, lease.as_str())
        {
            return Err(history::unheard_of(&mut opened, lease.as_str())?);
        }
        // Held leases come first.
        rows.sort_by_key(|row| !row.state.is_held());
        let screen = args.watch && !out.json && std::io::stdout().is_terminal();
        if screen {
            let _ = write!(std::io::stdout(), "\x1b[H\x1b[2J");
        }
        let read = show(&rows, &opened, which, out);
        if !args.watch || !read {
            return Ok(exit::OK);
        }
        tick(&timer)?;
    }
}

/// Whether somebody holds this lease on the store in use.
pub fn held(flags: &Everywhere, lease: &Name) -> Result<bool, Failed> {
    let mut opened = super::open(flags, &[])?;
    let rows =
        rows(opened.store.as_mut(), &opened.chosen, Which { only: Some(lease), below: None, held: false })?;
    Ok(rows.iter().any(|row| row.state.is_held()))
}

/// Waits a second before the next look.
fn tick(timer: &Timer) -> Result<(), Failed> {
    let armed = timer.arm(clock::boot_time().plus(Duration::from_secs(1)));
    let waited = armed.and_then(|()| poll::wait(&[timer.as_fd()]));
    waited.map_err(system)?;
    timer.take();
    Ok(())
}

/// So many records are in memory at once.
const PAGE: usize = 200;

/// Which leases are shown.
#[derive(Clone, Copy)]
struct Which<'a> {
    /// This one.
    only: Option<&'a Name>,
    /// Those whose names start with this.
    below: Option<&'a str>,
    /// Those that are held.
    held: bool,
}

fn rows(store: &mut dyn Store, chosen: &Chosen, which: Which<'_>) -> Result<Vec<LeaseRow>, Failed> {
    let failed = |failure| store_failed(&failure, chosen);
    let shown = |row: &LeaseRow| !which.held || row.state.is_held();
    if let Some(lease) = which.only {
        let stored = pollster::block_on(store.read(&lease_key(lease))).map_err(failed)?;
        let facts = store.facts();
        return Ok(stored.iter().map(|s| row(lease.as_str(), s, &facts)).filter(shown).collect());
    }
    let prefix = format!("{LEASE_PREFIX}{}", which.below.unwrap_or_default());
    let (mut found, mut page) = (Vec::new(), Vec::new());
    let mut take = |page: &mut Vec<(String, Stored)>, facts: &StoreFacts| {
        let name = |key: &str| key.strip_prefix(LEASE_PREFIX).unwrap_or(key).to_owned();
        found.extend(page.drain(..).map(|(key, stored)| row(&name(&key), &stored, facts)).filter(shown));
    };
    let mut after = String::new();
    loop {
        each_stored(store, &prefix, &after, |key, stored| {
            page.push((key, stored));
            page.len() < PAGE
        })
        .map_err(failed)?;
        // Only now: a store behind a network knows its facts after its first answer.
        let (facts, full) = (store.facts(), page.len() == PAGE);
        after = page.last().map(|(key, _)| key.clone()).unwrap_or_default();
        take(&mut page, &facts);
        if !full {
            return Ok(found);
        }
    }
}

/// A lease as its record says.
pub fn row(lease: &str, stored: &Stored, facts: &StoreFacts) -> LeaseRow {
    let decoded = Name::new(lease)
        .map_err(|e| BadRecord::Damaged(e.to_string()))
        .and_then(|name| LeaseRecord::decode(&name, &stored.body));
    let lease = lease.to_owned();
    let record = match decoded {
        Ok(record) => record,
        Err(bad) => return LeaseRow::bad(lease, bad.to_string()),
    };
    let view = View::at_a_glance(&record, stored.age, facts.resolution, &facts.instance);
    let hold = record.hold.as_ref();
    let (state, ends_in) = match Standard.standing(&record, &view) {
        LeaseStanding::Free => (LeaseState::Free, None),
        LeaseStanding::Expired => (LeaseState::Expired, None),
        LeaseStanding::Held { ends_in } if hold.is_some_and(|h| h.revoke) => (LeaseState::Revoked, ends_in),
        LeaseStanding::Held { ends_in } => (LeaseState::Held, ends_in),
    };
    let held = hold.filter(|_| state.is_held());
    LeaseRow {
        lease,
        state,
        token: Some(record.token.get()),
        holder: hold.map(|_| record.holder.to_string()),
        job: hold.map(|_| record.holder.job.clone()),
        run: hold.map(|hold| LogId::of(hold.grant.0)),
        slot: hold.and(record.holder.slot.clone()),
        held: held.and_then(|_| held_for(&record.holder.since)),
        renewed: held.and(stored.age),
        ends_in,
        ttl: held.map(|hold| hold.ttl),
        problem: None,
    }
}

/// Whether anyone still reads it.
fn show(rows: &[LeaseRow], opened: &OpenedStore, which: Which<'_>, out: &Out) -> bool {
    if out.json {
        return rows.iter().all(|row| out.object(&object(row)));
    }
    let chosen = &opened.chosen;
    if rows.is_empty() {
        let (store, scope) = (&chosen.shown, scope(chosen));
        return out::line(&match which {
            Which { held: true, .. } => say::none_held(store, &scope),
            Which { only: Some(lease), .. } => say::no_lease(lease, store, &scope),
            Which { below: Some(prefix), .. } => say::none_below(prefix, store, &scope),
            _ => say::no_leases(store, &scope),
        });
    }
    let named = std::io::stdout().is_terminal() || out.verbose;
    if named && !out::line(&say::store(&chosen.shown, scope(chosen))) {
        return false;
    }
    // Most jobs have the name of their lease. A column of those is left out.
    let jobs = rows.iter().any(|row| row.job.as_ref().is_some_and(|job| *job != row.lease));
    let mut columns = vec!["LEASE", "STATE", "TOKEN", "HOLDER", "HELD", "RENEWED", "ENDS IN"];
    let slots = rows.iter().any(|row| row.slot.is_some());
    if slots {
        columns.insert(1, "SLOT");
    }
    if jobs {
        columns.insert(1, "JOB");
    }
    let mut table = vec![columns.into_iter().map(String::from).collect()];
    table.extend(rows.iter().map(|row| cells(row, jobs, slots)));
    let problems = rows.iter().filter_map(|row| row.problem.as_ref().map(|problem| (&row.lease, problem)));
    out::table(&table)
        && problems.into_iter().all(|(lease, problem)| out::line(&say::problem(lease, problem)))
}

/// Whether a run would get this lease now; `None` if there is no such lease.
pub fn sentence(opened: &mut OpenedStore, lease: &Name) -> Result<Option<String>, Failed> {
    let rows =
        rows(opened.store.as_mut(), &opened.chosen, Which { only: Some(lease), below: None, held: false })?;
    Ok(rows.first().map(|row| match (row.state, &row.holder, row.token) {
        (LeaseState::Held | LeaseState::Revoked, Some(holder), Some(token)) => {
            say::held(lease, holder, token, row.held.map(seconds).map(say::held_for).unwrap_or_default())
        }
        (LeaseState::Bad, ..) => say::unusable(lease, row.problem.as_deref().unwrap_or("?")),
        (_, _, token) => say::free(lease, token.map(say::last_token).unwrap_or_default()),
    }))
}

/// For people, in whole seconds.
fn seconds(time: Duration) -> HumanDuration {
    HumanDuration(Duration::from_secs(time.as_secs()))
}

/// A lease that this machine has seen on the store, and of which the store has no record now.
fn vanished(lease: &Name, opened: &OpenedStore) -> Option<LeaseRow> {
    let seen = opened.memory.recall(lease).seen?;
    let problem = say::vanished(&opened.chosen.shown, seen.token, lease);
    Some(LeaseRow::bad(lease.to_string(), problem))
}

fn cells(row: &LeaseRow, jobs: bool, slots: bool) -> Vec<String> {
    let dash = || "-".to_owned();
    let time = |d: Option<Duration>| d.map_or_else(dash, |d| seconds(d).to_string());
    let ago = row.renewed.map_or_else(dash, |d| format!("{} ago", seconds(d)));
    let state = match row.state {
        LeaseState::Revoked => say::asked_to_stop(),
        state => state.word().into(),
    };
    let mut cells = vec![
        row.lease.clone(),
        state,
        row.token.map_or_else(dash, |t| t.to_string()),
        row.holder.clone().unwrap_or_else(dash),
        time(row.held),
        ago,
        time(row.ends_in),
    ];
    if slots {
        cells.insert(1, row.slot.clone().unwrap_or_else(dash));
    }
    if jobs {
        cells.insert(1, row.job.clone().unwrap_or_else(dash));
    }
    cells
}

/// For `--json`.
pub fn object(row: &LeaseRow) -> serde_json::Value {
    let seconds = |d: Option<Duration>| d.map(|d| d.as_secs_f64());
    json!({
        "v": 1, "lease": row.lease, "state": row.state.word(), "token": row.token, "holder": row.holder, "job": row.job,
        "slot": row.slot,
        "held_s": seconds(row.held), "renewed_s_ago": seconds(row.renewed), "expires_in_s": seconds(row.ends_in),
        "problem": row.problem,
    })
}
