//! `leasehold doctor --target`: does this target refuse a stale write?

use leasehold::core::store::FailureKind;
use leasehold::stores::RemarkLevel;
use leasehold::targets::{Target, TargetError};
use serde_json::json;

use super::{Table, word};
use crate::args::Everywhere;
use crate::cmd::target_args;
use crate::exit::{self, Failed};
use crate::messages::doctor as say;
use crate::out::{self, Out};

/// Examines the target and shows the findings. The exit code says whether it can be used.
pub fn run(flags: &Everywhere, url: &str, out: &Out) -> Result<u8, Failed> {
    let mut target = target_args::opened(url, flags, &mut None)?;
    let table = Table::new(out);
    if !out.json && !out.quiet {
        out::line(&format!("{:<11} {}", "target", target.shown()));
    }
    let ended = examine(target.as_mut(), &mut |about, verdict, text| {
        if out.json {
            let verdict = word(verdict).to_lowercase();
            out.object(&json!({"v": 1, "exam": about, "verdict": verdict, "text": text}));
        } else if !out.quiet || verdict != RemarkLevel::Good {
            table.line(about, verdict, text);
        }
    });
    let ended = ended.map_err(|error| target_args::failed(&error));
    if out.json {
        let code = ended.as_ref().map_or_else(|failed| failed.code(), |_| exit::OK);
        // Null for a target that was not examined.
        let usable = ended.as_ref().map_or(Some(false), |examined| examined.then_some(true));
        out.object(&json!({
            "v": 1, "target": target.shown(), "class": target.class().word(), "usable": usable, "exit": code,
        }));
    }
    ended.map(|_| exit::OK)
}

/// The name of an examination, its verdict, and one sentence.
type Tell<'a> = &'a mut dyn FnMut(&str, RemarkLevel, &str);

/// Whether it was examined, and did well.
fn examine(target: &mut dyn Target, tell: Tell<'_>) -> Result<bool, TargetError> {
    let fence = target.show()?;
    tell("reach", RemarkLevel::Good, &say::target_answers());
    tell("class", RemarkLevel::Good, target.class().word());
    let found = fence.as_ref().map_or_else(say::never_fenced, |record| {
        say::fenced(&record.fence.lease, record.fence.token, record.fence.mode.word())
    });
    tell("fence", RemarkLevel::Good, &found);
    if target.server()?.is_none() {
        tell("conditions", RemarkLevel::Good, &say::checked_near());
        return Ok(true);
    }
    if fence.is_none() {
        tell("conditions", RemarkLevel::Weak, &say::no_fence_yet(target.shown()));
        return Ok(false);
    }
    match target.examine() {
        Ok(()) => tell("conditions", RemarkLevel::Good, &say::condition_kept()),
        // The hooks of a repository refuse to replace a fence by an equal one.
        Err(TargetError::Remote { failure, .. }) if failure.kind == FailureKind::Denied => {
            let why = failure.message.trim_end_matches('.');
            tell("conditions", RemarkLevel::Weak, &say::not_examined(why));
            return Ok(false);
        }
        Err(error) => {
            if matches!(error, TargetError::Unfit { .. }) {
                tell("conditions", RemarkLevel::Unsafe, &say::p2_broken());
            }
            return Err(error);
        }
    }
    Ok(true)
}
