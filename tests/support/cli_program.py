"""Runs the program to its end."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result

from replicator.cli import main

PROGRAM = str(Path(sys.executable).with_name("replicator"))


def run_program(
    folder: Path, *arguments: str, seconds: float = 100, before: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs in a process forked from one that has imported everything: imports take most of the time of a short command.
    On Spark it runs in this process, which has a session already."""
    command = [PROGRAM, *arguments]
    if "engine=spark" in arguments:
        from support.spark_case import list_spark_arguments

        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            here = run_in_process(folder, *arguments, *list_spark_arguments())
        return subprocess.CompletedProcess(command, here.exit_code, here.stdout, here.stderr)
    if before:
        return subprocess.run(
            [*before, *command], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=seconds, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return _run_forked(command, folder, seconds, environment)


def run_in_process(folder: Path, *arguments: str) -> Result:
    """Runs in this process, with `folder` as working directory."""
    handlers, config = logging.getLogger().handlers, structlog.get_config()
    try:
        with chdir(folder):
            done = CliRunner().invoke(main, arguments)
    finally:
        logging.getLogger().handlers = handlers
        structlog.configure(**config)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def run_script(script: Path, *arguments: str, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    """Runs a script in a forked process."""
    return _run_forked([str(script), *arguments], script.parent, seconds, {})


def _run_forked(
    command: list[str], folder: Path, seconds: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        running = _start_fork_server().start(command, folder, {**os.environ, **environment}, (out.fileno(), err.fileno()))
        try:
            code = running.wait(seconds)
        finally:
            running.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def start_program(folder: Path, *arguments: str, **environment: str) -> RunningProgram:
    """Starts the program in a forked process, and returns while it runs. Its output is dropped."""
    with Path(os.devnull).open("w") as nowhere:
        command = [PROGRAM, *arguments]
        return _start_fork_server().start(
            command, folder, {**os.environ, **environment}, (nowhere.fileno(), nowhere.fileno())
        )


def parse_answer(done: subprocess.CompletedProcess[str]) -> Any:
    """The object that a program printed with `--json`. A program without an answer has written its error on standard
    error."""
    assert done.stdout, f"no answer, exit code {done.returncode}; standard error:\n{done.stderr}"
    return json.loads(done.stdout)


class RunningProgram:
    """A forked process, with the interface of `subprocess.Popen`. `line` receives its process number, and at last its
    exit code."""

    def __init__(self, command: list[str], line: socket.socket) -> None:
        self._command, self._line = command, line
        self.pid = int(line.recv(20))
        self.returncode: int | None = None

    def wait(self, seconds: float | None = None) -> int:
        if self.returncode is None:
            self._line.settimeout(seconds)
            try:
                self.returncode = int(self._line.recv(20))
            except TimeoutError:
                raise subprocess.TimeoutExpired(self._command, seconds or 0) from None
            self._line.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(1e-6)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that has imported everything, `FORKING`. It ends with the process that started it."""

    def __init__(self) -> None:
        self._asks, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", FORKING, str(its_end.fileno())], pass_fds=[its_end.fileno()], stdin=subprocess.DEVNULL
            )

    def start(self, command: list[str], folder: Path, environment: dict[str, str], to: tuple[int, int]) -> RunningProgram:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile("w+") as asked:
            json.dump([command, str(folder), environment], asked)
            asked.seek(0)
            socket.send_fds(self._asks, [b"run"], [asked.fileno(), *to, theirs.fileno()])
        return RunningProgram(command, mine)


_start_fork_server = cache(ForkServer)

FORKING = """
import gc, json, os, pkgutil, re, runpy, socket, sys
from importlib import import_module

import adapters, replicator, replicator.cli

for package in (replicator, adapters):
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not re.search("spark|testing|jvm|notebook", each.name):
            import_module(each.name)

# A child's garbage collector must not scan these objects, which would copy their memory.
gc.collect()
gc.freeze()
os.fsync = lambda _: None

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
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    replicator.cli.use_allocators()
    sys.argv = command
    if command[0].endswith(".py"):
        runpy.run_path(command[0], run_name="__main__")
        sys.exit()
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

DEFAULT_SIGNALS = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
WITH_SIGNALS = (sys.executable, "-c", DEFAULT_SIGNALS)
"""Prefix of a command: restores the default signal handlers, as in a terminal. The caller of the tests may ignore some
signals."""
