//! Every place that can keep leases or fences: one folder per backend, and one list of them.
//!
//! A folder has the backend's configuration (read from its URL), its connection, its store and its target, if it has one.
//! The entry in [`BACKENDS`] says everything that other modules need. No other module, and no part of the command line,
//! names a scheme.

#[cfg(feature = "dir")]
pub mod dir;
pub mod file;
#[cfg(feature = "firestore")]
pub mod firestore;
pub mod gate;
pub mod git;
#[cfg(feature = "http")]
pub mod http;
pub mod local;
mod mask;
pub mod memory;
#[cfg(feature = "object")]
pub mod object;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use crate::stores::{Examine, Failure, FailureKind, Store};
use crate::targets::guard::Guard;
use crate::targets::{Target, TargetError};
use crate::text::{MASK, did_you_mean, is_word, short_digest};

/// Every backend of this build, in the order in which they are listed for people.
pub static BACKENDS: &[Backend] = &[
    file::FILE,
    file::TREE,
    git::BACKEND,
    gate::BACKEND,
    #[cfg(feature = "sqlite")]
    sqlite::BACKEND,
    #[cfg(feature = "dir")]
    dir::BACKEND,
    #[cfg(feature = "postgres")]
    postgres::BACKEND,
    #[cfg(feature = "redis")]
    redis::BACKEND,
    #[cfg(feature = "object")]
    object::S3,
    #[cfg(feature = "object")]
    object::GOOGLE,
    #[cfg(feature = "object")]
    object::AZURE,
    #[cfg(feature = "firestore")]
    firestore::BACKEND,
    #[cfg(feature = "http")]
    http::BACKEND,
    memory::BACKEND,
];

/// One kind of place, and everything that depends on the kind.
pub struct Backend {
    /// Its URL as it may be shown: without passwords and tokens.
    pub show: fn(&str) -> String,
    /// Environment variables that change which place a URL names.
    pub variables: &'static [&'static str],
    /// It can keep leases.
    pub store: Option<AsStore>,
    /// It can be fenced.
    pub target: Option<AsTarget>,
}

/// The first word of a URL.
pub struct Scheme {
    /// The part before the colon.
    pub name: &'static str,
    /// An example of a URL with it.
    pub example: &'static str,
}

/// A backend as a store.
pub struct AsStore {
    /// Its schemes. All mean the same; the first is shown to people.
    pub schemes: &'static [Scheme],
    /// Who can reach it.
    pub reach: Reach,
    /// Opens it, given the URL and the part after the colon. A store on a server is contacted by the first call.
    pub open: OpenStore,
    /// Set if the part after the colon is a path on this machine.
    pub path: Option<StorePath>,
    /// A sentence that names the parts of a URL that have no effect, so that a typing error is noticed.
    pub ignored: Option<fn(&str) -> Option<String>>,
    /// The SQL that creates its tables, for a role that may not create them itself.
    pub schema_sql: Option<&'static str>,
    /// For a text without a scheme that looks like this kind of store: a sentence that says what to write. It repeats
    /// nothing that may be secret.
    pub meant_by: Option<fn(&str) -> Option<String>>,
}

impl AsStore {
    /// A store on a server; other kinds replace fields.
    const fn new(schemes: &'static [Scheme], open: OpenStore) -> Self {
        let reach = Reach::Machines;
        Self { schemes, reach, open, path: None, ignored: None, schema_sql: None, meant_by: None }
    }
}

/// Who can reach a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only the process that opened it. It is for programs; the command line refuses it.
    Process,
    /// Processes of this machine.
    Machine,
    /// Other machines too, at least if its path is on a shared mount.
    Machines,
}

/// Where the holders are for which a handle on a store writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// On this machine. A reboot of this machine has ended them.
    Here,
    /// Perhaps on other machines, because a server writes for them. A reboot of this machine says nothing about them.
    Elsewhere,
}

/// A store that is a path on this machine.
pub struct StorePath {
    /// It is a directory, so a slash at the end of its path means nothing.
    pub directory: bool,
    /// Whether the path could become a store and is none yet. Only `leasehold use` makes it one.
    pub unmade: fn(&Path) -> bool,
    /// The names of the files in it, if the store is a directory.
    pub content: fn(&Path) -> Option<BTreeSet<OsString>>,
    /// A temporary store beside it that can be examined instead, if opening this one would create it.
    pub stand_in: fn(&Path) -> Option<StandIn>,
}

/// A temporary store that is examined instead of another. Dropping it removes its files.
pub struct StandIn {
    /// Its URL.
    pub url: String,
    /// Its files; some may not exist.
    pub files: Vec<OsString>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// A backend as a target.
pub struct AsTarget {
    /// Its schemes. All mean the same; the first is shown to people.
    pub schemes: &'static [Scheme],
    /// Opens it, given the URL and the part after the colon. Contacts nothing yet.
    pub open: OpenTarget,
    /// Opens its guard, if it is a table.
    pub guard: Option<OpenGuard>,
    /// The part after the colon is a path. A relative one starts in the current directory.
    pub path: bool,
    /// A name for a shown target that means the same in every directory, if it has one.
    pub anywhere: fn(&str) -> Option<String>,
    /// How its fence is removed, if `leasehold fence reset` cannot do it; given the part after the colon.
    pub reset: Option<fn(&str) -> String>,
    /// What to do after a stale write was refused.
    pub after_stale: &'static str,
    /// It can be written and read. A gate cannot: commands are run under it.
    pub holds_content: bool,
    /// The name in its URL, if the target is a record in the store of a lease.
    pub name_in_store: fn(&str) -> Option<&str>,
}

impl AsTarget {
    /// What to do after a stale write was refused, for most targets.
    pub(crate) const NOTHING_TO_REPAIR: &'static str = "Nothing to repair: run it again.";

    /// A target on a server; other kinds replace fields.
    const fn new(schemes: &'static [Scheme], open: OpenTarget) -> Self {
        Self {
            schemes,
            open,
            guard: None,
            path: false,
            anywhere: |shown| Some(shown.into()),
            reset: None,
            after_stale: Self::NOTHING_TO_REPAIR,
            holds_content: true,
            name_in_store: |_| None,
        }
    }
}

type OpenStore = fn(&str, &str, Holders) -> Result<Box<dyn Examine>, OpenError>;
type OpenTarget = fn(&str, &str) -> Result<Box<dyn Target>, TargetError>;
type OpenGuard = fn(&str, &str) -> Result<Box<dyn Guard>, TargetError>;

/// Opens more handles on a store. Called from several threads.
pub type Opener = Arc<dyn Fn() -> Result<Box<dyn Store>, Failure> + Send + Sync>;

/// Why a store could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The URL is wrong; the sentence says what to write.
    #[error("{0}")]
    Url(String),
    /// The URL is right, but the store failed.
    #[error("{}", .0.message)]
    Store(Failure),
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Url(message) => Self::new(FailureKind::Unusable, message),
            OpenError::Store(failure) => failure,
        }
    }
}

/// The scheme of the default store. Without a path it is the one of this user on this machine.
pub const EMBEDDED: &str = "sqlite:";

/// The URL of the default store at this path.
pub fn embedded(path: &Path) -> String {
    format!("{EMBEDDED}{}", path.display())
}

/// Kinds of store that people may try and that are not supported.
const UNSUPPORTED: [&str; 7] = ["dynamodb", "etcd", "file", "kv", "memcached", "mysql", "nats"];

fn stores() -> impl Iterator<Item = &'static AsStore> {
    BACKENDS.iter().filter_map(|backend| backend.store.as_ref())
}

fn targets() -> impl Iterator<Item = &'static AsTarget> {
    BACKENDS.iter().filter_map(|backend| backend.target.as_ref())
}

fn is_of(schemes: &[Scheme], url: &str) -> bool {
    url.split_once(':').is_some_and(|(scheme, _)| schemes.iter().any(|known| known.name == scheme))
}

/// The kind of store that a URL names.
pub fn store_of(url: &str) -> Option<&'static AsStore> {
    stores().find(|store| is_of(store.schemes, url))
}

/// The kind of target that a URL names.
pub fn target_of(url: &str) -> Option<&'static AsTarget> {
    targets().find(|target| is_of(target.schemes, url))
}

/// Whether it is a gate: a target that is neither written nor read.
pub fn is_gate(url: &str) -> bool {
    target_of(url).is_some_and(|target| !target.holds_content)
}

/// The name in the URL of a target, if the target is a record in the store of a lease.
pub fn name_in_store(url: &str) -> Option<&str> {
    target_of(url).and_then(|target| (target.name_in_store)(url))
}

/// The schemes of targets.
pub fn target_schemes() -> Vec<&'static str> {
    targets().flat_map(|target| target.schemes).map(|scheme| scheme.name).collect()
}

fn examples<'a>(schemes: impl Iterator<Item = &'a Scheme>) -> String {
    schemes.map(|scheme| scheme.example).collect::<Vec<_>>().join(", ")
}

/// An example for each kind of store that the command line accepts.
pub fn store_kinds() -> Vec<String> {
    let word = |store: &AsStore| match (&store.path, &store.schemes[0]) {
        (Some(_), scheme) => scheme.example.to_owned(),
        (None, scheme) => format!("{}://", scheme.name),
    };
    stores().filter(|store| store.reach != Reach::Process).map(word).collect()
}

/// The URL of a store at this path, of the first kind that is a path.
pub fn store_at(path: &Path) -> String {
    let kind = stores().find(|store| store.path.is_some());
    kind.map_or_else(|| embedded(path), |kind| format!("{}:{}", kind.schemes[0].name, path.display()))
}

/// The part after the colon.
fn rest(url: &str) -> &str {
    url.split_once(':').map_or("", |(_, rest)| rest)
}

/// The URL of a store or target as people may see it, even if no backend knows it.
pub fn shown(url: &str) -> String {
    let of = |backend: &&Backend| {
        let store = backend.store.as_ref().is_some_and(|store| is_of(store.schemes, url));
        store || backend.target.as_ref().is_some_and(|target| is_of(target.schemes, url))
    };
    match BACKENDS.iter().find(of) {
        Some(backend) => (backend.show)(url),
        None => mask::hidden(url),
    }
}

/// Whether it is a URL as it is shown, with a mask in place of a password or token. A path may have the same characters.
pub fn is_masked(url: &str) -> bool {
    url.contains(MASK) && shown(&url.replace(MASK, "secret")) == url
}

/// A short name for the store that a URL means here. An environment variable can make the same URL mean another store.
pub(crate) fn known_as(url: &str) -> String {
    known_with(url, |name| std::env::var_os(name))
}

fn known_with(url: &str, variable: impl Fn(&str) -> Option<OsString>) -> String {
    let mut text = url.as_bytes().to_vec();
    let of_url = |backend: &&Backend| backend.store.as_ref().is_some_and(|store| is_of(store.schemes, url));
    // Sorted, so that the name does not depend on the order of the list. A variable that is not set is left out.
    let names = BACKENDS.iter().filter(of_url).flat_map(|backend| backend.variables);
    for name in names.copied().collect::<BTreeSet<&str>>() {
        if let Some(value) = variable(name) {
            for part in [name.as_bytes(), value.as_encoded_bytes()] {
                text.push(0);
                text.extend_from_slice(part);
            }
        }
    }
    short_digest(text)
}

/// Opens the store that `url` names. A store on a server is contacted by the first call.
pub fn open_store(url: &str) -> Result<Box<dyn Store>, OpenError> {
    let store: Box<dyn Store> = open_to_examine(url, Holders::Here)?;
    Ok(store)
}

/// As [`open_store`], for holders that may be elsewhere, and as a store that can be examined.
pub fn open_to_examine(url: &str, holders: Holders) -> Result<Box<dyn Examine>, OpenError> {
    let store = store_kind(url, "This", |_| true).map_err(OpenError::Url)?;
    (store.open)(url, rest(url), holders)
}

/// The kind of store that a URL names, among the `wanted` ones. Otherwise a sentence about `given`, which repeats nothing
/// of the URL that may be secret.
fn store_kind(url: &str, given: &str, wanted: impl Fn(&AsStore) -> bool) -> Result<&'static AsStore, String> {
    let schemes = || stores().filter(|store| wanted(store)).flat_map(|store| store.schemes);
    let known = || examples(schemes());
    // Not repeated: a connection string, or a password alone, may be secret.
    let Some((kind, _)) = url.split_once(':').filter(|(kind, _)| is_word(kind)) else {
        let meant = stores().filter_map(|store| store.meant_by).find_map(|meant| meant(url));
        let hint = meant.unwrap_or_else(|| format!("Known: {}.", known()));
        return Err(format!("{given} is not a store: it has no scheme before a colon. {hint}"));
    };
    if let Some(store) = stores().find(|store| wanted(store) && is_of(store.schemes, url)) {
        return Ok(store);
    }
    // Only the kind is repeated: the rest of the URL may hold a password.
    if UNSUPPORTED.contains(&kind) {
        return Err(format!("stores of the kind \"{kind}:\" are not supported. Known: {}.", known()));
    }
    let names: Vec<&str> = schemes().map(|scheme| scheme.name).collect();
    let hint = did_you_mean(kind, &names).map(|name| format!(" Did you mean {name}:?")).unwrap_or_default();
    Err(format!("\"{kind}:\" is not a kind of store this build knows.{hint} Known: {}.", known()))
}

fn home(path: &str) -> String {
    path.strip_prefix('~').map_or_else(|| path.into(), |rest| format!("$HOME{rest}"))
}

/// The URL of a store that a person named at `origin`, with its whole path: a relative path starts from `base`, because it
/// would name another store in every directory.
///
/// # Errors
///
/// A sentence that says what to write.
pub fn named_store(url: &str, origin: &str, base: &Path) -> Result<String, String> {
    let (scheme, path) = url.split_once(':').unwrap_or((url, ""));
    if store_of(url).is_some_and(|store| store.reach == Reach::Process) {
        return Err(format!(
            "\"{scheme}:\" lives only as long as one process; it is for tests of the Rust library."
        ));
    }
    let store = store_kind(url, &format!("the value of {origin}"), |store| store.reach != Reach::Process)?;
    let Some(kind) = &store.path else { return Ok(url.into()) };
    if path.is_empty() {
        let what = if kind.directory { "directory" } else { "file" };
        return Err(format!(
            "{origin} is \"{scheme}:\" and names no {what}: is a variable unset? Write {}, or leave the store out to use \
             the one of this machine.",
            store.schemes[0].example
        ));
    }
    if path.starts_with('~') {
        return Err(format!("~ is not expanded after \"{scheme}:\"; write {scheme}:{}.", home(path)));
    }
    let Ok(full) = std::path::absolute(base.join(path)) else { return Ok(url.into()) };
    let full = full.display().to_string();
    let full = if kind.directory && full.len() > 1 { full.trim_end_matches('/') } else { &full };
    Ok(format!("{scheme}:{full}"))
}

/// The path in the URL of a store, if it has one.
fn path_of(url: &str) -> Option<(&'static StorePath, &Path)> {
    let kind = store_of(url)?.path.as_ref()?;
    let path = Some(rest(url)).filter(|path| !path.is_empty() && !path.starts_with("//"))?;
    Some((kind, Path::new(path)))
}

/// Whether the URL names a path that could become a store and is none yet.
pub fn is_unmade(url: &str) -> bool {
    path_of(url).is_some_and(|(kind, path)| (kind.unmade)(path))
}

/// The names of the files in a store that is a directory.
pub fn content(url: &str) -> Option<BTreeSet<OsString>> {
    path_of(url).and_then(|(kind, path)| (kind.content)(path))
}

/// A temporary store to examine instead of one that does not exist yet. Dropping it removes it.
pub fn stand_in(url: &str) -> Option<StandIn> {
    path_of(url).and_then(|(kind, path)| (kind.stand_in)(path))
}

/// A sentence that names the parts of a store's URL that have no effect.
pub fn ignored(url: &str) -> Option<String> {
    store_of(url)?.ignored.and_then(|ignored| ignored(url))
}

/// The SQL that creates a store's tables: for the kind that `url` names, or for the kind that has such SQL.
pub fn schema_sql(url: Option<&str>) -> Option<&'static str> {
    match url {
        Some(url) => store_of(url)?.schema_sql,
        None => stores().find_map(|store| store.schema_sql),
    }
}

/// The path after `scheme:`, which may be written `scheme:///like/this`.
#[cfg(any(feature = "dir", feature = "sqlite"))]
fn plain_path<'a>(scheme: &str, rest: &'a str) -> Result<&'a str, OpenError> {
    let path = match rest.strip_prefix("//") {
        Some(absolute) if absolute.starts_with('/') => absolute,
        Some(_) => {
            return Err(OpenError::Url(format!(
                "\"{scheme}:{rest}\" names a host, but this store is a path on this machine. Write {scheme}:/PATH."
            )));
        }
        None => rest,
    };
    if path.is_empty() || path.contains('\0') {
        return Err(OpenError::Url(format!(
            "\"{scheme}:\" has no usable path after the colon. Write {scheme}:/PATH."
        )));
    }
    Ok(path)
}

/// Opens the target that `url` names. Contacts nothing yet.
pub fn open_target(url: &str) -> Result<Box<dyn Target>, TargetError> {
    (target_kind(url)?.open)(url, rest(url))
}

/// The guard of the table that `url` names. Contacts nothing yet.
pub fn open_guard(url: &str) -> Result<Box<dyn Guard>, TargetError> {
    let target = target_kind(url)?;
    if let Some(open) = target.guard {
        return open(url, rest(url));
    }
    // A URL that is no target at all fails here, with its own message.
    (target.open)(url, rest(url))?;
    let tables = targets().filter(|target| target.guard.is_some()).flat_map(|target| target.schemes);
    let tables: Vec<&str> = tables.map(|scheme| scheme.example).collect();
    Err(TargetError::Unfit {
        target: shown(url),
        why: "is not a table, so it needs no guard: the first run with --fence fences it".into(),
        fix: format!("Guards are only for {}", tables.join(" and ")),
    })
}

fn target_kind(url: &str) -> Result<&'static AsTarget, TargetError> {
    let known = || examples(targets().flat_map(|target| target.schemes));
    let unfit = |why: &str, fix: String| TargetError::Unfit {
        target: format!("{:?}", shown(url)),
        why: why.into(),
        fix,
    };
    let Some((scheme, path)) = url.split_once(':') else {
        let fix = format!("For a file write file:PATH. Known: {}", known());
        return Err(unfit("is not a target: it has no scheme before a colon", fix));
    };
    match target_of(url) {
        Some(target) if target.path && path.starts_with('~') => {
            let why = "begins with ~, which no shell expands after a colon";
            Err(unfit(why, format!("Write {scheme}:$HOME/…, or the whole path")))
        }
        Some(target) => Ok(target),
        None => {
            let meant = did_you_mean(scheme, &target_schemes());
            let hint = meant.map_or(String::new(), |name| format!("Did you mean {name}:? "));
            Err(unfit("is not a kind of target this build knows", format!("{hint}Known: {}", known())))
        }
    }
}

/// How the fence of a target is removed, if `leasehold fence reset` cannot do it.
pub fn reset_command(url: &str) -> Option<String> {
    target_of(url)?.reset.map(|reset| reset(rest(url)))
}

/// The URL of a target that a person named, with its whole path: a relative path starts from `base`.
///
/// # Errors
///
/// A sentence that says what to write.
pub fn named_target(url: &str, base: &Path) -> Result<String, String> {
    let kind = target_kind(url).map_err(|error| match error {
        TargetError::Unfit { target, why, fix } => format!("{target} {why}. {fix}"),
        other => other.to_string(),
    })?;
    match rest(url) {
        "" => Err(format!("{url:?} names nothing after the colon. Write {}", kind.schemes[0].example)),
        path if kind.path => path_from(base, url)
            .ok_or_else(|| format!("{path:?} is in a directory that is not UTF-8. Write the whole path")),
        _ => Ok(url.into()),
    }
}

/// The URL with its whole path, which means the same in every directory.
fn whole_path(url: &str) -> Option<String> {
    path_from(Path::new(""), url)
}

/// The same; a relative path starts from `base`.
fn path_from(base: &Path, url: &str) -> Option<String> {
    let (scheme, path) = url.split_once(':')?;
    Some(format!("{scheme}:{}", std::path::absolute(base.join(path)).ok()?.to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match open_store(url) {
            Err(OpenError::Url(message)) => message,
            Err(OpenError::Store(failure)) => panic!("{url}: {}", failure.message),
            Ok(_) => panic!("{url} opened"),
        }
    }

    #[test]
    fn memory_opens() {
        assert_eq!(open_store("memory:").ok().unwrap().facts().url, "memory:");
        assert!(refused("memory:x").contains("nothing after the colon"));
    }

    #[test]
    fn no_two_backends_have_the_same_scheme() {
        let of = |schemes: Vec<&Scheme>| schemes.iter().map(|scheme| scheme.name).collect::<Vec<_>>();
        for mut names in [
            of(stores().flat_map(|store| store.schemes).collect()),
            of(targets().flat_map(|target| target.schemes).collect()),
        ] {
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all, "{names:?}");
        }
        for scheme in stores().flat_map(|store| store.schemes).chain(targets().flat_map(|t| t.schemes)) {
            assert!(scheme.example.starts_with(&format!("{}:", scheme.name)), "{}", scheme.example);
        }
    }

    #[test]
    #[cfg(all(feature = "dir", feature = "sqlite"))]
    fn a_wrong_url_says_what_would_do() {
        assert!(refused("sqllite:/x").contains("Did you mean sqlite:?"));
        assert!(refused("SQLITE:/x").contains("Did you mean sqlite:?"));
        assert!(refused("dri:/x").contains("Did you mean dir:?"));
        let unknown = refused("zookeeper://user:secret@host/db");
        assert!(!unknown.contains("Did you mean") && !unknown.contains("secret"), "{unknown}");
        assert!(unknown.contains("Known: sqlite:PATH, dir:/PATH, "), "{unknown}");
        assert!(unknown.ends_with("memory:."), "{unknown}");
        for url in ["", "x", "sqlite:", "dir:", "dir://host/x", "sqlite://", ":"] {
            assert!(refused(url).ends_with('.'), "{url}");
        }
        assert!(refused("/a/path").ends_with("Did you mean dir:/a/path?"));
    }

    #[test]
    #[cfg(all(feature = "object", feature = "postgres", feature = "sqlite"))]
    fn a_variable_that_leads_elsewhere_makes_another_place() {
        let with = |url: &str, name: &str| {
            known_with(url, |asked| (asked == name).then(|| "other".into())) != known_with(url, |_| None)
        };
        for (url, name) in [
            ("s3://box/leases", "AWS_ENDPOINT_URL"),
            ("az://box/leases", "AZURE_STORAGE_ACCOUNT"),
            ("az://box/leases", "AZURE_STORAGE_ACCOUNT_NAME"),
            ("postgres://db/ops", "PGUSER"),
        ] {
            assert!(with(url, name), "{url} {name}");
        }
        assert!(!with("sqlite:/a", "PGUSER"), "that store does not read it");
    }

    #[test]
    fn a_target_that_a_person_names_is_named_in_full() {
        let named = |url: &str| named_target(url, Path::new("/base"));
        for (url, full) in [
            ("file:./a", "file:/base/a"),
            ("tree:/a", "tree:/a"),
            ("git:origin", "git:origin"),
            ("gate:mail", "gate:mail"),
        ] {
            assert_eq!(named(url).as_deref(), Ok(full));
        }
        for url in ["", "a", "/a", "file:", "git:", "file:~/a", "fil:/a"] {
            assert!(named(url).is_err(), "{url}");
        }
    }

    #[test]
    #[cfg(all(feature = "dir", feature = "sqlite"))]
    fn a_store_that_a_person_names_is_named_in_full() {
        let named = |url: &str| named_store(url, "--store", Path::new("/base"));
        for (url, full) in [
            ("sqlite:a.db", "sqlite:/base/a.db"),
            ("sqlite:/a.db", "sqlite:/a.db"),
            ("dir:a/", "dir:/base/a"),
            ("dir:/", "dir:/"),
        ] {
            assert_eq!(named(url).as_deref(), Ok(full));
        }
        for (url, why) in [
            ("memory:", "one process"),
            ("dir:~/x", "write dir:$HOME/x."),
            ("sqlite:", "names no file"),
            ("mysql://:s3cret@h", "\"mysql:\" are not supported"),
            ("host=h password=s3cret", "libpq"),
            ("s3cret", "the value of --store is not a store"),
        ] {
            let said = named(url).unwrap_err();
            assert!(said.contains(why) && !said.contains("s3cret"), "{url}: {said}");
        }
    }
}
