//! Which store is used: that of the flag, the environment, ./leasehold.toml, the user's configuration, or the embedded one.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::backends::{self, EMBEDDED, Holders, embedded, is_masked, shown};
use leasehold::core::name::Name;
use leasehold::doctor;
use leasehold::run_log::Retention;
use leasehold::seen_tokens::{OtherStore, SeenTokens};
use leasehold::state::StateDir;
use leasehold::stores::{Failure, FailureKind, OpenError, Opener, Store};
use leasehold::text::shell_quoted;
use leasehold_run::config_file::{self, BadFile, KEYS, PROJECT_KEYS, Reader, Section};
use leasehold_run::duration;
use leasehold_run::notify::AlertSettings;

use crate::args::Everywhere;
use crate::exit::{FailKind, Failed, by_kind};
use crate::messages::config as say;
use crate::out::Out;

/// What to do about a place that is no store yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A mistyped path or a share that is not mounted must not become a second store.
    Refuse,
    /// `leasehold use` makes it.
    Create,
}

/// The store to use, and where it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The URL that opens it.
    pub url: String,
    /// The URL without a password, for people.
    pub shown: String,
    /// No store was named.
    pub embedded: bool,
    /// Where it was named; empty if it is the embedded one.
    pub origin: String,
    /// `new_here` of the file that names it: other stores, whose keys and slots may be done again on this one.
    pub new_here: Vec<String>,
}

fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The user's state directory, checked.
pub fn state_dir() -> Result<StateDir, Failed> {
    let checked = StateDir::locate(env).and_then(|dir| dir.ensure().map(|()| dir));
    checked.map_err(|e| match e.denied() {
        true => Failed::new(FailKind::Denied, "denied", e.explanation()),
        false => Failed::config(e.explanation()),
    })
}

/// The value of a variable that names the store. An empty one is probably a secret that was not passed on, so it does not
/// mean the store of this machine.
fn named_by(variable: &str) -> Result<Option<OsString>, Failed> {
    match std::env::var_os(variable) {
        Some(value) if value.to_str().is_some_and(|text| text.trim().is_empty()) => {
            Err(say::empty_variable(variable))
        }
        value => Ok(value),
    }
}

/// Decides which store to use.
pub fn choose(flags: &Everywhere, state: &StateDir) -> Result<Chosen, Failed> {
    let here = Path::new("");
    if let Some(url) = &flags.store {
        return named(url, "--store", here);
    }
    if let Some(url) = named_by("LEASEHOLD_STORE")? {
        let url = url.into_string().map_err(|_| say::not_text("LEASEHOLD_STORE"))?;
        return named(&url, "LEASEHOLD_STORE", here);
    }
    if let Some(file) = named_by("LEASEHOLD_STORE_FILE")? {
        let url = secret(Path::new(&file), "LEASEHOLD_STORE_FILE")?;
        return named(&url, "LEASEHOLD_STORE_FILE", here);
    }
    if let Some(chosen) = of_project(flags)? {
        return Ok(chosen);
    }
    let user = user_config().map(|path| read_config(&path, Whose::User)).transpose()?.flatten();
    if let Some((url, path)) = user.and_then(|found| found.store) {
        return named(&url, &path.display().to_string(), beside(&path));
    }
    let url = embedded(&state.database());
    Ok(Chosen { shown: url.clone(), url, embedded: true, origin: String::new(), new_here: Vec::new() })
}

/// The store that the project here names.
pub fn of_project(flags: &Everywhere) -> Result<Option<Chosen>, Failed> {
    let project = match &flags.config {
        Some(path) => Some(read_config(path, Whose::Project)?.ok_or_else(|| BadFile::missing(path))?),
        None => read_config(Path::new("leasehold.toml"), Whose::Project)?,
    };
    let Some(ConfigFile { store: Some((url, path)), new_here, .. }) = project else { return Ok(None) };
    let chosen = named(&url, &path.display().to_string(), beside(&path))?;
    Ok(Some(Chosen { new_here, ..chosen }))
}

/// What the project or else the user wants, beside the store.
pub struct Wishes {
    /// How long the run log is kept.
    pub retention: Retention,
    /// Who is told if something goes wrong.
    pub alerts: Option<AlertSettings>,
}

/// Reads them. A file that cannot be read is told of where the store is chosen, and changes nothing here.
pub fn wishes(flags: &Everywhere) -> Wishes {
    let project = flags.config.as_deref().unwrap_or(Path::new("leasehold.toml"));
    let files =
        [Some((project.to_path_buf(), Whose::Project)), user_config().map(|path| (path, Whose::User))];
    let files =
        files.into_iter().flatten().filter_map(|(path, whose)| read_config(&path, whose).ok().flatten());
    let (mut age, mut per_job, mut alerts) = (None, None, None);
    for file in files {
        age = age.or(file.keep_log);
        per_job = per_job.or(file.keep_log_runs);
        alerts = alerts.or(file.alerts);
    }
    let default = Retention::default();
    let retention =
        Retention { age: age.unwrap_or(default.age), per_job: per_job.unwrap_or(default.per_job) };
    Wishes { retention, alerts }
}

/// The directory that relative paths in a file start from.
pub fn beside(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// A store that is an argument of the command.
pub fn argument(url: &str, origin: &str) -> Result<Chosen, Failed> {
    named(url, origin, Path::new(""))
}

/// A store by its URL; a relative path in it starts from `base`.
fn named(url: &str, origin: &str, base: &Path) -> Result<Chosen, Failed> {
    let url = url.trim();
    if is_masked(url) {
        return Err(say::masked(origin, url));
    }
    let url = backends::named_store(url, origin, base).map_err(say::bad_url)?;
    Ok(Chosen { shown: shown(&url), url, embedded: false, origin: origin.into(), new_here: Vec::new() })
}

/// The variable or file that names another store and goes before the user's configuration.
pub fn overriding(flags: &Everywhere, chosen: &Chosen) -> Option<String> {
    let set = |name: &&&str| std::env::var_os(name).is_some();
    if let Some(name) = ["LEASEHOLD_STORE", "LEASEHOLD_STORE_FILE"].iter().find(set) {
        return Some((*name).into());
    }
    let path = flags.config.as_deref().unwrap_or(Path::new("./leasehold.toml"));
    // One that cannot be read goes before it as well.
    let another = of_project(flags).map_or(true, |named| named.is_some_and(|named| named.url != chosen.url));
    another.then(|| path.display().to_string())
}

/// The content of a configuration file.
struct ConfigFile {
    /// Its URL, and the file that names it.
    store: Option<(String, PathBuf)>,
    new_here: Vec<String>,
    /// How long the run log is kept.
    keep_log: Option<Option<Duration>>,
    /// How many records of a job are kept.
    keep_log_runs: Option<Option<usize>>,
    alerts: Option<AlertSettings>,
}

/// Whose configuration it is: jobs belong to a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Project,
    User,
}

/// Reads only the store: a mistake in one job must not stop runs of others.
fn read_config(path: &Path, whose: Whose) -> Result<Option<ConfigFile>, Failed> {
    let Some(text) = config_file::text_of(path)? else { return Ok(None) };
    let reader = Reader::new(&text, path);
    let file = reader.file()?;
    check_keys(&file, whose)?;
    let (url, secret_in) = (file.text("store")?, file.text("store_file")?);
    if url.is_some() && secret_in.is_some() {
        return Err(file.bad("store_file", &say::two_stores()).into());
    }
    let url = match secret_in {
        Some(place) => Some(secret(&beside(path).join(place), "store_file")?),
        None => url,
    };
    // As they are remembered: without passwords.
    let other =
        |url: &String| backends::named_store(url.trim(), "new_here", beside(path)).map(|url| shown(&url));
    let new_here = file.texts("new_here")?.unwrap_or_default();
    let new_here = new_here.iter().map(other).collect::<Result<Vec<_>, _>>();
    let new_here = new_here.map_err(|why| file.bad("new_here", &why))?;
    if url.is_none() && !new_here.is_empty() {
        return Err(file.bad("new_here", &say::new_here_without_store()).into());
    }
    let keep_log = file.parsed("keep_log", duration::parse_or_none)?;
    // 0: any number.
    let count = file.count("keep_log_runs", 0, u32::MAX)?;
    let keep_log_runs = count.map(|count| usize::try_from(count).ok().filter(|count| *count > 0));
    Ok(Some(ConfigFile {
        store: url.map(|url| (url, path.to_path_buf())),
        new_here,
        keep_log,
        keep_log_runs,
        alerts: AlertSettings::of(&file, beside(path))?,
    }))
}

fn check_keys(file: &Section<'_>, whose: Whose) -> Result<(), Failed> {
    if let Some(key) = PROJECT_KEYS.iter().find(|key| whose == Whose::User && file.has(key)) {
        return Err(file.bad(key, &say::project_key(key)).into());
    }
    Ok(file.only(&[KEYS.as_slice(), &PROJECT_KEYS].concat())?)
}

/// Refuses a text that no command could read as the user's configuration.
pub fn check_user_config(path: &Path, text: &str) -> Result<(), Failed> {
    check_keys(&Reader::new(text, path).file()?, Whose::User)
}

fn secret(path: &Path, origin: &str) -> Result<String, Failed> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|e| say::unreadable_secret(path.display(), origin, e))?;
    match text.trim() {
        "" => Err(say::empty_secret(path.display(), origin)),
        url => Ok(url.into()),
    }
}

/// Where `leasehold use` writes.
pub fn user_config() -> Option<PathBuf> {
    let absolute = |name| env(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|h| h.join(".config")))?;
    Some(base.join("leasehold/config.toml"))
}

/// Opens the chosen store.
pub fn open(chosen: &Chosen, missing: Missing) -> Result<Box<dyn Store>, Failed> {
    open_for(chosen, missing, Holders::Here)
}

/// The same, for holders that may be elsewhere.
pub fn open_for(chosen: &Chosen, missing: Missing, holders: Holders) -> Result<Box<dyn Store>, Failed> {
    if missing == Missing::Refuse && backends::is_unmade(&chosen.url) {
        return Err(Failed::new(
            FailKind::Unreachable,
            "no_store",
            say::no_store(&chosen.shown, shell_quoted(&chosen.shown)),
        ));
    }
    let opened = backends::open_to_examine(&chosen.url, holders).map_err(|e| match &e {
        OpenError::Url(_) => say::bad_url(e),
        OpenError::Store(failure) => by_kind(failure.kind, say::not_opened(e)),
    })?;
    Ok(opened)
}

/// How further handles on the chosen store are opened.
pub fn opener(chosen: &Chosen) -> Opener {
    let open = examined_opener(chosen);
    Arc::new(move || Ok(open()?))
}

/// The same, of handles that can be examined. Where there is no store yet, none is made.
pub fn examined_opener(chosen: &Chosen) -> doctor::Opener {
    let chosen = chosen.clone();
    Arc::new(move || match backends::is_unmade(&chosen.url) {
        true => Err(Failure::new(
            FailureKind::Unreachable,
            say::no_store(&chosen.shown, shell_quoted(&chosen.shown)).to_string(),
        )),
        false => backends::open_to_examine(&chosen.url, Holders::Here).map_err(Failure::from),
    })
}

/// Refuses the embedded store to a lease that ran on a store that machines share. cron does not see the variables of a
/// shell's profile, so each machine would run the lease by itself. If only this machine uses the other store, one line
/// says so, once.
pub fn refuse_wrong_store(
    chosen: &Chosen,
    memory: &SeenTokens,
    lease: &Name,
    out: &Out,
) -> Result<(), Failed> {
    if !chosen.embedded {
        return Ok(());
    }
    let others = memory.others(lease);
    if let Some(OtherStore { store, .. }) = others.iter().find(|other| other.shared) {
        let password = if is_masked(store) { say::with_password() } else { String::new() };
        return Err(say::wrong_store(lease, store, password, EMBEDDED));
    }
    for OtherStore { store, .. } in others.iter().filter(|other| !other.told) {
        // Also with --quiet, because it is said only once.
        out.warn(&say::ran_elsewhere(lease, store, &chosen.shown));
        memory.told(lease, store);
    }
    Ok(())
}

/// The end of a line about a lease that protects against runs of this machine only.
pub fn scope(chosen: &Chosen) -> String {
    if chosen.embedded { say::this_machine_only() } else { String::new() }
}
