"""`replicator query`: a target table, now or then."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .session import COUNT, Session, command

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 200


@command("query")
@click.argument("table")
@click.option("--version", type=COUNT, help="The table's version (Delta).")
@click.option("--as-of", type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"]), help="The time.")
@click.option("--where", help="A SQL condition on the table's columns.")
@click.option("--limit", type=COUNT, help="At most so many rows.")
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
    """Print TABLE (or SINK.TABLE), as a table, JSON (`--json`: result is the list of rows) or CSV."""
    from replicator.wiring.reading import read

    rows = read(session.loaded, table, version=version, as_of=as_of, where=where, limit=limit)
    if as_csv:
        from pyarrow import csv

        csv.write_csv(rows, sys.stdout.buffer)
        return
    result = [{k: _plain(v) for k, v in row.items()} for row in _rows(rows)] if session.as_json else None
    session.emit(result, f"{rows.num_rows} rows", text=lambda: _print(table, rows))


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


def _print(name: str, rows: pa.Table) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Text, not strings: brackets in a value are no markup.
    table = Table(title=Text(f"{name}: {rows.num_rows:,} rows"), title_justify="left")
    for column in rows.column_names:
        table.add_column(Text(column), overflow="fold")
    for row in _rows(rows.slice(0, SHOWN)):
        table.add_row(*(Text("" if v is None else str(v)) for v in row.values()))
    console = Console(width=None if sys.stdout.isatty() else 250)
    console.print(table)
    if rows.num_rows > SHOWN:
        console.print(f"... {rows.num_rows - SHOWN:,} more; use --limit, --where, --csv or --json")
