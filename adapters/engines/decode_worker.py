"""The worker process that `engines.decode_pool.DecodeWorker` starts.

Command: `python -m adapters.engines.decode_worker LINE RECORDS CHANGES`. The arguments are numbers of open files.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import sys
from functools import lru_cache
from itertools import count
from multiprocessing.connection import Connection

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder

COLLECTED = 64
"""Batches between two runs of the garbage collector."""


@lru_cache(16)
def _unpickle_request(pickled: bytes) -> tuple[Decoder, str, str, TableSpec]:
    """The result is cached: a decoder keeps the schemas that it has read."""
    request: tuple[Decoder, str, str, TableSpec] = pickle.loads(pickled)  # noqa: S301  (pickled by the parent process)
    return request


def decode_records(pickled: bytes, raw: pa.Table) -> pa.Table | None:
    """The changes of the records. None unless all of them have the requested table and fingerprint."""
    decoder, table, fingerprint, spec = _unpickle_request(pickled)
    routes = decoder.route(raw)
    is_same = pc.and_(pc.equal(routes["table"], table), pc.equal(routes["fingerprint"], fingerprint))
    return decoder.decode(raw, spec) if pc.all(pc.fill_null(is_same, False)).as_py() else None


def serve_requests(line: Connection, records: SharedMemoryFile, changes: SharedMemoryFile) -> None:
    """Decode requests until the parent process closes the connection. An error is returned as text: the parent then
    decodes the records itself and reports what is wrong."""
    try:
        line.send(0)
        for number in count(1):
            request, size = line.recv()
            line.send(_answer_request(request, records.read(size), changes))
            if number % COLLECTED == 0:
                gc.collect()
    except (EOFError, OSError):
        return


def _answer_request(request: bytes, raw: pa.Table, changes: SharedMemoryFile) -> int | str | None:
    try:
        decoded = decode_records(request, raw)
        return None if decoded is None else changes.write(decoded)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# A file in memory that passes a table from one process to another without a copy.


GROWTH = 1 << 22
"""Bytes; file sizes are multiples of it."""


class SharedMemoryFile:
    """One process's handle of the file, by its file number. Only one process writes, and only after the other has
    finished reading."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory: mmap.mmap | None = None

    def write(self, table: pa.Table) -> int:
        """Write a table and return its size in bytes."""
        counter = pa.MockOutputStream()
        _write_stream(counter, table)
        size: int = counter.size()
        with pa.FixedSizeBufferWriter(pa.py_buffer(self._map_memory(size))) as out:
            _write_stream(out, table)
        return size

    def read(self, size: int) -> pa.Table:
        """The table of this size, valid until the next `write`."""
        return pa.ipc.open_stream(pa.py_buffer(self._map_memory(size)).slice(0, size)).read_all()

    def copy(self, size: int) -> pa.Table:
        """A copy of the table of this size, which stays valid."""
        return pa.ipc.open_stream(pa.py_buffer(self._map_memory(size)[:size])).read_all()

    def _map_memory(self, size: int) -> mmap.mmap:
        """The mapped memory, at least of this size."""
        if self._memory is None or len(self._memory) < size:
            whole = -(-size // GROWTH) * GROWTH
            if os.fstat(self._file).st_size < whole:
                os.ftruncate(self._file, whole)
            self._memory = mmap.mmap(self._file, whole)
        return self._memory


def _write_stream(out: pa.NativeFile, table: pa.Table) -> None:
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)


if __name__ == "__main__":
    gc.disable()  # A collection visits all records of a batch, and records are in no reference cycles.
    for asked_of_all in (signal.SIGINT, signal.SIGTERM):  # The parent process decides when this one ends.
        signal.signal(asked_of_all, signal.SIG_IGN)
    at, *files = map(int, sys.argv[1:])
    serve_requests(Connection(at), *map(SharedMemoryFile, files))
