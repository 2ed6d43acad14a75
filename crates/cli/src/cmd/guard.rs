//! `leasehold guard`: installs, shows and removes the guard of a table that jobs write with their own SQL.

use leasehold::backends::open_guard;
use leasehold::core::fence::{Fence, FenceMode};
use leasehold::targets::guard::{GuardChange, GuardReport, Others};
use serde_json::json;

use super::target_args::failed;
use crate::args::{GuardArgs, GuardVerb};
use crate::exit::{self, Failed};
use crate::messages::{fenced, guard as say};
use crate::out::{self, Out};

/// Installs, shows or removes the guard.
pub fn run(args: &GuardArgs, out: &Out) -> Result<u8, Failed> {
    let (target, print) = match &args.verb {
        GuardVerb::Install { target, print_sql, .. } | GuardVerb::Remove { target, print_sql } => {
            (target, *print_sql)
        }
        GuardVerb::Show { target } => (target, false),
    };
    let mut guard = open_guard(target).map_err(|e| failed(&e))?;
    let shown = guard.shown().to_owned();
    let failed = |e| failed(&e);
    match &args.verb {
        GuardVerb::Install { others, grant, .. } => {
            if let Some(way) = grant {
                guard.accept((*way).into()).map_err(failed)?;
            }
            let others = Others::from(*others);
            let done = guard.install(others, !print).map_err(failed)?;
            installed(&shown, guard.sessions(), others, &done, print, out);
        }
        GuardVerb::Show { .. } => return Ok(show(&shown, &guard.inspect().map_err(failed)?, out)),
        GuardVerb::Remove { .. } => {
            let done = guard.remove(!print).map_err(failed)?;
            removed(&shown, &done, print, out);
        }
    }
    Ok(exit::OK)
}

fn sql(done: &GuardChange) {
    out::as_is(done.sql.trim_end());
}

fn installed(shown: &str, who: &str, others: Others, done: &GuardChange, print: bool, out: &Out) {
    if print {
        return sql(done);
    }
    if out.json {
        let (changed, notes) = (done.changed, &done.notes);
        let value =
            json!({"v": 1, "target": shown, "others": others.word(), "changed": changed, "notes": notes});
        out.object(&value);
    }
    let sessions = match others {
        Others::Allow => say::others_write(who),
        Others::Refuse => say::others_refused(who),
    };
    out.note(&say::installed(shown, remarks(done), sessions));
}

fn removed(shown: &str, done: &GuardChange, print: bool, out: &Out) {
    if print {
        return sql(done);
    }
    if out.json {
        out.object(&json!({"v": 1, "target": shown, "changed": done.changed, "notes": done.notes}));
    }
    out.note(&say::removed(shown, remarks(done)));
}

fn remarks(done: &GuardChange) -> String {
    done.notes.iter().map(say::remark).collect()
}

/// 79 if something is not as it was installed.
fn show(shown: &str, report: &GuardReport, out: &Out) -> u8 {
    let whole = report.tables.iter().all(|table| table.guarded) && report.fence.is_ok();
    if out.json {
        out.object(&object(shown, report));
    } else {
        out::line(&format!("target      {shown}"));
        out::line(&format!("fence       {}", fence(&report.fence)));
        out::line(&format!("others      {}", report.others.word()));
        if let Some(way) = report.shown_by {
            out::line(&format!("grant       {}", way.word()));
        }
        for table in &report.tables {
            out::line(&format!("table       {}", say::table(&table.name, &table.state)));
        }
        for text in &report.not_fenced {
            out::line(&format!("not fenced  {text}"));
        }
    }
    if !whole && report.fence.is_ok() {
        out.warn(&say::partly_guarded(shown, report.others.word()));
    }
    if whole { exit::OK } else { exit::NEEDS_YOU }
}

fn fence(fence: &Result<Option<Fence>, String>) -> String {
    match fence {
        Ok(None) => say::never_fenced(),
        Ok(Some(fence)) => {
            let accepted = match fence.mode {
                FenceMode::Observe => fenced::accepted(fence.let_in),
                FenceMode::Enforce => String::new(),
            };
            say::fence(&fence.lease, fence.token, fence.mode.word(), accepted)
        }
        Err(why) => say::bad_fence(why),
    }
}

fn object(shown: &str, report: &GuardReport) -> serde_json::Value {
    let tables: Vec<_> = report
        .tables
        .iter()
        .map(|t| json!({"name": t.name, "guarded": t.guarded, "state": t.state}))
        .collect();
    let mut value = json!({
        "v": 1,
        "target": shown,
        "others": report.others.word(),
        "tables": tables,
        "not_fenced": report.not_fenced,
    });
    if let Some(way) = report.shown_by {
        value["grant"] = way.word().into();
    }
    match &report.fence {
        Ok(Some(f)) => {
            value["lease"] = f.lease.as_str().into();
            value["token"] = f.token.get().into();
            value["mode"] = f.mode.word().into();
            value["let_in"] = f.let_in.into();
        }
        Ok(None) => {}
        Err(why) => value["problem"] = why.as_str().into(),
    }
    value
}
