"""`replicator query`: prints a target, now or at an earlier time."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.plain_values import format_count, to_json_value, to_printable, to_values
from replicator.domain.plain_values import to_rows as plain_rows

from .completion import complete_targets
from .session import COUNT, CommandSession, command
from .time_params import IN_UTC, TIME_OR_PLACES

if TYPE_CHECKING:
    import pyarrow as pa

    from replicator.domain.position import Position

MAX_SHOWN = 100
"""Rows that are printed as a table without `--limit`."""
BOOKKEEPING = ("_cdc_", "_event_id")
"""Prefixes of columns that are printed only with `--all-columns` or `--columns`."""
PIPED_WIDTH = 250
"""Width of a table in a pipe, unless COLUMNS is set."""


@command(
    "query",
    """replicator query lake.orders --where "status = 'open'" --limit 20""",
    "replicator query orders --as-of 2026-01-31T12:00:00Z",
)
@click.argument("table", shell_complete=complete_targets)
@click.option("--version", type=COUNT, help="Read version N of a Delta table.")
@click.option(
    "--as-of",
    type=TIME_OR_PLACES,
    help=f"Read the rows of an earlier source time. {IN_UTC} Also TOPIC:PARTITION:OFFSET[,...] of the last records that "
    "count, as `history` prints them.",
)
@click.option("--from-log", is_flag=True, help="With --as-of: read the event log, even if a table version fits.")
@click.option("--where", metavar="SQL", help="Only rows that meet this SQL condition.")
@click.option("--limit", type=COUNT, help="Print at most N rows; 0 prints all.  [default: 100 as a table, else all]")
@click.option("--columns", metavar="NAMES", help="Only these columns, separated by commas.")
@click.option("--all-columns", is_flag=True, help="In a table, also print the bookkeeping columns (_cdc_...).")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def query(
    session: CommandSession,
    table: str,
    version: int | None,
    as_of: datetime | Position | None,
    from_log: bool,
    where: str | None,
    limit: int | None,
    columns: str | None,
    all_columns: bool,
    as_csv: bool,
) -> None:
    """Print the rows of a target, now or at an earlier time.

    TABLE is SINK.TARGET, the name of the target, or the name of the table in the source. Prints a table, JSON (--json) or
    CSV.

    With --as-of, Replicator reads the table version with exactly the records up to this time. If there is none, it reads
    the event log of the table. Without an event log, it selects the version by the time of its commit.
    """
    if from_log and as_of is None:
        raise ConfigProblem("--from-log needs --as-of", next_step="Add a time with `--as-of`.")
    from replicator.application.operations.read_side import read_target

    for_people = not (as_csv or session.as_json)
    # One row more than is printed shows that there are more, without reading all of a large table.
    most = MAX_SHOWN + 1 if limit is None and for_people else limit or None
    then: dict[str, Any] = {"version": version, "as_of": as_of, "from_log": from_log}
    rows = read_target(session.components, table, **then, where=where, limit=most, tell=session.print_note)
    if columns is not None:
        rows = _select_columns(rows, [name.strip() for name in columns.split(",")])
    elif for_people and not all_columns:
        rows = rows.select([name for name in rows.column_names if not name.startswith(BOOKKEEPING)])
    if as_csv:
        write_csv(rows)
        return
    result = to_json_rows(rows) if session.as_json else None
    shown = MAX_SHOWN if limit is None else None
    session.emit(result, format_count(rows.num_rows, "row"), text=lambda: print_table(table, rows, shown))


def _select_columns(rows: pa.Table, names: list[str]) -> pa.Table:
    missing = [name for name in names if name not in rows.column_names]
    if missing:
        raise ConfigProblem(
            f"the table has no column {missing[0]!r}", next_step=f"Available: {', '.join(rows.column_names)}."
        )
    return rows.select(names)


def to_json_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as `--json` has them."""
    return [{k: to_json_value(v) for k, v in row.items()} for row in plain_rows(rows)]


def write_csv(rows: pa.Table) -> None:
    """CSV on stdout. Bytes and decimals are as in `--json`; lists and structures are JSON text."""
    import pyarrow as pa
    from pyarrow import csv

    for at, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type) or _is_bytes(field.type) or _has_exponent(rows.column(at)):
            texts = [None if v is None else _to_text(v) for v in to_values(rows.column(at))]
            rows = rows.set_column(at, field.name, pa.array(texts, pa.string()))
    csv.write_csv(rows, sys.stdout.buffer)


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    return any(known(kind) for known in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))


def _has_exponent(column: Any) -> bool:
    """True if Arrow's CSV would write a decimal of the column with an exponent."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.types.is_decimal(column.type) and pc.any(pc.match_substring(column.cast(pa.string()), "E")).as_py()
    return bool(found)


def _to_text(value: Any) -> str:
    told = to_json_value(value)
    return told if isinstance(told, str) else json.dumps(told, default=str, ensure_ascii=False)


def print_table(name: str, rows: pa.Table, shown: int | None = None) -> None:
    """Rows for people: the first `shown` of them, or all."""
    from rich.console import Console

    cut = shown is not None and rows.num_rows > shown
    rows = rows.slice(0, shown)
    # Text, not strings: brackets in a value are no markup.
    title = to_printable(f"{name}: {'the first ' if cut else ''}{format_count(rows.num_rows, 'row')}")
    console = Console(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH)
    texts = [
        {to_printable(name): "" if v is None else to_printable(str(to_json_value(v))) for name, v in row.items()}
        for row in plain_rows(rows)
    ]
    names = [to_printable(name) for name in rows.column_names]
    widths = [max([len(name), *(len(row[name]) for row in texts)]) for name in names]
    if sum(widths) + 3 * len(widths) + 1 > console.width and len(widths) > 1:
        _print_blocks(console, title, texts)
    else:
        _print_grid(console, title, names, texts)
    if cut:
        console.print("There are more rows. --limit 0 prints all, --where and --limit select, --csv and --json write all.")


def _print_blocks(console: Any, title: str, rows: list[dict[str, str]]) -> None:
    """A line for each value, where a row does not fit into one."""
    from rich.text import Text

    lines = [title]
    for number, row in enumerate(rows, 1):
        width = max(map(len, row))
        lines += ["", f"row {number}", *(f"  {name:<{width}}  {text}".rstrip() for name, text in row.items())]
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _print_grid(console: Any, title: str, names: list[str], rows: list[dict[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for column in names:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.values()))
    console.print(table)
