"""The servers: each function starts one, waits until it is ready, and gives its variables."""
import base64
import email.utils
import hashlib
import hmac
import json
import os
import re
import shutil
import socket
import subprocess
import threading

from .packages import FIRESTORE_PACKAGE, NPM, PG, PGBOUNCER, ROOT, VENV, WORKER, firestore_jar, workerd_binary
from .processes import Trouble, call, free_port, run, unprivileged

# Public: every copy of Azurite has this account and key.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Absent(Exception):
    """This machine does not have that server; the tests that want it say so themselves."""


def certificates(servers):
    """One authority and one server certificate for this machine; and an authority that signed nothing."""
    tls = servers.dir / "tls"
    with certificates.lock:
        if not (tls / "server.pem").exists():
            tls.mkdir(exist_ok=True)
            new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
            for name in ("ca", "other-ca"):
                run([*new, "-subj", f"/CN=leasehold test {name}", "-addext", "keyUsage=critical,keyCertSign",
                     "-keyout", tls / f"{name}.key", "-out", tls / f"{name}.pem"])
            run([*new, "-subj", "/CN=localhost", "-CA", tls / "ca.pem", "-CAkey", tls / "ca.key",
                 "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
                 "-keyout", tls / "server.key", "-out", tls / "server.pem"])
    return tls


certificates.lock = threading.Lock()

PG_CONF = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
max_connections = 400
max_prepared_transactions = 8
shared_buffers = 32MB
dynamic_shared_memory_type = mmap
ssl = on
ssl_cert_file = '{room}/server.pem'
ssl_key_file = '{room}/server.key'
"""
PG_HBA = """
host all locked 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""
# `lease` owns its database and nothing else; `writer` may write what is there but create nothing.
PG_ROLES = """
CREATE ROLE lease LOGIN;
CREATE DATABASE lease OWNER lease;
CREATE ROLE locked LOGIN PASSWORD 'correct-horse' IN ROLE lease;
CREATE ROLE reader LOGIN IN ROLE pg_read_all_data;
CREATE ROLE writer LOGIN IN ROLE pg_read_all_data, pg_write_all_data;
"""


def psql(port, who, database, sql):
    return subprocess.run(
        [PG / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", f"postgres://{who}@127.0.0.1:{port}/{database}", "-f", "-"],
        input=sql, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30,
        env={**os.environ, "PGCONNECT_TIMEOUT": "5"})


def postgres(servers, _others):
    room, port, tls = servers.room("postgres.data"), free_port(), certificates(servers)
    data = room / "data"
    run(unprivileged([PG / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"]),
        cwd=room)
    for file in ("server.pem", "server.key"):
        shutil.copy(tls / file, room / file)
        (room / file).chmod(0o600)
        if os.getuid() == 0:
            shutil.chown(room / file, "nobody", "nogroup")
    (data / "pg_hba.conf").write_text(PG_HBA)
    with open(data / "postgresql.conf", "a", encoding="utf-8") as conf:
        conf.write(PG_CONF.format(port=port, room=room))
    servers.spawn("postgres", unprivileged([PG / "postgres", "-D", data]))
    servers.wait_ready("postgres", lambda: psql(port, "postgres", "postgres", "SELECT 1").returncode == 0)
    made = psql(port, "postgres", "postgres", PG_ROLES)
    if made.returncode != 0:
        raise Trouble(f"postgres: {made.stdout}")
    at = f"127.0.0.1:{port}/lease"
    return {
        "POSTGRES": f"postgres://lease@{at}",
        "PG_SUPER": f"postgres://postgres@{at}",
        "PG_LOCKED": f"postgres://locked:correct-horse@{at}",
        "PG_READER": f"postgres://reader@{at}",
        "PG_WRITER": f"postgres://writer@{at}",
        "PG_CA": tls / "ca.pem",
        "PG_OTHER_CA": tls / "other-ca.pem",
    }


BOUNCER = """
[databases]
lease = host=127.0.0.1 port={behind} dbname=lease
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {room}/users
pool_mode = transaction
default_pool_size = 1
max_client_conn = 400
"""


def pgbouncer(servers, others):
    behind = others["postgres"]["POSTGRES"].rsplit(":", 1)[1].split("/")[0]
    room, port = servers.room("pgbouncer.data"), free_port()
    (room / "users").write_text('"lease" ""\n')
    (room / "ini").write_text(BOUNCER.format(port=port, behind=behind, room=room))
    servers.spawn("pgbouncer", unprivileged([PGBOUNCER, room / "ini"]))
    servers.wait_ready("pgbouncer", lambda: psql(port, "lease", "lease", "SELECT 1").returncode == 0)
    return {"PGBOUNCER": f"postgres://lease@127.0.0.1:{port}/lease"}


def redis(servers, _others):
    def pong(port, *lines):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall("".join(f"{line}\r\n" for line in [*lines, "PING"]).encode())
            said = b""
            while b"+PONG" not in said and (more := connection.recv(100)):
                said += more
            return b"+PONG" in said

    def serve(name, port, *more):
        keep = ["--dir", servers.room(f"{name}.data"), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        servers.spawn(name, ["redis-server", "--bind", "127.0.0.1", "--port", port, *keep, *more])

    port, guarded, tls_port, tls = free_port(), free_port(), free_port(), certificates(servers)
    serve("redis", port)
    serve("redis-guarded", guarded, "--requirepass", "correct-horse", "--tls-port", tls_port, "--tls-auth-clients", "no",
          "--tls-cert-file", tls / "server.pem", "--tls-key-file", tls / "server.key", "--tls-ca-cert-file", tls / "ca.pem")
    servers.wait_ready("redis", lambda: pong(port))
    servers.wait_ready("redis-guarded", lambda: pong(guarded, "AUTH correct-horse"))
    return {
        "REDIS": f"redis://127.0.0.1:{port}",
        "REDIS_AUTH": f"redis://default:correct-horse@127.0.0.1:{guarded}",
        "REDIS_TLS": f"rediss://default:correct-horse@127.0.0.1:{tls_port}",
        "REDIS_CA": tls / "ca.pem",
    }


def s3(servers, _others):
    port, room = free_port(), servers.room("s3.data")
    # Without BIND_HOST it would listen to the whole network.
    servers.spawn("s3", [VENV / "bin" / "ministack"], BIND_HOST="127.0.0.1", GATEWAY_PORT=port, SERVICES="s3", HOME=room)
    servers.wait_ready("s3", lambda: call(port, "PUT", "/leases")[0] == 200)
    return {"S3": f"http://127.0.0.1:{port}"}


def s3rver(servers, _others):
    port = free_port()
    servers.spawn("s3rver", ["node", NPM / ".bin" / "s3rver", "--address", "127.0.0.1", "--port", port, "--silent",
                             "--directory", servers.room("s3rver.data"), "--configure-bucket", "leases"])
    servers.wait_ready("s3rver", lambda: call(port, "GET", "/leases")[0] < 500)
    return {"S3RVER": f"http://127.0.0.1:{port}"}


def azure(servers, _others):
    port = free_port()

    def container():
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06", "Content-Length": "0"}
        canonical = "".join(f"{k}:{headers[k]}\n" for k in ("x-ms-date", "x-ms-version"))
        path = f"/{AZURE_ACCOUNT}/leases"
        text = "PUT" + "\n" * 12 + canonical + f"/{AZURE_ACCOUNT}{path}\nrestype:container"
        key = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(key).decode()}"
        return call(port, "PUT", f"{path}?restype=container", headers)[0] in (201, 409)

    servers.spawn("azure", ["node", NPM / ".bin" / "azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", port,
                            "--location", servers.room("azure.data"), "--silent", "--disableTelemetry"])
    servers.wait_ready("azure", container)
    return {"AZURE": f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"}


def workerd(servers, _others):
    if not WORKER.exists():
        raise Absent(f"{WORKER.relative_to(ROOT)} is not there yet")
    text = WORKER.read_text()
    port, room = free_port(), servers.room("workerd.data")
    sockets = re.search(r'sockets\s*=\s*\[\s*\(\s*name\s*=\s*"([^"]+)"', text)
    disk = re.search(r'name\s*=\s*"([^"]+)"\s*,\s*disk\b', text)
    argv = [workerd_binary(), "serve", WORKER, "--socket-addr", f"{sockets[1] if sockets else 'http'}=127.0.0.1:{port}"]
    if disk:
        argv += ["--directory-path", f"{disk[1]}={room}"]
    servers.spawn("workerd", argv)
    servers.wait_ready("workerd", lambda: call(port, "GET", "/v1/k/none")[0] in (401, 403, 404))
    return {"WORKERD": f"http://127.0.0.1:{port}"}


def kv(servers, _others):
    port = free_port()
    servers.spawn("kv", ["node", ROOT / "scripts" / "liars" / "kv.mjs", NPM, port], HOME=servers.room("kv.data"))
    servers.wait_ready("kv", lambda: call(port, "GET", "/v1/k/none")[0] == 404)
    return {"KV": f"http://127.0.0.1:{port}"}


def firestore(servers, _others):
    jar, port = firestore_jar(), free_port()
    if not jar:
        raise Absent(f"the package {FIRESTORE_PACKAGE} (and Java) is not installed; the tests use a double instead")
    # It lives for minutes: compiling its code well would take longer than that saves.
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    servers.spawn("firestore", ["java", "-Xmx512m", *quick, "-Duser.language=en", "-cp", jar,
                                "com.google.cloud.datastore.emulator.firestore.CloudFirestore",
                                "--host", "127.0.0.1", "--port", port], HOME=servers.room("firestore.data"))
    documents = "/v1/projects/warm/databases/(default)/documents"
    name = f"{documents[4:]}/up/once"
    commit = json.dumps({"writes": [{"update": {"name": name, "fields": {}}}]})
    query = json.dumps({"structuredQuery": {"from": [{"collectionId": "up"}], "limit": 1}})
    answers = {f"{documents}:commit": commit, f"{documents}:runQuery": query,
               f"{documents}:batchGet": json.dumps({"documents": [name]})}

    def warm():
        # The first call of each kind makes it load half of itself: nobody's call limit should pay for that.
        json_type = {"Content-Type": "application/json"}
        return all(call(port, "POST", path, json_type, body)[0] == 200 for path, body in answers.items())

    servers.wait_ready("firestore", warm)
    return {"FIRESTORE": f"127.0.0.1:{port}"}


SERVERS = {f.__name__: f for f in (postgres, pgbouncer, redis, s3, azure, s3rver, workerd, kv, firestore)}
NEEDS = {"pgbouncer": ["postgres"]}
