"""Processes that are recorded, waited for, and stopped by pid."""
import contextlib
import http.client
import os
import pathlib
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

READY_SECONDS = 60
STOP_SECONDS = 5
MARK = "made-by-scripts-servers"


class Trouble(Exception):
    """Something a person has to see; no traceback."""


def note(text):
    print(f"servers: {text}", file=sys.stderr, flush=True)


def born(pid):
    """When the process started, so that a reused pid is never taken for it. None: it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state == "Z" else rest[18]


def free_port():
    """A port nobody listens on, below those that outgoing connections get."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(18000, 32000)
        with contextlib.closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise Trouble("no free port between 18000 and 32000")


def unprivileged(argv):
    """PostgreSQL and PgBouncer refuse to run as root."""
    if os.getuid() != 0:
        return argv
    return ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", *argv]


class Set:
    """The servers of one directory."""

    def __init__(self, directory):
        self.dir = pathlib.Path(directory).resolve()
        self.stopping = threading.Event()
        self.children = {}

    def create(self):
        self.dir.mkdir(parents=True, exist_ok=True)
        if any(self.dir.iterdir()) and not (self.dir / MARK).exists():
            raise Trouble(f"{self.dir} is not empty and not ours")
        self.dir.chmod(0o755)  # user nobody has to get through
        (self.dir / MARK).touch()

    def room(self, name):
        """An empty directory for the data of one server, also for user nobody."""
        room = self.dir / name
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir()
        room.chmod(0o777)
        return room

    def spawn(self, name, argv, **env):
        """Starts a server in a session of its own; what it prints goes to D/NAME.log."""
        if self.stopping.is_set():
            raise Trouble("stopped while starting")
        with open(self.dir / f"{name}.log", "ab") as log:
            child = subprocess.Popen(
                [str(a) for a in argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.dir,
                env={**os.environ, **{k: str(v) for k, v in env.items()}},
            )
        (self.dir / f"{name}.born").write_text(f"{born(child.pid)}\n")
        (self.dir / f"{name}.pid").write_text(f"{child.pid}\n")
        self.children[name] = child
        return child

    def wait_ready(self, name, ready):
        """Until `ready` says so and the process still lives: another's port must not pass for ours."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end and not self.stopping.is_set():
            if self.children[name].poll() is not None:
                break
            with contextlib.suppress(OSError, http.client.HTTPException):
                if ready() and self.children[name].poll() is None:
                    return
            time.sleep(0.02)
        log = (self.dir / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
        raise Trouble("\n".join([f"{name} did not become ready", *log]))

    def recorded(self):
        """The processes we started and that are still the same ones: name and pid."""
        for file in sorted(self.dir.glob("*.pid")):
            with contextlib.suppress(OSError, ValueError):
                pid = int(file.read_text())
                if born(pid) == file.with_suffix(".born").read_text().strip():
                    yield file.stem, pid

    def signal(self, to_postgres, to_others):
        """To each recorded process and its group; each leads one of its own."""
        left = 0
        for name, pid in self.recorded():
            left += 1
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, to_postgres if name == "postgres" else to_others)
        for child in self.children.values():
            child.poll()
        return left

    def stop(self):
        self.stopping.set()
        if not (self.dir / MARK).exists():
            return
        # The data is thrown away: PostgreSQL need not wait for its clients.
        end = time.monotonic() + STOP_SECONDS
        left = self.signal(signal.SIGQUIT, signal.SIGTERM)
        while left and time.monotonic() < end:
            time.sleep(0.02)
            left = self.signal(0, 0)
        end = time.monotonic() + STOP_SECONDS
        while left and time.monotonic() < end:
            left = self.signal(signal.SIGKILL, signal.SIGKILL)
            time.sleep(0.02)
        if left:
            raise Trouble(f"{left} servers survive SIGKILL; see the pids in {self.dir}")
        shutil.rmtree(self.dir, ignore_errors=True)


def run(argv, **options):
    """A command that must succeed."""
    done = subprocess.run(
        [str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=600, **options)
    if done.returncode != 0:
        raise Trouble(f"{shlex.join(str(a) for a in argv)}: exit {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def call(port, method, path, headers=None, body=None):
    """One HTTP request; its status and body."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
