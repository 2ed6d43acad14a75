//! The scripts, one for each verb, and what they answer.
//!
//! Each is sent whole: a cold run pays no extra round trip to find out that the server has not seen
//! it. In each, whatever can fail comes before the first write: a type that does not fit, memory that
//! is used up, a right that is missing. The server refuses the first write or none.

use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value, cmd, from_redis_value};

use super::place::Place;
use crate::stores::{Stored, Version, Write};

/// What a script says when the key holds something that no script of ours wrote.
pub(super) const FOREIGN: &str = "LEASEHOLD_FOREIGN";

/// KEYS: the record.
const READ: &str = "
local r = redis.call('HMGET', KEYS[1], 'v', 'b', 't')
if not r[1] and redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('LEASEHOLD_FOREIGN no record')
end
local now = redis.call('TIME')
return {now[1], now[2], r[1], r[2], r[3]}
";

/// KEYS: the index, then the records. ARGV: where to publish, then name, expected version ('' if it
/// must be absent), new version and body of each. A record that is not what was expected spoils no
/// other; publishing is a courtesy that may be forbidden.
const CAS: &str = "
local now = redis.call('TIME')
local t = now[1] .. string.format('%06d', now[2])
local out = {now[1], now[2]}
for i = 2, #KEYS do
  local a = (i - 2) * 4 + 2
  local v = redis.pcall('HGET', KEYS[i], 'v')
  if type(v) == 'table' or (not v and redis.call('EXISTS', KEYS[i]) == 1) then
    out[i + 1] = 2
  elseif (v or '') ~= ARGV[a + 1] then
    out[i + 1] = 0
  else
    redis.call('ZADD', KEYS[1], 0, ARGV[a])
    redis.call('HSET', KEYS[i], 'v', ARGV[a + 2], 'b', ARGV[a + 3], 't', t)
    redis.pcall('PUBLISH', ARGV[1] .. ARGV[a], ARGV[a + 2])
    out[i + 1] = 1
  end
end
return out
";

/// KEYS: the index and the record. ARGV: where to publish, the name, the version.
const REMOVE: &str = "
local now = redis.call('TIME')
local v = redis.call('HGET', KEYS[2], 'v')
if v ~= ARGV[3] then return {now[1], now[2], 0} end
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
redis.pcall('PUBLISH', ARGV[1] .. ARGV[2], '')
return {now[1], now[2], 1}
";

/// KEYS: the index. ARGV: where records are, the bounds, how many. A name whose record is gone
/// (evicted, or removed by hand) comes without one.
const LIST: &str = "
local now = redis.call('TIME')
local out = {now[1], now[2]}
local names = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])
for _, name in ipairs(names) do
  local r = redis.call('HMGET', ARGV[1] .. name, 'v', 'b', 't')
  out[#out + 1] = {name, r[1], r[2], r[3]}
end
return out
";

fn eval(script: &str, keys: usize) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(script).arg(keys);
    command
}

pub(super) fn read(place: &Place, key: &str) -> Cmd {
    let mut command = eval(READ, 1);
    command.arg(place.record(key));
    command
}

pub(super) fn cas<'a>(place: &Place, writes: impl ExactSizeIterator<Item = One<'a>> + Clone) -> Cmd {
    let mut command = eval(CAS, writes.len() + 1);
    command.arg(place.index());
    for write in writes.clone() {
        command.arg(place.record(write.key));
    }
    command.arg(place.record(""));
    for write in writes {
        command.arg(write.key).arg(write.expected).arg(write.version).arg(write.body);
    }
    command
}

/// One conditional write as the script takes it.
pub(super) struct One<'a> {
    pub key: &'a str,
    pub expected: &'a str,
    pub version: String,
    pub body: &'a [u8],
}

impl<'a> From<&'a Write> for One<'a> {
    fn from(write: &'a Write) -> Self {
        Self {
            key: &write.key,
            expected: expected(write.expected.as_ref()),
            version: write.write.to_string(),
            body: &write.body,
        }
    }
}

/// Our own versions are never empty, so "" can stand for nothing.
pub(super) fn expected(version: Option<&Version>) -> &str {
    version.map_or("", |version| version.0.as_str())
}

pub(super) fn remove(place: &Place, key: &str, version: &Version) -> Cmd {
    let mut command = eval(REMOVE, 2);
    command.arg(place.index()).arg(place.record(key)).arg(place.record("")).arg(key).arg(&version.0);
    command
}

/// Names with the prefix sort from the prefix on, so whichever bound lies further is the start.
pub(super) fn list(place: &Place, prefix: &str, after: &str, limit: usize) -> Cmd {
    let mut from = b"-".to_vec();
    if !after.is_empty() && after >= prefix {
        from = [b"(", after.as_bytes()].concat();
    } else if !prefix.is_empty() {
        from = [b"[", prefix.as_bytes()].concat();
    }
    let mut to = b"+".to_vec();
    if let Some((last, rest)) = prefix.as_bytes().split_last() {
        // No byte of UTF-8 is the last one there is.
        to = [b"(", rest, &[last.saturating_add(1)]].concat();
    }
    let mut command = eval(LIST, 1);
    command.arg(place.index()).arg(place.record("")).arg(from).arg(to).arg(limit);
    command
}

/// The server's clock, and what else a script answered.
pub(super) struct Answer {
    pub now: Duration,
    pub rest: Vec<Value>,
}

impl Answer {
    /// Nothing: this is not what our scripts answer.
    pub fn of(value: Value) -> Option<Self> {
        let Value::Array(items) = value else { return None };
        let mut items = items.into_iter();
        let (seconds, micros): (u64, u32) = (take(&mut items)?, take(&mut items)?);
        let now = Duration::new(seconds, micros.checked_mul(1000)?);
        Some(Self { now, rest: items.collect() })
    }
}

pub(super) fn take<T: FromRedisValue>(items: &mut impl Iterator<Item = Value>) -> Option<T> {
    from_redis_value(items.next()?).ok()
}

/// Version, body and time of a record, which may be absent. Nothing: no record of ours.
pub(super) fn stored(now: Duration, items: &mut impl Iterator<Item = Value>) -> Option<Option<Stored>> {
    let version: Option<String> = take(items)?;
    let body: Option<Vec<u8>> = take(items)?;
    let written: Option<Vec<u8>> = take(items)?;
    let Some(version) = version else { return Some(None) };
    // A time that cannot be read, or lies ahead because the clock was set back, tells no age.
    let written = written.and_then(|t| std::str::from_utf8(&t).ok()?.parse().ok()).map(Duration::from_micros);
    let age = written.and_then(|written| now.checked_sub(written));
    Some(Some(Stored { body: body?, version: Version(version), age }))
}
