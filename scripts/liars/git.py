#!/usr/bin/env python3
"""A liar for the tests: a git server that claims atomic pushes and does not compare.

    git.py DIR all      moves every ref that it is told to, whatever it was before
    git.py DIR each     moves those that are as the client says, leaves the others, and says ok of all

Serves the repositories of DIR on a free port of this machine, which it prints; ends when its input does.
"""
import os
import socket
import subprocess
import sys
import threading

ROOT, COMPARES = sys.argv[1], sys.argv[2] == "each"
NOTHING = "0" * 40
CAN = "report-status delete-refs atomic ofs-delta agent=liar"


def exactly(connection, count):
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def packet(connection):
    """One line; nothing: the end of several."""
    length = int(exactly(connection, 4), 16)
    return exactly(connection, length - 4) if length else None


def say(connection, *lines):
    connection.sendall(b"".join(f"{len(line.encode()) + 4:04x}{line}".encode() for line in lines) + b"0000")


def git(repository, *arguments, **more):
    return subprocess.run(["git", "--git-dir", repository, *arguments], capture_output=True, text=True, **more)


def receive(connection, repository):
    refs = git(repository, "for-each-ref", "--format=%(objectname) %(refname)").stdout.splitlines()
    first, *rest = refs or [f"{NOTHING} capabilities^{{}}"]
    say(connection, f"{first}\0{CAN}\n", *[f"{line}\n" for line in rest])
    moves = []
    while (line := packet(connection)) is not None:
        moves.append(line.split(b"\0")[0].decode().split())
    if not moves:
        return
    if any(new != NOTHING for _, new, _ in moves):
        subprocess.run(["git", "--git-dir", repository, "unpack-objects", "-q"], stdin=connection.fileno(), check=True)
    for old, new, name in moves:
        update = ["update-ref", name, new] if new != NOTHING else ["update-ref", "-d", name]
        # The answer is not looked at: that is the lie.
        git(repository, *update, *([old] if COMPARES else []))
    say(connection, "unpack ok\n", *[f"ok {name}\n" for _, _, name in moves])


def serve(connection):
    with connection:
        service, path = packet(connection).split(b"\0")[0].decode().split(" ", 1)
        repository = os.path.join(ROOT, path.lstrip("/"))
        if service == "git-receive-pack":
            receive(connection, repository)
        else:
            subprocess.run(["git", "upload-pack", repository], stdin=connection.fileno(), stdout=connection.fileno())


def quietly(connection):
    try:
        serve(connection)
    except (EOFError, OSError, subprocess.CalledProcessError):
        pass


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=quietly, args=(listener.accept()[0],), daemon=True).start()
