"""`replicator query`: a target table, now or then."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .session import COUNT, Session, command

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 100
"""Rows that are printed for people when they do not say how many."""
PIPED = 250
"""Columns of a table that goes into a pipe, unless COLUMNS says how many."""


@command("query")
@click.argument("table")
@click.option("--version", type=COUNT, help="The table's version (Delta).")
@click.option("--as-of", type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"]), help="The time.")
@click.option("--where", help="A SQL condition on the table's columns.")
@click.option("--limit", type=COUNT, help="At most so many rows, 0: all. As a table by default 100.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def query(
    session: Session,
    table: str,
    version: int | None,
    as_of: datetime | None,
    where: str | None,
    limit: int | None,
    as_csv: bool,
) -> None:
    """Print TABLE (or SINK.TABLE, or the table's name in the source), as a table, as JSON (`--json`: result is the list of
    rows) or as CSV."""
    from replicator.wiring.reading import read

    for_people = not (as_csv or session.as_json)
    # One more than is shown tells whether there are more, without reading all of a large table.
    most = SHOWN + 1 if limit is None and for_people else limit or None
    rows = read(session.loaded, table, version=version, as_of=as_of, where=where, limit=most)
    if as_csv:
        _write_csv(rows)
        return
    result = [{k: _plain(v) for k, v in row.items()} for row in _rows(rows)] if session.as_json else None
    session.emit(result, f"{rows.num_rows} rows", text=lambda: _print(table, rows, SHOWN if limit is None else None))


def _write_csv(rows: pa.Table) -> None:
    """CSV on stdout, with bytes as `--json` has them, and lists and structures, for which CSV has no form, as JSON text."""
    import pyarrow as pa
    from pyarrow import csv

    for at, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type) or _is_bytes(field.type):
            texts = [None if v is None else _text(v) for v in _values(rows.column(at))]
            rows = rows.set_column(at, field.name, pa.array(texts, pa.string()))
    csv.write_csv(rows, sys.stdout.buffer)


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    return any(known(kind) for known in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))


def _text(value: Any) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, default=str, ensure_ascii=False)


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of `table`. A value that Python cannot hold (a time outside the years 1 to 9999) is text."""
    columns = [_values(column) for column in table.columns]
    return (dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(column: pa.ChunkedArray) -> Iterable[Any]:
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if hasattr(scalar, "items"):
            return {name: _value(part) for name, part in scalar.items()}
        if hasattr(scalar, "values"):
            return [_value(part) for part in scalar.values]
        # Arrow's own text of such a time has a wrong year, where its calendar ends too.
        return f"{scalar.value} {getattr(scalar.type, 'unit', 'days')} since 1970"


def _plain(value: Any) -> Any:
    """What JSON can hold: bytes as hexadecimal text, NaN and infinities as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return str(value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _print(name: str, rows: pa.Table, shown: int | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cut = shown is not None and rows.num_rows > shown
    rows = rows.slice(0, shown)
    # Text, not strings: brackets in a value are no markup.
    title = f"{name}: {'the first ' if cut else ''}{rows.num_rows:,} rows"
    table = Table(title=Text(title), title_justify="left")
    for column in rows.column_names:
        table.add_column(Text(column), overflow="fold")
    for row in _rows(rows):
        table.add_row(*(Text("" if v is None else str(v)) for v in row.values()))
    console = Console(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPED)
    console.print(table)
    if cut:
        console.print("There are more; --limit 0 prints all, --where and --limit choose, --csv and --json write all.")
