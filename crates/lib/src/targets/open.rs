//! From a URL to a target. Adding a target adds one line to [`SCHEMES`].

use super::{Target, TargetError, file, gate, git, tree};
use crate::text::{did_you_mean, is_word, masked};

/// One kind of target.
pub struct Scheme {
    /// What comes before the colon.
    pub name: &'static str,
    /// What a URL of this kind looks like.
    pub example: &'static str,
    /// Given the whole URL and what comes after the colon.
    open: fn(&str, &str) -> Opened,
}

type Opened = Result<Box<dyn Target>, TargetError>;

/// Every kind of target built in, in the order people are told about them.
pub const SCHEMES: &[Scheme] = &[
    Scheme {
        name: "file",
        example: "file:PATH",
        open: |_, path| Ok(Box::new(file::FileTarget::open(path)?)),
    },
    Scheme {
        name: "tree",
        example: "tree:PATH",
        open: |_, path| Ok(Box::new(tree::TreeTarget::open(path)?)),
    },
    Scheme {
        name: "git",
        example: "git:URL-OR-REMOTE",
        open: |_, url| Ok(Box::new(git::GitTarget::open(url)?)),
    },
    Scheme {
        name: "gate",
        example: "gate:NAME",
        open: |url, path| match gate::named(url) {
            None => Ok(Box::new(gate::GateTarget::open(path)?)),
            // A file of that name, wherever this process happens to be, would hold nobody off.
            Some(_) => Err(TargetError::Unfit {
                target: url.into(),
                why: "is a gate in the store of a lease, and no store was given".into(),
                fix: "Name it where the lease is asked for".into(),
            }),
        },
    },
    #[cfg(feature = "postgres")]
    Scheme {
        name: "pg",
        example: "pg:postgres://HOST/DATABASE#TABLE",
        open: |url, rest| Ok(Box::new(super::pg::PgTarget::open(url, rest)?)),
    },
    #[cfg(feature = "sqlite")]
    Scheme {
        name: "sqlite",
        example: "sqlite:PATH#TABLE",
        open: |url, rest| Ok(Box::new(super::sqlite::SqliteTarget::open(url, rest)?)),
    },
    #[cfg(feature = "object")]
    Scheme {
        name: "s3",
        example: "s3://BUCKET/KEY",
        open: |url, _| object(super::object::Provider::S3, "s3", url),
    },
    #[cfg(feature = "object")]
    Scheme {
        name: "gs",
        example: "gs://BUCKET/KEY",
        open: |url, _| object(super::object::Provider::Google, "gs", url),
    },
    #[cfg(feature = "object")]
    Scheme {
        name: "az",
        example: "az://CONTAINER/KEY",
        open: |url, _| object(super::object::Provider::Azure, "az", url),
    },
    #[cfg(feature = "redis")]
    Scheme {
        name: "redis",
        example: "redis://HOST#KEY",
        open: |url, _| Ok(Box::new(super::redis::RedisTarget::open(url)?)),
    },
    #[cfg(feature = "redis")]
    Scheme {
        name: "rediss",
        example: "rediss://HOST#KEY",
        open: |url, _| Ok(Box::new(super::redis::RedisTarget::open(url)?)),
    },
    #[cfg(feature = "firestore")]
    Scheme {
        name: "firestore",
        example: "firestore://PROJECT/COLLECTION/DOCUMENT",
        open: |url, _| Ok(Box::new(super::firestore::FirestoreTarget::open(url)?)),
    },
];

#[cfg(feature = "object")]
fn object(provider: super::object::Provider, scheme: &str, url: &str) -> Opened {
    Ok(Box::new(super::object::ObjectTarget::open(provider, scheme, url)?))
}

/// A target as people may see it, whether or not it is one. Of what has no known scheme nothing is repeated: nobody knows
/// what is secret in it.
pub fn shown(url: &str) -> String {
    match url.split_once(':') {
        Some(("git", given)) => git::shown(given),
        Some((scheme, _)) if ["file", "tree", "gate", "sqlite"].contains(&scheme) => url.into(),
        // Not the URL it was meant to be: a password may stand anywhere.
        Some((scheme, rest)) if is_word(scheme) && !url.contains("://") && rest.contains(['@', '=']) => {
            format!("{scheme}:…")
        }
        Some((scheme, _)) if SCHEMES.iter().any(|s| s.name == scheme) => masked(url),
        Some((scheme, _)) if is_word(scheme) => format!("{scheme}:…"),
        _ => "…".into(),
    }
}

/// Opens the target that `url` names; reaches nothing yet.
pub fn open(url: &str) -> Opened {
    let known: Vec<&str> = SCHEMES.iter().map(|s| s.example).collect();
    let known = known.join(", ");
    let unfit =
        |why: String, fix: String| TargetError::Unfit { target: format!("{:?}", shown(url)), why, fix };
    let Some((scheme, rest)) = url.split_once(':') else {
        let why = "is not a target: it has no scheme before a colon".into();
        return Err(unfit(why, format!("For a file write file:PATH; or else one of: {known}")));
    };
    if ["file", "tree", "sqlite"].contains(&scheme) && rest.starts_with('~') {
        let why = "begins with ~, which no shell expands after a colon".into();
        return Err(unfit(why, format!("Write {scheme}:$HOME/… or the whole path")));
    }
    if let Some(found) = SCHEMES.iter().find(|s| s.name == scheme) {
        return (found.open)(url, rest);
    }
    let names: Vec<&str> = SCHEMES.iter().map(|s| s.name).collect();
    let meant = did_you_mean(scheme, &names);
    let hint = meant.map_or(String::new(), |name| format!("Did you mean {name}:? "));
    Err(unfit("is not a kind of target this build knows".into(), format!("{hint}Known: {known}")))
}
