"""A file in memory that passes a table from one process to another without a copy."""

from __future__ import annotations

import mmap
import os

import pyarrow as pa

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
        counted = pa.MockOutputStream()
        _write_stream(counted, table)
        size: int = counted.size()
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
