//! How a plain `git push` comes to us: settings in the environment that rewrite the guarded URLs, and
//! our program under the name of a remote helper on the path.
//!
//! The settings are one `include.path`, behind whatever settings the environment has already; what it
//! names is private, for URLs may hold secrets. Whoever clears the environment goes past it.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::nest::{Nest, VARIABLE};
use super::tool::{detour_around, settings, without_detour};
use super::unfit;
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
    match super::place::local(url) {
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

/// What a job's environment needs so that its pushes to `urls` come to us.
pub(super) fn environment(nest: &Nest, urls: &[String]) -> io::Result<Vec<(OsString, OsString)>> {
    // A run inside a run under another lease: what the outer one guards is refused to it, not open to it.
    for target in Nest::around().iter().flat_map(Nest::targets) {
        nest.guard(&target.url)?;
    }
    let guarded = nest.targets();
    let all = guarded.iter().map(|target| target.url.as_str()).chain(urls.iter().map(String::as_str));
    let config = nest.detour(&std::env::current_exe()?, all)?;
    // In place of the detour of a run around us, if there is one; behind all other settings otherwise.
    let number = detour_around().unwrap_or_else(settings);
    let mut path = nest.path().as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    let mut variables: Vec<(OsString, OsString)> = vec![
        (VARIABLE.into(), nest.path().into()),
        ("PATH".into(), path),
        ("GIT_CONFIG_COUNT".into(), settings().max(number + 1).to_string().into()),
        (format!("GIT_CONFIG_KEY_{number}").into(), "include.path".into()),
        (format!("GIT_CONFIG_VALUE_{number}").into(), config.into()),
    ];
    if let Some(mut allowed) = std::env::var_os("GIT_ALLOW_PROTOCOL") {
        allowed.push(":leasehold");
        variables.push(("GIT_ALLOW_PROTOCOL".into(), allowed));
    }
    Ok(variables)
}

/// A `git push` that is fenced wherever it goes: for `leasehold push`. Gone with it: its private directory.
#[derive(Debug)]
pub struct Fenced {
    /// What git's environment needs.
    pub variables: Vec<(OsString, OsString)>,
    _nest: Option<Arc<Nest>>,
}

/// Prepares it for every remote of the clone around us, and for `named`, what the user named. The URLs of
/// a run around us are covered already.
pub fn fenced(named: Option<&str>) -> io::Result<Fenced> {
    let mut urls: Vec<String> = remotes().into_iter().map(|(_, _, url)| url).collect();
    urls.extend(named.filter(|named| named.contains([':', '/'])).map(str::to_owned));
    if let Some(around) = Nest::around()
        && urls.iter().all(|url| around.find(url).is_some())
    {
        return Ok(Fenced { variables: Vec::new(), _nest: None });
    }
    let nest = Nest::shared()?;
    for url in &urls {
        nest.guard(&absolute(url))?;
    }
    let variables = environment(&nest, &urls)?;
    Ok(Fenced { variables, _nest: Some(nest) })
}
