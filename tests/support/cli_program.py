"""The program, run to its end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

PROGRAM = str(Path(sys.executable).with_name("replicator"))


def run_program(
    folder: Path, *arguments: str, seconds: float = 100, before: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A process of its own, forked from one that has imported everything: most of a short command's time is its imports."""
    command = [PROGRAM, *arguments]
    if before or "PYTHONPATH" in environment:
        return subprocess.run(
            [*before, *command], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=seconds, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = _forking().run(command, folder, {**os.environ, **environment}, (out.fileno(), err.fileno()), seconds)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def answer_of(done: subprocess.CompletedProcess[str]) -> Any:
    """What a program answered by `--json`. One that ended without an answer has said why on standard error."""
    assert done.stdout, f"no answer, exit code {done.returncode}; standard error:\n{done.stderr}"
    return json.loads(done.stdout)


class Forking:
    """The process that has imported everything, `FORKING`. It ends with the process that asks it."""

    def __init__(self) -> None:
        self._asks, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", FORKING, str(its_end.fileno())], pass_fds=[its_end.fileno()], stdin=subprocess.DEVNULL
            )

    def run(self, command: list[str], folder: Path, environment: dict[str, str], to: tuple[int, int], seconds: float) -> int:
        """The exit code, as `subprocess` has it."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, theirs, tempfile.TemporaryFile("w+") as asked:
            json.dump([command, str(folder), environment], asked)
            asked.seek(0)
            socket.send_fds(self._asks, [b"run"], [asked.fileno(), *to, theirs.fileno()])
            theirs.close()
            process = int(mine.recv(20))
            mine.settimeout(seconds)
            try:
                return int(mine.recv(20))
            except TimeoutError:
                os.kill(process, 9)
                raise subprocess.TimeoutExpired(command, seconds) from None


_forking = cache(Forking)

FORKING = """
import json, os, pkgutil, re, socket, sys
from importlib import import_module

import adapters, replicator, replicator.cli

for package in (replicator, adapters):
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not re.search("spark|testing|jvm|notebook", each.name):
            import_module(each.name)

def start(asked, out, err, told):
    command, folder, environment = json.load(os.fdopen(asked))
    process = os.fork()
    if process:
        told.send(str(process).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        told.send(str(code).encode())
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 1000)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    replicator.cli.use_settings()
    sys.argv = command
    replicator.cli.entry()

asks = socket.socket(fileno=int(sys.argv[1]))
while True:
    message, files, *_ = socket.recv_fds(asks, 10, 4)
    if not message:
        break
    if not os.fork():
        asks.close()
        start(*files[:3], socket.socket(fileno=files[3]))
    for file in files:
        os.close(file)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                break
        except ChildProcessError:
            break
"""

AS_GIVEN = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
WITH_SIGNALS = (sys.executable, "-c", AS_GIVEN)
"""Put before a program: it gets the signals as a terminal gives them. Whoever runs the tests may ignore some."""
