"""Checksums of rows in PostgreSQL, and keys that are given to the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from datetime import time as clock_time
from typing import Any

import psycopg
import pyarrow as pa

from replicator.ports.reads import CHECKSUMS, ComparedColumn, KeyRange

from ..sql.checksums import SummedColumn, render_bucket_condition, render_sums
from ..sql.dialect import POSTGRES
from .names import escape, quote_name

SETTINGS = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on"
Parameters = Sequence[Sequence[str]]


class TableChecksums:
    """A table of a database with the types of its columns, as `format_type` has them. Rendered SQL has its percent signs
    doubled. The alias of the table is `t`."""

    def __init__(self, relation: str, types: dict[str, str]) -> None:
        self.relation = escape(relation)
        self._types = types

    def sum_rows(
        self,
        cursor: psycopg.Cursor[Any],
        columns: Sequence[tuple[str, ComparedColumn]],
        keys: Sequence[str],
        *,
        within: KeyRange | None,
        without: pa.Table,
        condition: str = "true",
    ) -> pa.Table:
        """The checksums of the rows that match a condition (`ports.reads.CHECKSUMS`). `columns`: with their names
        here."""
        excluded, parameters = self.render_keys(without) if without.num_rows else (None, ())
        summed = [SummedColumn(escape(name), column.kind, self._types[name]) for name, column in columns]
        relation = f"(SELECT * FROM {self.relation} WHERE {escape(condition)})"
        query = render_sums(POSTGRES, relation, summed, self._list_keys(columns, keys), within=within, excluded=excluded)
        cursor.execute(SETTINGS, prepare=False)
        rows = cursor.execute(query.encode(), parameters, binary=True).fetchall()
        return pa.Table.from_pylist([dict(zip(CHECKSUMS.names, row, strict=True)) for row in rows], CHECKSUMS)

    def render_buckets(
        self,
        columns: Sequence[tuple[str, ComparedColumn]],
        keys: Sequence[str],
        within: KeyRange | None,
        buckets: Sequence[int] | None,
    ) -> str:
        """A condition for the rows of a range, in these buckets or in all."""
        return render_bucket_condition(POSTGRES, self._list_keys(columns, keys), buckets, within)

    def render_keys(self, keys: pa.Table) -> tuple[str, Parameters]:
        """A relation of keys, with the names and types of the key columns, and its parameters."""
        names = [f"k{i}" for i in range(keys.num_columns)]
        select_list = ", ".join(
            f"{name}::{escape(self._types[column])} AS {escape(quote_name(column))}"
            for name, column in zip(names, keys.column_names, strict=True)
        )
        placeholders = ", ".join("%s::text[]" for _ in names)
        relation = f"(SELECT {select_list} FROM unnest({placeholders}) AS g({', '.join(names)}))"
        return relation, [to_texts(keys[name]) for name in keys.column_names]

    def render_key_condition(self, keys: pa.Table) -> tuple[str, Parameters]:
        """A condition for the rows with these keys, and its parameters."""
        relation, parameters = self.render_keys(keys)
        names = [escape(quote_name(name)) for name in keys.column_names]
        same = " AND ".join(f"t.{name} = k.{name}" for name in names)
        return f"EXISTS (SELECT FROM {relation} AS k WHERE {same})", parameters

    def _list_keys(self, columns: Sequence[tuple[str, ComparedColumn]], keys: Sequence[str]) -> list[SummedColumn]:
        kinds = {name: column.kind for name, column in columns}
        return [SummedColumn(escape(name), kinds.get(name, "integer"), self._types[name]) for name in keys]


def to_texts(values: pa.ChunkedArray) -> list[str]:
    """Each key value as text that PostgreSQL can read; no value may be null."""
    texts = []
    for value in values.to_pylist():
        if isinstance(value, bytes):
            texts.append(f"\\x{value.hex()}")
        elif isinstance(value, date | datetime | clock_time):
            texts.append(value.isoformat())
        else:
            texts.append(str(value))
    return texts
