"""Decoding of the next batches in worker processes.

Decoding holds the GIL for most of its time, and the threads that read, pack and write slow it down. It costs 6
microseconds per record there, and 3.5 in a process that does nothing else (measured). Decoders are pure and picklable
(`ports.decoder`), so worker processes can decode the next batches while this process uses the last one. Frames are
exchanged as Arrow streams in shared memory, and are read without a copy. A `ProcessPoolExecutor` would pickle frames through
pipes, and one killed worker would end the pool.

A batch is decoded ahead only if it is like the batch that was routed here last. It needs at least `FEW` records, all with
a key and a value, and with the topics, table and schema of that batch. Such a batch does not depend on the state that
routing stores of other records, and does not change it. This process routes and decodes all other batches itself. It also
decodes every batch that a worker cannot decode, to report the error.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder
from replicator.ports.frames import RecordSlice, RoutedBatch

from .decode_worker import SharedMemoryFile

log = structlog.get_logger(__name__)

FEW = 1_000
"""Batches with fewer records are not sent to a worker."""
FAILURES = 5
"""Failed batches after which no batch is sent to a worker."""


@dataclass(frozen=True, slots=True)
class DecodeRoute:
    """Table, fingerprint and topics of all records of a batch, and the specification used to decode them, if known."""

    decoder: Decoder
    table: str
    fingerprint: str
    topics: frozenset[str]
    spec: TableSpec | None = None

    def matches(self, decoder: Decoder, slice_: RecordSlice[pa.Table]) -> bool:
        """True for a slice with the same decoder, table and fingerprint."""
        return self.decoder is decoder and (self.table, self.fingerprint) == (slice_.table, slice_.fingerprint)


class DecodePool:
    """Decodes one batch ahead in each of `number` processes, which need about a second to start. Safe for use from
    several threads. Results are requested in the order in which batches were begun."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = threading.RLock()
        self._workers: list[DecodeWorker] = []
        self._failed = 0
        self._route: DecodeRoute | None = None
        self._requests: deque[tuple[pa.Table, DecodeRoute, DecodeWorker]] = deque()
        self._done: deque[tuple[pa.Table, DecodeRoute, pa.Table]] = deque(maxlen=number)

    def begin(self, raw: pa.Table, decoder: Decoder) -> None:
        route = self._route
        if self._is_disabled or route is None or route.spec is None or route.decoder is not decoder:
            return
        if raw.num_rows < FEW or raw["key"].null_count or raw["value"].null_count:
            return
        if not route.topics.issuperset(pc.unique(raw["topic"]).to_pylist()):
            return
        with self._lock:
            try:
                if not self._workers:
                    self._workers = [DecodeWorker() for _ in range(self.number)]
                ready = [worker for worker in self._workers if worker.is_ready()]
                if ready and len(self._requests) == len(ready):  # All are busy: wait for the oldest request.
                    self._collect_answer()
                busy = [worker for _, _, worker in self._requests]
                worker = next((worker for worker in ready if worker not in busy), None)
                if worker is not None and not self._is_disabled:
                    worker.send_request(_pack_route(route), raw)
                    self._requests.append((raw, route, worker))
            except WorkerEnded as ended:
                self._disable(ended)

    def stop_workers(self) -> None:
        with self._lock:
            self._requests.clear()
            self._done.clear()
            for worker in self._workers:
                worker.stop()
            for worker in self._workers:
                worker.close()
            self._workers = []

    def find_slice(self, raw: pa.Table) -> RecordSlice[pa.Table] | None:
        """The slice that the whole frame makes up; None if the frame has to be routed here."""
        with self._lock:
            while any(requested is raw for requested, _, _ in self._requests):
                self._collect_answer()
            route = next((route for batch, route, _ in self._done if batch is raw), None)
            # Another frame may have gone to another table since then: the stored route is newer than this
            # result.
            return RecordSlice(route.table, route.fingerprint, raw) if route is not None and route == self._route else None

    def find_changes(self, raw: pa.Table, spec: TableSpec) -> pa.Table | None:
        """The changes of a frame that `find_slice` returned. None if this process must decode them."""
        with self._lock:
            entry = next((one for one in self._done if one[0] is raw), None)
            if entry is None:
                return None
            while self._done.popleft() is not entry:
                pass
            return entry[2] if entry[1].spec == spec else None

    def note_route(self, raw: pa.Table, decoder: Decoder, routed: RoutedBatch[pa.Table]) -> None:
        """Store the route of a frame that was routed in this process."""
        with self._lock:
            self._route = None
            if len(routed.slices) == 1 and routed.slices[0].frame is raw:
                (slice_,) = routed.slices
                self._route = DecodeRoute(decoder, slice_.table, slice_.fingerprint, routed.topics[slice_.table])

    def note_changes(self, slice_: RecordSlice[pa.Table], decoder: Decoder, spec: TableSpec) -> None:
        """Store the specification with which this process decoded a slice."""
        with self._lock:
            if self._route is not None and self._route.matches(decoder, slice_):
                self._route = replace(self._route, spec=spec)

    def _collect_answer(self) -> None:
        """Wait for the answer to the oldest request."""
        raw, route, worker = self._requests.popleft()
        try:
            changes = worker.read_answer()
        except WorkerFailed as failed:
            self._failed += 1
            log.debug("a batch could not be decoded ahead", error=str(failed))
            if self._is_disabled:
                self._disable(failed)
            return
        except WorkerEnded as ended:
            self._disable(ended)
            return
        if changes is not None:
            self._done.append((raw, route, changes))

    @property
    def _is_disabled(self) -> bool:
        return self._failed >= FAILURES

    def _disable(self, ended: WorkerEnded | WorkerFailed) -> None:
        self._failed = FAILURES
        self.stop_workers()
        log.warning("decoding in worker processes has failed; this process continues alone", error=str(ended))


def _pack_route(route: DecodeRoute) -> bytes:
    try:
        return pickle.dumps((route.decoder, route.table, route.fingerprint, route.spec))
    except Exception as error:  # A third-party decoder that is not picklable, against its port.
        raise WorkerEnded(f"its decoder cannot be sent there: {error}") from error


# A process that decodes records: `adapters.engines.decode_worker`.

MOST = 4
"""Worker processes at most; with more of them, reading is the bottleneck."""


def _default_workers() -> int:
    if not hasattr(os, "memfd_create"):
        return 0
    try:  # The CPU limit of the container (https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files).
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        limit = MOST if most == "max" else max(1, int(most) // int(period))
    except (OSError, ValueError):
        limit = MOST
    processors = min(len(os.sched_getaffinity(0)), limit)
    return min(processors, MOST) if processors > 1 else 0


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
            if not sys.executable:
                raise OSError("it is not known where Python is")
            engine_end, worker_end = socket.socketpair()
            with worker_end:
                fds = (worker_end.fileno(), *files)
                command = [sys.executable, "-P", "-m", "adapters.engines.decode_worker", *map(str, fds)]
                # The worker finds the same modules as this process.
                paths = {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
                nothing = subprocess.DEVNULL
                process = subprocess.Popen(command, pass_fds=fds, env=os.environ | paths, stdin=nothing, stdout=nothing)  # noqa: S603
            self._line, self._process = Connection(engine_end.detach()), process
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

    def send_request(self, request: bytes, raw: pa.Table) -> None:
        """Send records to decode. `request`, pickled: decoder, expected table, expected fingerprint, specification."""
        try:
            self._line.send((request, self._records.write(raw)))
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
            answer: int | str | None = self._line.recv()
        except (OSError, EOFError) as error:
            raise WorkerEnded(str(error) or "it said nothing") from error
        if isinstance(answer, str):
            raise WorkerFailed(answer)
        return answer


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
