//! How a plain `git push` comes to us: settings in the environment that rewrite the guarded URLs, and
//! our program under the name of a remote helper on the path.
//!
//! The settings stand in the environment itself, behind whatever settings it has already. A file would be
//! shorter, but git passes over one that is gone, and the push would go past us. Only URLs that hold a
//! secret are in a private file, for an environment ends up in logs; the environment has the part before
//! the secret, so that such a push comes to us even if the file is gone. Whoever clears the environment
//! goes past it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::nest::{Nest, PREFIX, VARIABLE, as_io};
use super::tool::{ALLOWED, detours, settings, without_detour};
use super::{place, unfit};
use crate::state::StateDir;
use crate::targets::TargetError;

/// What stands for the remotes named `given`: where pushes go first, then all else they are called.
pub(super) fn urls_of(given: &str) -> Result<Vec<String>, TargetError> {
    if given.contains([':', '/']) {
        return Ok(vec![absolute(given)]);
    }
    let (mut fetch, mut push, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    for (name, kind, url) in remotes() {
        if name == given {
            if kind == "pushurl" {
                push.push(absolute(&url))
            } else {
                fetch.push(absolute(&url))
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
        return Ok(vec![absolute(given)]);
    }
    Ok(urls)
}

/// A path is written out, for the job may be elsewhere.
fn absolute(url: &str) -> String {
    match place::local(url) {
        Some(path) if path == url => {
            let path = std::path::absolute(url).unwrap_or_else(|_| PathBuf::from(url));
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

/// What a job's environment needs so that its pushes to what `nest` guards come to us.
pub(super) fn environment(nest: &Nest) -> io::Result<Vec<(OsString, OsString)>> {
    // A run inside a run under another lease: what the outer one guards is refused to it, not open to it.
    if let Some(around) = Nest::around()? {
        for target in around.targets()? {
            nest.guard(&target.url, &target.also)?;
        }
    }
    let helper = nest.link(&std::env::current_exe()?)?;
    let mut rules = Rules::default();
    for target in nest.targets()? {
        for url in std::iter::once(&target.url).chain(&target.also) {
            place::spellings(url).iter().for_each(|spelling| rules.add(spelling, url));
        }
    }
    let mut all = manners(&helper);
    all.extend(rules.open);
    if !rules.secret.is_empty() {
        nest.save("config", rules.secret.as_bytes())?;
        all.push(("include.path".into(), nest.path().join("config").into()));
    }
    let mut path = nest.path().as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    // Behind all others: of what is said twice the last counts.
    let first = settings();
    let count = (first + all.len()).to_string();
    let mut variables: Vec<(OsString, OsString)> = vec![
        (VARIABLE.into(), nest.path().into()),
        ("PATH".into(), path),
        ("GIT_CONFIG_COUNT".into(), count.into()),
    ];
    // The outer run's rules are among ours now; its helper must not be asked by ours.
    for number in detours() {
        variables.push((format!("GIT_CONFIG_KEY_{number}").into(), "leasehold.passed".into()));
    }
    for (number, (key, value)) in (first..).zip(all) {
        variables.push((format!("GIT_CONFIG_KEY_{number}").into(), key.into()));
        variables.push((format!("GIT_CONFIG_VALUE_{number}").into(), value));
    }
    if let Some(mut allowed) = std::env::var_os("GIT_ALLOW_PROTOCOL") {
        allowed.push(":leasehold");
        variables.push(("GIT_ALLOW_PROTOCOL".into(), allowed));
    }
    Ok(variables)
}

type Setting = (String, OsString);

/// The settings that do not depend on what is guarded.
fn manners(helper: &Path) -> Vec<Setting> {
    let quoted = helper.display().to_string().replace('\'', "'\\''");
    // Where the job has set a path of its own git does not find us there, and tries its aliases; the same
    // where the helper is gone.
    let alias = format!(
        "!test -x '{quoted}' || {{ echo 'leasehold: the directory that this run keeps for git is gone, so \
         this push cannot be fenced. Nothing was pushed. Start the run again' >&2; exit 1; }}; exec '{quoted}'"
    );
    // Housekeeping that git leaves running would outlive the job and be ended with it.
    [
        ("protocol.leasehold.allow", "always"),
        ("alias.remote-leasehold", &alias),
        ("gc.autoDetach", "false"),
        ("maintenance.autoDetach", "false"),
    ]
    .map(|(key, value)| (key.into(), value.into()))
    .into()
}

/// What sends git to us.
#[derive(Default)]
struct Rules {
    /// For all to see.
    open: Vec<Setting>,
    /// The text of a private file.
    secret: String,
}

impl Rules {
    fn add(&mut self, spelling: &str, url: &str) {
        let Some(before) = place::before_secret(spelling, url) else {
            return self.say(spelling, &["insteadOf", "pushInsteadOf"]);
        };
        let key = spelling.replace('\\', "\\\\").replace('"', "\\\"");
        self.secret.push_str(&format!(
            "[url \"{PREFIX}{key}\"]\n\tinsteadOf = \"{key}\"\n\tpushInsteadOf = \"{key}\"\n"
        ));
        // Whatever begins like it comes to us, and is passed on if it is not guarded. Where nothing but the
        // scheme is left, pushes only: too much begins like that.
        if !before.ends_with('/') && !before.is_empty() {
            self.say(before, &["insteadOf", "pushInsteadOf"]);
        } else if place::is_http(before) {
            self.say(before, &["pushInsteadOf"]);
        }
    }

    fn say(&mut self, spelling: &str, kinds: &[&str]) {
        for kind in kinds {
            let setting = (format!("url.{PREFIX}{spelling}.{kind}"), OsString::from(spelling));
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
    _nest: Option<Arc<Nest>>,
}

/// Prepares it for every remote of the clone around us, and for `named`, what the user named. The URLs of
/// a run around us are covered already. Whatever is not covered git refuses: it may speak to us only.
pub fn fenced(named: Option<&str>) -> io::Result<Fenced> {
    let mut urls: Vec<String> = remotes().into_iter().map(|(_, _, url)| url).collect();
    urls.extend(named.filter(|named| named.contains([':', '/'])).map(str::to_owned));
    let around = Nest::around()?;
    let covered = |url: &String| match &around {
        Some(around) => around.find(url).map(|found| found.is_some()),
        None => Ok(false),
    };
    let mut all = around.is_some();
    for url in &urls {
        all = all && covered(url)?;
    }
    let (mut variables, mut nest) = (Vec::new(), None);
    if !all {
        let made = Nest::shared(&StateDir::locate(|name| std::env::var_os(name)).map_err(as_io)?)?;
        for url in &urls {
            made.guard(&absolute(url), std::slice::from_ref(url))?;
        }
        variables = environment(&made)?;
        nest = Some(made);
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
    variables.push(("GIT_ALLOW_PROTOCOL".into(), "leasehold".into()));
    Ok(Fenced { variables, _nest: nest })
}
