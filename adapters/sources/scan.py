"""Frames of a source on the engine that uses them: in this process, or on Spark's executors.

A source defines its splits, and how one of them is read. A split contains all that is needed to read it, and executors
can open its file. So the same class is the source on both engines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.ports.adapter_options import AdapterOptions

from ..arrow.record_positions import payload_bytes

S = TypeVar("S")


class Scan(Protocol):
    """Builds the raw frames of an engine. `split_rows`: the most rows of a split. `empty`: a frame without records."""

    split_rows: int
    empty: Any

    def read(
        self,
        splits: Sequence[S],
        read: Callable[[S], Iterable[pa.Table]],
        doing: str,
        check_limits: Callable[[int, int], None],
    ) -> tuple[Any, int, int]:
        """The records that `read` returns for each split, in order, with their number and the bytes of keys and values.

        `doing` completes messages of errors. `check_limits` gets the number and the bytes of the records so far, and may
        raise an error, if the engine knows them while it reads.
        """

    def to_frame(self, records: pa.Table) -> Any:
        """Records as a frame, in order."""

    def find_folder(self, table: str) -> str:
        """The folder of a table `[catalog.]schema.table` of the engine's catalog."""


def open_session(options: AdapterOptions | Mapping[str, Any]) -> tuple[Any, Any]:
    """A source's own options, and the Spark session of the engine; None if there are no session options."""
    has_session = "spark" in options if isinstance(options, Mapping) else options.session is not None
    if not has_session:
        return options, None
    from ..spark.session import split_options  # noqa: PLC0415 - an optional package

    return split_options(options)


def open_scan(options: AdapterOptions | Mapping[str, Any]) -> tuple[Any, Scan]:
    """A source's own options, and the scan of the engine."""
    own, spark = open_session(options)
    if spark is None:
        return own, LocalScan()
    from ..spark.scan import SparkScan  # noqa: PLC0415 - an optional package

    return own, SparkScan(spark)


class LocalScan:
    """`Scan` with `pyarrow.Table` as frames: reads in this process, split by split in small slices."""

    split_rows = sys.maxsize
    empty = RAW.empty_table()

    def read(
        self,
        splits: Sequence[S],
        read: Callable[[S], Iterable[pa.Table]],
        doing: str,  # noqa: ARG002
        check_limits: Callable[[int, int], None],
    ) -> tuple[pa.Table, int, int]:
        pieces, count, size = [self.empty], 0, 0
        for split in splits:
            for piece in read(split):
                count, size = count + piece.num_rows, size + payload_bytes(piece)
                check_limits(count, size)
                pieces.append(piece)
        return pa.concat_tables(pieces), count, size

    def to_frame(self, records: pa.Table) -> pa.Table:
        return records

    def find_folder(self, table: str) -> str:
        """Raises ConfigProblem."""
        raise ConfigProblem(
            f"The table {table} is in a catalog of Spark, which the local engine does not know.",
            next_step="Give the folder of the table as 'path', or run with `engine: spark`.",
        )
