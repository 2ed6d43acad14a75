//! The same for programs: JSON, described by `openapi.json`.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold::core::ledger::Subject;
use leasehold::core::name::Name;
use leasehold::core::run_log::LogLine;
use leasehold::run_log::{LogEntry, Window};
use leasehold::text::escaped;
use serde_json::{Value, json};

use super::asked::Asked;
use super::live::Seen;
use super::look::{JobNow, Look, Standing, timestamp};
use super::{Refusal, Shared, pages};
use crate::cmd::{stats, status};
use crate::timeline::model::Mark;

/// An answer.
pub fn json(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], escaped(&value.to_string())).into_response()
}

fn answered(path: &str, answer: Result<Value, Refusal>) -> Response {
    match answer {
        Ok(value) => json(&value),
        Err(refusal) => refusal.answer(path),
    }
}

fn instant(at: Duration) -> String {
    timestamp(at).to_string()
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

/// What the last look found, if the store answered it.
fn look(seen: &Seen) -> Result<&Look, Refusal> {
    let unavailable = |why: &str| {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "failed", crate::messages::dashboard::no_answer(why))
    };
    match (&seen.failing, &seen.look) {
        (None, Some(look)) => Ok(look),
        (Some((_, why)), _) => Err(unavailable(why)),
        (None, None) => Err(unavailable("…")),
    }
}

/// `GET /api/v1/now`
pub async fn now(State(shared): Shared, uri: Uri) -> Response {
    let seen = shared.live.now().await;
    answered(uri.path(), look(&seen).map(|look| now_of(look, &shared.store)))
}

fn now_of(look: &Look, store: &str) -> Value {
    let matters = |matters: &[super::look::Matter]| -> Vec<Value> {
        matters
            .iter()
            .map(|matter| {
                let told = pages::told(matter);
                json!({
                    "event": told.event.map(leasehold::core::run_log::LogEvent::word),
                    "title": told.title, "happened": told.happened, "means": told.means,
                    "commands": told.types.iter().map(|(when, command)| json!({"when": when, "command": command})).collect::<Vec<_>>(),
                })
            })
            .collect()
    };
    let counts: serde_json::Map<String, Value> =
        look.recent.counts.iter().map(|(event, count)| (event.word().into(), (*count).into())).collect();
    json!({
        "v": 1, "time": instant(look.at), "store": store,
        "needs": matters(&look.needs), "notes": matters(&look.notes),
        "counts_24h": counts,
        "leases": look.leases.iter().map(status::object).collect::<Vec<_>>(),
        "more_leases": look.more_leases,
        "jobs": look.jobs.iter().map(job_now).collect::<Vec<_>>(),
    })
}

fn job_now(job: &JobNow) -> Value {
    let (by, late) = match &job.standing {
        Standing::Paused { by, .. } | Standing::Running(by) | Standing::Held(by) => (Some(by), None),
        Standing::Overdue(late, _) => (None, Some(*late)),
        Standing::Fine => (None, None),
    };
    json!({
        "job": job.name.as_str(), "schedule": job.schedule, "next": job.next.map(|next| next.to_string()),
        "interval_s": seconds(job.interval), "standing": job.standing.word(), "by": by, "overdue_s": seconds(late),
    })
}

/// `GET /api/v1/jobs`
pub async fn jobs(State(shared): Shared, uri: Uri) -> Response {
    let seen = shared.live.now().await;
    let of = |look: &Look| json!({"v": 1, "time": instant(look.at), "jobs": look.jobs.iter().map(job_now).collect::<Vec<_>>()});
    answered(uri.path(), look(&seen).map(of))
}

/// `GET /api/v1/jobs/NAME`
pub async fn job(State(shared): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let answer = async {
        let job = Name::new(&name).map_err(|_| Refusal::not_found())?;
        let (elsewhere, file) = (shared.elsewhere, shared.file.clone());
        let read = move |store: &mut dyn leasehold::stores::Store| {
            super::stats::read(store, &job, Window::last(pages::JOB_WINDOW), elsewhere, &file)
        };
        let facts = shared.reader.ask(read).await?.ok_or_else(Refusal::not_found)?;
        let counts: serde_json::Map<String, Value> =
            facts.sums.counts().map(|(event, count)| (event.word().into(), count.into())).collect();
        let mut advice = stats::told(&facts.advice());
        advice["says"] = facts.advice_in_words().into();
        let (sums, times) = (&facts.sums, &facts.sums.ok);
        Ok(json!({
            "v": 1, "job": facts.name.as_str(),
            "schedule": facts.record.as_ref().map(|record| record.schedule.as_str()),
            "next": facts.next.map(|next| next.to_string()), "interval_s": seconds(facts.interval),
            "ttl_s": facts.ttl().as_secs_f64(), "ttl_known": facts.ttl.is_some(),
            "lease": facts.lease.as_ref().map(status::object),
            "since": facts.oldest.map(instant), "records": facts.read, "more": facts.cut,
            "runs": sums.runs(), "counts": counts, "skips": sums.skips, "skip_percent": stats::skip_percent(sums),
            "p50_s": seconds(times.p50), "p95_s": seconds(times.p95), "worst_s": seconds(times.worst),
            "longer_than_interval": facts.too_long(), "advice": advice,
            "last": facts.last.iter().map(line).collect::<Vec<_>>(),
        }))
    };
    answered(uri.path(), answer.await)
}

/// What a key says.
fn line(line: &LogLine) -> Value {
    json!({
        "time": instant(line.at), "job": line.job.as_str(), "outcome": line.word, "reason": line.reason,
        "exit": line.exit, "duration_s": seconds(line.took), "token": line.token.map(leasehold::core::ids::Token::get),
        "slot": line.slot.map(crate::cmd::times::utc), "host": line.host,
    })
}

fn record(entry: &LogEntry) -> Value {
    let mut object = line(&entry.line);
    let record = entry.record.as_ref();
    let item = record.and_then(|record| record.item.as_ref());
    let key = item.and_then(|item| match item {
        Subject::Key(key) => Some(key),
        Subject::Slot { .. } | Subject::Latest(_) => None,
    });
    let target = record.and_then(|record| record.target.as_ref());
    let more = json!({
        "host": record.map_or(&entry.line.host, |record| &record.holder.host),
        "holder": record.map(|record| record.holder.to_string()),
        "run_id": record.map(|record| &record.holder.run),
        "lease": record.and_then(|record| record.lease.as_ref()).map(Name::as_str),
        "key": key, "target": target.map(|target| &target.target),
        "fence": target.and_then(|target| target.fence).map(leasehold::core::ids::Token::get),
        "count": record.and_then(|record| record.count),
        "said": record.map(|record| record.said.as_str()).filter(|said| !said.is_empty()),
        "newer": entry.newer,
    });
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
    object
}

/// `GET /api/v1/log`
pub async fn log(State(shared): Shared, uri: Uri) -> Response {
    let answer = async {
        let asked = Asked::of(&uri)?;
        let listing = asked.listing()?;
        let records = shared.reader.ask(move |store| pages::read_log(store, &listing)).await?;
        Ok(json!({
            "v": 1, "records": records.entries.iter().map(record).collect::<Vec<_>>(),
            "older": records.older.map(super::asked::Older::text),
        }))
    };
    answered(uri.path(), answer.await)
}

/// `GET /api/v1/timeline`
pub async fn timeline(State(shared): Shared, uri: Uri) -> Response {
    let answer = async {
        let asked = Asked::of(&uri)?;
        let ((_, time), _) = (asked.window()?, asked.whose()?);
        let name = asked.name.trim().to_owned();
        let timeline = shared.reader.ask(move |store| pages::read_timeline(store, &name, time)).await?;
        let lane = |lane: &crate::timeline::model::Lane| {
            let row = |row: &crate::timeline::model::Row| json!({"about": crate::timeline::words::about(&row.about), "marks": row.marks.iter().map(mark).collect::<Vec<_>>()});
            json!({"machine": crate::timeline::words::whose(&lane.whose), "rows": lane.rows.iter().map(row).collect::<Vec<_>>()})
        };
        Ok(json!({
            "v": 1, "since": instant(timeline.window.since), "until": instant(timeline.window.until),
            "more": timeline.cut, "lanes": timeline.lanes.iter().map(lane).collect::<Vec<_>>(),
        }))
    };
    answered(uri.path(), answer.await)
}

fn mark(mark: &Mark) -> Value {
    json!({
        "outcome": mark.word, "start": instant(mark.start), "end": instant(mark.end), "job": mark.job,
        "lease": mark.lease, "host": mark.host, "token": mark.token(), "fence": mark.newer, "item": mark.item,
        "reason": mark.reason, "exit": mark.exit, "target": mark.target,
    })
}
