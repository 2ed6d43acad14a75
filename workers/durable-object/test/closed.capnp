# The worker as it is deployed, with its bearers in the environment variable LEASEHOLD_TOKENS; and on a
# second port its rule about lease records alone, for core's table of cases.

using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .theWorker),
    (name = "replay", worker = .replayWorker),
    (name = "disk", disk = (writable = true)),
  ],
  sockets = [
    (name = "http", http = (), service = "main"),
    (name = "replay", http = (), service = "replay"),
  ],
);

const theWorker :Workerd.Worker = (
  modules = [
    (name = "worker.js", esModule = embed "../worker.js"),
    (name = "legal.js", esModule = embed "../legal.js"),
  ],
  compatibilityDate = "2026-04-01",
  durableObjectNamespaces = [(className = "LeaseStore", uniqueKey = "leasehold-store", enableSql = true)],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [
    (name = "STORE", durableObjectNamespace = "LeaseStore"),
    (name = "LEASEHOLD_TOKENS", fromEnvironment = "LEASEHOLD_TOKENS"),
  ],
);

const replayWorker :Workerd.Worker = (
  modules = [
    (name = "replay.js", esModule = embed "replay.js"),
    (name = "legal.js", esModule = embed "../legal.js"),
  ],
  compatibilityDate = "2026-04-01",
);
