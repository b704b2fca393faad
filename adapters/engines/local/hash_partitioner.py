"""Rows divided by the hash of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from ...duckdb.column_types import to_duckdb_types
from ...duckdb.session import open_session
from ...sql.dialect import DUCKDB


def split_by_key_hash(rows: pa.Table, keys: Sequence[str], number: int) -> Sequence[pa.Table]:
    """See `ports.bulk_load.PartitionsByKey.partition_rows`."""
    names = ", ".join(map(DUCKDB.quote_name, keys))
    with open_session() as connection:
        connection.register("keys", to_duckdb_types(rows.select(list(keys))))
        query = f"SELECT (hash({names}) % {number})::SMALLINT AS part FROM keys"
        parts = connection.sql(query).to_arrow_table()["part"]
    counts = {found["values"]: found["counts"] for found in pc.value_counts(parts).to_pylist()}
    ends = accumulate((counts.get(part, 0) for part in range(number)), initial=0)
    ordered = rows.take(pc.sort_indices(parts))  # A stable sort: rows of a key keep their order.
    return [ordered.slice(a, b - a) for a, b in pairwise(ends)]
