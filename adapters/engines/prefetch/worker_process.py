"""Handle of a process that decodes records: `adapters.engines.prefetch.worker_main`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa

from .shared_memory import SharedMemoryFile

MOST = 4
"""Worker processes at most; with more of them, reading is the bottleneck."""


def _default_workers() -> int:
    if not hasattr(os, "memfd_create"):
        return 0
    processors = min(len(os.sched_getaffinity(0)), _container_cpus())
    return min(processors, MOST) if processors > 1 else 0


def _container_cpus() -> int:
    """The CPU limit of the container (https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files)."""
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return MOST if most == "max" else max(1, int(most) // int(period))
    except (OSError, ValueError):
        return MOST


NUMBER = _default_workers()
"""The useful number of workers here: 0 with a single processor, or without `memfd_create`, which only Linux has."""
PATIENCE = 10.0
"""Seconds until a process that does not end is killed."""


class WorkerEnded(Exception):
    """The process has ended or cannot be started, with the reason."""


class WorkerFailed(Exception):
    """The process could not do a request, with the reason."""


NO_ROOM = (OSError, MemoryError, ValueError, pa.ArrowException)


class DecodeWorker:
    """Decodes one frame at a time. The process ends with this one, however this one ends, or when this object is garbage
    collected."""

    def __init__(self) -> None:
        files: list[int] = []
        try:
            for name in ("records", "changes"):
                files.append(os.memfd_create(name))
            self._line, self._process = _start_process(files)
        except OSError as error:
            _close_files(files)
            raise WorkerEnded(str(error)) from error
        self._records, self._changes = map(SharedMemoryFile, files)
        self._is_ready = False
        self.close = weakref.finalize(self, _end_process, self._line, self._process, files)
        """End the process and wait for it."""

    def is_ready(self) -> bool:
        """True once the process has started."""
        if not self._is_ready and self._line.poll():
            self._read_size()
            self._is_ready = True
        return self._is_ready

    def send_request(self, how: bytes, raw: pa.Table) -> None:
        """Send records to decode. `how`, pickled: decoder, expected table, expected fingerprint, specification."""
        try:
            self._line.send((how, self._records.write(raw)))
        except NO_ROOM as error:
            raise WorkerEnded(str(error)) from error

    def read_answer(self) -> pa.Table | None:
        """The changes of the last request; None if some records have another table or fingerprint."""
        size = self._read_size()
        try:
            return None if size is None else self._changes.copy(size)
        except NO_ROOM as error:
            raise WorkerEnded(str(error)) from error

    def stop(self) -> None:
        """End the process; `close` waits for that. Kills a process that has not started yet."""
        if not self._is_ready:
            self._process.kill()
        self._line.close()

    def _read_size(self) -> int | None:
        """The size of the result in bytes, or None."""
        try:
            found: int | str | None = self._line.recv()
        except (OSError, EOFError) as error:
            raise WorkerEnded(str(error) or "it said nothing") from error
        if isinstance(found, str):
            raise WorkerFailed(found)
        return found


def _start_process(files: Iterable[int]) -> tuple[Connection, subprocess.Popen[bytes]]:
    if not sys.executable:
        raise OSError("it is not known where Python is")
    here, there = socket.socketpair()
    with there:
        kept = (there.fileno(), *files)
        command = [sys.executable, "-P", "-m", "adapters.engines.prefetch.worker_main", *map(str, kept)]
        # The worker finds the same modules as this process.
        paths = {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(command, pass_fds=kept, env=os.environ | paths, stdin=nothing, stdout=nothing)  # noqa: S603
    return Connection(here.detach()), process


def _close_files(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _end_process(line: Connection, process: subprocess.Popen[bytes], files: Iterable[int]) -> None:
    line.close()
    _close_files(files)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
