//! `leasehold check`: what needs a person, everywhere, in one list.
//!
//! It reads leases, the jobs here, and the run log of a day. Finished keys are not read: a key that is not over has its
//! lease record, or a record in the run log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold::core::alert::AlertKind;
use leasehold::core::ledger::{Alive, ItemState, Opened, Subject};
use leasehold::core::name::Name;
use leasehold::core::record::{BadRecord, LeaseRecord};
use leasehold::core::rules::{LeaseStanding, Rules, Standard, View};
use leasehold::core::run_log::LogEvent;
use leasehold::core::session::LEASE_PREFIX;
use leasehold::core::store::Stored;
use leasehold::host;
use leasehold::ledger::{Item, alive, entry, peek};
use leasehold::run_log::unlogged::Unlogged;
use leasehold::run_log::{LogEntry, Scope, Window, each};
use leasehold::stores::{Failure, each_stored};
use leasehold_run::{job_records, jobs};
use serde_json::json;

use super::job_status::{JobStatus, stood};
use super::{OpenedStore, daemon, item_args, stats, store_failed, times};
use crate::args::{CheckArgs, Everywhere};
use crate::exit::{self, Failed};
use crate::messages::{check as say, notify as notify_say};
use crate::notify::alerts::{self, Standing};
use crate::out::{self, Out};

/// The end of the name of a lease that `once` made for a key.
const ONCE: &str = ".once";
/// The exit code if something needs a person.
const NEEDS_YOU: u8 = 1;

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// A run started and nobody knows how it ended.
    Unknown,
    /// It failed too often.
    Quarantined,
    Failed,
    Lost,
    Killed,
    /// Writes were refused.
    Refused,
    /// A job is late, or no scheduler has loaded it.
    Overdue,
    /// Its runs do not end, or its slots find the lease held.
    Stuck,
    /// The targets of its last run could not be fenced.
    NotFenced,
    /// Its record is ahead of the clock.
    Ahead,
    /// Slots wait for a person.
    Waiting,
    /// A record cannot be read.
    Damaged,
    /// A later version wrote a record.
    Newer,
    /// Records of the run log are not in the store.
    Unlogged,
}

impl FindingKind {
    /// As `--json` says it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Quarantined => "quarantined",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Killed => "killed",
            Self::Refused => "refused",
            Self::Overdue => "overdue",
            Self::Stuck => "stuck",
            Self::NotFenced => "not_fenced",
            Self::Ahead => "ahead",
            Self::Waiting => "waiting",
            Self::Damaged => "damaged",
            Self::Newer => "newer",
            Self::Unlogged => "unlogged",
        }
    }

    /// As which kind of alert it is told; none: it is not about a job.
    fn alert(self) -> Option<AlertKind> {
        Some(match self {
            Self::Unknown | Self::Quarantined | Self::Waiting => AlertKind::Unknown,
            Self::Failed | Self::Killed => AlertKind::Failed,
            Self::Lost => AlertKind::Lost,
            Self::Refused => AlertKind::Refused,
            Self::Overdue | Self::Stuck | Self::NotFenced | Self::Ahead => AlertKind::Overdue,
            Self::Damaged | Self::Newer | Self::Unlogged => return None,
        })
    }

    fn of(event: LogEvent) -> Self {
        match event {
            LogEvent::Lost => Self::Lost,
            LogEvent::Killed => Self::Killed,
            LogEvent::Unknown => Self::Unknown,
            _ => Self::Failed,
        }
    }
}

/// One thing that needs a person.
pub struct Finding {
    pub kind: FindingKind,
    /// The job.
    pub job: String,
    /// The key, the slot or the lease, where it is not the job.
    pub item: Option<String>,
    /// One sentence, with the command to type.
    pub text: String,
    /// Nothing has gone well since.
    pub is_open: bool,
}

impl Finding {
    fn new(kind: FindingKind, job: &str, text: String) -> Self {
        Self { kind, job: job.into(), item: None, text, is_open: true }
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

/// Sends what is news.
fn alert(opened: &mut OpenedStore, findings: &[Finding], out: &Out) -> Result<(), Failed> {
    let settings = opened.alerts.clone().ok_or_else(notify_say::no_alerts)?;
    // Of each job the most serious.
    let mut worst: BTreeMap<Name, (AlertKind, &str)> = BTreeMap::new();
    for finding in findings.iter().filter(|finding| finding.is_open) {
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
    findings.leases(opened, since).map_err(failed)?;
    findings.log(opened, since).map_err(failed)?;
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
}

impl Findings {
    /// The standing of each job here, and of each that a scheduler has loaded elsewhere.
    fn jobs(&mut self, flags: &Everywhere, opened: &mut OpenedStore) -> Result<(), Failed> {
        let here = jobs::here(&daemon::path(flags))?;
        let (job_records, unreadable) = job_records::read_all(opened.store.as_mut())
            .map_err(|failure| store_failed(&failure, &opened.chosen))?;
        for (key, why) in unreadable {
            self.all.push(Finding::new(FindingKind::Damaged, &key, say::damaged(&key, why)));
        }
        let mut names: Vec<Name> = here.iter().map(|job| job.name.clone()).collect();
        names.extend(job_records.into_iter().map(|job_record| job_record.job));
        for name in names {
            if !self.scheduled.insert(name.clone()) {
                continue;
            }
            let job = here.iter().find(|job| job.name == name);
            let standing = stood(opened, &name, job, super::now())?.standing;
            if let Some(kind) = kind_of(&standing) {
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
    fn leases(&mut self, opened: &mut OpenedStore, since: Duration) -> Result<(), Failure> {
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
                        BadRecord::Newer(_) => FindingKind::Newer,
                        _ => FindingKind::Damaged,
                    };
                    self.all.push(Finding::new(kind, &name, say::damaged(&name, bad)));
                }
            }
            true
        })?;
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
        if let Some(subject) = item_of(record)
            && self.item(opened, &subject)?
        {
            return Ok(());
        }
        let old = stored.age.is_some_and(|age| age > since);
        let scheduled = Name::new(&record.holder.job).is_ok_and(|job| self.scheduled.contains(&job));
        if standing == LeaseStanding::Expired && !old && !scheduled {
            let (lease, holder) = (&record.lease, &record.holder);
            let text = say::never_reported(lease, holder);
            let item = Some(lease.to_string());
            self.all.push(Finding { item, ..Finding::new(FindingKind::Unknown, &holder.job, text) });
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
        let store = opened.store.as_mut();
        let Some(recorded) = entry(store, subject)? else { return Ok(false) };
        self.items.insert(name.clone());
        let (if_unknown, attempts) = item_args::unasked(subject);
        let asked = Item { subject: subject.clone(), if_unknown, attempts, keep: None };
        let peeked = peek(store, &asked)?;
        let gone = recorded.state == ItemState::Started
            && alive(store, &recorded.claim.lease, recorded.claim.grant)? == Alive::No;
        let quoted = item_args::quoted(&name);
        let (kind, text) = match (&peeked, recorded.state) {
            (Some(Opened::Quarantined(entry)), _) => {
                (FindingKind::Quarantined, say::quarantined(&name, entry.failures, quoted))
            }
            (Some(Opened::Unknown(entry, _)), _) => {
                (FindingKind::Unknown, say::item_unknown(&name, item_args::by_whom(entry), quoted))
            }
            (Some(Opened::Bad(bad)), _) => (FindingKind::Damaged, say::damaged(&name, bad)),
            (None, ItemState::Started) if gone => {
                (FindingKind::Unknown, say::item_unknown(&name, item_args::by_whom(&recorded), quoted))
            }
            (None, ItemState::Failed | ItemState::Lost | ItemState::Killed | ItemState::Unknown) => {
                let kind = match recorded.state {
                    ItemState::Lost => FindingKind::Lost,
                    ItemState::Killed => FindingKind::Killed,
                    ItemState::Unknown => FindingKind::Unknown,
                    _ => FindingKind::Failed,
                };
                let ago = recorded.ending.as_ref().map(|ending| times::ago(&ending.at)).unwrap_or_default();
                (kind, say::item_ended(&name, recorded.state.word(), ago, quoted))
            }
            _ => return Ok(true),
        };
        let item = Some(name);
        self.all.push(Finding { item, ..Finding::new(kind, recorded.job.as_str(), text) });
        Ok(true)
    }

    /// Runs that ended badly, and writes that were refused.
    fn log(&mut self, opened: &mut OpenedStore, since: Duration) -> Result<(), Failure> {
        // Of each job, whether its newest run was ok, and when that was.
        let mut newest: BTreeMap<Name, (bool, Duration)> = BTreeMap::new();
        let (mut bad, mut newer) = (Vec::new(), 0);
        // The newest of each job, and how many.
        let mut refused: BTreeMap<Name, (LogEntry, u64)> = BTreeMap::new();
        each(opened.store.as_mut(), Scope::All, Window::last(since), stats::PAGE, |entry| {
            newer += u64::from(entry.newer);
            match entry.line.event() {
                Some(LogEvent::Refused) => {
                    refused.entry(entry.line.job.clone()).or_insert_with(|| (entry, 0)).1 += 1;
                }
                Some(event) if event.is_run() => {
                    let is_first = !newest.contains_key(&entry.line.job);
                    newest.entry(entry.line.job.clone()).or_insert((event == LogEvent::Ok, entry.line.at));
                    if event != LogEvent::Ok {
                        bad.push((entry, event, is_first));
                    }
                }
                _ => {}
            }
            true
        })?;
        for (mut entry, event, is_first) in bad {
            if self.scheduled.contains(&entry.line.job) {
                continue;
            }
            entry.fill(opened.store.as_mut())?;
            let subject = entry.record.as_ref().and_then(|record| record.item.clone());
            let is_item = match subject {
                Some(subject @ (Subject::Key(_) | Subject::Slot { .. })) => self.item(opened, &subject)?,
                _ => false,
            };
            if is_first && !is_item {
                self.last_run(&entry, event);
            }
        }
        for (job, (mut entry, count)) in refused {
            entry.fill(opened.store.as_mut())?;
            let target = entry.record.as_ref().and_then(|record| record.target.as_ref());
            let target =
                target.map_or_else(|| "?".into(), |refused| leasehold::backends::shown(&refused.target));
            let ago = times::ago(&host::utc(entry.line.at.as_secs()));
            let text = say::refused(count, &job, target, ago);
            let is_open = !newest.get(&job).is_some_and(|(ok, at)| *ok && *at > entry.line.at);
            self.all.push(Finding { is_open, ..Finding::new(FindingKind::Refused, job.as_str(), text) });
        }
        if newer > 0 {
            self.all.push(Finding::new(FindingKind::Newer, "", say::newer(newer)));
        }
        Ok(())
    }

    fn last_run(&mut self, entry: &LogEntry, event: LogEvent) {
        let job = &entry.line.job;
        let already =
            |finding: &Finding| finding.kind == FindingKind::Unknown && finding.is_about(job.as_str());
        if self.all.iter().any(already) {
            return;
        }
        let exit = entry.line.exit.filter(|code| *code != 0);
        let outcome = exit.map_or_else(|| event.word().into(), |code| format!("{} ({code})", event.word()));
        let ago = times::ago(&host::utc(entry.line.at.as_secs()));
        let text = say::last_run(job, outcome, ago);
        self.all.push(Finding::new(FindingKind::of(event), job.as_str(), text));
    }

    /// Records that this machine could not log.
    fn unlogged(&mut self, opened: &OpenedStore) {
        let unlogged = Unlogged::new(opened.state.clone(), None);
        let (waiting, dropped) = (unlogged.waiting(), unlogged.dropped());
        if waiting > 0 {
            self.all.push(Finding::new(FindingKind::Unlogged, "", say::waiting(waiting)));
        }
        if dropped > 0 {
            let file = opened.state.unlogged().join("dropped");
            let text = say::not_kept(dropped, file.display());
            self.all.push(Finding::new(FindingKind::Unlogged, "", text));
        }
    }
}

/// The item that the holder of a lease ran, as far as the lease says.
fn item_of(record: &LeaseRecord) -> Option<Subject> {
    let holder = &record.holder;
    if let Some(slot) = &holder.slot {
        let at: jiff::Timestamp = slot.parse().ok()?;
        let job = Name::new(&holder.job).ok()?;
        return Some(Subject::Slot { job, at: at.as_second(), id: slot.clone() });
    }
    record.lease.as_str().strip_suffix(ONCE).map(|key| Subject::Key(key.into()))
}

/// Whether a standing needs a person.
fn kind_of(standing: &JobStatus) -> Option<FindingKind> {
    Some(match standing {
        JobStatus::Unseen | JobStatus::Overdue(..) => FindingKind::Overdue,
        JobStatus::Stuck(..) | JobStatus::Overrun(..) => FindingKind::Stuck,
        JobStatus::NotFenced(..) => FindingKind::NotFenced,
        JobStatus::Ahead(_) => FindingKind::Ahead,
        JobStatus::Waiting(_) => FindingKind::Waiting,
        JobStatus::Ended(ItemState::Unknown) => FindingKind::Unknown,
        JobStatus::Ended(ItemState::Lost) => FindingKind::Lost,
        JobStatus::Ended(ItemState::Killed) => FindingKind::Killed,
        JobStatus::Ended(_) => FindingKind::Failed,
        JobStatus::Paused { .. } | JobStatus::Elsewhere(_) | JobStatus::Running(_) | JobStatus::Fine => {
            return None;
        }
    })
}
