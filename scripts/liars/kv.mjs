// A liar for the tests: the HTTP store protocol over Workers KV, by read, check, write.
// Workers KV has no compare-and-set, so two writers can both be told that they won. The doctor must
// refuse this store; nothing else may use it.
//
//     node kv.mjs NODE_MODULES PORT
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, port] = process.argv.slice(2);
const { Miniflare } = createRequire(join(modules, "x"))("miniflare");

const worker = `
const INSTANCE = "workers-kv";

async function answer(request, env) {
  const url = new URL(request.url);
  if (url.pathname === "/v1/list") return list(url.searchParams, env);
  if (!url.pathname.startsWith("/v1/k/")) return new Response("no such path", { status: 404 });
  const key = decodeURIComponent(url.pathname.slice("/v1/k/".length));
  const { value, metadata } = await env.KV.getWithMetadata(key, { type: "arrayBuffer" });
  if (request.method === "GET") {
    if (value === null) return new Response(null, { status: 404 });
    const age = String(Math.max(0, Date.now() - metadata.at));
    return new Response(value, { headers: { ETag: quoted(metadata.version), "Leasehold-Age-Ms": age } });
  }
  // Between this check and the write below anybody may write: that is the lie.
  const expected = request.headers.get("If-Match");
  const matches = expected ? value !== null && expected === quoted(metadata.version) : value === null;
  if (!matches) return new Response(null, { status: 412 });
  if (request.method === "DELETE") {
    await env.KV.delete(key);
    return new Response(null, { status: 204 });
  }
  if (request.method !== "PUT") return new Response(null, { status: 405 });
  const version = request.headers.get("Leasehold-Write-Id") || crypto.randomUUID();
  const at = Date.now();
  await env.KV.put(key, await request.arrayBuffer(), { metadata: { version, at } });
  return new Response(null, { headers: { ETag: quoted(version), "Leasehold-Time-Ms": String(at) } });
}

async function list(asked, env) {
  const prefix = asked.get("prefix") || "", after = asked.get("after") || "";
  const limit = Number(asked.get("limit") || 1000);
  const keys = [];
  let cursor;
  do {
    const page = await env.KV.list({ prefix, cursor });
    for (const { name } of page.keys) {
      if (name <= after || keys.length >= limit) continue;
      const { value, metadata } = await env.KV.getWithMetadata(name, { type: "arrayBuffer" });
      if (value === null) continue;
      const body = btoa(String.fromCharCode(...new Uint8Array(value)));
      keys.push({ key: name, version: metadata.version, age_ms: Math.max(0, Date.now() - metadata.at), body });
    }
    cursor = page.list_complete ? undefined : page.cursor;
  } while (cursor && keys.length < limit);
  return Response.json({ keys });
}

function quoted(version) { return '"' + version + '"'; }

export default {
  async fetch(request, env) {
    const response = await answer(request, env);
    const headers = new Headers(response.headers);
    headers.set("Leasehold-Protocol", "1");
    headers.set("Leasehold-Instance", INSTANCE);
    return new Response(response.body, { status: response.status, headers });
  },
};
`;

const server = new Miniflare({
  host: "127.0.0.1",
  port: Number(port),
  modules: true,
  script: worker,
  compatibilityDate: "2026-04-01",
  kvNamespaces: ["KV"],
});
await server.ready;
for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => server.dispose().finally(() => process.exit(0)));
}
