"""The port to what a target holds, for queries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import pyarrow as pa


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
