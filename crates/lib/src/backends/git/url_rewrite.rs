//! How a plain `git push` reaches Leasehold: settings in the environment rewrite the guarded URLs, and our
//! program is on the path under the name of a remote helper.
//!
//! The settings are in the environment itself, after the ones that are there already. A settings file would be
//! shorter, but git ignores a missing one, and the push would not be fenced. Only URLs with a secret are in a
//! private file, because environments end up in logs. For those the environment has the part before the secret,
//! so that such a push reaches us even if the file is gone. A job that clears the environment bypasses all this.

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

/// The URLs of the remote `given`: first the one that pushes go to, then its other spellings.
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
        let (why, fix) = ("has several push URLs, and a fence is in one repository", "Write one URL");
        return Err(unfit(&format!("git:{given}"), why, fix));
    }
    // Also as it is written in the settings, because git compares with that.
    let urls: Vec<String> = push.into_iter().chain(fetch).chain(raw).collect();
    if urls.is_empty() && std::path::Path::new(given).is_dir() {
        return Ok(vec![absolute(given, Path::new(""))]);
    }
    Ok(urls)
}

/// Other URLs in the clone around us for the repository that `urls` mean. Git compares URLs as they are written in
/// its settings, and the user's own settings may rewrite one to another.
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
        // With several URLs it is unknown which one is rewritten to which.
        let leads = matches!(goes[..], [goes] if is_it(goes));
        if is_it(url) || leads && remotes.iter().filter(|(other, ..)| other == name).count() == 1 {
            all.extend([url.clone(), absolute(url, &top)]);
        }
    }
    for path in wanted.iter().filter_map(|wanted| wanted.local()).filter(|_| top.is_absolute()) {
        // A path without leading dots would be the first part of too many others.
        let way = repo_url::way(&top, path);
        all.extend(way.to_str().filter(|way| way.starts_with("../")).map(str::to_owned));
    }
    all
}

/// The push URL of a remote of the clone around us, if there is a remote of this name.
pub(super) fn push_url(remote: &str) -> Option<String> {
    asked(&["remote", "get-url", "--push", "--", remote])
}

/// Git's output, if it succeeds.
fn asked(args: &[&str]) -> Option<String> {
    answer(without_detour("git").args(args))
}

fn answer(command: &mut Command) -> Option<String> {
    let said = command.output().ok()?;
    said.status.success().then(|| String::from_utf8_lossy(&said.stdout).into_owned())
}

/// The directory from which git resolves a relative path; empty: the current one.
fn top() -> PathBuf {
    let found =
        asked(&["rev-parse", "--show-toplevel"]).or_else(|| asked(&["rev-parse", "--absolute-git-dir"]));
    found.map(|path| PathBuf::from(path.trim_end_matches('\n'))).unwrap_or_default()
}

/// Git's message if it does not trust the clone we are in.
pub(super) fn distrust() -> Option<String> {
    let said = without_detour("git").args(["rev-parse", "--git-dir"]).output().ok()?;
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    said.contains("dubious ownership").then(|| lines.join(" "))
}

/// Makes a path absolute, starting from `base`, because the job may run in another directory.
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

/// The settings that send the pushes of a job to us.
#[derive(Debug)]
pub(super) struct Detour {
    run_dir: PathBuf,
    settings: Vec<Setting>,
}

/// The settings for pushes to the repositories that `run_dir` guards.
pub(super) fn detour(run_dir: &RunDir) -> io::Result<Detour> {
    // Inside another run: what the outer run guards is refused here, so it must be guarded here too.
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
    let mut all = fixed_settings(&helper, &rules);
    all.extend(rules.open);
    if !rules.secret.is_empty() {
        run_dir.save("config", rules.secret.as_bytes())?;
        all.push(("include.path".into(), run_dir.path().join("config").into()));
    }
    Ok(Detour { run_dir: run_dir.path().into(), settings: all })
}

impl Detour {
    /// The variables to add to a job's environment.
    pub(super) fn variables(&self, has: Variables<'_>) -> Vec<(OsString, OsString)> {
        let mut path = self.run_dir.as_os_str().to_owned();
        if let Some(rest) = has("PATH") {
            path.push(":");
            path.push(rest);
        }
        // After all others: git uses the last of two equal settings.
        let first = settings(has);
        let count = (first + self.settings.len()).to_string();
        let mut variables: Vec<(OsString, OsString)> = vec![
            (VARIABLE.into(), self.run_dir.clone().into()),
            ("PATH".into(), path),
            ("GIT_CONFIG_COUNT".into(), count.into()),
        ];
        // The outer run's rules are among ours now, so its own settings are disabled.
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

/// The protocols that git must be allowed to use to reach us.
fn transports() -> String {
    let all: Vec<String> = std::iter::once("leasehold".to_owned()).chain(run_dir::secret_schemes()).collect();
    all.join(":")
}

/// Whether git uses our helper for this URL.
pub fn leads_here(url: &str) -> bool {
    url.starts_with(PREFIX) || repo_url::without_secret_scheme(url) != url
}

/// The settings that do not depend on the guarded URLs.
fn fixed_settings(helper: &Path, rules: &RewriteRules) -> Vec<Setting> {
    let quoted = shell_quoted(&helper.display().to_string());
    // If the job has changed PATH, or the helper is gone, git does not find it and tries an alias.
    let alias = format!(
        "!test -x {quoted} || {{ echo 'leasehold: the directory that this run keeps for git is gone, so \
         this push cannot be fenced. Nothing was pushed. Start the run again' >&2; exit 1; }}; exec {quoted}"
    );
    // Git's housekeeping would outlive the job in the background, and be killed with it.
    let mut all: Vec<Setting> =
        ["gc.autoDetach", "maintenance.autoDetach"].map(|key| (key.into(), "false".into())).into();
    let used = run_dir::secret_schemes().filter(|scheme| rules.secret_schemes.contains(scheme));
    for transport in std::iter::once("leasehold".to_owned()).chain(used) {
        all.push((format!("protocol.{transport}.allow"), "always".into()));
        all.push((format!("alias.remote-{transport}"), alias.clone().into()));
    }
    all
}

/// The rules that rewrite URLs.
#[derive(Default)]
struct RewriteRules {
    /// Rules in the environment.
    open: Vec<Setting>,
    /// The text of the private file.
    secret: String,
    /// The values of `pushurl` in this clone. Git applies only `insteadOf` to them.
    explicit: Vec<String>,
    /// The schemes of the needed helpers for URLs with a secret.
    secret_schemes: BTreeSet<String>,
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
        // All URLs that begin with the part before the secret come to us, and we pass on those that are not guarded. If
        // that part is only the scheme, only pushes are rewritten, because too many URLs begin like that.
        if !before.ends_with('/') && !before.is_empty() {
            self.say_of(before, &["insteadOf", "pushInsteadOf"], true);
        } else if repo_url::is_http(before) {
            let explicit = self.explicit.iter().any(|other| other == url);
            let kinds: &[&str] = if explicit { &["insteadOf", "pushInsteadOf"] } else { &["pushInsteadOf"] };
            self.say_of(before, kinds, true);
        }
    }

    /// The URL that it is rewritten to. With a secret in it, git does not show that part.
    fn base(&mut self, spelling: &str, secret: bool) -> String {
        let with_secret_scheme = repo_url::with_secret_scheme(spelling).filter(|_| secret);
        self.secret_schemes
            .extend(with_secret_scheme.iter().filter_map(|url| Some(url.split_once("://")?.0.to_owned())));
        with_secret_scheme.unwrap_or_else(|| format!("{PREFIX}{spelling}"))
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

/// The environment of a `git push` that is fenced for every URL, for `leasehold push`. Dropping it removes its directory.
#[derive(Debug)]
pub struct Fenced {
    /// The variables for git's environment.
    pub variables: Vec<(OsString, OsString)>,
    _run_dir: Option<Arc<RunDir>>,
}

/// Prepares it for every remote of the clone around us, and for the repository that the user `named`. The URLs of
/// a run around us are covered already. Git refuses all other URLs, because it may only use our protocols.
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
    // The user's own setting is for the git that the helper runs.
    if std::env::var_os(ALLOWED).is_none() {
        let mut allowed = OsString::new();
        if let Some(given) = std::env::var_os("GIT_ALLOW_PROTOCOL") {
            allowed.push("=");
            allowed.push(given);
        }
        variables.push((ALLOWED.into(), allowed));
    }
    variables.push(("GIT_ALLOW_PROTOCOL".into(), transports().into()));
    Ok(Fenced { variables, _run_dir: run_dir })
}
