"""Where snapshots come from, as the journal sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from replicator.ports.frames import Stop

from ...delta.types import storage_type, to_storage

Taken = Mapping[int, int | None]
"""The versions that were taken in, with the sizes of those whose size is known."""


@dataclass(frozen=True)
class ReadSnapshot:
    """One snapshot that was read whole. `name` is what sentences call it, `remedy` what to do about one that cannot be used;
    `rows` are in types that a Delta table keeps; `size` is in bytes, None where it has none."""

    name: str
    version: int
    rows: pa.Table
    size: int | None = None
    remedy: str = "Write the snapshot anew"


class SnapshotProvider(Protocol):
    """Snapshots by rising versions.

    `is_numbered_here`: versions are given when a snapshot is read, and none is there to be met again. Then one that is equal
    to the one before need not be remembered, nor any but the newest.
    """

    is_numbered_here: bool

    def has_news(self, known: Taken) -> bool:
        """Whether there may be one beside those that are known to be taken in. Cheap: asked again and again."""

    def read_next(self, taken: Taken) -> ReadSnapshot | None:
        """The next one, if it is there and whole. Raises the program's errors for one that stops it."""


class SnapshotPoller(Protocol):
    """When snapshots are taken into a journal."""

    def begin(self) -> None:
        """Take the first in, unless one ever was. Raises why there is none, and where it was compared by other keys."""

    def poll(self) -> None:
        """Called every second or so while a stream runs: take in what is there."""

    def catch_up(self, stop: Stop) -> None:
        """Take in all that there is now; nothing more comes in after that."""

    def waited_for(self) -> tuple[str, float] | None:
        """See `ports.source.WaitsForServer`."""

    def close(self) -> None:
        """End what is at work."""


def to_storable(table: pa.Table) -> pa.Table:
    """The table in types that a Delta table keeps, and without what readers of Parquet leave in schemas. Fatal for a type
    that none keeps."""
    kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in table.schema]
    schema = pa.schema([pa.field(f.name, storage_type(kind)) for f, kind in zip(table.schema, kinds, strict=True)])
    columns = [to_storage(table[i], f.type) for i, f in enumerate(schema)]
    return pa.table(columns, names=schema.names).cast(schema)
