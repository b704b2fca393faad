"""Rows of every checksum kind, and their sums in DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from adapters.duckdb.session import open_session
from adapters.sql.checksums import SummedColumn, render_bucket_condition, render_sums
from adapters.sql.dialect import DUCKDB
from replicator.ports.reads import ChecksumKind, KeyRange

Sum = tuple[int, int, int, int]
"""Bucket, rows, low, high."""


@dataclass(frozen=True)
class KindOfColumn:
    """A column: its types, and its values in all rows."""

    kind: ChecksumKind
    postgres: str
    mirror: str
    mariadb: str
    arrow: pa.DataType
    values: list[Any]


ZONED = [
    datetime(2024, 2, 29, 12, tzinfo=UTC),
    datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
    datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    datetime(2038, 1, 19, 3, 14, 7, 999_990, tzinfo=UTC),
    None,
]
LOCAL = [datetime(2024, 2, 29, 12, 0, 0, 500_000), datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]
TEXTS = ["a", "", "é😀 ", "it's 50%\\n\t|x|3:a", None]
COLUMNS: dict[str, KindOfColumn] = {
    "id": KindOfColumn("integer", "bigint", "numeric(20,0)", "bigint(20)", pa.int64(), [1, -1, 2**63 - 1, -(2**63), 0]),
    "small": KindOfColumn("integer", "smallint", "bigint", "smallint(6)", pa.int16(), [-32768, 32767, 0, 7, None]),
    "number": KindOfColumn(
        "decimal",
        "numeric(12,2)",
        "numeric",
        "decimal(12,2)",
        pa.decimal128(12, 2),
        [Decimal(value) if value else None for value in ("100.00", "-0.05", "0.00", "9999999999.90", "")],
    ),
    "fraction": KindOfColumn(
        "decimal",
        "numeric(3,3)",
        "numeric(3,3)",
        "decimal(3,3)",
        pa.decimal128(3, 3),
        [Decimal(value) if value else None for value in ("0.500", "-0.001", "0.000", "0.999", "")],
    ),
    "whole": KindOfColumn(
        "decimal",
        "numeric(38,0)",
        "numeric(38,0)",
        "decimal(38,0)",
        pa.decimal128(38, 0),
        [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(0), Decimal(100), None],
    ),
    "flag": KindOfColumn("boolean", "boolean", "boolean", "bit(1)", pa.bool_(), [True, False, None, True, False]),
    "share": KindOfColumn(
        "float", "double precision", "double precision", "double", pa.float64(), [0.1, 1.0, 1e300, -0.0, None]
    ),
    "ratio": KindOfColumn("float", "real", "double precision", "float", pa.float32(), [0.1, 16777216.0, 1.5, 0.0, None]),
    "name": KindOfColumn("text", "character varying(40)", "text", "varchar(40)", pa.string(), TEXTS),
    "latin": KindOfColumn(
        "text", "text", "text", "varchar(40) CHARACTER SET latin1", pa.large_string(), ["ü", "ß ", "A", "a", None]
    ),
    "data": KindOfColumn("bytes", "bytea", "bytea", "blob", pa.binary(), [b"\x00\xff|", b"", b"x", b"\\", None]),
    "day": KindOfColumn(
        "date",
        "date",
        "date",
        "date",
        pa.date32(),
        [date(1000, 1, 1), date(2024, 2, 29), date(9999, 12, 31), date(1970, 1, 1), None],
    ),
    "at": KindOfColumn(
        "timestamp",
        "timestamp(6) without time zone",
        "timestamp without time zone",
        "datetime(6)",
        pa.timestamp("us"),
        [*LOCAL, datetime(2024, 1, 1, 0, 0, 0, 10), None],
    ),
    "seen": KindOfColumn(
        "timestamptz",
        "timestamp with time zone",
        "timestamp with time zone",
        "timestamp(6) NULL",
        pa.timestamp("us", "UTC"),
        ZONED,
    ),
}
ROWS = len(TEXTS)

BASE: dict[str, Any] = {"k": 1, "a": "a|b", "b": "c", "n": Decimal("1.50"), "f": 0.1, "i": 1, "j": 2, "d": b"a", "t": None}
CHANGES: list[dict[str, Any]] = [
    {"k": 1025},
    {"a": "a", "b": "b|c"},
    {"a": "c", "b": "a|b"},
    {"a": "A|b"},
    {"a": "a|b "},
    {"a": ""},
    {"a": None},
    {"a": None, "b": ""},
    {"a": "", "b": None},
    {"a": None, "b": None},
    {"a": "", "b": ""},
    {"a": "a|b1:c", "b": ""},
    {"a": "1:c", "b": "a|b"},
    {"n": Decimal("1.51")},
    {"n": Decimal("15.00")},
    {"n": Decimal("150.00")},
    {"n": Decimal("-1.50")},
    {"n": None},
    {"n": Decimal("0.00")},
    {"f": 0.10000000000000002},
    {"f": 1e17},
    {"f": 1e17 + 16},
    {"f": 1e300},
    {"f": 1e299},
    {"f": -0.1},
    {"f": None},
    {"f": 0.0},
    {"i": 2, "j": 1},
    {"i": 12, "j": None},
    {"i": None, "j": 12},
    {"i": -1},
    {"d": b"A"},
    {"d": b""},
    {"d": None},
    {"d": b"a\x00"},
    {"t": datetime(2024, 1, 1, tzinfo=UTC)},
    {"t": datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)},
]
"""Changes of `BASE`. No two rows are equal."""
CHANGED_TYPES: dict[str, tuple[ChecksumKind, str, str, pa.DataType]] = {
    "k": ("integer", "bigint", "bigint", pa.int64()),
    "a": ("text", "text", "text", pa.string()),
    "b": ("text", "text", "varchar(20)", pa.string()),
    "n": ("decimal", "numeric(9,2)", "decimal(9,2)", pa.decimal128(9, 2)),
    "f": ("float", "double precision", "double", pa.float64()),
    "i": ("integer", "integer", "int", pa.int32()),
    "j": ("integer", "integer", "int", pa.int32()),
    "d": ("bytes", "bytea", "varbinary(9)", pa.binary()),
    "t": ("timestamptz", "timestamp with time zone", "timestamp(6) NULL", pa.timestamp("us", "UTC")),
}
VARIANTS = [BASE, *({**BASE, **change} for change in CHANGES)]


def make_all_rows() -> pa.Table:
    """The table of `COLUMNS`."""
    return pa.table({name: pa.array(column.values, column.arrow) for name, column in COLUMNS.items()})


def make_changed_rows() -> pa.Table:
    """The rows of `VARIANTS`, numbered in `no`."""
    columns = {name: pa.array([row[name] for row in VARIANTS], kind[3]) for name, kind in CHANGED_TYPES.items()}
    return pa.table({**columns, "no": pa.array(range(len(VARIANTS)), pa.int32())})


def list_arrow_columns(rows: pa.Table, kinds: dict[str, ChecksumKind]) -> list[SummedColumn]:
    return [SummedColumn(name, kind, str(rows.schema.field(name).type)) for name, kind in kinds.items()]


@dataclass(frozen=True)
class ArrowSums:
    """Sums of Arrow rows by DuckDB. A `relation` is SQL over the relation `rows`."""

    rows: pa.Table

    def sum(
        self,
        columns: Sequence[SummedColumn],
        keys: Sequence[SummedColumn],
        *,
        relation: str = '"rows"',
        within: KeyRange | None = None,
        excluded: str | None = None,
    ) -> list[Sum]:
        return sorted(self._fetch(render_sums(DUCKDB, relation, columns, keys, within=within, excluded=excluded)))

    def select_buckets(
        self, keys: Sequence[SummedColumn], buckets: Sequence[int], within: KeyRange | None = None
    ) -> list[Any]:
        return self._fetch(f'SELECT * FROM "rows" AS t WHERE {render_bucket_condition(DUCKDB, keys, buckets, within)}')

    def _fetch(self, query: str) -> list[Any]:
        with open_session() as duck:
            duck.register("rows", self.rows)
            return duck.sql(query).fetchall()
