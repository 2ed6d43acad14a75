//! Which store: flag, environment, ./leasehold.toml, the user's configuration, the embedded one.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold::core::name::Name;
use leasehold::memory::{Memory, Other};
use leasehold::state::StateDir;
use leasehold::stores::{self, Failure, FailureKind, OpenError, Opener, Scheme, Store};
use leasehold::text::{MASK, did_you_mean, is_word, masked};
use leasehold_run::config_file::{self, BadFile, KEYS, PROJECT_KEYS, Reader, Section};

use crate::args::Everywhere;
use crate::exit::{Failed, Kind};
use crate::out::Out;

/// What to do about a directory that is no store yet.
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
        true => Failed::new(Kind::Denied, "denied", e.to_string()),
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
    let url = format!("sqlite:{}", state.database().display());
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
    let Some(Found { store: Some((url, path)), new_here }) = project else { return Ok(None) };
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
    if masked(url) == url && url.contains(MASK) {
        return Err(Failed::config(format!(
            "{origin} is {url}: its password was masked, because a job gets no store credentials. Nothing was \
             run. Put the URL into a file that only you can read and set LEASEHOLD_STORE_FILE, or run: \
             leasehold use URL"
        )));
    }
    let url = named_store(url, origin, base)
        .map_err(|why| Failed::new(Kind::Config, "bad_url", format!("{why} Nothing was run.")))?;
    Ok(Chosen { shown: masked(&url), url, embedded: false, origin: origin.into(), new_here: Vec::new() })
}

/// The URL of a store, or why it is none; a relative path in it starts from `base`.
fn named_store(url: &str, origin: &str, base: &Path) -> Result<String, String> {
    refuse_kind(url, origin)?;
    Ok(absolute(url, base))
}

/// Kinds of store that people know and this build does not have.
const OTHERS: [&str; 7] = ["dynamodb", "etcd", "file", "kv", "memcached", "mysql", "nats"];

/// What the command line can open: everything but a store that ends with the process.
fn kinds() -> impl Iterator<Item = &'static Scheme> {
    stores::SCHEMES.iter().filter(|scheme| scheme.name != "memory")
}

fn known() -> String {
    kinds().map(|scheme| scheme.example).collect::<Vec<_>>().join(", ")
}

/// URLs whose mistake we can name better than "unknown".
fn refuse_kind(url: &str, origin: &str) -> Result<(), String> {
    let refuse = Err::<(), String>;
    // A connection string, or a password alone, is not repeated: nobody knows what is secret in it.
    let Some((kind, path)) = url.split_once(':').filter(|(kind, _)| is_word(kind)) else {
        let no_scheme = "is not a store: it has no scheme before a colon";
        return match url.starts_with(['/', '.', '~']) && is_word(url) {
            true => refuse(format!("{url:?} is not a store; did you mean dir:{}?", home(url))),
            false if url.contains("host=") || url.contains("dbname=") => refuse(format!(
                "what {origin} gives {no_scheme}; it looks like a connection string of libpq. Write \
                 postgres://USER@HOST/DATABASE."
            )),
            false => refuse(format!("what {origin} gives {no_scheme}. Known: {}.", known())),
        };
    };
    match kind {
        "sqlite" if path.is_empty() => refuse(format!(
            "{origin} is \"sqlite:\" and names no file: is a variable unset that should name one? Where nobody names a store \
             it is the one of this machine."
        )),
        "dir" | "sqlite" if path.starts_with('~') => {
            refuse(format!("~ is not expanded after \"{kind}:\"; write {kind}:{}.", home(path)))
        }
        "memory" => refuse(
            "\"memory:\" lives only as long as one process; it is for tests of the Rust library.".into(),
        ),
        // The rest of the URL may hold a password; only the kind is repeated.
        _ if OTHERS.contains(&kind) => {
            refuse(format!("stores of the kind \"{kind}:\" are not supported. Known: {}.", known()))
        }
        _ if kinds().any(|scheme| scheme.name == kind) => Ok(()),
        _ => {
            let names: Vec<&str> = kinds().map(|scheme| scheme.name).collect();
            let hint = did_you_mean(kind, &names).map(|k| format!(" Did you mean {k}:?"));
            let hint = hint.unwrap_or_default();
            refuse(format!("\"{kind}:\" is not a kind of store.{hint} Known: {}.", known()))
        }
    }
}

fn home(path: &str) -> String {
    path.strip_prefix('~').map_or_else(|| path.into(), |rest| format!("$HOME{rest}"))
}

/// A relative path would name another store in every directory.
fn absolute(url: &str, base: &Path) -> String {
    let Some((scheme @ ("sqlite" | "dir"), path)) = url.split_once(':') else { return url.into() };
    match std::path::absolute(base.join(path)) {
        // With a slash at its end, as a shell completes it, it is no other directory.
        Ok(full) if scheme == "dir" && path.len() > 1 => {
            format!("dir:{}", full.display().to_string().trim_end_matches('/'))
        }
        Ok(full) if !path.is_empty() => format!("{scheme}:{}", full.display()),
        _ => url.into(),
    }
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
struct Found {
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
fn read_config(path: &Path, whose: Whose) -> Result<Option<Found>, Failed> {
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
    let other = |url: &String| named_store(url.trim(), "new_here", beside(path)).map(|url| masked(&url));
    let new_here = file.texts("new_here")?.unwrap_or_default();
    let new_here = new_here.iter().map(other).collect::<Result<Vec<_>, _>>();
    let new_here = new_here.map_err(|why| file.bad("new_here", &why))?;
    if url.is_none() && !new_here.is_empty() {
        let why = "new_here goes with the store of the same file, and it names none";
        return Err(file.bad("new_here", why).into());
    }
    Ok(Some(Found { store: url.map(|url| (url, path.to_path_buf())), new_here }))
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

/// Whether the URL names a directory that could become a store and is none yet.
pub fn no_store_yet(chosen: &Chosen) -> bool {
    let Some(path) = chosen.url.strip_prefix("dir:") else { return false };
    if path.is_empty() || path.starts_with("//") {
        return false;
    }
    let ours =
        |name: &str| ["keys", "tmp", "lost+found"].contains(&name) || name.starts_with(".leasehold-new-");
    match fs::read_dir(path) {
        // Where other things are, the store itself refuses to begin.
        Ok(entries) => entries.flatten().all(|entry| entry.file_name().to_str().is_some_and(ours)),
        // A share that is not mounted leaves its mount point: without even that the path is wrong.
        Err(e) => {
            e.kind() == std::io::ErrorKind::NotFound && Path::new(path).parent().is_some_and(Path::is_dir)
        }
    }
}

/// Opens the chosen store.
pub fn open(chosen: &Chosen, missing: Missing) -> Result<Box<dyn Store>, Failed> {
    if missing == Missing::Refuse && no_store_yet(chosen) {
        return Err(Failed::new(Kind::Unreachable, "no_store", not_yet(chosen)));
    }
    stores::open(&chosen.url).map_err(|e| {
        let (kind, word) = match &e {
            OpenError::Url(_) => (Kind::Config, "bad_url"),
            OpenError::Store(failure) => match failure.kind {
                FailureKind::Unreachable => (Kind::Unreachable, "store_unreachable"),
                FailureKind::Denied => (Kind::Denied, "denied"),
                FailureKind::Unusable => (Kind::Config, "store_unusable"),
            },
        };
        Failed::new(kind, word, format!("{e} Nothing was run."))
    })
}

fn not_yet(chosen: &Chosen) -> String {
    let shown = &chosen.shown;
    format!(
        "{shown} is not a leasehold store yet (is the share mounted?). Nothing was run. First time? \
         leasehold use {shown}"
    )
}

/// How further handles on the chosen store are opened. None is made where there is no store yet.
pub fn opener(chosen: &Chosen) -> Opener {
    let chosen = chosen.clone();
    Arc::new(move || match no_store_yet(&chosen) {
        true => Err(Failure::new(FailureKind::Unreachable, not_yet(&chosen))),
        false => stores::open(&chosen.url).map_err(Failure::from),
    })
}

/// A lease that ran on a store that machines share is never run on the embedded one: cron does not see
/// what a shell's profile exports, and each machine would run it by itself. If only this machine uses the other store, it is
/// said once.
pub fn refuse_wrong_store(chosen: &Chosen, memory: &Memory, lease: &Name, out: &Out) -> Result<(), Failed> {
    if !chosen.embedded {
        return Ok(());
    }
    let others = memory.others(lease);
    if let Some(Other { store, .. }) = others.iter().find(|other| other.shared) {
        let password = if store.contains(MASK) { ", with the password in place of ***" } else { "" };
        let message = format!(
            "{lease} ran on {store} before and no store is set now. Nothing was run: another machine could \
             run it at the same time. (cron does not read your shell's profile.) Run: leasehold use {store}{password} \
             — or, to keep it on this machine alone from now on: leasehold use sqlite:"
        );
        return Err(Failed::new(Kind::Config, "wrong_store", message));
    }
    for Other { store, .. } in others.iter().filter(|other| !other.told) {
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
