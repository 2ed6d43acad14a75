//! `leasehold doctor --target`: does this target refuse a stale write?

use leasehold::core::store::FailureKind;
use leasehold::stores::RemarkLevel;
use leasehold::targets::{Target, TargetError};
use serde_json::json;

use super::{Table, word};
use crate::args::Everywhere;
use crate::cmd::target_args;
use crate::exit::{self, Failed};
use crate::out::{self, Out};

/// Examines the target and says what was found; the exit code says whether to use it.
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
        // Of what was not examined nobody knows.
        let usable = ended.as_ref().map_or(Some(false), |examined| examined.then_some(true));
        out.object(&json!({
            "v": 1, "target": target.shown(), "class": target.class().word(), "usable": usable, "exit": code,
        }));
    }
    ended.map(|_| exit::OK)
}

/// What was looked at, how it was found, and one sentence.
type Tell<'a> = &'a mut dyn FnMut(&str, RemarkLevel, &str);

/// Whether it was examined, and did well.
fn examine(target: &mut dyn Target, tell: Tell<'_>) -> Result<bool, TargetError> {
    let sealed = target.show()?;
    tell("reach", RemarkLevel::Good, "answers, and its fence can be read");
    tell("class", RemarkLevel::Good, target.class().word());
    let fence = match &sealed {
        None => "was never sealed".into(),
        Some(record) => format!(
            "belongs to the lease {}, sealed with token {} ({})",
            record.fence.lease,
            record.fence.token,
            record.fence.mode.word()
        ),
    };
    tell("fence", RemarkLevel::Good, &fence);
    if target.server()?.is_none() {
        let text = "compared on this machine, in the lease's own store, or by a trigger in the database";
        tell("conditions", RemarkLevel::Good, text);
        return Ok(true);
    }
    if sealed.is_none() {
        let run = format!("leasehold run NAME --fence {} true", target.shown());
        let text = format!("not examined, for there is no fence yet. To seal and examine it: {run}");
        tell("conditions", RemarkLevel::Weak, &text);
        return Ok(false);
    }
    match target.examine() {
        Ok(()) => tell("conditions", RemarkLevel::Good, "a write whose condition cannot hold is refused"),
        // The hooks of a repository let nobody replace a fence by the same.
        Err(TargetError::Remote { failure, .. }) if failure.kind == FailureKind::Denied => {
            let text = format!("not examined: {}", failure.message.trim_end_matches('.'));
            tell("conditions", RemarkLevel::Weak, &format!("{text}. The next run with --fence examines it"));
            return Ok(false);
        }
        Err(error) => {
            if matches!(error, TargetError::Unfit { .. }) {
                tell("conditions", RemarkLevel::Unsafe, "P2, no stale write, does not hold there");
            }
            return Err(error);
        }
    }
    Ok(true)
}
