"""Interfaces between the journal and the origin of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from replicator.ports.frames import Stop

from ...delta.types import storage_type, to_storage

Taken = Mapping[int, int | None]
"""The processed versions, with their sizes if known."""


@dataclass(frozen=True)
class ReadSnapshot:
    """One complete snapshot. `name`: its name in messages. `remedy`: the next step for an unusable one. `rows`: in types
    of Delta tables. `size`: in bytes, or None."""

    name: str
    version: int
    rows: pa.Table
    size: int | None = None
    remedy: str = "Write the snapshot again"


class SnapshotProvider(Protocol):
    """Snapshots with increasing versions.

    `is_numbered_here`: versions are assigned when a snapshot is read, and a snapshot is never read again. Then a snapshot
    equal to the previous one need not be stored, and only the newest version.
    """

    is_numbered_here: bool

    def has_news(self, known: Taken) -> bool:
        """True if there may be a snapshot that is not in `known`. Cheap, because it is called often."""

    def read_next(self, taken: Taken) -> ReadSnapshot | None:
        """The next complete snapshot, if there is one. Raises the program's errors for an invalid one."""


class SnapshotPoller(Protocol):
    """The schedule of snapshots."""

    def begin(self) -> None:
        """Process the first snapshot, unless there was one before. Raises the reason if there is none, and if it was
        compared by other keys."""

    def poll(self) -> None:
        """Process available snapshots. Called about every second while a stream runs."""

    def catch_up(self, stop: Stop) -> None:
        """Process all snapshots that exist now; none is processed after that."""

    def waited_for(self) -> tuple[str, float] | None:
        """See `ports.source.WaitsForServer`."""

    def close(self) -> None:
        """End running work."""


def to_storable(table: pa.Table) -> pa.Table:
    """The table in types of Delta tables, without metadata of Parquet readers. Raises Fatal for an unsupported type."""
    kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in table.schema]
    schema = pa.schema([pa.field(f.name, storage_type(kind)) for f, kind in zip(table.schema, kinds, strict=True)])
    columns = [to_storage(table[i], f.type) for i, f in enumerate(schema)]
    return pa.table(columns, names=schema.names).cast(schema)
