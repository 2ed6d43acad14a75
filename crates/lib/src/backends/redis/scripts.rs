//! The scripts, one for each verb, and their answers.
//!
//! Each is sent whole, without EVALSHA, so that the first call needs no second round trip. In each script,
//! everything that can fail comes before the first write: a wrong type, no memory, a missing permission. So the
//! server either refuses the first write or makes all.

use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value, cmd, from_redis_value};

use super::config::Config;
use crate::stores::{BatchWrite, Stored, Version};

/// The error of a script for a key whose value Leasehold did not write.
pub(super) const FOREIGN: &str = "LEASEHOLD_FOREIGN";

/// The error of a script if the server's replication id has changed.
pub(super) const CHANGED: &str = "LEASEHOLD_CHANGED";

/// A script that does nothing unless ARGV[1], the known replication id ('' if unknown), is still the server's. A
/// primary that was a replica in between has another id. A connection can survive that, while writes from before it
/// may be lost.
macro_rules! guarded {
    ($body:literal) => {
        concat!(
            "
if ARGV[1] ~= '' then
  local info = redis.pcall('INFO', 'replication')
  local id = type(info) == 'string' and string.match(info, 'master_replid:(%x+)')
  if id and string.find(info, 'role:slave', 1, true) then
    return redis.error_reply('READONLY replica')
  elseif id and id ~= ARGV[1] then
    return redis.error_reply('LEASEHOLD_CHANGED history')
  end
end
",
            $body
        )
    };
}

/// KEYS: the record.
const READ: &str = guarded!(
    "
local r = redis.call('HMGET', KEYS[1], 'v', 'b', 't')
if not r[1] and redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('LEASEHOLD_FOREIGN no record')
end
local now = redis.call('TIME')
return {now[1], now[2], r[1], r[2], r[3]}
"
);

/// KEYS: the index, then the records. ARGV: the channel prefix, '1' if each write is made only after the one before
/// it, then name, expected version ('' if it must be absent), new version and body of each. Otherwise a conflict of one
/// record does not affect the others. An error of PUBLISH is ignored.
const CAS: &str = guarded!(
    "
local now = redis.call('TIME')
local t = now[1] .. string.format('%06d', now[2])
local out = {now[1], now[2]}
for i = 2, #KEYS do
  local a = (i - 2) * 4 + 4
  local there = redis.call('EXISTS', KEYS[i]) == 1
  local v = redis.pcall('HGET', KEYS[i], 'v')
  if ARGV[3] == '1' and i > 2 and out[i] ~= 1 then
    out[i + 1] = 0
  elseif type(v) == 'table' or (not v and there) then
    out[i + 1] = 2
  elseif (v or '') ~= ARGV[a + 1] then
    out[i + 1] = 0
  else
    redis.call('ZADD', KEYS[1], 0, ARGV[a])
    redis.call('HSET', KEYS[i], 'v', ARGV[a + 2], 'b', ARGV[a + 3], 't', t)
    redis.pcall('PUBLISH', ARGV[2] .. ARGV[a], ARGV[a + 2])
    out[i + 1] = 1
  end
end
return out
"
);

/// KEYS: the index and the record. ARGV: the channel prefix, the name, the version.
const REMOVE: &str = guarded!(
    "
local now = redis.call('TIME')
local v = redis.call('HGET', KEYS[2], 'v')
if v ~= ARGV[4] then return {now[1], now[2], 0} end
redis.call('ZREM', KEYS[1], ARGV[3])
redis.call('DEL', KEYS[2])
redis.pcall('PUBLISH', ARGV[2] .. ARGV[3], '')
return {now[1], now[2], 1}
"
);

/// KEYS: the index. ARGV: the prefix of records, the bounds, the limit. A name whose record is gone (evicted, or
/// removed by hand) is returned without a record.
const LIST: &str = guarded!(
    "
local now = redis.call('TIME')
local out = {now[1], now[2]}
local names = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])
for _, name in ipairs(names) do
  local r = redis.call('HMGET', ARGV[2] .. name, 'v', 'b', 't')
  out[#out + 1] = {name, r[1], r[2], r[3]}
end
return out
"
);

/// A script with its keys and arguments, except the first, which is the replication id.
pub(super) struct Script {
    text: &'static str,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

impl Script {
    fn new(text: &'static str, keys: Vec<String>) -> Self {
        let keys = keys.into_iter().map(String::into_bytes).collect();
        Self { text, keys, arguments: Vec::new() }
    }

    /// A script on the two keys of a target.
    pub fn of_target(text: &'static str, keys: &super::target::Keys) -> Self {
        Self { text, keys: vec![keys.fence.clone(), keys.value.clone()], arguments: Vec::new() }
    }

    pub fn with(mut self, arguments: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// The command for the server with this replication id.
    pub fn for_server(&self, id: Option<&str>) -> Cmd {
        let mut command = cmd("EVAL");
        command
            .arg(self.text)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(id.unwrap_or(""))
            .arg(&self.arguments);
        command
    }
}

pub(super) fn read(config: &Config, key: &str) -> Script {
    Script::new(READ, vec![config.record(key)])
}

pub(super) fn cas<'a>(
    config: &Config,
    writes: impl Iterator<Item = ScriptWrite<'a>> + Clone,
    dependence: Dependence,
) -> Script {
    let records = writes.clone().map(|write| config.record(write.key));
    let keys = [config.index()].into_iter().chain(records).collect();
    let chained = if dependence == Dependence::OnTheOneBefore { "1" } else { "" };
    writes.fold(Script::new(CAS, keys).with([config.record("").as_str(), chained]), |script, write| {
        script.with([write.key, write.expected, &write.version]).with([write.body])
    })
}

/// Whether the writes of one script depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dependence {
    /// Each is made or refused by itself.
    None,
    /// Each is made only if the one before it is.
    OnTheOneBefore,
}

/// One conditional write, as arguments of the script.
pub(super) struct ScriptWrite<'a> {
    pub key: &'a str,
    pub expected: &'a str,
    pub version: String,
    pub body: &'a [u8],
}

impl<'a> From<&'a BatchWrite> for ScriptWrite<'a> {
    fn from(write: &'a BatchWrite) -> Self {
        Self {
            key: &write.key,
            expected: expected(write.expected.as_ref()),
            version: write.write.to_string(),
            body: &write.body,
        }
    }
}

/// The argument for an expected version. Versions are never empty, so "" means that there must be no record.
pub(super) fn expected(version: Option<&Version>) -> &str {
    version.map_or("", |version| version.0.as_str())
}

pub(super) fn remove(config: &Config, key: &str, version: &Version) -> Script {
    let keys = vec![config.index(), config.record(key)];
    Script::new(REMOVE, keys).with([config.record("").as_str(), key, &version.0])
}

/// Names with the prefix sort after the prefix, so the start is the larger of the two bounds.
pub(super) fn list(config: &Config, prefix: &str, after: &str, limit: usize) -> Script {
    let mut from = b"-".to_vec();
    if !after.is_empty() && after >= prefix {
        from = [b"(", after.as_bytes()].concat();
    } else if !prefix.is_empty() {
        from = [b"[", prefix.as_bytes()].concat();
    }
    let mut to = b"+".to_vec();
    if let Some((last, rest)) = prefix.as_bytes().split_last() {
        // No byte of UTF-8 is 0xff, so this does not overflow.
        to = [b"(", rest, &[last.saturating_add(1)]].concat();
    }
    let script = Script::new(LIST, vec![config.index()]).with([config.record("")]);
    script.with([from, to, limit.to_string().into_bytes()])
}

/// The server's time, and the rest of a script's answer.
pub(super) struct ScriptAnswer {
    pub now: Duration,
    pub rest: Vec<Value>,
}

impl ScriptAnswer {
    /// None if this is no answer of our scripts.
    pub fn of(value: Value) -> Option<Self> {
        let Value::Array(items) = value else { return None };
        let mut items = items.into_iter();
        let (seconds, micros): (u64, u32) = (take(&mut items)?, take(&mut items)?);
        let now = Duration::from_secs(seconds).checked_add(Duration::from_micros(micros.into()))?;
        Some(Self { now, rest: items.collect() })
    }
}

pub(super) fn take<T: FromRedisValue>(items: &mut impl Iterator<Item = Value>) -> Option<T> {
    from_redis_value(items.next()?).ok()
}

/// A record from its version, body and time, or its absence. None if it is no record of ours.
pub(super) fn stored(now: Duration, items: &mut impl Iterator<Item = Value>) -> Option<Option<Stored>> {
    let version: Option<String> = take(items)?;
    let body: Option<Vec<u8>> = take(items)?;
    let written: Option<Vec<u8>> = take(items)?;
    let Some(version) = version else { return Some(None) };
    // There is no age if the time cannot be read, or is in the future because the clock was set back.
    let written = written.and_then(|t| std::str::from_utf8(&t).ok()?.parse().ok()).map(Duration::from_micros);
    let age = written.and_then(|written| now.checked_sub(written));
    Some(Some(Stored { body: body?, version: Version(version), age }))
}
