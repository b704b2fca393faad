"""Rows parted by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

from ...sql.dialect import DUCKDB
from ...sql.duck import session
from ...sql.relatable import relatable


def apart(rows: pa.Table, keys: Sequence[str], number: int) -> Sequence[pa.Table]:
    """See `ports.laying.PartsByKey.apart`."""
    names = ", ".join(map(DUCKDB.quoted, keys))
    with session() as connection:
        connection.register("keys", relatable(rows.select(list(keys))))
        found = connection.sql(f"SELECT (hash({names}) % {number})::SMALLINT AS part FROM keys").fetchnumpy()
    part = found["part"]
    ordered = rows.take(pa.array(np.argsort(part, kind="stable")))
    ends = accumulate(np.bincount(part, minlength=number).tolist(), initial=0)
    return [ordered.slice(a, b - a) for a, b in pairwise(ends)]
