//! `leasehold push`: git push, fenced. Also this program as git's remote helper.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leasehold::backends::git::remote_helper::{self, HelperNotice};
use leasehold::backends::git::{hook, is_helper, url_rewrite};
use leasehold::random;
use leasehold::targets::TargetError;
use serde_json::{Value, json};

use super::target_args;
use crate::args::PushArgs;
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;

/// Where the helper tells `leasehold push` what it would otherwise tell people.
const REPORT: &str = "LEASEHOLD_PUSH_REPORT";

/// Why a push was not made, in words that are told apart.
const WORDS: [&str; 9] =
    ["stale", "fork", "epoch", "jump", "other-lease", "not-sealed", "sequence", "bad_fence", "unknown"];

/// Pushes as part of the run that we are in; git's own exit code, or one of ours.
pub fn run(args: &PushArgs, out: &Out) -> Result<u8, Failed> {
    if let Some(dir) = &args.install_hook {
        return install(dir, out);
    }
    target_args::enclosing("push").map_err(|failed| Failed {
        told: "there is no run in the environment, so there is no token to push with. Nothing was pushed. \
                  `leasehold push` works inside a run that names the repository: leasehold run NAME --fence \
                  git:origin -- sh -c '... && leasehold push origin main'"
            .into(),
        ..failed
    })?;
    let system = |e: io::Error| {
        Failed::new(FailKind::Unreachable, "system", format!("cannot run git: {e}. Nothing was pushed"))
    };
    let named = repository(&args.args).and_then(OsStr::to_str);
    let fenced = url_rewrite::fenced(named).map_err(system)?;
    let report = PushReport::new().map_err(system)?;
    all_lead_here(&fenced, named).map_err(system)??;
    let mut command = Command::new("git");
    command.arg("push").args(out.quiet.then_some("--quiet")).args(out.verbose.then_some("--verbose"));
    command.args(&args.args).envs(fenced.variables.iter().cloned()).env(REPORT, &report.0);
    if out.json {
        // Git's own lines are for people: with --json, stdout is ours.
        command.stdout(Stdio::null());
    }
    let status = command.status().map_err(system)?;
    let (mut told, outcome) = report.failure().unzip();
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if code != 0 && told.is_none() && !report.was_reached() {
        told = past(&fenced, &args.args).map_err(system)?;
    }
    if out.json {
        let outcome = match (&told, &outcome) {
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

/// Asks git where pushes will go: a rewriting rule of the user's own may be as exact as ours, and the
/// first of two wins.
fn all_lead_here(fenced: &url_rewrite::Fenced, named: Option<&str>) -> io::Result<Result<(), Failed>> {
    let mut command = Command::new("git");
    if let Some(url) = named.filter(|named| named.contains([':', '/'])) {
        command.arg("-c").arg(format!("remote.leasehold-direct.url={url}"));
    }
    command.args(["remote", "--verbose"]).envs(fenced.variables.iter().cloned());
    let said = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let astray = text.lines().filter_map(|line| line.strip_suffix(" (push)")?.split_once('\t'));
    let mut astray = astray.filter(|(_, url)| !url_rewrite::leads_here(url));
    Ok(astray.next().map_or(Ok(()), |(remote, _)| {
        Err(Failed::config(format!(
            "your git settings send pushes to {remote} elsewhere by a rule (url.….insteadOf or pushInsteadOf) that \
             is as exact as the one that would fence them. Nothing was pushed. Make that rule shorter, or set \
             remote.{remote}.pushurl instead"
        )))
    }))
}

/// Why git did not come to us: it was about to push past the fence, which it may not. Asked again, for what
/// it said went straight to the user; nothing is sent by that.
fn past(fenced: &url_rewrite::Fenced, args: &[OsString]) -> io::Result<Option<Failed>> {
    let mut command = Command::new("git");
    command.args(["push", "--dry-run", "--no-verify"]).args(args).envs(fenced.variables.iter().cloned());
    let said = command.env("LC_ALL", "C").env_remove("LANGUAGE").stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    let denied = |line: &str| {
        line.strip_prefix("fatal: transport '")?.strip_suffix("' not allowed").map(str::to_owned)
    };
    Ok(text.lines().find_map(denied).map(|transport| {
        Failed::config(format!(
            "this push would have gone past the fence (over '{transport}', directly): it names a place that is no \
             remote of this clone and not the URL of one. Nothing was pushed. Give the place a name with `git remote \
             add NAME URL` and push to that; if branch.….pushRemote or remote.pushDefault is a URL or a path, set it \
             to that name. Submodules are pushed by themselves, in runs that name them"
        ))
    }))
}

fn install(dir: &Path, out: &Out) -> Result<u8, Failed> {
    let paths = hook::install(dir).map_err(|e| {
        let message = format!("cannot install the hooks in {}: {e}. Nothing was changed", dir.display());
        Failed::config(message)
    })?;
    if out.json {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        out.object(&json!({"v": 1, "installed": paths}));
    }
    for path in &paths {
        out.note(&format!("installed {}", path.display()));
    }
    out.note(
        "once a run has sealed this repository, its branches and tags move only together with the fence. Try it \
         then: a plain git push from outside a run must be refused",
    );
    Ok(exit::OK)
}

/// A file of its own; gone when it was read.
struct PushReport(PathBuf);

impl PushReport {
    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("leasehold-push-{:032x}", random::seed()));
        leasehold::state::write_private(&path, b"")?;
        Ok(Self(path))
    }

    /// Whether the helper has begun: then git was led to us.
    fn was_reached(&self) -> bool {
        fs::metadata(&self.0).is_ok_and(|found| found.len() > 0)
    }

    /// What the helper could not do, and what became of the push.
    fn failure(&self) -> Option<(Failed, String)> {
        let value: Value = serde_json::from_slice(&fs::read(&self.0).ok()?).ok()?;
        let code = value["code"].as_u64().and_then(|code| u8::try_from(code).ok())?;
        let text = |name: &str| value[name].as_str().unwrap_or_default();
        let word = WORDS.into_iter().find(|word| *word == text("word")).unwrap_or("push");
        Some((Failed::new(FailKind::of(code), word, text("message")), text("outcome").into()))
    }
}

impl Drop for PushReport {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether git has started us as its helper; the exit code then.
pub fn as_helper() -> Option<u8> {
    let mut args = std::env::args_os();
    let name = args.next()?;
    if !is_helper(Path::new(&name).file_name()?) {
        return None;
    }
    // Git calls us once for each place it pushes to: what the one before has to tell stays.
    if std::env::var_os(REPORT).is_some_and(|path| fs::metadata(path).is_ok_and(|found| found.len() == 0)) {
        report(&json!({"reached": true}));
    }
    let url = args.nth(1).and_then(|url| url.into_string().ok()).unwrap_or_default();
    let mut tell = |told: HelperNotice<'_>| match told {
        HelperNotice::LetIn(refused) => {
            Out::plain().warn(&format!("this push {}", target_args::let_in(refused)))
        }
        HelperNotice::Failed(error) => told_failure(error),
    };
    match remote_helper::serve(&url, io::stdin().lock(), io::stdout().lock(), &mut tell) {
        Ok(true) => Some(exit::OK),
        Ok(false) => Some(1),
        Err(e) => {
            Out::plain().warn(&format!("git went away: {e}"));
            Some(1)
        }
    }
}

fn told_failure(error: &TargetError) {
    let Failed { kind, told, .. } = target_args::failed(error);
    let message = told.to_string();
    let (outcome, word) = target_args::outcome(error);
    if !report(&json!({"code": kind.code(), "word": word, "message": message, "outcome": outcome})) {
        Out::plain().warn(&message);
    }
}

/// Tells `leasehold push`, if that is what called git; whether it did.
fn report(what: &Value) -> bool {
    std::env::var_os(REPORT).is_some_and(|path| fs::write(path, what.to_string()).is_ok())
}
