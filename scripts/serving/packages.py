"""What the servers are, where they come from, and in which version."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from .processes import Trouble, run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
TOOLS = TARGET / "tools" / "servers"
NPM = TOOLS / "npm" / "node_modules"
VENV = TOOLS / "venv"
PG = pathlib.Path("/usr/lib/postgresql/15/bin")
PGBOUNCER = "/usr/sbin/pgbouncer"
FIRESTORE_PACKAGE = "google-cloud-cli-firestore-emulator"
WORKER = ROOT / "workers" / "durable-object" / "workerd.capnp"

# The last two are for tests of pages in a browser.
NPM_PACKAGES = {"azurite": "3.35.0", "miniflare": "4.20260426.0", "s3rver": "3.7.1", "workerd": "1.20260426.1",
                "axe-core": "4.14.0", "playwright-core": "1.65.1"}
# The name that pip gives to the directory of a package: with an underscore. The last two are for tests of what programs read.
PIP_PACKAGES = {"ministack": "1.5.33", "prometheus_client": "0.26.0", "schemathesis": "4.32.5"}


def install():
    """Both at once; nothing where the wanted versions are there already."""
    jobs = []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        if any(npm_version(name) != version for name, version in NPM_PACKAGES.items()):
            wanted = [f"{name}@{version}" for name, version in NPM_PACKAGES.items()]
            (TOOLS / "npm").mkdir(parents=True, exist_ok=True)
            jobs.append(pool.submit(run, ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund",
                                          "--prefix", TOOLS / "npm", *wanted]))
        if any(pip_version(name) != version for name, version in PIP_PACKAGES.items()):
            jobs.append(pool.submit(install_venv))
        for job in jobs:
            job.result()
    lacking = [n for n, v in NPM_PACKAGES.items() if npm_version(n) != v]
    lacking += [n for n, v in PIP_PACKAGES.items() if pip_version(n) != v]
    if lacking:
        raise Trouble(f"still missing: {', '.join(lacking)}")


def install_venv():
    run([sys.executable, "-m", "venv", "--clear", VENV])
    wanted = [f"{name}=={version}" for name, version in PIP_PACKAGES.items()]
    run([VENV / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *wanted])


def npm_version(name):
    with contextlib.suppress(OSError, ValueError, KeyError):
        return json.loads((NPM / name / "package.json").read_text())["version"]
    return None


def pip_version(name):
    for info in VENV.glob(f"lib/python3*/site-packages/{name}-*.dist-info"):
        return info.name[len(name) + 1 : -len(".dist-info")]
    return None


def workerd_binary():
    found = sorted(NPM.glob("@cloudflare/workerd-*/bin/workerd"))
    return found[0] if found else NPM / ".bin" / "workerd"


def firestore_jar():
    """Google's emulator is in no registry; where its Debian package is installed it can be run."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["dpkg", "-L", FIRESTORE_PACKAGE], capture_output=True, text=True, timeout=30).stdout
        for line in listed.splitlines():
            if line.endswith("firestore-emulator.jar") and shutil.which("java"):
                return line
    return None


def versions():
    def said(argv, pattern=r"\d+(\.\d+)+"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=30)
            found = re.search(pattern, done.stdout + done.stderr)
            return found[0] if found else "not installed"
        return "not installed"

    java = f"Google's emulator {said(['dpkg-query', '-W', FIRESTORE_PACKAGE])}" if firestore_jar() else "a double of ours"
    worker = f"workerd {npm_version('workerd')}, Cloudflare's own runtime" if WORKER.exists() else "not run"
    lines = {
        "postgres": f"PostgreSQL {said([PG / 'postgres', '--version'])}, and behind PgBouncer {said([PGBOUNCER, '--version'])}",
        "redis": f"Redis {said(['redis-server', '--version'])}, AOF with fsync always",
        "s3": f"ministack {pip_version('ministack')}, an emulator",
        "azure": f"Azurite {npm_version('azurite')}, Microsoft's emulator",
        "http": worker,
        "firestore": java,
        "liars": f"s3rver {npm_version('s3rver')}; Workers KV in miniflare {npm_version('miniflare')}",
    }
    for name, text in lines.items():
        print(f"{name:<12} {text}")
