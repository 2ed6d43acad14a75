//! `leasehold check`: what needs a person, everywhere, in one list.
//!
//! It reads leases, the jobs here, and the run log of a day. Finished keys are not read: a key that is not over has its
//! lease record, or a record in the run log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold::core::alert::AlertKind;
use leasehold::core::ledger::{ItemState, Subject};
use leasehold::core::name::Name;
use leasehold::core::record::{BadRecord, LeaseRecord};
use leasehold::core::rules::{LeaseStanding, Rules, Standard, View};
use leasehold::core::run_log::{LogEvent, LogId};
use leasehold::core::session::LEASE_PREFIX;
use leasehold::core::store::Stored;
use leasehold::host;
use leasehold::run_log::unlogged::Unlogged;
use leasehold::run_log::{LogEntry, Scope, Window, each};
use leasehold::stores::{Failure, Store, each_stored};
use leasehold_run::{job_records, jobs};
use serde_json::json;

use super::history::{self, Asked};
use super::job_status::{JobStatus, stood};
use super::needs::{self, ItemStanding, NeedKind, NewestRuns, ONCE};
use super::{OpenedStore, daemon, item_args, stats, store_failed, times};
use crate::args::{CheckArgs, Everywhere};
use crate::exit::{self, Failed};
use crate::messages::{check as say, notify as notify_say, refusals};
use crate::notify::alerts::{self, Standing};
use crate::out::{self, Out};

/// The exit code if something needs a person.
const NEEDS_YOU: u8 = 1;

/// One thing that needs a person.
pub struct Finding {
    pub kind: NeedKind,
    /// The job.
    pub job: String,
    /// The key, the slot or the lease, where it is not the job.
    pub item: Option<String>,
    /// One sentence, with the command to type.
    pub text: String,
}

impl Finding {
    fn new(kind: NeedKind, job: &str, text: String) -> Self {
        Self { kind, job: job.into(), item: None, text }
    }

    fn is_about(&self, name: &str) -> bool {
        self.job == name || self.item.as_deref() == Some(name)
    }
}

/// Shows them.
pub fn run(flags: &Everywhere, args: &CheckArgs, out: &Out) -> Result<u8, Failed> {
    let mut opened = super::open(flags, &[])?;
    let mut findings = found(flags, &mut opened, args.since)?;
    if args.alert {
        alert(&mut opened, &findings, out)?;
    }
    if let Some(name) = &args.name {
        findings.retain(|finding| finding.is_about(name));
        if findings.is_empty() {
            must_be_known(flags, &mut opened, name)?;
        }
    }
    if out.json {
        findings.iter().all(|finding| {
            out.object(&json!({
                "v": 1, "kind": finding.kind.word(), "job": finding.job, "item": finding.item,
                "text": finding.text,
            }))
        });
    } else if findings.is_empty() {
        out::line(&say::nothing());
    } else {
        findings.iter().all(|finding| out::line(&finding.text));
    }
    Ok(if findings.is_empty() { exit::OK } else { NEEDS_YOU })
}

/// That nothing needs a person is said only of a name that there is.
fn must_be_known(flags: &Everywhere, opened: &mut OpenedStore, name: &str) -> Result<(), Failed> {
    let jobs = jobs::here(&daemon::path(flags)).unwrap_or_default();
    let asked = Asked::of(opened.store.as_mut(), Some(name), &jobs);
    let asked = asked.map_err(|failure| store_failed(&failure, &opened.chosen))?;
    history::must_be_known(opened, name, &asked, &jobs)
}

/// Sends what is news.
fn alert(opened: &mut OpenedStore, findings: &[Finding], out: &Out) -> Result<(), Failed> {
    let settings = opened.alerts.clone().ok_or_else(notify_say::no_alerts)?;
    // Of each job the most serious.
    let mut worst: BTreeMap<Name, (AlertKind, &str)> = BTreeMap::new();
    for finding in findings {
        let (Some(kind), Ok(job)) = (finding.kind.alert(), Name::new(&finding.job)) else { continue };
        let known = worst.entry(job).or_insert((kind, &finding.text));
        if known.0 < kind {
            *known = (kind, &finding.text);
        }
    }
    let standings: Vec<Standing<'_>> = worst
        .iter()
        .map(|(job, (kind, text))| Standing { job, kind: Some(*kind), text: (*text).to_owned() })
        .collect();
    let told = alerts::of_all(&settings, opened.store.as_mut(), &standings, out);
    told.map_err(|failure| store_failed(&failure, &opened.chosen))
}

/// Everything that needs a person.
pub fn found(flags: &Everywhere, opened: &mut OpenedStore, since: Duration) -> Result<Vec<Finding>, Failed> {
    let chosen = opened.chosen.clone();
    let failed = |failure: Failure| store_failed(&failure, &chosen);
    let mut findings = Findings::default();
    findings.jobs(flags, opened)?;
    let log = Log::read(opened.store.as_mut(), since).map_err(failed)?;
    findings.waiting = log.waiting(opened.store.as_mut()).map_err(failed)?;
    findings.leases(opened, &log.newest, since).map_err(failed)?;
    findings.log(opened, log).map_err(failed)?;
    findings.unlogged(opened);
    Ok(findings.all)
}

#[derive(Default)]
struct Findings {
    all: Vec<Finding>,
    /// Jobs of a scheduler: their standing tells of their slots.
    scheduled: BTreeSet<Name>,
    /// Items that were looked at, as they are shown.
    items: BTreeSet<String>,
    /// Items that may wait for a person; and whether a run was skipped because they had failed as often as they might.
    waiting: Vec<(Subject, bool)>,
}

/// What the run log has of the time.
#[derive(Default)]
struct Log {
    newest: NewestRuns,
    /// Runs that ended badly.
    bad: Vec<LogEntry>,
    /// The newest of each job, and how many.
    refused: BTreeMap<Name, (LogEntry, u64)>,
    /// Records whose items may wait for a person.
    waiting: Vec<LogEntry>,
    newer: u64,
}

impl Log {
    fn read(store: &mut dyn Store, since: Duration) -> Result<Self, Failure> {
        let mut log = Self::default();
        each(store, Scope::All, Window::last(since), stats::PAGE, |entry| {
            log.newer += u64::from(entry.newer);
            log.newest.see(&entry.line);
            needs::keep_waiting(&mut log.waiting, &entry);
            match entry.line.event() {
                Some(LogEvent::Refused) => {
                    log.refused.entry(entry.line.job.clone()).or_insert_with(|| (entry, 0)).1 += 1;
                }
                Some(LogEvent::Unsealed) => log.bad.push(entry),
                Some(event) if event.is_run() && event != LogEvent::Ok => log.bad.push(entry),
                _ => {}
            }
            true
        })?;
        Ok(log)
    }

    fn waiting(&self, store: &mut dyn Store) -> Result<Vec<(Subject, bool)>, Failure> {
        let mut items = Vec::new();
        for entry in &self.waiting {
            let mut entry = entry.clone();
            entry.fill(store)?;
            let too_often = needs::is_too_often(&entry.line);
            items.extend(needs::item_of(&entry).map(|item| (item, too_often)));
        }
        Ok(items)
    }
}

impl Findings {
    /// The standing of each job here, and of each that a scheduler has loaded elsewhere.
    fn jobs(&mut self, flags: &Everywhere, opened: &mut OpenedStore) -> Result<(), Failed> {
        let here = jobs::here(&daemon::path(flags))?;
        let (job_records, unreadable) = job_records::read_all(opened.store.as_mut())
            .map_err(|failure| store_failed(&failure, &opened.chosen))?;
        for (key, why) in unreadable {
            self.all.push(Finding::new(NeedKind::Damaged, &key, say::damaged(&key, why)));
        }
        let mut names: Vec<Name> = here.iter().map(|job| job.name.clone()).collect();
        names.extend(job_records.into_iter().map(|job_record| job_record.job));
        for name in names {
            if !self.scheduled.insert(name.clone()) {
                continue;
            }
            let job = here.iter().find(|job| job.name == name);
            let standing = stood(opened, &name, job, super::now())?.standing;
            if let Some(kind) = needs::of_standing(&standing) {
                let text = match standing {
                    JobStatus::Unseen => say::unseen(&name),
                    _ => say::standing(&name, standing.in_words(&name)),
                };
                self.all.push(Finding::new(kind, name.as_str(), text));
            }
        }
        Ok(())
    }

    /// Leases whose holder never reported, and those of keys that are not over.
    fn leases(
        &mut self,
        opened: &mut OpenedStore,
        newest: &NewestRuns,
        since: Duration,
    ) -> Result<(), Failure> {
        let mut leases = Vec::new();
        each_stored(opened.store.as_mut(), LEASE_PREFIX, "", |key, stored| {
            let name = key.strip_prefix(LEASE_PREFIX).unwrap_or(&key).to_owned();
            let record = Name::new(&name)
                .map_err(|e| BadRecord::Damaged(e.to_string()))
                .and_then(|lease| LeaseRecord::decode(&lease, &stored.body));
            match record {
                Ok(record) if record.hold.is_some() || name.ends_with(ONCE) => leases.push((record, stored)),
                Ok(_) => {}
                Err(bad) => {
                    let kind = match bad {
                        BadRecord::Newer(_) => NeedKind::Newer,
                        _ => NeedKind::Damaged,
                    };
                    self.all.push(Finding::new(kind, &name, say::damaged(&name, bad)));
                }
            }
            true
        })?;
        let decided = |record: &LeaseRecord| {
            record.hold.as_ref().is_some_and(|hold| newest.is_decided(LogId::of(hold.grant.0)))
        };
        // The leases of keys all the same: the record of the key says how it stands.
        leases.retain(|(record, _)| record.lease.as_str().ends_with(ONCE) || !decided(record));
        for (record, stored) in leases {
            self.lease(opened, &record, &stored, since)?;
        }
        Ok(())
    }

    fn lease(
        &mut self,
        opened: &mut OpenedStore,
        record: &LeaseRecord,
        stored: &Stored,
        since: Duration,
    ) -> Result<(), Failure> {
        let facts = opened.store.facts();
        let view = View::at_a_glance(record, stored.age, facts.resolution, &facts.instance);
        let standing = Standard.standing(record, &view);
        if let LeaseStanding::Held { .. } = standing {
            return Ok(());
        }
        let holder = &record.holder;
        if let Some(subject) =
            needs::item_of_lease(record.lease.as_str(), &holder.job, holder.slot.as_deref())
            && self.item(opened, &subject)?
        {
            return Ok(());
        }
        let scheduled = Name::new(&record.holder.job).is_ok_and(|job| self.scheduled.contains(&job));
        if standing == LeaseStanding::Expired && !scheduled && needs::never_reported(stored.age, since) {
            let lease = &record.lease;
            let text = say::never_reported(lease, holder);
            let item = Some(lease.to_string());
            self.all.push(Finding { item, ..Finding::new(NeedKind::Unknown, &holder.job, text) });
        }
        Ok(())
    }

    /// Looks at an item. True if it is recorded, so its record says how it stands.
    fn item(&mut self, opened: &mut OpenedStore, subject: &Subject) -> Result<bool, Failure> {
        let scheduled = matches!(subject, Subject::Slot { job, .. } if self.scheduled.contains(job));
        let name = item_args::shown(subject);
        if scheduled || self.items.contains(&name) {
            return Ok(true);
        }
        let too_often = self.waiting.iter().any(|(item, too_often)| item == subject && *too_often);
        let standing = needs::item(opened.store.as_mut(), subject, too_often)?;
        let quoted = item_args::quoted(&name);
        let (kind, job, text) = match standing {
            ItemStanding::Absent => return Ok(false),
            ItemStanding::Fine => {
                self.items.insert(name);
                return Ok(true);
            }
            ItemStanding::Quarantined(entry) => (
                NeedKind::Quarantined,
                Some(entry.job),
                say::quarantined(&name, item_args::times(entry.failures), quoted),
            ),
            ItemStanding::Unknown(entry) => {
                let by = item_args::by_whom(&entry);
                (NeedKind::Unknown, Some(entry.job), say::item_unknown(&name, by, quoted))
            }
            ItemStanding::Damaged(bad) => (NeedKind::Damaged, None, say::damaged(&name, bad)),
            ItemStanding::Ended(entry) => {
                let kind = match entry.state {
                    ItemState::Lost => NeedKind::Lost,
                    ItemState::Killed => NeedKind::Killed,
                    ItemState::Unknown => NeedKind::Unknown,
                    _ => NeedKind::Failed,
                };
                let ago = entry.ending.as_ref().map(|ending| times::ago(&ending.at)).unwrap_or_default();
                (kind, Some(entry.job), say::item_ended(&name, entry.state.word(), ago, quoted))
            }
        };
        self.items.insert(name.clone());
        let job = job.map_or_else(|| name.clone(), |job| job.to_string());
        let item = Some(name);
        self.all.push(Finding { item, ..Finding::new(kind, &job, text) });
        Ok(true)
    }

    /// Runs that ended badly, and writes that were refused.
    fn log(&mut self, opened: &mut OpenedStore, log: Log) -> Result<(), Failure> {
        let Log { newest, bad, refused, waiting: _, newer } = log;
        for (subject, _) in self.waiting.clone() {
            if !matches!(subject, Subject::Latest(_)) {
                self.item(opened, &subject)?;
            }
        }
        for mut entry in bad {
            if self.scheduled.contains(&entry.line.job) {
                continue;
            }
            entry.fill(opened.store.as_mut())?;
            let is_item = match needs::item_of(&entry) {
                Some(subject @ (Subject::Key(_) | Subject::Slot { .. })) => self.item(opened, &subject)?,
                _ => false,
            };
            if let (Some(kind), false) = (newest.need(&entry.line), is_item) {
                self.last_run(&entry, kind);
            }
        }
        for (job, (mut entry, count)) in refused {
            let Some(kind) = newest.need(&entry.line) else { continue };
            entry.fill(opened.store.as_mut())?;
            let target = entry.record.as_ref().and_then(|record| record.target.as_ref());
            let target =
                target.map_or_else(|| "?".into(), |refused| leasehold::backends::shown(&refused.target));
            let ago = times::ago(&host::utc(entry.line.at.as_secs()));
            let why = refusals::because(entry.line.reason.as_deref(), &target);
            let text = match count {
                1 => say::refused(&job, target, ago, why),
                _ => say::several_refused(count, &job, target, ago, why),
            };
            self.all.push(Finding::new(kind, job.as_str(), text));
        }
        if newer > 0 {
            self.all.push(Finding::new(NeedKind::Newer, "", say::newer(newer)));
        }
        Ok(())
    }

    fn last_run(&mut self, entry: &LogEntry, kind: NeedKind) {
        let job = &entry.line.job;
        let already = |finding: &Finding| finding.kind == NeedKind::Unknown && finding.is_about(job.as_str());
        if self.all.iter().any(already) {
            return;
        }
        let exit = entry.line.exit.filter(|code| *code != 0);
        let outcome =
            exit.map_or_else(|| entry.line.word.clone(), |code| format!("{} ({code})", entry.line.word));
        let ago = times::ago(&host::utc(entry.line.at.as_secs()));
        let text = say::last_run(job, outcome, ago);
        self.all.push(Finding::new(kind, job.as_str(), text));
    }

    /// Records that this machine could not log.
    fn unlogged(&mut self, opened: &OpenedStore) {
        let unlogged = Unlogged::new(opened.state.clone(), None);
        let (waiting, dropped) = (unlogged.waiting(), unlogged.dropped());
        if waiting > 0 {
            self.all.push(Finding::new(NeedKind::Unlogged, "", say::waiting(waiting)));
        }
        if dropped > 0 {
            let file = opened.state.unlogged().join("dropped");
            let text = say::not_kept(dropped, file.display());
            self.all.push(Finding::new(NeedKind::Unlogged, "", text));
        }
    }
}
