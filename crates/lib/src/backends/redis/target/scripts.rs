//! The scripts of a target: one reads fence and value, one replaces them.

use redis::Value;

use crate::backends::redis::connection::{CallKind, RedisConnection};
use crate::backends::redis::errors;
use crate::backends::redis::identity::ServerIdentity;
use crate::backends::redis::scripts::Script;
use crate::stores::{Failure, FailureKind};

/// KEYS: the fence and the value. Returns both, from the same moment; -1 if one of them is not a string.
const LOOK: &str = guarded!(
    "
for i = 1, 2 do
  local t = redis.call('TYPE', KEYS[i]).ok
  if t ~= 'none' and t ~= 'string' then return -1 end
end
return {redis.call('GET', KEYS[1]), ARGV[2] == 'both' and redis.call('GET', KEYS[2])}
"
);

/// KEYS: the fence and the value. ARGV: whether a fence must exist, the expected fence, the next one, and the value if
/// there is one. Everything that can fail comes first; then one MSET changes both, or one SET the fence. -1 as above.
const SWAP: &str = guarded!(
    "
local t = redis.call('TYPE', KEYS[2]).ok
if t ~= 'none' and t ~= 'string' then return -1 end
local fence = redis.call('GET', KEYS[1])
if ARGV[2] == 'absent' then
  if fence then return 0 end
elseif not fence or fence ~= ARGV[3] then
  return 0
end
if #ARGV >= 5 then
  redis.call('MSET', KEYS[1], ARGV[4], KEYS[2], ARGV[5])
else
  redis.call('SET', KEYS[1], ARGV[4])
end
return 1
"
);

/// Fence and value, from the same moment.
pub(in crate::backends::redis) struct FenceAndValue {
    /// The server's replication id at that moment, if it is known.
    pub history: Option<String>,
    pub fence: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
}

/// What to read.
#[derive(Clone, Copy)]
pub(in crate::backends::redis) enum ReadWhat {
    Fence,
    FenceAndValue,
}

/// The outcome of replacing the fence.
pub(in crate::backends::redis) enum Swapped {
    Done,
    /// The fence is not the expected one.
    Conflict,
    /// One of the values is not a string.
    NotAString,
}

/// Two keys of one slot.
#[derive(Debug)]
pub(in crate::backends::redis) struct Keys {
    pub fence: Vec<u8>,
    pub value: Vec<u8>,
}

impl RedisConnection {
    /// Reads the fence, and the value if it is wanted. None if one of them is not a string.
    pub(in crate::backends::redis) async fn look(
        &mut self,
        keys: &Keys,
        wanted: ReadWhat,
    ) -> Result<Option<FenceAndValue>, Failure> {
        let wanted = match wanted {
            ReadWhat::Fence => "fence",
            ReadWhat::FenceAndValue => "both",
        };
        let script = Script::of_target(LOOK, keys).with([wanted]);
        let items = match self.call(&script, CallKind::Look).await? {
            Value::Array(items) => items,
            Value::Int(-1) => return Ok(None),
            _ => return Err(errors::not_redis(&self.config)),
        };
        let bytes = |value: Option<&Value>| match value {
            Some(Value::BulkString(bytes)) => Some(bytes.clone()),
            _ => None,
        };
        let history = self.identity.as_ref().and_then(ServerIdentity::replication).map(str::to_owned);
        Ok(Some(FenceAndValue { history, fence: bytes(items.first()), value: bytes(items.get(1)) }))
    }

    /// The failure for a changed replication id.
    pub(in crate::backends::redis) fn changed(&self) -> Failure {
        errors::changed(&self.config)
    }

    /// Replaces the fence, and the value if there is one, if the fence is still `expected`.
    pub(in crate::backends::redis) async fn swap(
        &mut self,
        keys: &Keys,
        expected: Option<&[u8]>,
        fence: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Swapped, Failure> {
        let there = if expected.is_some() { "present" } else { "absent" };
        let script = Script::of_target(SWAP, keys).with([there]);
        let script = script.with([expected.unwrap_or_default(), fence]).with(value);
        match self.call(&script, CallKind::Write).await? {
            Value::Int(1) => Ok(Swapped::Done),
            Value::Int(0) => Ok(Swapped::Conflict),
            Value::Int(-1) => Ok(Swapped::NotAString),
            // The write may have been made.
            _ => Err(Failure { kind: FailureKind::Unreachable, ..errors::not_redis(&self.config) }),
        }
    }
}
