//! From a URL to a store. Adding a store adds one line to [`SCHEMES`].

use std::ffi::OsString;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Failure, FailureKind, Store, memory};
use crate::text::did_you_mean;

/// Variables by which a URL without an endpoint gets one.
const ELSEWHERE: [&str; 7] = [
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_USE_EMULATOR",
    "FIRESTORE_EMULATOR_HOST",
    "GOOGLE_BASE_URL",
];

/// The same for URLs that begin so. Counted only where they are set: what was noted without them is found.
const ELSEWHERE_BY_KIND: [(&str, &str); 3] =
    [("az", "AZURE_STORAGE_ACCOUNT"), ("az", "AZURE_STORAGE_ACCOUNT_NAME"), ("postgres", "PGUSER")];

/// A short name for what a URL means here: the same URL is another place where a variable sends it elsewhere.
pub(crate) fn known_as(url: &str) -> String {
    known_with(url, |name| std::env::var_os(name))
}

fn known_with(url: &str, variable: impl Fn(&str) -> Option<OsString>) -> String {
    let mut digest = Sha256::new();
    digest.update(url.as_bytes());
    for name in ELSEWHERE {
        let value = variable(name).unwrap_or_default();
        digest.update([0]);
        digest.update(value.as_encoded_bytes());
    }
    for (_, name) in ELSEWHERE_BY_KIND.iter().filter(|(kind, _)| url.starts_with(kind)) {
        if let Some(value) = variable(name) {
            digest.update([0]);
            digest.update(name);
            digest.update([0]);
            digest.update(value.as_encoded_bytes());
        }
    }
    digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// One kind of store.
pub struct Scheme {
    /// What comes before the colon.
    pub name: &'static str,
    /// What a URL of this kind looks like.
    pub example: &'static str,
    /// Given the whole URL and what comes after the colon.
    open: fn(&str, &str) -> Opened,
}

type Opened = Result<Box<dyn Store>, OpenError>;

/// Every kind of store built in, in the order people are told about them.
pub const SCHEMES: &[Scheme] = &[
    #[cfg(feature = "sqlite")]
    Scheme {
        name: "sqlite",
        example: "sqlite:PATH",
        open: |_, rest| opened(super::sqlite::SqliteStore::open(path("sqlite", rest)?)),
    },
    #[cfg(feature = "dir")]
    Scheme {
        name: "dir",
        example: "dir:/PATH",
        open: |_, rest| opened(super::dir::DirStore::open(path("dir", rest)?)),
    },
    #[cfg(feature = "postgres")]
    Scheme { name: "postgres", example: "postgres://USER@HOST/DATABASE", open: postgres },
    #[cfg(feature = "postgres")]
    Scheme { name: "postgresql", example: "postgresql://USER@HOST/DATABASE", open: postgres },
    #[cfg(feature = "redis")]
    Scheme {
        name: "redis",
        example: "redis://HOST",
        open: |url, _| Ok(Box::new(super::redis::RedisStore::open(url)?)),
    },
    #[cfg(feature = "redis")]
    Scheme {
        name: "rediss",
        example: "rediss://HOST",
        open: |url, _| Ok(Box::new(super::redis::RedisStore::open(url)?)),
    },
    #[cfg(feature = "object")]
    Scheme {
        name: "s3",
        example: "s3://BUCKET/PREFIX",
        open: |url, _| bucket(super::object::Provider::S3, "s3", url),
    },
    #[cfg(feature = "object")]
    Scheme {
        name: "gs",
        example: "gs://BUCKET/PREFIX",
        open: |url, _| bucket(super::object::Provider::Google, "gs", url),
    },
    #[cfg(feature = "object")]
    Scheme {
        name: "az",
        example: "az://CONTAINER/PREFIX",
        open: |url, _| bucket(super::object::Provider::Azure, "az", url),
    },
    #[cfg(feature = "firestore")]
    Scheme {
        name: "firestore",
        example: "firestore://PROJECT/COLLECTION",
        open: |url, _| {
            let store = super::firestore::FirestoreStore::new(url).map_err(bad_url)?;
            opened(Ok(super::remote::Remote::new(store)))
        },
    },
    #[cfg(feature = "http")]
    Scheme { name: "https", example: "https://HOST", open: |url, _| super::http::open(url) },
    #[cfg(feature = "http")]
    Scheme { name: "http", example: "http://127.0.0.1:PORT", open: |url, _| super::http::open(url) },
    Scheme {
        name: "memory",
        example: "memory:",
        open: |_, rest| match rest {
            "" => opened(memory::MemoryStore::new()),
            _ => Err(bad_url("\"memory:\" takes nothing after the colon. Leave it out.".into())),
        },
    },
];

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

fn opened<S: Store + 'static>(store: Result<S, Failure>) -> Opened {
    match store {
        Ok(store) => Ok(Box::new(store)),
        Err(failure) => Err(OpenError::Store(failure)),
    }
}

fn bad_url(message: String) -> OpenError {
    OpenError::Url(message)
}

#[cfg(feature = "object")]
fn bucket(provider: super::object::Provider, scheme: &str, url: &str) -> Opened {
    match super::object::open(provider, scheme, url) {
        Ok(store) => Ok(Box::new(store)),
        Err(message) => Err(bad_url(message)),
    }
}

#[cfg(feature = "postgres")]
fn postgres(url: &str, _: &str) -> Opened {
    let store = super::postgres::PostgresStore::open(url);
    let store = store.map_err(|why| bad_url(format!("This is not a PostgreSQL URL: {why}")))?;
    opened(Ok(super::remote::Remote::new(store)))
}

/// The path after `scheme:`, which may be written `scheme:///like/this`.
#[cfg(any(feature = "dir", feature = "sqlite"))]
fn path<'a>(scheme: &str, rest: &'a str) -> Result<&'a str, OpenError> {
    let path = match rest.strip_prefix("//") {
        Some(absolute) if absolute.starts_with('/') => absolute,
        Some(_) => {
            return Err(bad_url(format!(
                "\"{scheme}:{rest}\" names a host, and this store is a path on this machine. Write {scheme}:/PATH."
            )));
        }
        None => rest,
    };
    if path.is_empty() || path.contains('\0') {
        return Err(bad_url(format!(
            "\"{scheme}:\" has no usable path after the colon, so there is nothing to open. Write {scheme}:/PATH."
        )));
    }
    Ok(path)
}

/// Opens the store that `url` names.
pub fn open(url: &str) -> Result<Box<dyn Store>, OpenError> {
    let known: Vec<&str> = SCHEMES.iter().map(|s| s.example).collect();
    let known = known.join(", ");
    let Some((scheme, rest)) = url.split_once(':') else {
        // Not repeated: it may be a password.
        return Err(bad_url(format!(
            "This is not a store: it has no scheme before a colon. Known: {known}."
        )));
    };
    if let Some(found) = SCHEMES.iter().find(|s| s.name == scheme) {
        return (found.open)(url, rest);
    }
    // The rest of the URL may hold a password; only the scheme is repeated.
    let names: Vec<&str> = SCHEMES.iter().map(|s| s.name).collect();
    let meant = did_you_mean(scheme, &names);
    let hint = meant.map_or(String::new(), |name| format!(" Did you mean {name}:?"));
    Err(bad_url(format!("\"{scheme}:\" is not a kind of store this build knows.{hint} Known: {known}.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match open(url) {
            Err(OpenError::Url(message)) => message,
            Err(OpenError::Store(failure)) => panic!("{url}: {}", failure.message),
            Ok(_) => panic!("{url} opened"),
        }
    }

    #[test]
    fn memory_opens() {
        assert_eq!(open("memory:").ok().unwrap().facts().url, "memory:");
        assert!(refused("memory:x").contains("nothing after the colon"));
    }

    #[test]
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
    fn a_wrong_url_says_what_would_do() {
        assert!(refused("sqllite:/x").contains("Did you mean sqlite:?"));
        assert!(refused("SQLITE:/x").contains("Did you mean sqlite:?"));
        assert!(refused("dri:/x").contains("Did you mean dir:?"));
        let unknown = refused("zookeeper://user:secret@host/db");
        assert!(!unknown.contains("Did you mean") && !unknown.contains("secret"), "{unknown}");
        assert!(unknown.contains("Known: sqlite:PATH, dir:/PATH, "), "{unknown}");
        assert!(unknown.ends_with("memory:."), "{unknown}");
        for url in ["", "x", "/a/path", "sqlite:", "dir:", "dir://host/x", "sqlite://", ":"] {
            assert!(refused(url).ends_with('.'), "{url}");
        }
    }
}
