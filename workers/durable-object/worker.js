// Leasehold's HTTP store protocol (docs/store-protocol.md) over one Durable Object.
//
// One object holds every record, in its own SQLite database, so that keys can be listed and every
// check is made where the record is. Within the object nothing is awaited between a check and its
// write, and a reply leaves only once what it tells is on disk.

import { DurableObject } from "cloudflare:workers";
import { called, forgets, listable, placed, removable, sentence, verdict } from "./legal.js";

const KEY_MAX = 512;
const BODY_MAX = 64 * 1024;
const PAGE_KEYS = 500;
const PAGE_BYTES = 1024 * 1024;
const LANDED_MAX = 1000;

export class LeaseStore extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.sql = ctx.storage.sql;
    // The last writes that landed: a proxy may send one again after it was replaced.
    this.landed = new Map();
    this.instance = ctx.storage.transactionSync(() => {
      this.sql.exec(
        `CREATE TABLE IF NOT EXISTS records
           (key TEXT PRIMARY KEY, version TEXT NOT NULL, written INTEGER NOT NULL, body BLOB NOT NULL)
           WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS store (one INTEGER PRIMARY KEY CHECK (one = 1), instance TEXT NOT NULL);`,
      );
      this.sql.exec("INSERT OR IGNORE INTO store VALUES (1, ?)", crypto.randomUUID());
      return this.sql.exec("SELECT instance FROM store").one().instance;
    });
  }

  row(key) {
    const row = this.sql.exec("SELECT version, written, body FROM records WHERE key = ?", key).toArray()[0];
    return row && { version: row.version, written: row.written, body: new Uint8Array(row.body) };
  }

  read(key) {
    const row = this.row(key);
    return { instance: this.instance, found: row && { ...row, age: age(row.written) } };
  }

  write(key, expected, write, body, admin) {
    const instance = this.instance;
    const attempt = `${write} ${key}`;
    const written = this.landed.get(attempt);
    if (written !== undefined) return { instance, written };
    const answer = this.ctx.storage.transactionSync(() => {
      const row = this.row(key);
      if ((row?.version ?? null) !== expected) return { instance, conflict: true };
      const offer = { key, old: row?.body ?? null, age: row ? age(row.written) : null, instance, admin, write, body };
      const { illegal } = verdict(offer);
      // The client did nothing wrong: what it looked at is no longer so.
      if (illegal === "instance") return { instance, conflict: true };
      if (illegal) return { instance, illegal };
      const now = Date.now();
      this.sql.exec("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", key, write, now, body);
      return { instance, written: now };
    });
    if (answer.written !== undefined) this.landed.set(attempt, answer.written);
    if (this.landed.size > LANDED_MAX) this.landed.delete(this.landed.keys().next().value);
    return answer;
  }

  remove(key, expected) {
    return this.ctx.storage.transactionSync(() => {
      const gone = this.sql.exec("DELETE FROM records WHERE key = ? AND version = ? RETURNING 1", key, expected);
      return { instance: this.instance, removed: gone.toArray().length === 1 };
    });
  }

  list(prefix, after, limit) {
    const keys = [];
    let [bytes, more] = [0, false];
    const from = "SELECT key, version, written, body FROM records WHERE key >= ? AND key > ? ORDER BY key";
    for (const row of this.sql.exec(from, prefix, after)) {
      if (!row.key.startsWith(prefix)) break;
      more = keys.length >= limit || bytes >= PAGE_BYTES;
      if (more) break;
      const body = new Uint8Array(row.body);
      bytes += body.length;
      keys.push({ key: row.key, version: row.version, age_ms: age(row.written), body: base64(body) });
    }
    return { instance: this.instance, keys, more };
  }
}

// Milliseconds since then; null if the clock was set back.
function age(written) {
  const age = Date.now() - written;
  return age >= 0 ? age : null;
}

function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x2000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x2000));
  }
  return btoa(text);
}

export default {
  async fetch(request, env) {
    try {
      return await answer(request, env);
    } catch (error) {
      if (error instanceof Refusal) return reply(error.status, { json: { error: error.message, reason: error.reason } });
      console.error(error);
      return reply(500, { json: { error: "the store failed; look at the worker's log" } });
    }
  },
};

class Refusal extends Error {
  constructor(status, message, reason) {
    super(message);
    Object.assign(this, { status, reason });
  }
}

function reply(status, { instance, headers, body = null, json } = {}) {
  const all = {
    "Leasehold-Protocol": "1",
    // No cache or proxy may keep, compress or change an answer: its ETag would no longer be ours.
    "Cache-Control": "no-store, no-transform",
    ...(instance ? { "Leasehold-Instance": instance } : {}),
    ...(json ? { "Content-Type": "application/json" } : { "Content-Type": "application/octet-stream" }),
    ...headers,
  };
  return new Response(json ? JSON.stringify(json) : body, { status, headers: all });
}

async function answer(request, env) {
  const url = new URL(request.url);
  const bearer = await bearerOf(request, env);
  const store = env.STORE.get(env.STORE.idFromName("leasehold"));
  if (url.pathname === "/v1/list" && request.method === "GET") return list(url, bearer, store);
  const key = placed(bearer.prefix, keyOf(url));
  if (key === undefined) {
    throw new Refusal(403, "this bearer may only use names that begin with its prefix", "prefix");
  }
  switch (request.method) {
    case "GET":
      return read(key, store);
    case "PUT":
      return write(request, key, bearer, store);
    case "DELETE":
      return remove(request, key, store);
    default:
      throw new Refusal(405, "the methods for a key are GET, PUT and DELETE");
  }
}

async function read(key, store) {
  const { instance, found } = await store.read(key);
  if (!found) return reply(404, { instance, json: { error: "there is no such key", reason: "absent" } });
  const headers = { ETag: `"${found.version}"` };
  if (found.age !== null) headers["Leasehold-Age-Ms"] = String(found.age);
  return reply(200, { instance, headers, body: found.body });
}

async function write(request, key, bearer, store) {
  if (forgets(key)) throw new Refusal(422, "this store keeps all leases, so it cannot forget a name", "kept");
  const write = request.headers.get("Leasehold-Write-Id") ?? "";
  if (!/^[0-9a-f]{32}$/.test(write)) {
    throw new Refusal(400, "Leasehold-Write-Id must be 32 lower-case hexadecimal digits");
  }
  const create = request.headers.get("If-None-Match") === "*" && !request.headers.has("If-Match");
  const expected = create ? null : versionOf(request);
  const body = await bodyOf(request);
  const { instance, written, conflict, illegal } = await store.write(key, expected, write, body, bearer.admin);
  if (conflict) return stale(instance);
  if (illegal) {
    console.warn(`refused a write to ${JSON.stringify(key)}: ${illegal}`);
    return reply(422, { instance, json: { error: sentence(illegal), reason: illegal } });
  }
  return reply(200, { instance, headers: { ETag: `"${write}"`, "Leasehold-Time-Ms": String(written) } });
}

async function remove(request, key, store) {
  if (!removable(key)) throw new Refusal(422, "lease records are never removed", "kept");
  const { instance, removed } = await store.remove(key, versionOf(request));
  return removed ? reply(204, { instance }) : stale(instance);
}

async function list(url, bearer, store) {
  const ask = (name) => url.searchParams.get(name) ?? "";
  const prefix = listable(bearer.prefix, ask("prefix"));
  if (prefix === undefined) throw new Refusal(403, "this bearer may not list all kinds of keys at once", "prefix");
  const limit = /^[0-9]{1,9}$/.test(ask("limit")) ? Math.min(Number(ask("limit")), PAGE_KEYS) : PAGE_KEYS;
  // A prefix that no key can have still tells the instance.
  const after = placed(bearer.prefix, ask("after")) ?? ask("after");
  const { instance, keys, more } = await store.list(prefix ?? "\0", after, limit);
  for (const found of keys) found.key = called(bearer.prefix, found.key);
  return reply(200, { instance, json: { keys, more } });
}

// No more of it is read than a body may have: one sent in chunks does not say how long it will be.
async function bodyOf(request) {
  if (Number(request.headers.get("Content-Length")) > BODY_MAX) throw tooLong();
  const body = new Uint8Array(BODY_MAX);
  let length = 0;
  for await (const part of request.body ?? []) {
    if (length + part.length > BODY_MAX) throw tooLong();
    body.set(part, length);
    length += part.length;
  }
  return body.slice(0, length);
}

const tooLong = () => new Refusal(413, `a body can have at most ${BODY_MAX} bytes`);
const stale = (instance) =>
  reply(412, { instance, json: { error: "the key does not have that version", reason: "conflict" } });

function keyOf(url) {
  const found = /^\/v1\/k\/([^/]+)$/.exec(url.pathname);
  if (!found) throw new Refusal(400, "the only paths are /v1/k/KEY and /v1/list");
  let key;
  try {
    key = decodeURIComponent(found[1]);
  } catch {
    throw new Refusal(400, "this is not percent-encoded UTF-8");
  }
  if (key.includes("\0")) throw new Refusal(400, "a key cannot contain a zero byte");
  if (new TextEncoder().encode(key).length > KEY_MAX) throw new Refusal(414, `a key can have at most ${KEY_MAX} bytes`);
  return key;
}

function versionOf(request) {
  const found = /^"([^"]+)"$/.exec(request.headers.get("If-Match") ?? "");
  if (!found || request.headers.has("If-None-Match")) {
    throw new Refusal(428, "name the version to replace with If-Match, or send If-None-Match: * for a new key");
  }
  return found[1];
}

// Whose request this is, and what they may do. LEASEHOLD_TOKENS maps the SHA-256 of a token, in
// hexadecimal, to a name prefix or to { "prefix": …, "admin": true }; "*" is everyone without a token.
async function bearerOf(request, env) {
  const header = request.headers.get("Authorization");
  const tokens = Object.entries(JSON.parse(env.LEASEHOLD_TOKENS || "{}"));
  const sent = /^Bearer +([^ ]+)$/i.exec(header ?? "")?.[1];
  const encode = (text) => new TextEncoder().encode(text);
  const hash = header === null ? null : new Uint8Array(await crypto.subtle.digest("SHA-256", encode(sent ?? "")));
  const hex = hash && encode([...hash].map((byte) => byte.toString(16).padStart(2, "0")).join(""));
  let rights;
  // Every entry is compared, in the same time whether it matches or not.
  for (const [name, value] of tokens) {
    const entry = encode(name.toLowerCase());
    const match = hex ? entry.length === hex.length && crypto.subtle.timingSafeEqual(entry, hex) : name === "*";
    if (match && (sent || !hex)) rights = value;
  }
  if (rights === undefined) {
    const what = header === null ? "a bearer token is needed" : "the bearer token is unknown";
    throw new Refusal(401, what, "bearer");
  }
  if (typeof rights === "string") return { prefix: rights, admin: false };
  // A misspelt entry must not open every name.
  if (typeof rights?.prefix !== "string") throw new Refusal(401, "this token's entry names no prefix", "bearer");
  return { prefix: rights.prefix, admin: rights.admin === true };
}
