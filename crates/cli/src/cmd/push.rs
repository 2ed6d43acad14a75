//! `leasehold push`: git push, fenced. Also this program as git's remote helper.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leasehold::backends::git::remote_helper::{self, HelperNotice};
use leasehold::backends::git::{hook, is_helper, url_rewrite};
use leasehold::messages::Explanation;
use leasehold::random;
use leasehold::targets::TargetError;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::run_log;
use super::target_args::{self, TargetReason};
use crate::args::PushArgs;
use crate::exit::{self, Failed};
use crate::messages::push as say;
use crate::out::Out;

/// Names a file: the helper writes a [`HelperReport`] there for `leasehold push`, instead of printing its failure.
const REPORT: &str = "LEASEHOLD_PUSH_REPORT";

/// What the helper reports to `leasehold push`.
#[derive(Serialize, Deserialize)]
enum HelperReport {
    /// Git has called it.
    Reached,
    /// The push failed.
    Failed { reason: TargetReason, told: Explanation },
}

/// Pushes as part of the run that we are in; git's own exit code, or one of ours.
pub fn run(args: &PushArgs, out: &Out) -> Result<u8, Failed> {
    if let Some(dir) = &args.install_hook {
        return install(dir, out);
    }
    target_args::enclosing("push").map_err(|_| say::outside_a_run())?;
    let system = |e: io::Error| say::no_git(e);
    let named = repository(&args.args).and_then(OsStr::to_str);
    let fenced = url_rewrite::fenced(named).map_err(system)?;
    let report = PushReport::new().map_err(system)?;
    check_rewriting(&fenced, named).map_err(system)??;
    let mut command = Command::new("git");
    command.arg("push").args(out.quiet.then_some("--quiet")).args(out.verbose.then_some("--verbose"));
    command.args(&args.args).envs(fenced.variables.iter().cloned()).env(REPORT, &report.0);
    if out.json {
        // With --json, stdout is for our object alone.
        command.stdout(Stdio::null());
    }
    let status = command.status().map_err(system)?;
    let (mut told, outcome) =
        report.failure().map(|(reason, told)| (reason.failed(told), reason.outcome())).unzip();
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if code != 0 && told.is_none() && !report.was_reached() {
        told = past_the_fence(&fenced, &args.args).map_err(system)?;
    }
    if out.json {
        let outcome = match (&told, outcome) {
            (Some(_), Some(outcome)) => outcome,
            (None, _) if code == 0 => "accepted",
            _ => "failed",
        };
        let reason = told.as_ref().map_or(Value::Null, |failed| failed.word.into());
        out.object(&json!({"v": 1, "outcome": outcome, "reason": reason, "git_exit": code}));
    }
    told.map_or_else(|| Ok(u8::try_from(code).unwrap_or(u8::MAX)), Err)
}

/// The remote or URL among the arguments of git push.
fn repository(args: &[OsString]) -> Option<&OsStr> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o" | "--push-option" | "--receive-pack" | "--exec") => {
                args.next();
            }
            Some("--repo" | "--") => return args.next().map(|arg| arg.as_os_str()),
            Some(option) if option.starts_with("--repo=") => {
                return option.strip_prefix("--repo=").map(OsStr::new);
            }
            Some(option) if option.starts_with('-') => {}
            _ => return Some(arg),
        }
    }
    None
}

/// Asks git where pushes will go. A rewriting rule of the user may be as exact as ours, and git takes the first.
fn check_rewriting(fenced: &url_rewrite::Fenced, named: Option<&str>) -> io::Result<Result<(), Failed>> {
    let mut command = Command::new("git");
    if let Some(url) = named.filter(|named| named.contains([':', '/'])) {
        command.arg("-c").arg(format!("remote.leasehold-direct.url={url}"));
    }
    command.args(["remote", "--verbose"]).envs(fenced.variables.iter().cloned());
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut remotes = text.lines().filter_map(|line| line.strip_suffix(" (push)")?.split_once('\t'));
    let elsewhere = remotes.find(|(_, url)| !url_rewrite::leads_here(url));
    Ok(elsewhere.map_or(Ok(()), |(remote, _)| Err(say::sent_elsewhere(remote))))
}

/// A failure, if git did not call our helper because it was about to push past the fence, which its settings forbid.
/// Git printed the reason straight to the user, so it is run again, with --dry-run.
fn past_the_fence(fenced: &url_rewrite::Fenced, args: &[OsString]) -> io::Result<Option<Failed>> {
    let mut command = Command::new("git");
    command.args(["push", "--dry-run", "--no-verify"]).args(args).envs(fenced.variables.iter().cloned());
    let output = command.env("LC_ALL", "C").env_remove("LANGUAGE").stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let denied = |line: &str| {
        line.strip_prefix("fatal: transport '")?.strip_suffix("' not allowed").map(str::to_owned)
    };
    Ok(text.lines().find_map(denied).map(say::past_the_fence))
}

fn install(dir: &Path, out: &Out) -> Result<u8, Failed> {
    let paths = hook::install(dir).map_err(|e| say::hooks_not_installed(dir.display(), e))?;
    if out.json {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        out.object(&json!({"v": 1, "installed": paths}));
    }
    for path in &paths {
        out.note(&say::hook(path.display()));
    }
    out.note(&say::hooks_installed());
    Ok(exit::OK)
}

/// A temporary file for [`REPORT`].
struct PushReport(PathBuf);

impl PushReport {
    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("leasehold-push-{:032x}", random::seed()));
        leasehold::state::write_private(&path, b"")?;
        Ok(Self(path))
    }

    /// Whether git has called our helper.
    fn was_reached(&self) -> bool {
        fs::metadata(&self.0).is_ok_and(|found| found.len() > 0)
    }

    /// The failure that the helper reports.
    fn failure(&self) -> Option<(TargetReason, Explanation)> {
        match serde_json::from_slice(&fs::read(&self.0).ok()?).ok()? {
            HelperReport::Failed { reason, told } => Some((reason, told)),
            HelperReport::Reached => None,
        }
    }
}

impl Drop for PushReport {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// If git has started us as its helper, serves it; the exit code.
pub fn as_helper() -> Option<u8> {
    let mut args = std::env::args_os();
    let name = args.next()?;
    if !is_helper(Path::new(&name).file_name()?) {
        return None;
    }
    // Git calls us once for each URL it pushes to: an earlier report stays.
    if std::env::var_os(REPORT).is_some_and(|path| fs::metadata(path).is_ok_and(|found| found.len() == 0)) {
        report(&HelperReport::Reached);
    }
    let url = args.nth(1).and_then(|url| url.into_string().ok()).unwrap_or_default();
    let mut tell = |told: HelperNotice<'_>| match told {
        HelperNotice::LetIn(refused) => {
            Out::plain().warn(&say::would_be_refused(target_args::would_be_refused(refused)))
        }
        HelperNotice::Failed(error) => tell_failure(error),
    };
    match remote_helper::serve(&url, io::stdin().lock(), io::stdout().lock(), &mut tell) {
        Ok(true) => Some(exit::OK),
        Ok(false) => Some(1),
        Err(e) => {
            Out::plain().warn(&say::git_gone(e));
            Some(1)
        }
    }
}

fn tell_failure(error: &TargetError) {
    run_log::if_refused(error);
    let told = error.explanation();
    if !report(&HelperReport::Failed { reason: TargetReason::of(error), told: told.clone() }) {
        Out::plain().warn(&told.to_string());
    }
}

/// Reports to `leasehold push`, if it started git; whether it did.
fn report(what: &HelperReport) -> bool {
    let Ok(text) = serde_json::to_vec(what) else { return false };
    std::env::var_os(REPORT).is_some_and(|path| fs::write(path, text).is_ok())
}
