//! Redis, Valkey and compatible servers: a store on one primary, and targets that are strings.

mod config;
mod connection;
mod errors;
mod identity;
#[macro_use]
mod scripts;
mod store;
mod target;

pub use self::store::RedisStore;
pub use self::target::{LARGEST, RedisTarget};
use super::mask::Masking;
use super::{AsStore, AsTarget, Backend, Scheme};
use crate::text::shell_quoted;

/// Its entry in the list of backends.
pub(super) const BACKEND: Backend = Backend {
    show: target::shown,
    variables: &[],
    store: Some(AsStore {
        // With a prefix of one's own, docs/remove.md has the pattern.
        removal: Some(|shown| {
            let scan = format!("redis-cli -u {} --scan", shell_quoted(shown));
            format!("{scan} --pattern 'leasehold:{{main}}[:/]*' | xargs -d '\\n' redis-cli DEL")
        }),
        ..AsStore::new(
            &[
                Scheme { name: "redis", example: "redis://HOST" },
                Scheme { name: "rediss", example: "rediss://HOST" },
            ],
            |url, _, _| Ok(Box::new(RedisStore::open(url)?)),
        )
    }),
    target: Some(AsTarget::new(
        &[
            Scheme { name: "redis", example: "redis://HOST#KEY" },
            Scheme { name: "rediss", example: "rediss://HOST#KEY" },
        ],
        |url, _| Ok(Box::new(RedisTarget::open(url)?)),
    )),
};

/// The URL of a server as it may be shown. `cert` and `key` are names of files.
fn shown(url: &str) -> String {
    Masking { harmless: &["cacert", "cert", "key", "prefix"], user_is_secret: false }.shown(url)
}
