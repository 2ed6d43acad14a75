//! One string in Redis as a target: `redis://HOST#KEY`.
//!
//! The value is the plain string under KEY, for any GET. The fence is another string, in the same hash slot. One
//! script compares the current fence with the one that was read, byte by byte, and replaces both strings. The rule
//! is checked here, not in the script. So the script compares no tokens, whose digits Lua could lose.
//!
//! One primary keeps the fence. A failover to a replica without the last seal loses that seal, and then stale
//! writes are accepted: docs/targets/redis.md.

mod scripts;

use std::time::Duration;

use leasehold_core::fence_record::FenceRecord;
use leasehold_core::store::Version;

pub(super) use self::scripts::Keys;
use self::scripts::{FenceAndValue, ReadWhat, Swapped};
use super::config::Config;
use super::connection::RedisConnection;
use super::shown as masked;
use crate::targets::TargetError;
use crate::targets::cas_fence::{self, CasFence, Swap};
use crate::targets::deadline::{Networked, Server};
use crate::text::percent_decoded;

/// The largest value. The server does nothing else while it receives it.
pub const LARGEST: usize = 64 << 20;
/// The connection's own limit, above the limits of a target's calls.
const CALLS: Duration = Duration::from_secs(600);
/// The prefix of every fence's name.
const FENCE: &str = "leasehold-fence:";
/// The prefix of a lease store's keys.
const RECORDS: &str = "leasehold:";

/// A string that only the holder of a lease may replace.
#[derive(Debug)]
pub struct RedisTarget {
    server: Server<RedisConnection>,
    keys: Keys,
    /// The replication id at this verb's first read.
    history: Option<String>,
}

impl RedisTarget {
    /// The key that `redis://HOST#KEY` names. Contacts nothing.
    pub fn open(url: &str) -> Result<Self, TargetError> {
        let unfit = |why: &str, fix: &str| TargetError::Unfit {
            target: shown(url),
            why: why.into(),
            fix: fix.into(),
        };
        let no_key =
            || unfit("names no key", "Write redis://HOST/DB#KEY, with special characters of the key as %XX");
        let (server, key) = split(url).ok_or_else(no_key)?;
        let key = percent_decoded(key).filter(|key| !key.is_empty()).ok_or_else(no_key)?;
        if key.starts_with(FENCE) || key.starts_with(RECORDS) {
            return Err(unfit("is a key that Leasehold itself uses", "Name another key"));
        }
        let Some(fence) = fence_of(&key) else {
            return Err(unfit(
                "has a \"}\" and no hash tag, so its fence cannot be in the same slot",
                "Use a key without \"}\", or one with a hash tag as in %7Bsite%7D:today",
            ));
        };
        if is_bare_tag(&key) {
            return Err(unfit(
                "is a hash tag and nothing else, so it would share its fence with the key in the braces",
                "Name the key without the braces, or add a text after them, as in %7Bsite%7D:today",
            ));
        }
        let config = Config::parse(server).map_err(|why| unfit("cannot be a target", &why))?;
        if config.prefix.is_some() {
            return Err(unfit("has a prefix=, which only lease stores have", "Leave it out"));
        }
        let keys = Keys { fence: fence.into_bytes(), value: key.into_bytes() };
        let server = Server::new(RedisConnection::new(config, CALLS), shown(url), masked(server));
        Ok(Self { server, keys, history: None })
    }

    /// Waits this long for one call, and for all calls of one verb.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_patience(mut self, each: Duration, all: Duration) -> Self {
        self.server.calls.limit(each, all);
        self
    }

    fn look(
        &mut self,
        bytes: usize,
        wanted: ReadWhat,
        doing: &'static str,
    ) -> Result<FenceAndValue, TargetError> {
        let keys = &self.keys;
        let looked = self.server.calls.call(bytes, async |redis| redis.look(keys, wanted).await, Err);
        looked.map_err(|failure| self.server.failed(doing, failure))?.ok_or_else(|| self.not_a_string())
    }

    fn not_a_string(&self) -> TargetError {
        TargetError::Unfit {
            target: self.server.shown.clone(),
            why: "holds a value that is not a string".into(),
            fix: "Name a key that holds a string, or nothing".into(),
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<FenceRecord, TargetError> {
        FenceRecord::decode(bytes).map_err(|bad| TargetError::BadFence {
            target: self.server.shown.clone(),
            fence: format!("the key {:?}", String::from_utf8_lossy(&self.keys.fence)),
            why: bad.to_string(),
        })
    }
}

/// The server's URL and the part after the last `#`. A password may contain `#`; a key has it as %23.
fn split(url: &str) -> Option<(&str, &str)> {
    let (server, key) = url.rsplit_once('#')?;
    (!key.contains('@')).then_some((server, key))
}

/// The URL as it may be shown. The key is masked apart from the server's URL, so an `@` in the key ends no password.
pub(super) fn shown(url: &str) -> String {
    match split(url) {
        Some((server, key)) if url.contains("://") => format!("{}#{key}", masked(server)),
        _ => masked(url),
    }
}

/// Whether it is `{K}`, whose fence would have the same name as the fence of `K`.
fn is_bare_tag(key: &str) -> bool {
    key.strip_prefix('{').is_some_and(|rest| rest.len() > 1 && rest.find('}') == Some(rest.len() - 1))
}

/// The name of the key's fence, which is in the same slot of a cluster.
fn fence_of(key: &str) -> Option<String> {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    match tag {
        Some(tag) if !tag.is_empty() => Some(format!("{FENCE}{key}")),
        // The slot depends on the whole key, which can be a hash tag if it contains no brace that ends one.
        _ if !key.contains('}') => Some(format!("{FENCE}{{{key}}}")),
        _ => None,
    }
}

impl CasFence for RedisTarget {
    type Content = [u8];

    fn shown(&self) -> &str {
        &self.server.shown
    }

    /// The version is the fence itself.
    fn load(&mut self) -> Result<Option<(FenceRecord, Version)>, TargetError> {
        let looked = self.look(0, ReadWhat::Fence, "read the fence of")?;
        // After a failover a second read may show an older fence, which would accept a stale write. So one verb uses one
        // replication id.
        match (&self.history, &looked.history) {
            (Some(before), Some(now)) if before != now => {
                let failure = self.server.calls.call(0, async |redis| redis.changed(), |failure| failure);
                return Err(self.server.failed("write", failure));
            }
            (None, Some(_)) => self.history.clone_from(&looked.history),
            _ => {}
        }
        let Some(bytes) = looked.fence else { return Ok(None) };
        let record = self.decode(&bytes)?;
        // It was decoded, so it is UTF-8.
        Ok(Some((record, Version(String::from_utf8_lossy(&bytes).into_owned()))))
    }

    fn swap(
        &mut self,
        at: Option<&Version>,
        record: &FenceRecord,
        content: Option<&[u8]>,
    ) -> Result<Swap, TargetError> {
        let (keys, bytes) = (&self.keys, record.encode());
        let at = at.map(|Version(bytes)| bytes.as_bytes());
        let work = async |redis: &mut RedisConnection| redis.swap(keys, at, &bytes, content).await;
        match self.server.calls.call(content.map_or(0, <[u8]>::len), work, Err) {
            Ok(Swapped::Done) => Ok(Swap::Done),
            Ok(Swapped::Conflict) => Ok(Swap::Conflict),
            Ok(Swapped::NotAString) => Err(self.not_a_string()),
            Err(failure) => Ok(Swap::Unknown(failure)),
        }
    }

    fn examine(&mut self) -> Result<Swap, TargetError> {
        // No fence is so short.
        cas_fence::refuses(self, &Version("-".into()))
    }
}

impl Networked for RedisTarget {
    const KIND: &'static str = "Redis string";
    const MOST: usize = LARGEST;

    fn server_name(&self) -> &str {
        &self.server.name
    }

    fn begin(&mut self, bytes: usize) {
        self.history = None;
        self.server.calls.begin(bytes);
    }

    fn fetch(&mut self) -> Result<Vec<u8>, TargetError> {
        let Some(value) = self.look(LARGEST, ReadWhat::FenceAndValue, "read")?.value else {
            return Err(TargetError::Unfit {
                target: self.server.shown.clone(),
                why: "has no value".into(),
                fix: "Run the job that writes it".into(),
            });
        };
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slot's tag, as the documentation of Redis Cluster defines it.
    fn tag(key: &str) -> &str {
        let inner = key.find('{').and_then(|open| {
            let close = key[open + 1..].find('}')?;
            (close > 0).then(|| &key[open + 1..open + 1 + close])
        });
        inner.unwrap_or(key)
    }

    #[test]
    fn fence_and_value_share_a_slot() {
        for key in ["today", "a:b", "{site}:today", "x{y}z", "x{y}}", "{a", "a{b{c", "{a}{b}", "ä"] {
            let fence = fence_of(key).unwrap();
            assert_eq!(tag(&fence), tag(key), "{key}");
            assert_ne!(fence, key);
        }
        for key in ["a}b", "{}x", "}{", "{}{a}"] {
            assert_eq!(fence_of(key), None, "{key}");
        }
    }

    /// Two keys with one fence would refuse each other's writers, or accept stale ones.
    #[test]
    fn no_two_keys_share_a_fence() {
        let letters = ["{", "}", "a", "b"];
        let mut keys = vec![String::new()];
        for at in 0.. {
            if keys[at].len() < 5 {
                let longer = letters.map(|letter| format!("{}{letter}", keys[at]));
                keys.extend(longer);
            } else if at + 1 == keys.len() {
                break;
            }
        }
        let mut fences = std::collections::HashMap::new();
        let mut shared = 0;
        for key in keys.iter().filter(|key| !key.is_empty()) {
            let Some(fence) = fence_of(key) else { continue };
            let Some(other) = fences.insert(fence, key.clone()) else { continue };
            shared += 1;
            assert!(is_bare_tag(key) != is_bare_tag(&other), "{key} and {other}");
        }
        assert!(shared > 0, "then none need be refused");
        let refused = RedisTarget::open("redis://h#%7Btoday%7D").expect_err("shares its fence");
        assert!(refused.to_string().contains("hash tag and nothing else"), "{refused}");
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for url in [
            "redis://u:s3cret@h",
            "redis://u:s3cret@h#",
            "redis://u:s3cret@h#%zz",
            "redis://u:s3cret@h#leasehold-fence:x",
            "redis://u:s3cret@h#leasehold:{main}/leases/x",
            "redis://u:s3cret@h#a}b",
            "redis://u:s3cret@h?prefix=a#k",
            "redis://u:12#s3cret@h",
            "redis://u:s3cret@h/minus#k",
        ] {
            let said = RedisTarget::open(url).expect_err(url).to_string();
            assert!(!said.contains("s3cret") && said.contains("Nothing was written"), "{url}: {said}");
        }
        let target = RedisTarget::open("redis://:s3cret@h:1/2#mail@home").expect_err("an @ in the key");
        assert!(!target.to_string().contains("s3cret"));
        let target = RedisTarget::open("redis://:s3cret@h:1/2#mail%40home").unwrap();
        assert_eq!(target.server.shown, "redis://:***@h:1/2#mail%40home");
        assert_eq!(target.keys.value, b"mail@home");
        assert!(!format!("{target:?}").contains("s3cret"));
        assert!(RedisTarget::open("redis://:prefix=s3cret@h#k").is_ok(), "a password is no parameter");
    }
}
