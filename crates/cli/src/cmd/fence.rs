//! `leasehold fence`: who may write where.

use leasehold::backends::gate::Gates;
use leasehold::backends::{shown, target_of};
use leasehold::core::fence::{Fence, FenceMode};
use leasehold::state::{StateDir, write_private};
use leasehold::targets::{Class, Target};
use leasehold::text::MASK;
use serde_json::{Value, json};

use super::run::diary;
use super::target_args;
use crate::args::{self, Everywhere, FenceVerb};
use crate::config;
use crate::exit::{self, FailKind, Failed};
use crate::out::{self, Out};

/// Shows or changes fences.
pub fn run(flags: &Everywhere, args: &args::FenceArgs, out: &Out) -> Result<u8, Failed> {
    match &args.verb {
        FenceVerb::Ls { targets } if targets.is_empty() => list(flags, &config::state_dir()?.targets(), out),
        // One that is no target at all is said as everywhere else.
        FenceVerb::Ls { targets: named } => match &named[..] {
            [one] if !one.contains(MASK) => {
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

/// Notes what a run has sealed, so that `fence ls` finds it. Best effort: nothing depends on it.
pub fn remember(state: &StateDir, sealed: &[String]) {
    for shown in sealed.iter().filter_map(|shown| anywhere(shown)) {
        let file = state.target_file(&shown);
        if !file.exists() {
            let _ = write_private(&file, shown.as_bytes());
        }
    }
}

/// A name that means the same wherever it is read; nothing: there is none.
pub fn anywhere(sealed: &str) -> Option<String> {
    target_of(sealed).map_or(Some(sealed.into()), |kind| (kind.anywhere)(sealed))
}

/// A target as it is shown.
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
    if url.contains(MASK) {
        return bad("its password was not kept; name it with the password to see it".into());
    }
    let mut opened = match target_args::opened(url, flags, gates) {
        Ok(opened) => opened,
        Err(failed) => return bad(failed.of_a_look().told.to_string()),
    };
    // It knows best what of its name is secret.
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

fn list(flags: &Everywhere, urls: &[String], out: &Out) -> Result<u8, Failed> {
    let mut gates = None;
    let rows: Vec<TargetRow> = urls.iter().map(|url| look(url, flags, &mut gates)).collect();
    if out.json {
        for row in &rows {
            out.object(&object(row));
        }
    } else if rows.is_empty() {
        out.note("nothing was sealed from here yet; a run seals what it names with --fence TARGET");
    } else {
        out::line(&format!(
            "{:<8} {:<24} {:>8} {:>6} {:<8} TARGET",
            "CLASS", "LEASE", "TOKEN", "WRITES", "MODE"
        ));
        for row in &rows {
            out::line(&line(row));
        }
    }
    // What can be told was told: one of many that cannot be is in its row.
    let none = !rows.is_empty() && rows.iter().all(|row| row.problem.is_some());
    Ok(if none { exit::NEEDS_YOU } else { exit::OK })
}

fn line(row: &TargetRow) -> String {
    let class = row.class.map_or("?", Class::word);
    let Some(fence) = &row.fence else {
        let why = row.problem.as_deref().unwrap_or("never sealed");
        return format!("{class:<8} {:<24} {:>8} {:>6} {:<8} {}: {why}", "-", "-", "-", "-", row.target);
    };
    let watched = match fence.mode {
        FenceMode::Observe => format!("  ({} let in that would have been refused)", fence.let_in),
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

/// The notes of runs that only observed, oldest first.
fn observed(state: &StateDir, out: &Out) -> Result<u8, Failed> {
    let path = state.observed();
    let notes = match std::fs::read_to_string(&path) {
        Ok(notes) => notes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => {
            return Err(Failed::new(
                FailKind::Unreachable,
                "state",
                format!("cannot read {}: {e}", path.display()),
            ));
        }
    };
    // Of each run what it wrote at its end.
    let notes: Vec<Value> = diary::lines(&notes).filter(|line| line["outcome"] != diary::STARTED).collect();
    if notes.is_empty() && !out.json {
        out.note("nothing was observed from here yet; a run takes notes with --observe");
    }
    for note in &notes {
        let word = |key: &str| note[key].as_str().unwrap_or("?").to_owned();
        let seen: Vec<&str> =
            note["seen"].as_array().into_iter().flatten().filter_map(|s| s["text"].as_str()).collect();
        let text = if seen.is_empty() { "no overlap seen".into() } else { seen.join("; ") };
        if out.json {
            out.object(note);
        } else {
            out::line(&format!("{}  {}  exit {}  {text}", word("time"), word("job"), note["exit"]));
        }
    }
    Ok(exit::OK)
}

/// Forgets a fence, unless its lease is held on the store in use.
fn reset(flags: &Everywhere, url: &str, out: &Out) -> Result<u8, Failed> {
    let mut target = target_args::opened(url, flags, &mut None)?;
    let failed = |error| target_args::failed(&error);
    let shown = target.shown().to_owned();
    let Some(record) = target.show().map_err(failed)? else {
        out.note(&format!("{shown} has no fence: nothing to reset"));
        return Ok(exit::OK);
    };
    let lease = record.fence.lease.clone();
    match super::status::held(flags, &lease) {
        Ok(true) => {
            return Err(Failed::new(
                FailKind::Busy,
                "busy",
                format!(
                    "{lease} is held, and its run may be writing {shown}. Nothing was reset. Wait for its end: \
                     leasehold status {lease}"
                ),
            ));
        }
        Ok(false) => {}
        Err(unknown) => out.warn(&format!("whether {lease} is held cannot be told: {}", unknown.told)),
    }
    let forgotten = target.forget().map_err(failed)?.unwrap_or(record.fence);
    let (lease, token) = (&forgotten.lease, forgotten.token);
    out.note(&format!(
        "the fence of {shown} is forgotten (lease {lease}, token {token}); nobody writes it until the next run \
         seals it: leasehold run {lease} --fence {shown}"
    ));
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
        FenceMode::Enforce => format!("{shown} refuses stale writes from now on"),
        FenceMode::Observe => format!(
            "{shown} lets stale writes in and counts them, until a run without --observe names it with --fence"
        ),
    });
    if out.json {
        out.object(&json!({"v": 1, "target": shown, "mode": wanted.word()}));
    }
    Ok(exit::OK)
}
