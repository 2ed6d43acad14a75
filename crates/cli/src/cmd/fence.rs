//! `leasehold fence`: shows and changes fences.

use leasehold::backends::gate::Gates;
use leasehold::backends::{is_masked, shown, target_of};
use leasehold::core::fence::{Fence, FenceMode};
use leasehold::core::name::Name;
use leasehold::state::{StateDir, write_private};
use leasehold::targets::{Class, Target};
use serde_json::{Value, json};

use super::run::diary;
use super::target_args;
use crate::args::{self, Everywhere, FenceVerb};
use crate::config;
use crate::exit::{self, Failed};
use crate::messages::fence as say;
use crate::messages::fenced;
use crate::out::{self, Out};

/// Shows or changes fences.
pub fn run(flags: &Everywhere, args: &args::FenceArgs, out: &Out) -> Result<u8, Failed> {
    match &args.verb {
        FenceVerb::Ls { targets } if targets.is_empty() => list(flags, &config::state_dir()?.targets(), out),
        // A single one that is no target fails as in every command.
        FenceVerb::Ls { targets: named } => match &named[..] {
            [one] if !is_masked(one) => {
                target_args::opened(one, flags, &mut None).and_then(|_| list(flags, named, out))
            }
            _ => list(flags, named, out),
        },
        FenceVerb::Observed => observed(&config::state_dir()?, out),
        FenceVerb::Reset { target } => reset(flags, target, out),
        FenceVerb::Enforce { target } => set(flags, target, FenceMode::Enforce, out),
        FenceVerb::Observe { target } => set(flags, target, FenceMode::Observe, out),
    }
}

/// Notes the targets that a run fenced, so that `fence ls` finds them. Best effort: nothing depends on it.
pub fn remember(state: &StateDir, sealed: &[String]) {
    for shown in sealed.iter().filter_map(|shown| anywhere(shown)) {
        let file = state.target_file(&shown);
        if !file.exists() {
            let _ = write_private(&file, shown.as_bytes());
        }
    }
}

/// The name of a target that means the same in every directory; nothing: there is none.
pub fn anywhere(sealed: &str) -> Option<String> {
    target_of(sealed).map_or(Some(sealed.into()), |kind| (kind.anywhere)(sealed))
}

/// A row of `fence ls`.
struct TargetRow {
    target: String,
    class: Option<Class>,
    fence: Option<Fence>,
    problem: Option<String>,
}

fn look(url: &str, flags: &Everywhere, gates: &mut Option<Gates>) -> TargetRow {
    let target = shown(url);
    let bad = |problem: String| TargetRow {
        target: target.clone(),
        class: None,
        fence: None,
        problem: Some(problem),
    };
    if is_masked(url) {
        return bad(say::no_password());
    }
    let mut opened = match target_args::opened(url, flags, gates) {
        Ok(opened) => opened,
        Err(failed) => return bad(failed.of_a_look().told.to_string()),
    };
    // The target knows which parts of its name are secret.
    let target = opened.shown().to_owned();
    let bad = |problem: String| TargetRow {
        target: target.clone(),
        class: None,
        fence: None,
        problem: Some(problem),
    };
    match Target::show(opened.as_mut()) {
        Ok(record) => {
            let fence = record.map(|record| record.fence);
            TargetRow { target: target.clone(), class: Some(opened.class()), fence, problem: None }
        }
        Err(error) => TargetRow { class: Some(opened.class()), ..bad(error.to_string()) },
    }
}

/// The targets that were fenced from here and still have the fence of one of these leases, as far as they can be read.
pub fn of_leases(flags: &Everywhere, state: &StateDir, leases: &[Name]) -> Vec<String> {
    let mut gates = None;
    let rows = state.targets().into_iter().map(|url| look(&url, flags, &mut gates));
    let fenced = rows.filter(|row| row.fence.as_ref().is_some_and(|fence| leases.contains(&fence.lease)));
    fenced.map(|row| row.target).collect()
}

fn list(flags: &Everywhere, urls: &[String], out: &Out) -> Result<u8, Failed> {
    let mut gates = None;
    let rows: Vec<TargetRow> = urls.iter().map(|url| look(url, flags, &mut gates)).collect();
    if out.json {
        for row in &rows {
            out.object(&object(row));
        }
    } else if rows.is_empty() {
        out.note(&say::nothing_fenced());
    } else {
        out::line(&format!(
            "{:<8} {:<24} {:>8} {:>6} {:<8} TARGET",
            "CLASS", "LEASE", "TOKEN", "WRITES", "MODE"
        ));
        for row in &rows {
            out::line(&line(row));
        }
    }
    // A problem with one of several is in its row, and no failure.
    let none = !rows.is_empty() && rows.iter().all(|row| row.problem.is_some());
    Ok(if none { exit::NEEDS_YOU } else { exit::OK })
}

fn line(row: &TargetRow) -> String {
    let class = row.class.map_or("?", Class::word);
    let Some(fence) = &row.fence else {
        let why = row.problem.clone().unwrap_or_else(say::never_fenced);
        return format!("{class:<8} {:<24} {:>8} {:>6} {:<8} {}: {why}", "-", "-", "-", "-", row.target);
    };
    let watched = match fence.mode {
        FenceMode::Observe => fenced::accepted(fence.let_in),
        FenceMode::Enforce => String::new(),
    };
    let (lease, token, seq) = (fence.lease.as_str(), fence.token.get(), fence.seq);
    format!("{class:<8} {lease:<24} {token:>8} {seq:>6} {:<8} {}{watched}", fence.mode.word(), row.target)
}

fn object(row: &TargetRow) -> serde_json::Value {
    let mut value = json!({"v": 1, "target": row.target, "class": row.class.map(Class::word)});
    if let Some(fence) = &row.fence {
        value["lease"] = fence.lease.as_str().into();
        value["token"] = fence.token.get().into();
        value["seq"] = fence.seq.into();
        value["mode"] = fence.mode.word().into();
        value["let_in"] = fence.let_in.into();
    }
    if let Some(problem) = &row.problem {
        value["problem"] = problem.as_str().into();
    }
    value
}

/// Shows the notes of runs that observed, oldest first.
fn observed(state: &StateDir, out: &Out) -> Result<u8, Failed> {
    let path = state.observed();
    let notes = match std::fs::read_to_string(&path) {
        Ok(notes) => notes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(say::no_notes(path.display(), e)),
    };
    // A run writes a note when it starts and one when it ends.
    let notes: Vec<Value> = diary::lines(&notes).filter(|line| line["outcome"] != diary::STARTED).collect();
    if notes.is_empty() && !out.json {
        out.note(&say::nothing_observed());
    }
    for note in &notes {
        let word = |key: &str| note[key].as_str().unwrap_or("?").to_owned();
        let seen: Vec<&str> =
            note["seen"].as_array().into_iter().flatten().filter_map(|s| s["text"].as_str()).collect();
        let seen = if seen.is_empty() { say::no_overlap() } else { seen.join("; ") };
        if out.json {
            out.object(note);
        } else {
            out::line(&say::observed(word("time"), word("job"), &note["exit"], seen));
        }
    }
    Ok(exit::OK)
}

/// Removes a fence, unless its lease is held on the store in use.
fn reset(flags: &Everywhere, url: &str, out: &Out) -> Result<u8, Failed> {
    let mut target = target_args::opened(url, flags, &mut None)?;
    let failed = |error| target_args::failed(&error);
    let shown = target.shown().to_owned();
    let Some(record) = target.show().map_err(failed)? else {
        out.note(&say::no_fence(shown));
        return Ok(exit::OK);
    };
    let lease = record.fence.lease.clone();
    match super::status::held(flags, &lease) {
        Ok(true) => return Err(say::held(lease, shown)),
        Ok(false) => {}
        Err(unknown) => out.warn(&say::holder_unknown(lease, unknown.told)),
    }
    let forgotten = target.forget().map_err(failed)?.unwrap_or(record.fence);
    let (lease, token) = (&forgotten.lease, forgotten.token);
    out.note(&say::reset(&shown, lease, token, leasehold::text::shell_quoted(&shown)));
    if out.json {
        let (lease, token) = (lease.as_str(), token.get());
        out.object(&json!({"v": 1, "target": shown, "lease": lease, "token": token, "reset": true}));
    }
    Ok(exit::OK)
}

fn set(flags: &Everywhere, url: &str, wanted: FenceMode, out: &Out) -> Result<u8, Failed> {
    let mut target = target_args::opened(url, flags, &mut None)?;
    target.set_mode(wanted).map_err(|error| target_args::failed(&error))?;
    let shown = target.shown();
    out.note(&match wanted {
        FenceMode::Enforce => say::enforces(shown),
        FenceMode::Observe => say::observes(shown),
    });
    if out.json {
        out.object(&json!({"v": 1, "target": shown, "mode": wanted.word()}));
    }
    Ok(exit::OK)
}
