"""The port to what a target holds, for queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from replicator.domain.position import Position
from replicator.domain.read_query import BuildReadQuery

from .frames import Lane


class Reader(Protocol):
    """Reads targets by name. Implemented by sinks that can be queried."""

    def tables(self) -> Sequence[str]:
        """The targets there are, by the name `read` takes."""

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """The rows of a target, now or then. `where` is a SQL condition on its columns, evaluated read-only.

        Raises `Fatal` with the versions there are when `version` or `as_of` cannot be answered, or when there is no
        such target.
        """


class SelectsRows(Reader, Protocol):
    """A reader of single rows and pages of them."""

    def select(
        self,
        name: str,
        choose: BuildReadQuery,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        seconds: float | None = None,
    ) -> pa.Table:
        """The rows that `choose`, asked with the columns that the table has, or had then, wants of a target. What it raises
        passes through.

        Values travel beside the statement, never in it, but for whole numbers. Raises as `read` does, `InvalidReadQuery`
        for values that cannot be compared with their column, and `ReadTimeout` after so many seconds.
        """


class ListsVersions(Protocol):
    """A reader of targets of which older versions are kept."""

    def read_version_positions(self, lane: Lane) -> Iterator[tuple[int, Position]]:
        """The versions of the lane's target, the newest first, with the position of the lane at each; without those of
        which it is not known. Their rows may be gone."""

    def columns_at(self, name: str, version: int) -> pa.Schema:
        """The columns that `read` finds in a target at a version, without reading its rows. Fatal as there."""
