//! Everything that leases and fences can be kept in: one folder per backend, and one list of them.
//!
//! A folder has the backend's configuration (what its URL says), its connection, its store and, where it is one, its target.
//! Its entry in [`BACKENDS`] owns all that anybody else has to know of it. No other module, and nothing of the command line,
//! knows a scheme by its name.

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
use crate::text::{did_you_mean, is_word, short_digest};

/// Every backend of this build, in the order in which people are told of them.
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

/// One kind of place, and all that depends on its kind.
pub struct Backend {
    /// A URL of it as it may be shown: without passwords and tokens.
    pub show: fn(&str) -> String,
    /// Variables by which a URL of it leads elsewhere.
    pub variables: &'static [&'static str],
    /// Leases can be kept there.
    pub store: Option<AsStore>,
    /// It can be fenced.
    pub target: Option<AsTarget>,
}

/// A word that URLs begin with.
pub struct Scheme {
    /// What comes before the colon.
    pub name: &'static str,
    /// What a URL with it looks like.
    pub example: &'static str,
}

/// A backend as a store.
pub struct AsStore {
    /// How its URLs begin; the others mean the same as the first.
    pub schemes: &'static [Scheme],
    /// Who can reach it.
    pub reach: Reach,
    /// Opens it, given the URL and what comes after the colon. What is behind a network is reached by the first call.
    pub open: OpenStore,
    /// After the colon is a path on this machine.
    pub path: Option<StorePath>,
    /// What of a URL has no effect, in one sentence: a typing error should not go unnoticed.
    pub ignored: Option<fn(&str) -> Option<String>>,
    /// The SQL that makes it ready, for a role that may not create tables.
    pub schema_sql: Option<&'static str>,
    /// What to write in place of a text with no scheme, where the text looks like this kind. Nothing of the text is repeated
    /// that may be secret.
    pub meant_by: Option<fn(&str) -> Option<String>>,
}

impl AsStore {
    /// A store with nothing out of the ordinary; most are on a server.
    const fn new(schemes: &'static [Scheme], open: OpenStore) -> Self {
        let reach = Reach::Machines;
        Self { schemes, reach, open, path: None, ignored: None, schema_sql: None, meant_by: None }
    }
}

/// Who can reach a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The process that opened it: it is for programs, and the command line does not take it.
    Process,
    /// Processes of this machine.
    Machine,
    /// Other machines too, or that depends on where its path lies.
    Machines,
}

/// Where those are who hold the leases in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// On this machine, as far as the handle that is opened writes for them.
    Here,
    /// Perhaps on other machines, for which a server writes. A store that takes a reboot of this machine for the end of
    /// its holders must not do so then.
    Elsewhere,
}

/// What there is to know of a store that is a path.
pub struct StorePath {
    /// It is a directory: a slash at its end, as a shell completes it, makes it no other.
    pub directory: bool,
    /// Nothing is there yet, and it could become a store: only `leasehold use` makes one of it.
    pub unmade: fn(&Path) -> bool,
    /// The names that lie there; nothing: it does not consist of files of its own.
    pub content: fn(&Path) -> Option<BTreeSet<OsString>>,
    /// Another that can be examined in its place, where it is not there yet and is made by being opened.
    pub stand_in: fn(&Path) -> Option<StandIn>,
}

/// A store that was made in the place of another, and is removed again.
pub struct StandIn {
    /// Its URL.
    pub url: String,
    /// What it consists of, or may.
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
    /// How its URLs begin; the others mean the same as the first.
    pub schemes: &'static [Scheme],
    /// Opens it, given the URL and what comes after the colon; reaches nothing yet.
    pub open: OpenTarget,
    /// It is a table, which is fenced by a guard.
    pub guard: Option<OpenGuard>,
    /// After the colon is a path. One that is relative starts where the process is.
    pub path: bool,
    /// The target, as it is shown, by a name that means the same wherever it is read; nothing: there is none.
    pub anywhere: fn(&str) -> Option<String>,
    /// How its fence is removed, where `leasehold fence reset` cannot; given what comes after the colon.
    pub reset: Option<fn(&str) -> String>,
    /// What is left to do after a stale write was refused.
    pub after_stale: &'static str,
    /// It can be written and read. A gate cannot: commands are run under it.
    pub holds_content: bool,
    /// The name in a URL of a target that is a record in the store of a lease.
    pub name_in_store: fn(&str) -> Option<&str>,
}

impl AsTarget {
    /// What most of them say when a stale write was refused.
    pub(crate) const NOTHING_TO_REPAIR: &'static str = "Nothing to repair: run it again.";

    /// A target with nothing out of the ordinary; most are on a server.
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

/// How further handles on a store are opened. Called from several threads.
pub type Opener = Arc<dyn Fn() -> Result<Box<dyn Store>, Failure> + Send + Sync>;

/// Why a URL led to no store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The URL says nothing we can open; the sentence says what would do.
    #[error("{0}")]
    Url(String),
    /// The URL is fine and the store is not.
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

/// The store that is used where nobody names one. Without a path it is that of this user on this machine.
pub const EMBEDDED: &str = "sqlite:";

/// The URL of the store at that path that is used where nobody names one.
pub fn embedded(path: &Path) -> String {
    format!("{EMBEDDED}{}", path.display())
}

/// Kinds of store that people know and we do not have.
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

/// The name in the URL of a target that is a record in the store of a lease.
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

/// What the URLs of stores look like that people can name, each kind in a word.
pub fn store_kinds() -> Vec<String> {
    let word = |store: &AsStore| match (&store.path, &store.schemes[0]) {
        (Some(_), scheme) => scheme.example.to_owned(),
        (None, scheme) => format!("{}://", scheme.name),
    };
    stores().filter(|store| store.reach != Reach::Process).map(word).collect()
}

/// The URL of a store at that path, of the first kind that lies at one.
pub fn store_at(path: &Path) -> String {
    let kind = stores().find(|store| store.path.is_some());
    kind.map_or_else(|| embedded(path), |kind| format!("{}:{}", kind.schemes[0].name, path.display()))
}

/// What comes after the colon.
fn rest(url: &str) -> &str {
    url.split_once(':').map_or("", |(_, rest)| rest)
}

/// A store or target as people may see it, whether or not it is one.
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

/// A short name for what a URL means here: the same URL is another place where a variable sends it elsewhere.
pub(crate) fn known_as(url: &str) -> String {
    known_with(url, |name| std::env::var_os(name))
}

fn known_with(url: &str, variable: impl Fn(&str) -> Option<OsString>) -> String {
    let mut text = url.as_bytes().to_vec();
    let of_url = |backend: &&Backend| backend.store.as_ref().is_some_and(|store| is_of(store.schemes, url));
    // In one order, or the name would be another after the list has changed. One that is not set counts for nothing.
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

/// Opens the store that `url` names. What is behind a network is reached by the first call.
pub fn open_store(url: &str) -> Result<Box<dyn Store>, OpenError> {
    let store: Box<dyn Store> = open_to_examine(url, Holders::Here)?;
    Ok(store)
}

/// The same, as one that can be examined, for those who hold leases there.
pub fn open_to_examine(url: &str, holders: Holders) -> Result<Box<dyn Examine>, OpenError> {
    let store = store_kind(url, "This", |_| true).map_err(OpenError::Url)?;
    (store.open)(url, rest(url), holders)
}

/// The kind of store that a URL names, of those that are `wanted`; or a sentence about `given`, in which nothing of it is
/// repeated that may be secret.
fn store_kind(url: &str, given: &str, wanted: impl Fn(&AsStore) -> bool) -> Result<&'static AsStore, String> {
    let schemes = || stores().filter(|store| wanted(store)).flat_map(|store| store.schemes);
    let known = || examples(schemes());
    // A connection string, or a password alone, is not repeated: nobody knows what is secret in it.
    let Some((kind, _)) = url.split_once(':').filter(|(kind, _)| is_word(kind)) else {
        let meant = stores().filter_map(|store| store.meant_by).find_map(|meant| meant(url));
        let hint = meant.unwrap_or_else(|| format!("Known: {}.", known()));
        return Err(format!("{given} is not a store: it has no scheme before a colon. {hint}"));
    };
    if let Some(store) = stores().find(|store| wanted(store) && is_of(store.schemes, url)) {
        return Ok(store);
    }
    // The rest of the URL may hold a password; only the kind is repeated.
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

/// The URL of a store that a person named, in full: a relative path in it starts from `base`, for it would name another
/// store in every directory. `origin` is where it was named.
///
/// # Errors
///
/// A sentence that says what would do.
pub fn named_store(url: &str, origin: &str, base: &Path) -> Result<String, String> {
    let (scheme, path) = url.split_once(':').unwrap_or((url, ""));
    if store_of(url).is_some_and(|store| store.reach == Reach::Process) {
        return Err(format!(
            "\"{scheme}:\" lives only as long as one process; it is for tests of the Rust library."
        ));
    }
    let store = store_kind(url, &format!("what {origin} gives"), |store| store.reach != Reach::Process)?;
    let Some(kind) = &store.path else { return Ok(url.into()) };
    if path.is_empty() {
        let what = if kind.directory { "directory" } else { "file" };
        return Err(format!(
            "{origin} is \"{scheme}:\" and names no {what}: is a variable unset that should name one? Write {}. Where \
             nobody names a store it is the one of this machine.",
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

/// The path in the URL of a store, where it has one.
fn path_of(url: &str) -> Option<(&'static StorePath, &Path)> {
    let kind = store_of(url)?.path.as_ref()?;
    let path = Some(rest(url)).filter(|path| !path.is_empty() && !path.starts_with("//"))?;
    Some((kind, Path::new(path)))
}

/// Whether the URL names a place that could become a store and is none yet.
pub fn is_unmade(url: &str) -> bool {
    path_of(url).is_some_and(|(kind, path)| (kind.unmade)(path))
}

/// The names that lie at the place of a store; nothing: it does not consist of files of its own.
pub fn content(url: &str) -> Option<BTreeSet<OsString>> {
    path_of(url).and_then(|(kind, path)| (kind.content)(path))
}

/// A store to examine in place of one that is not there yet. It is removed when it is dropped.
pub fn stand_in(url: &str) -> Option<StandIn> {
    path_of(url).and_then(|(kind, path)| (kind.stand_in)(path))
}

/// What of the URL of a store has no effect, in one sentence.
pub fn ignored(url: &str) -> Option<String> {
    store_of(url)?.ignored.and_then(|ignored| ignored(url))
}

/// The SQL that makes a store ready: of the kind that `url` names, or of the one that needs any.
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
                "\"{scheme}:{rest}\" names a host, and this store is a path on this machine. Write {scheme}:/PATH."
            )));
        }
        None => rest,
    };
    if path.is_empty() || path.contains('\0') {
        return Err(OpenError::Url(format!(
            "\"{scheme}:\" has no usable path after the colon, so there is nothing to open. Write {scheme}:/PATH."
        )));
    }
    Ok(path)
}

/// Opens the target that `url` names; reaches nothing yet.
pub fn open_target(url: &str) -> Result<Box<dyn Target>, TargetError> {
    (target_kind(url)?.open)(url, rest(url))
}

/// The guard of the table that `url` names; reaches nothing yet.
pub fn open_guard(url: &str) -> Result<Box<dyn Guard>, TargetError> {
    let target = target_kind(url)?;
    if let Some(open) = target.guard {
        return open(url, rest(url));
    }
    // For its own words about what is no target at all.
    (target.open)(url, rest(url))?;
    let tables = targets().filter(|target| target.guard.is_some()).flat_map(|target| target.schemes);
    let tables: Vec<&str> = tables.map(|scheme| scheme.example).collect();
    Err(TargetError::Unfit {
        target: shown(url),
        why: "is no table, so it needs no guard: its fence is put up by the first run".into(),
        fix: format!("Guards are for {}", tables.join(" and ")),
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
        let fix = format!("For a file write file:PATH; or else one of: {}", known());
        return Err(unfit("is not a target: it has no scheme before a colon", fix));
    };
    match target_of(url) {
        Some(target) if target.path && path.starts_with('~') => {
            let why = "begins with ~, which no shell expands after a colon";
            Err(unfit(why, format!("Write {scheme}:$HOME/… or the whole path")))
        }
        Some(target) => Ok(target),
        None => {
            let meant = did_you_mean(scheme, &target_schemes());
            let hint = meant.map_or(String::new(), |name| format!("Did you mean {name}:? "));
            Err(unfit("is not a kind of target this build knows", format!("{hint}Known: {}", known())))
        }
    }
}

/// A path with its scheme, in full: that means the same wherever it is read.
fn whole_path(url: &str) -> Option<String> {
    let (scheme, path) = url.split_once(':')?;
    Some(format!("{scheme}:{}", std::path::absolute(path).ok()?.display()))
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
        assert!(!with("sqlite:/a", "PGUSER"), "it is nothing to that store");
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
            ("s3cret", "what --store gives is not a store"),
        ] {
            let said = named(url).unwrap_err();
            assert!(said.contains(why) && !said.contains("s3cret"), "{url}: {said}");
        }
    }
}
