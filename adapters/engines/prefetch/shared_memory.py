"""A file in memory in which one process leaves a table for another, which reads it where it is."""

from __future__ import annotations

import mmap
import os

import pyarrow as pa

GROWTH = 1 << 22
"""Bytes; sizes are multiples."""


class SharedMemoryFile:
    """One end of it, an open file. Only one end writes, and only when the other one is done with what was there before."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory: mmap.mmap | None = None

    def write(self, table: pa.Table) -> int:
        """Leave a table; the bytes that it takes."""
        counted = pa.MockOutputStream()
        _write_stream(counted, table)
        size: int = counted.size()
        with pa.FixedSizeBufferWriter(pa.py_buffer(self._map_memory(size))) as out:
            _write_stream(out, table)
        return size

    def read(self, size: int) -> pa.Table:
        """The table that takes so many bytes, good until another one is written."""
        return pa.ipc.open_stream(pa.py_buffer(self._map_memory(size)).slice(0, size)).read_all()

    def copy(self, size: int) -> pa.Table:
        """The same, to be kept."""
        return pa.ipc.open_stream(pa.py_buffer(self._map_memory(size)[:size])).read_all()

    def _map_memory(self, size: int) -> mmap.mmap:
        """The memory, of that size at least."""
        if self._memory is None or len(self._memory) < size:
            whole = -(-size // GROWTH) * GROWTH
            if os.fstat(self._file).st_size < whole:
                os.ftruncate(self._file, whole)
            self._memory = mmap.mmap(self._file, whole)
        return self._memory


def _write_stream(out: pa.NativeFile, table: pa.Table) -> None:
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
