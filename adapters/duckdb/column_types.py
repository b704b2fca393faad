"""Conversion of columns to types that DuckDB reads. It has no decimals of more than 38 digits."""

from __future__ import annotations

import pyarrow as pa


def to_duckdb_types(table: pa.Table) -> pa.Table:
    """`table` in types that DuckDB reads. Equal values stay equal, different values different. Their order may change."""
    schema = pa.schema([pa.field(f.name, _duckdb_type(f.type)) for f in table.schema])
    return table if schema.types == table.schema.types else table.cast(schema)


def _duckdb_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal256(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_duckdb_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _duckdb_type(f.type)) for f in kind])
    return kind
