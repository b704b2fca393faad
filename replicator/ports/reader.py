"""The port of queries on targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from replicator.domain.position import Position
from replicator.domain.read_query import BuildReadQuery

from .frames import Lane


class Reader(Protocol):
    """Reads targets by name."""

    def tables(self) -> Sequence[str]:
        """The names of the targets, as `read` expects them."""

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """The rows of a target, now or at an earlier version. `where` is a SQL condition on its columns, evaluated
        read-only.

        Raises `Fatal` with the available versions if `version` or `as_of` cannot be read, or if the target does not
        exist.
        """


class SelectRows(Protocol):
    """Reads single rows and pages of rows of a target."""

    def __call__(
        self,
        name: str,
        choose: BuildReadQuery,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        seconds: float | None = None,
    ) -> pa.Table:
        """The rows of a target that match the query built by `choose`. It is called with the table's columns, now or at
        the earlier version; its errors pass through.

        Values are bound as parameters, never part of the statement, except whole numbers. Raises as `Reader.read` does,
        `InvalidReadQuery` for values that cannot be compared with their column, and `ReadTimeout` after `seconds`.
        """


class TargetVersions(Protocol):
    """The older versions of targets."""

    def read_version_positions(self, lane: Lane) -> Iterator[tuple[int, Position]]:
        """The versions of the lane's target, newest first, each with the lane's position at that version. Versions with
        an unknown position are left out. Rows of a version may be gone."""

    def columns_at(self, name: str, version: int) -> pa.Schema:
        """The columns that `read` returns for a version of a target, without reading its rows. Fatal as in `read`."""
