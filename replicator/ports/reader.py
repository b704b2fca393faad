"""The port of queries on targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from replicator.domain.position import Position

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


@dataclass(frozen=True, slots=True)
class TargetVersions:
    """The older versions of targets.

    - `read_version_positions(lane)`: the versions of the lane's target, newest first, each with the lane's position at that
      version. Versions with an unknown position are left out. Rows of a version may be gone.
    - `columns_at(name, version)`: the columns that `Reader.read` returns for a version of a target, without reading its
      rows. Fatal as in `Reader.read`.
    """

    read_version_positions: Callable[[Lane], Iterator[tuple[int, Position]]]
    columns_at: Callable[[str, int], pa.Schema]
