//! Which store: flag, environment, ./leasehold.toml, the user's configuration, the embedded one.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold::backends::{self, EMBEDDED, Holders, embedded, shown};
use leasehold::core::name::Name;
use leasehold::doctor;
use leasehold::seen_tokens::{OtherStore, SeenTokens};
use leasehold::state::StateDir;
use leasehold::stores::{Failure, FailureKind, OpenError, Opener, Store};
use leasehold::text::MASK;
use leasehold_run::config_file::{self, BadFile, KEYS, PROJECT_KEYS, Reader, Section};

use crate::args::Everywhere;
use crate::exit::{FailKind, Failed};
use crate::out::Out;

/// What to do about a place that is no store yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A mistyped path or a share that is not mounted must not become a second store.
    Refuse,
    /// `leasehold use` was asked to.
    Create,
}

/// The store to use, and who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// As it is opened.
    pub url: String,
    /// As it is shown: without a password.
    pub shown: String,
    /// Nobody named a store.
    pub embedded: bool,
    /// Where it was named.
    pub origin: String,
    /// Stores whose keys and slots are new on this one: so says the file that names it.
    pub new_here: Vec<String>,
}

fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The user's state directory, checked.
pub fn state_dir() -> Result<StateDir, Failed> {
    let checked = StateDir::locate(env).and_then(|dir| dir.ensure().map(|()| dir));
    checked.map_err(|e| match e.denied() {
        true => Failed::new(FailKind::Denied, "denied", e.to_string()),
        false => Failed::config(e.to_string()),
    })
}

/// A variable that names the store. One that is set to nothing is a secret that did not arrive: whoever set it did
/// not mean the store of this machine.
fn named_by(variable: &str) -> Result<Option<OsString>, Failed> {
    match std::env::var_os(variable) {
        Some(value) if value.to_str().is_some_and(|text| text.trim().is_empty()) => {
            Err(Failed::config(format!(
                "{variable} is set but empty: a secret that was not passed on? Nothing was run. Set it to the store, or \
                 unset it"
            )))
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
        let url = url.into_string().map_err(|_| Failed::config("LEASEHOLD_STORE is not valid UTF-8"))?;
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
    Ok(Chosen {
        shown: url.clone(),
        url,
        embedded: true,
        origin: "nobody named a store".into(),
        new_here: Vec::new(),
    })
}

/// The store that the project here names.
pub fn of_project(flags: &Everywhere) -> Result<Option<Chosen>, Failed> {
    let project = match &flags.config {
        Some(path) => Some(read_config(path, Whose::Project)?.ok_or_else(|| BadFile::missing(path))?),
        None => read_config(Path::new("leasehold.toml"), Whose::Project)?,
    };
    let Some(ConfigFile { store: Some((url, path)), new_here }) = project else { return Ok(None) };
    let chosen = named(&url, &path.display().to_string(), beside(&path))?;
    Ok(Some(Chosen { new_here, ..chosen }))
}

/// The directory that relative paths in a file start from, wherever it is read.
pub fn beside(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// A store that is an argument of this command.
pub fn argument(url: &str, origin: &str) -> Result<Chosen, Failed> {
    named(url, origin, Path::new(""))
}

/// A store by its URL; a relative path in it starts from `base`.
fn named(url: &str, origin: &str, base: &Path) -> Result<Chosen, Failed> {
    let url = url.trim();
    if shown(url) == url && url.contains(MASK) {
        return Err(Failed::config(format!(
            "{origin} is {url}: its password was masked, because a job gets no store credentials. Nothing was \
             run. Put the URL into a file that only you can read and set LEASEHOLD_STORE_FILE, or run: \
             leasehold use URL"
        )));
    }
    let url = backends::named_store(url, origin, base)
        .map_err(|why| Failed::new(FailKind::Config, "bad_url", format!("{why} Nothing was run.")))?;
    Ok(Chosen { shown: shown(&url), url, embedded: false, origin: origin.into(), new_here: Vec::new() })
}

/// What names another store here before the user's configuration is asked.
pub fn overriding(flags: &Everywhere, chosen: &Chosen) -> Option<String> {
    let set = |name: &&&str| std::env::var_os(name).is_some();
    if let Some(name) = ["LEASEHOLD_STORE", "LEASEHOLD_STORE_FILE"].iter().find(set) {
        return Some((*name).into());
    }
    let path = flags.config.as_deref().unwrap_or(Path::new("./leasehold.toml"));
    // One that cannot be read stands in the way as well.
    let another = of_project(flags).map_or(true, |named| named.is_some_and(|named| named.url != chosen.url));
    another.then(|| path.display().to_string())
}

/// What a configuration file says.
struct ConfigFile {
    /// And the file that says so.
    store: Option<(String, PathBuf)>,
    new_here: Vec<String>,
}

/// Whose configuration it is: jobs belong to a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Project,
    User,
}

/// Only the store is read: a job that is wrong must not stop runs that have nothing to do with it.
fn read_config(path: &Path, whose: Whose) -> Result<Option<ConfigFile>, Failed> {
    let Some(text) = config_file::text_of(path)? else { return Ok(None) };
    let reader = Reader::new(&text, path);
    let file = reader.file()?;
    check_keys(&file, whose)?;
    let (url, secret_in) = (file.text("store")?, file.text("store_file")?);
    if url.is_some() && secret_in.is_some() {
        return Err(file.bad("store_file", "store and store_file are both set; keep one").into());
    }
    let url = match secret_in {
        Some(place) => Some(secret(&beside(path).join(place), "store_file")?),
        None => url,
    };
    // As stores are shown, and so remembered: a password is masked already.
    let other =
        |url: &String| backends::named_store(url.trim(), "new_here", beside(path)).map(|url| shown(&url));
    let new_here = file.texts("new_here")?.unwrap_or_default();
    let new_here = new_here.iter().map(other).collect::<Result<Vec<_>, _>>();
    let new_here = new_here.map_err(|why| file.bad("new_here", &why))?;
    if url.is_none() && !new_here.is_empty() {
        let why = "new_here goes with the store of the same file, and it names none";
        return Err(file.bad("new_here", why).into());
    }
    Ok(Some(ConfigFile { store: url.map(|url| (url, path.to_path_buf())), new_here }))
}

fn check_keys(file: &Section<'_>, whose: Whose) -> Result<(), Failed> {
    if let Some(astray) = PROJECT_KEYS.iter().find(|key| whose == Whose::User && file.has(key)) {
        let why =
            format!("{astray} belongs into the leasehold.toml of a project: here only a store is named");
        return Err(file.bad(astray, &why).into());
    }
    Ok(file.only(&[KEYS.as_slice(), &PROJECT_KEYS].concat())?)
}

/// Refuses a text that no command could read as the user's configuration, whatever store it names.
pub fn check_user_config(path: &Path, text: &str) -> Result<(), Failed> {
    check_keys(&Reader::new(text, path).file()?, Whose::User)
}

fn secret(path: &Path, what: &str) -> Result<String, Failed> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|e| Failed::config(format!("cannot read {} ({what}): {e}", path.display())))?;
    match text.trim() {
        "" => Err(Failed::config(format!("{} ({what}) is empty", path.display()))),
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

/// The same for those who hold leases there.
pub fn open_for(chosen: &Chosen, missing: Missing, holders: Holders) -> Result<Box<dyn Store>, Failed> {
    if missing == Missing::Refuse && backends::is_unmade(&chosen.url) {
        return Err(Failed::new(FailKind::Unreachable, "no_store", not_yet(chosen)));
    }
    let opened = backends::open_to_examine(&chosen.url, holders).map_err(|e| {
        let (kind, word) = match &e {
            OpenError::Url(_) => (FailKind::Config, "bad_url"),
            OpenError::Store(failure) => match failure.kind {
                FailureKind::Unreachable => (FailKind::Unreachable, "store_unreachable"),
                FailureKind::Denied => (FailKind::Denied, "denied"),
                FailureKind::Unusable => (FailKind::Config, "store_unusable"),
            },
        };
        Failed::new(kind, word, format!("{e} Nothing was run."))
    })?;
    Ok(opened)
}

fn not_yet(chosen: &Chosen) -> String {
    let shown = &chosen.shown;
    format!(
        "{shown} is not a leasehold store yet (is the share mounted?). Nothing was run. First time? \
         leasehold use {shown}"
    )
}

/// How further handles on the chosen store are opened.
pub fn opener(chosen: &Chosen) -> Opener {
    let open = examined_opener(chosen);
    Arc::new(move || Ok(open()?))
}

/// The same, of handles that can be examined. None is made where there is no store yet.
pub fn examined_opener(chosen: &Chosen) -> doctor::Opener {
    let chosen = chosen.clone();
    Arc::new(move || match backends::is_unmade(&chosen.url) {
        true => Err(Failure::new(FailureKind::Unreachable, not_yet(&chosen))),
        false => backends::open_to_examine(&chosen.url, Holders::Here).map_err(Failure::from),
    })
}

/// A lease that ran on a store that machines share is never run on the embedded one: cron does not see
/// what a shell's profile exports, and each machine would run it by itself. If only this machine uses the other store, it is
/// said once.
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
        let password = if store.contains(MASK) { ", with the password in place of ***" } else { "" };
        let message = format!(
            "{lease} ran on {store} before and no store is set now. Nothing was run: another machine could \
             run it at the same time. (cron does not read your shell's profile.) Run: leasehold use {store}{password} \
             — or, to keep it on this machine alone from now on: leasehold use {EMBEDDED}"
        );
        return Err(Failed::new(FailKind::Config, "wrong_store", message));
    }
    for OtherStore { store, .. } in others.iter().filter(|other| !other.told) {
        // Also with --quiet: it is said once.
        out.warn(&format!(
            "{lease} ran on {store} before. No store is set now, so it runs on {}. To go on there: leasehold use {store}",
            chosen.shown
        ));
        memory.told(lease, store);
    }
    Ok(())
}

/// What our lines end with when leases protect against this machine only.
pub fn scope(chosen: &Chosen) -> &'static str {
    if chosen.embedded { " (this machine only)" } else { "" }
}
