# The worker on workerd alone, without Cloudflare: for the tests, and for a look by hand.
#
#   workerd serve --socket-addr http=127.0.0.1:8787 --directory-path disk=DIRECTORY workerd.capnp
#
# It lets in everybody who can reach the port, so give it a loopback address.

using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .theWorker),
    (name = "disk", disk = (writable = true)),
  ],
  sockets = [(name = "http", http = (), service = "main")],
);

const theWorker :Workerd.Worker = (
  modules = [
    (name = "worker.js", esModule = embed "worker.js"),
    (name = "legal.js", esModule = embed "legal.js"),
  ],
  compatibilityDate = "2026-04-01",
  durableObjectNamespaces = [(className = "LeaseStore", uniqueKey = "leasehold-store", enableSql = true)],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [
    (name = "STORE", durableObjectNamespace = "LeaseStore"),
    (name = "LEASEHOLD_TOKENS", text = "{\"*\": \"\"}"),
  ],
);
