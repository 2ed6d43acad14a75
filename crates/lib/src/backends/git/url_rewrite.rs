//! How a plain `git push` comes to us: settings in the environment that rewrite the guarded URLs, and
//! our program under the name of a remote helper on the path.
//!
//! The settings stand in the environment itself, behind whatever settings it has already. A file would be
//! shorter, but git passes over one that is gone, and the push would go past us. Only URLs that hold a
//! secret are in a private file, for an environment ends up in logs; the environment has the part before
//! the secret, so that such a push comes to us even if the file is gone. Whoever clears the environment
//! goes past it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::repo_url::RepoIdentity;
use super::run_dir::{self, PREFIX, RunDir, VARIABLE, as_io};
use super::tool::{ALLOWED, THERE, detours, knowing, settings, without_detour};
use super::{repo_url, unfit};
use crate::state::StateDir;
use crate::targets::{TargetError, Variables};
use crate::text::shell_quoted;

/// What stands for the remotes named `given`: where pushes go first, then all else they are called.
pub(super) fn urls_of(given: &str) -> Result<Vec<String>, TargetError> {
    if given.contains([':', '/']) {
        return Ok(vec![absolute(given, Path::new(""))]);
    }
    let (mut fetch, mut push, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    let top = top();
    for (name, kind, url) in remotes() {
        if name == given {
            if kind == "pushurl" {
                push.push(absolute(&url, &top))
            } else {
                fetch.push(absolute(&url, &top))
            }
            raw.push(url);
        }
    }
    let places = if push.is_empty() { &fetch } else { &push };
    if places.len() > 1 {
        let (why, fix) = ("pushes to several places, and a fence is in one", "Write the URL of the one");
        return Err(unfit(&format!("git:{given}"), why, fix));
    }
    // As it is written there too: that is what git compares with.
    let urls: Vec<String> = push.into_iter().chain(fetch).chain(raw).collect();
    if urls.is_empty() && std::path::Path::new(given).is_dir() {
        return Ok(vec![absolute(given, Path::new(""))]);
    }
    Ok(urls)
}

/// What else the remotes of the clone around us call the repository that `urls` mean: git compares what is
/// written there, letter by letter. Settings of the user's own may lead from one name to the other.
pub(super) fn also_called(urls: &[String]) -> Vec<String> {
    let top = top();
    let mut wanted: Vec<RepoIdentity> =
        urls.iter().map(|url| repo_url::identity(&absolute(url, &top))).collect();
    if let Some(url) = urls.first() {
        let goes = answer(knowing(url).args(["ls-remote", "--get-url", THERE]));
        wanted.extend(goes.map(|goes| repo_url::identity(&absolute(goes.trim_end(), &top))));
    }
    let is_it = |url: &str| wanted.contains(&repo_url::identity(&absolute(url, &top)));
    let (remotes, goes) = (remotes(), asked(&["remote", "--verbose"]).unwrap_or_default());
    let mut all = Vec::new();
    for (name, _, url) in &remotes {
        let lines = goes.lines().filter_map(|line| line.strip_suffix(" (push)")?.split_once('\t'));
        let goes: Vec<&str> = lines.filter(|(remote, _)| remote == name).map(|(_, goes)| goes).collect();
        // Where it has several there is no telling which of them becomes which, but by itself.
        let leads = matches!(goes[..], [goes] if is_it(goes));
        if is_it(url) || leads && remotes.iter().filter(|(other, ..)| other == name).count() == 1 {
            all.extend([url.clone(), absolute(url, &top)]);
        }
    }
    for path in wanted.iter().filter_map(|wanted| wanted.local()).filter(|_| top.is_absolute()) {
        // What does not begin with dots begins like too much else.
        let way = repo_url::way(&top, path);
        all.extend(way.to_str().filter(|way| way.starts_with("../")).map(str::to_owned));
    }
    all
}

/// Where pushes to a remote of the clone around us go, if there is one of this name.
pub(super) fn push_url(remote: &str) -> Option<String> {
    asked(&["remote", "get-url", "--push", "--", remote])
}

/// What git says, if it goes well.
fn asked(args: &[&str]) -> Option<String> {
    answer(without_detour("git").args(args))
}

fn answer(command: &mut Command) -> Option<String> {
    let said = command.output().ok()?;
    said.status.success().then(|| String::from_utf8_lossy(&said.stdout).into_owned())
}

/// Where git is when it looks at a relative path, wherever it was started; empty: here.
fn top() -> PathBuf {
    let found =
        asked(&["rev-parse", "--show-toplevel"]).or_else(|| asked(&["rev-parse", "--absolute-git-dir"]));
    found.map(|path| PathBuf::from(path.trim_end_matches('\n'))).unwrap_or_default()
}

/// Why git does not even look at the clone we are in; nothing: it does, or there is none.
pub(super) fn distrust() -> Option<String> {
    let said = without_detour("git").args(["rev-parse", "--git-dir"]).output().ok()?;
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    said.contains("dubious ownership").then(|| lines.join(" "))
}

/// A path is written out, as seen from `base`, for the job may be elsewhere.
fn absolute(url: &str, base: &Path) -> String {
    match repo_url::local(url) {
        Some(path) if path == url => {
            let path = std::path::absolute(base.join(url)).unwrap_or_else(|_| PathBuf::from(url));
            path.to_str().map_or_else(|| url.into(), str::to_owned)
        }
        _ => url.into(),
    }
}

/// The remotes of the clone around us: name, `url` or `pushurl`, and the URL.
fn remotes() -> Vec<(String, String, String)> {
    let said = without_detour("git")
        .args(["config", "--null", "--get-regexp", r"^remote\..*\.(push)?url$"])
        .output();
    let said = said.map(|said| said.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&said).into_owned();
    let remote = |entry: &str| {
        let (key, url) = entry.split_once('\n')?;
        let (name, kind) = key.strip_prefix("remote.")?.rsplit_once('.')?;
        Some((name.to_owned(), kind.to_owned(), url.to_owned()))
    };
    text.split('\0').filter_map(remote).collect()
}

/// What sends the pushes of a job to us.
#[derive(Debug)]
pub(super) struct Detour {
    run_dir: PathBuf,
    settings: Vec<Setting>,
}

/// The way to us for pushes to what `run_dir` guards.
pub(super) fn detour(run_dir: &RunDir) -> io::Result<Detour> {
    // A run inside a run under another lease: what the outer one guards is refused to it, not open to it.
    if let Some(around) = RunDir::around()? {
        for target in around.targets()? {
            run_dir.guard(&target.url, &target.also)?;
        }
    }
    let helper = run_dir.link(&std::env::current_exe()?)?;
    let explicit =
        remotes().into_iter().filter(|(_, kind, _)| kind == "pushurl").map(|(.., url)| url).collect();
    let mut rules = RewriteRules { explicit, ..RewriteRules::default() };
    for target in run_dir.targets()? {
        for url in std::iter::once(&target.url).chain(&target.also) {
            repo_url::spellings(url).iter().for_each(|spelling| rules.add(spelling, url));
        }
    }
    let mut all = manners(&helper, &rules);
    all.extend(rules.open);
    if !rules.secret.is_empty() {
        run_dir.save("config", rules.secret.as_bytes())?;
        all.push(("include.path".into(), run_dir.path().join("config").into()));
    }
    Ok(Detour { run_dir: run_dir.path().into(), settings: all })
}

impl Detour {
    /// What a job's environment needs beside what it has.
    pub(super) fn variables(&self, has: Variables<'_>) -> Vec<(OsString, OsString)> {
        let mut path = self.run_dir.as_os_str().to_owned();
        if let Some(rest) = has("PATH") {
            path.push(":");
            path.push(rest);
        }
        // Behind all others: of what is said twice the last counts.
        let first = settings(has);
        let count = (first + self.settings.len()).to_string();
        let mut variables: Vec<(OsString, OsString)> = vec![
            (VARIABLE.into(), self.run_dir.clone().into()),
            ("PATH".into(), path),
            ("GIT_CONFIG_COUNT".into(), count.into()),
        ];
        // The outer run's rules are among ours now; its helper must not be asked by ours.
        for number in detours(has) {
            variables.push((format!("GIT_CONFIG_KEY_{number}").into(), "leasehold.passed".into()));
        }
        for (number, (key, value)) in (first..).zip(&self.settings) {
            variables.push((format!("GIT_CONFIG_KEY_{number}").into(), key.into()));
            variables.push((format!("GIT_CONFIG_VALUE_{number}").into(), value.clone()));
        }
        if let Some(mut allowed) = has("GIT_ALLOW_PROTOCOL") {
            allowed.push(":");
            allowed.push(transports());
            variables.push(("GIT_ALLOW_PROTOCOL".into(), allowed));
        }
        variables
    }
}

type Setting = (String, OsString);

/// What git may speak if it is to speak to us.
fn transports() -> String {
    let all: Vec<String> = std::iter::once("leasehold".to_owned()).chain(run_dir::veils()).collect();
    all.join(":")
}

/// Whether git goes to us for this URL.
pub fn leads_here(url: &str) -> bool {
    url.starts_with(PREFIX) || repo_url::unveiled(url) != url
}

/// The settings that do not depend on what is guarded.
fn manners(helper: &Path, rules: &RewriteRules) -> Vec<Setting> {
    let quoted = shell_quoted(&helper.display().to_string());
    // Where the job has set a path of its own git does not find us there, and tries its aliases; the same
    // where the helper is gone.
    let alias = format!(
        "!test -x {quoted} || {{ echo 'leasehold: the directory that this run keeps for git is gone, so \
         this push cannot be fenced. Nothing was pushed. Start the run again' >&2; exit 1; }}; exec {quoted}"
    );
    // Housekeeping that git leaves running would outlive the job and be ended with it.
    let mut all: Vec<Setting> =
        ["gc.autoDetach", "maintenance.autoDetach"].map(|key| (key.into(), "false".into())).into();
    let used = run_dir::veils().filter(|veil| rules.veils.contains(veil));
    for transport in std::iter::once("leasehold".to_owned()).chain(used) {
        all.push((format!("protocol.{transport}.allow"), "always".into()));
        all.push((format!("alias.remote-{transport}"), alias.clone().into()));
    }
    all
}

/// What sends git to us.
#[derive(Default)]
struct RewriteRules {
    /// For all to see.
    open: Vec<Setting>,
    /// The text of a private file.
    secret: String,
    /// Where remotes of this clone push by a URL for pushing only: git leaves it alone but for `insteadOf`.
    explicit: Vec<String>,
    /// The helpers for URLs with a secret that are needed.
    veils: BTreeSet<String>,
}

impl RewriteRules {
    fn add(&mut self, spelling: &str, url: &str) {
        let Some(before) = repo_url::before_secret(spelling, url) else {
            return self.say(spelling, &["insteadOf", "pushInsteadOf"]);
        };
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let (base, key) = (quoted(&self.base(spelling, true)), quoted(spelling));
        self.secret
            .push_str(&format!("[url \"{base}\"]\n\tinsteadOf = \"{key}\"\n\tpushInsteadOf = \"{key}\"\n"));
        // Whatever begins like it comes to us, and is passed on if it is not guarded. Where nothing but the
        // scheme is left, pushes only: too much begins like that.
        if !before.ends_with('/') && !before.is_empty() {
            self.say_of(before, &["insteadOf", "pushInsteadOf"], true);
        } else if repo_url::is_http(before) {
            let explicit = self.explicit.iter().any(|other| other == url);
            let kinds: &[&str] = if explicit { &["insteadOf", "pushInsteadOf"] } else { &["pushInsteadOf"] };
            self.say_of(before, kinds, true);
        }
    }

    /// What it becomes: with a secret in it, in a way that git does not show it.
    fn base(&mut self, spelling: &str, secret: bool) -> String {
        let veiled = repo_url::veiled(spelling).filter(|_| secret);
        self.veils.extend(veiled.iter().filter_map(|url| Some(url.split_once("://")?.0.to_owned())));
        veiled.unwrap_or_else(|| format!("{PREFIX}{spelling}"))
    }

    fn say(&mut self, spelling: &str, kinds: &[&str]) {
        self.say_of(spelling, kinds, false);
    }

    fn say_of(&mut self, spelling: &str, kinds: &[&str], secret: bool) {
        let base = self.base(spelling, secret);
        for kind in kinds {
            let setting = (format!("url.{base}.{kind}"), OsString::from(spelling));
            if !self.open.contains(&setting) {
                self.open.push(setting);
            }
        }
    }
}

/// A `git push` that is fenced wherever it goes: for `leasehold push`. Gone with it: its private directory.
#[derive(Debug)]
pub struct Fenced {
    /// What git's environment needs.
    pub variables: Vec<(OsString, OsString)>,
    _nest: Option<Arc<RunDir>>,
}

/// Prepares it for every remote of the clone around us, and for `named`, what the user named. The URLs of
/// a run around us are covered already. Whatever is not covered git refuses: it may speak to us only.
pub fn fenced(named: Option<&str>) -> io::Result<Fenced> {
    let top = top();
    let mut urls: Vec<String> = remotes().into_iter().map(|(_, _, url)| url).collect();
    urls.extend(named.filter(|named| named.contains([':', '/'])).map(str::to_owned));
    let around = RunDir::around()?;
    let covered = |url: &String| match &around {
        Some(around) => around.find(&absolute(url, &top)).map(|found| found.is_some()),
        None => Ok(false),
    };
    let mut all = around.is_some();
    for url in &urls {
        all = all && covered(url)?;
    }
    let (mut variables, mut run_dir) = (Vec::new(), None);
    if !all {
        let made = RunDir::shared(&StateDir::locate(|name| std::env::var_os(name)).map_err(as_io)?)?;
        for url in &urls {
            made.guard(&absolute(url, &top), std::slice::from_ref(url))?;
        }
        variables = detour(&made)?.variables(&|name| std::env::var_os(name));
        run_dir = Some(made);
    }
    // What the user allows is for the git that the helper calls.
    if std::env::var_os(ALLOWED).is_none() {
        let mut allowed = OsString::new();
        if let Some(given) = std::env::var_os("GIT_ALLOW_PROTOCOL") {
            allowed.push("=");
            allowed.push(given);
        }
        variables.push((ALLOWED.into(), allowed));
    }
    variables.push(("GIT_ALLOW_PROTOCOL".into(), transports().into()));
    Ok(Fenced { variables, _nest: run_dir })
}
