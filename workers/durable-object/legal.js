// Whether a write to a lease record is one that Leasehold's rules could have made.
//
// A copy of `legal` in crates/core/src/write_policy.rs, because it has to run where the record is. The tests
// replay core's whole table of cases against this file on workerd: change both, or neither.

const LEASE_PREFIX = "leases/";
const FORGOTTEN_PREFIX = "forgotten/";
const BODY_MAX = 16 * 1024;
const TTL_MAX_MS = 7 * 24 * 3600 * 1000;
const TOKEN_MAX = 2 ** 53 - 1;
const U32_MAX = 2 ** 32 - 1;
const INSTANCE_SKIP = 1000;
// How the last holds ended: so many lines, of so many bytes each.
const PAST_MOST = 8;
const LINE_MAX = 280;
// Additions of later versions are nested no deeper.
const MORE_DEPTH = 8;
// How coarse the ages are that this server tells, in milliseconds.
const RESOLUTION = 1;

const SENTENCES = {
  name: "the key does not name a lease",
  record: "the body is not a record of this lease",
  write: "the write id is not this attempt's own",
  first: "a new record begins with token 1, a holder and no past",
  stored: "what is stored is not a record of this lease, and is left as it is",
  epoch: "the epoch of a record never changes",
  token: "the token is not the one that follows",
  instance: "the store's instance changed in between",
  changed: "this write may not change what it changes",
  idle: "a free lease can only be granted",
  revoked: "a revoked lease can only be given back",
  early: "a revocation may not end the lease early",
  held: "somebody holds the lease, and only an admin bearer may take it from them",
};

export const sentence = (word) => SENTENCES[word];

// Leases are never removed here, so nothing ever says that one was.
export const forgets = (key) => key.startsWith(FORGOTTEN_PREFIX);
export const removable = (key) => !key.startsWith(LEASE_PREFIX) && !forgets(key);

// Kind and name of a key with which a store is tested or asked for its time.
const ofTests = (key) => /^((?:doctor|probe)\/)([^]*)$/.exec(key)?.slice(1);

// The slash before the name in a key: the first, or the second where a day is part of the kind.
const endOfKind = (key) => key.indexOf("/", key.startsWith("log/") ? 4 : 0);

// Where what a bearer limited to names that begin with `prefix` calls `key` is kept; undefined: it may
// not use that. What a store is tested with is kept under its own prefix, so that no bearer changes
// what another one tests.
export function placed(prefix, key) {
  if (prefix === "") return key;
  if (ofTests(key)) return ofTests(key).join(prefix);
  const slash = endOfKind(key);
  return slash >= 0 && key.slice(slash + 1).startsWith(prefix) ? key : undefined;
}

// What such a bearer calls the key that is kept at `place`, which is one of its own.
export function called(prefix, place) {
  const [kind, name] = ofTests(place) ?? [];
  return name?.startsWith(prefix) ? kind + name.slice(prefix.length) : place;
}

// What to list when a bearer limited to `allowed` asks for `prefix`: a prefix, or null for nothing.
// Undefined: not for this bearer.
export function listable(allowed, prefix) {
  const place = placed(allowed, prefix);
  if (place !== undefined) return place;
  const slash = endOfKind(prefix);
  if (slash < 0) return undefined;
  const rest = prefix.slice(slash + 1);
  return allowed.startsWith(rest) ? prefix.slice(0, slash + 1) + allowed : null;
}

// The grammar of lease names, as in crates/core/src/name.rs.
export const isName = (text) => /^[a-z0-9][a-z0-9._/-]{0,127}$/.test(text) && !text.includes("..");
const isHex = (text) => typeof text === "string" && /^[0-9a-f]{32}$/.test(text);
const isText = (text) => typeof text === "string" && text.isWellFormed();
const isNumber = (value, min, max) => Number.isInteger(value) && value >= min && value <= max;

function isPast(lines) {
  const short = (line) => isText(line) && new TextEncoder().encode(line).length <= LINE_MAX;
  return Array.isArray(lines) && lines.length > 0 && lines.length <= PAST_MOST && lines.every(short);
}

// Additions of later versions, as in crates/core/src/additions.rs: they are carried along unread, and must
// read the same in every language.
function isMore(more, depth = MORE_DEPTH) {
  if (typeof more !== "object" || more === null || Array.isArray(more)) return false;
  const names = Object.keys(more);
  const inOrder = names.every((name, at) => /^[a-z][a-z0-9_]*$/.test(name) && (at === 0 || names[at - 1] < name));
  return inOrder && names.every((name) => isAddition(more[name], depth));
}

function isAddition(value, depth) {
  if (value === null || typeof value === "boolean") return true;
  if (typeof value === "number") return isNumber(value, -TOKEN_MAX, TOKEN_MAX);
  if (typeof value === "string") return isText(value);
  if (depth === 0) return false;
  return Array.isArray(value) ? value.every((one) => isAddition(one, depth - 1)) : isMore(value, depth - 1);
}

function isEpoch(text) {
  const parts = typeof text === "string" && /^([1-9][0-9]{0,9})-[0-9a-f]{32}$/.exec(text);
  return Boolean(parts) && Number(parts[1]) <= U32_MAX;
}

// The record in `bytes`, if they are one of the lease `name` exactly as Leasehold writes it: no field
// twice, no space, no other way to write a number. Otherwise null.
function exact(name, bytes) {
  if (bytes.length > BODY_MAX) return null;
  let text, r;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    r = JSON.parse(text);
  } catch {
    return null;
  }
  const h = r?.holder;
  if (typeof h !== "object" || h === null) return null;
  const plain = isNumber(r.token, 1, TOKEN_MAX) && isEpoch(r.epoch) && isHex(r.write) && isText(r.instance);
  const holder = [h.host, h.run, h.job, h.since].every(isText) && isNumber(h.pid, 0, U32_MAX);
  if (!plain || !holder || (h.slot !== undefined && !isText(h.slot))) return null;
  const held = r.state === "held";
  if (held && !(isHex(r.grant) && isNumber(r.ttl_ms, 1, TTL_MAX_MS))) return null;
  if (held && r.lock !== undefined && !isText(r.lock)) return null;
  if (r.past !== undefined && !isPast(r.past)) return null;
  if (r.more !== undefined && !(isMore(r.more) && Object.keys(r.more).length > 0)) return null;
  // What is not written here, or in another order, makes the texts differ.
  const same = {
    leasehold: r.more === undefined ? 1 : 2,
    lease: name,
    state: held ? "held" : "free",
    token: r.token,
    epoch: r.epoch,
    ...(held ? { grant: r.grant, ttl_ms: r.ttl_ms } : {}),
    ...(held && r.revoke === true ? { revoke: true } : {}),
    ...(held && r.lock !== undefined ? { lock: r.lock } : {}),
    holder: {
      ...{ host: h.host, pid: h.pid, run: h.run, job: h.job, since: h.since },
      ...(h.slot !== undefined ? { slot: h.slot } : {}),
    },
    ...(r.past !== undefined ? { past: r.past } : {}),
    ...(r.more !== undefined ? { more: r.more } : {}),
    write: r.write,
    instance: r.instance,
  };
  return JSON.stringify(same) === text ? { ...same, held, revoke: same.revoke === true } : null;
}

const legal = (change) => ({ legal: change });
const illegal = (why) => ({ illegal: why });

// `old`: bytes or null. `age`: milliseconds or null. Gives { legal: change } or { illegal: why }.
export function verdict({ key, old, age, instance, admin, write, body }) {
  if (!key.startsWith(LEASE_PREFIX)) return legal("free");
  const name = key.slice(LEASE_PREFIX.length);
  if (!isName(name)) return illegal("name");
  const is = exact(name, body);
  if (!is) return illegal("record");
  if (is.write !== write) return illegal("write");
  if (old === null) {
    if (!is.held || is.revoke || is.token !== 1 || !is.epoch.startsWith("1-") || is.past) return illegal("first");
    return is.instance === instance ? legal("create") : illegal("instance");
  }
  const was = exact(name, old);
  if (!was) return illegal("stored");
  if (is.write === was.write) return illegal("write");
  if (is.epoch !== was.epoch) return illegal("epoch");
  if (!was.held && !is.held) return illegal("idle");
  // An instance that may have lost writes cannot tell ages.
  if (was.instance !== instance) age = null;
  const same = was.held && (!is.held || is.grant === was.grant);
  const change = same ? sameGrant(was, is, age, instance) : newGrant(was, is, age, instance, admin);
  return change.illegal || keepsPast(was, is, change.legal) ? change : illegal("changed");
}

// Whether the past is as it was. Where a hold ends, a line about it may be added.
function keepsPast(was, is, change) {
  const [before, after] = [was.past ?? [], is.past ?? []];
  const equal = (a, b) => a.length === b.length && a.every((line, at) => line === b[at]);
  if (equal(before, after)) return true;
  if (!["release", "take-over", "force"].includes(change)) return false;
  const rest = before.slice(Math.max(0, before.length - (PAST_MOST - 1)));
  return after.length > 0 && equal(rest, after.slice(0, -1)) && after.at(-1).startsWith(`${was.token} `);
}

// Renewed, asked to stop, or given back.
function sameGrant(was, is, age, instance) {
  if (is.token !== was.token) return illegal("token");
  const kept = is.instance === was.instance && JSON.stringify(is.holder) === JSON.stringify(was.holder);
  if (!kept) return illegal("changed");
  if (!is.held) return legal("release");
  if (is.lock !== was.lock) return illegal("changed");
  if (was.revoke) return illegal("revoked");
  if (!is.revoke) return is.ttl_ms === was.ttl_ms ? legal("renew") : illegal("changed");
  // Asking must neither prolong the lease nor end it before the holder must have stopped.
  const left = age === null ? was.ttl_ms : Math.min(was.ttl_ms, was.ttl_ms + RESOLUTION - age);
  const fits = is.ttl_ms <= was.ttl_ms && is.ttl_ms + 1 >= left;
  if (fits) return legal("revoke");
  // What is left was reckoned by ages that the instance asked now cannot vouch for.
  return illegal(was.instance === instance ? "early" : "instance");
}

function newGrant(was, is, age, instance, admin) {
  if (is.revoke) return illegal("revoked");
  if (is.instance !== instance) return illegal("instance");
  const steps = was.instance === instance ? 1 : INSTANCE_SKIP;
  if (is.token !== was.token + steps) return illegal("token");
  if (!was.held) return legal("grant");
  // Where no age is known the client has watched for a whole TTL, which nobody else can check.
  if (age === null || age >= was.ttl_ms + RESOLUTION) return legal("take-over");
  return admin ? legal("force") : illegal("held");
}
