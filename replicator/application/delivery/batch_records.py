"""The records of batches whose writes are not committed yet, kept for rejects of the sink: plain or packed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, Generic, cast, overload

import pyarrow as pa

from replicator.domain.position import Span
from replicator.ports.frames import Batch, F

IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""Compression of packed records.

Records of one table are much alike: JSON with schemas shrinks to a twentieth. zstd halves that again, but needs
nearly twice the time (measured), which reading and decoding would lose.
"""

MAX_BEGUN = 8
"""Batches whose packed records are shared by several tables: the current batch and the prefetched ones.

See `ports.engine.Prefetch`.
"""


class RecordFrame(Generic[F]):
    """The raw frame of one batch. `size`: the bytes that it keeps in memory."""

    def __init__(self, frame: F, size: int) -> None:
        self._frame: F | None = frame
        self._packed: pa.Buffer | None = None
        self.size = size

    @classmethod
    def from_buffer(cls, buffer: pa.Buffer) -> RecordFrame[F]:
        """Records as `write` wrote them."""
        frame: RecordFrame[F] = cls(cast("F", None), buffer.size)
        frame._packed = buffer
        return frame

    def pack(self) -> None:
        """Compress the frame to save memory, if it is an Arrow table."""
        if not isinstance(self._frame, pa.Table):
            return
        into = pa.BufferOutputStream()
        with pa.ipc.new_stream(into, self._frame.schema, options=IPC_OPTIONS) as writer:
            writer.write_table(self._frame)
        self._frame, self._packed = None, into.getvalue()
        self.size = self._packed.size

    def write(self, file: BinaryIO) -> int:
        """Write the packed records to a file. Returns the number of bytes."""
        self.pack()
        return file.write(cast("pa.Buffer", self._packed))

    @property
    def frame(self) -> F:
        """The frame. If packed, each call makes a new one."""
        if self._packed is None:
            return cast("F", self._frame)
        with pa.ipc.open_stream(self._packed) as reader:
            return cast("F", reader.read_all())


class RecordFrames(Sequence[F]):
    """The frames of several batches, each unpacked on access."""

    def __init__(self, records: Sequence[RecordFrame[F]]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, number: int) -> F: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[F]: ...

    def __getitem__(self, number: int | slice) -> F | Sequence[F]:
        return RecordFrames(self._records[number]) if isinstance(number, slice) else self._records[number].frame


class BatchRecords(Generic[F]):
    """The records of one batch after another. Tables of the same batch share them.

    `packed`: compress them, for runs in which many batches wait for a commit.
    """

    def __init__(self, *, packed: bool) -> None:
        self._packer = ThreadPoolExecutor(1, "packing") if packed else None
        self._begun: deque[tuple[Span, RecordFrame[F], Future[None]]] = deque(maxlen=MAX_BEGUN)

    def begin(self, batch: Batch[F]) -> None:
        """Start to pack the records of a batch in another thread, before they are needed."""
        if self._packer is None or self._find_packed(batch) is not None:
            return
        records = RecordFrame(batch.frame, batch.size)
        self._begun.append((batch.span, records, self._packer.submit(records.pack)))

    def get_records(self, batch: Batch[F]) -> RecordFrame[F]:
        """The records of a batch."""
        self.begin(batch)
        packed_records = self._find_packed(batch)
        if packed_records is None:
            return RecordFrame(batch.frame, batch.size)
        records, packed = packed_records
        packed.result()
        return records

    def _find_packed(self, batch: Batch[F]) -> tuple[RecordFrame[F], Future[None]] | None:
        return next(((records, packed) for span, records, packed in self._begun if span == batch.span), None)
