"""Commands that show rows, changes, records and events: query, history, audit, inspect, record, events and serve."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.plain_values import format_count, to_json_value, to_printable, to_values
from replicator.domain.plain_values import to_rows as plain_rows

from .operate import event_to_json
from .parameters import (
    COUNT,
    IN_UTC,
    TIME,
    TIME_OR_POSITION,
    complete_files,
    complete_sources,
    complete_sources_or_files,
    complete_tables,
    complete_targets,
)
from .run import handle_signals
from .session import CommandSession, command, echo

if TYPE_CHECKING:
    import pyarrow as pa

    from replicator.domain.events import Event
    from replicator.domain.position import Position
    from replicator.domain.timeline import HistoryEntry

# `replicator query`: prints a target, now or at an earlier time.

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
    type=TIME_OR_POSITION,
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

    refuse_two_formats(session, as_csv=as_csv)
    for_people = not (as_csv or session.as_json)
    # One row more than is printed shows that there are more, without reading all of a large table.
    most = MAX_SHOWN + 1 if limit is None and for_people else limit or None
    then: dict[str, Any] = {"version": version, "as_of": as_of, "from_log": from_log}
    rows = read_target(session.components, table, **then, where=where, limit=most, show_line=session.print_note)
    if columns is not None:
        names = [name.strip() for name in columns.split(",")]
        missing = [name for name in names if name not in rows.column_names]
        if missing:
            available = ", ".join(rows.column_names)
            raise ConfigProblem(f"the table has no column {missing[0]!r}", next_step=f"Available: {available}.")
        rows = rows.select(names)
    elif for_people and not all_columns:
        rows = rows.select([name for name in rows.column_names if not name.startswith(BOOKKEEPING)])
    if as_csv:
        write_csv(rows)
        return
    result = to_json_rows(rows) if session.as_json else None
    max_rows = MAX_SHOWN if limit is None else None
    session.emit(result, format_count(rows.num_rows, "row"), text=lambda: print_table(table, rows, max_rows))


def to_json_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as `--json` has them."""
    return [{k: to_json_value(v) for k, v in row.items()} for row in plain_rows(rows)]


def refuse_two_formats(session: CommandSession, *, as_csv: bool) -> None:
    """ConfigProblem for --csv with --json."""
    if as_csv and session.as_json:
        raise ConfigProblem("--csv and --json exclude each other", next_step="Use either --csv or --json.")


def write_csv(rows: pa.Table) -> None:
    """CSV on stdout. Bytes and decimals are as in `--json`; lists and structures are JSON text."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    types = pa.types
    as_text = (types.is_nested, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    for at, field in enumerate(rows.schema):
        column = rows.column(at)
        # Arrow would write some decimals with an exponent.
        has_exponent = types.is_decimal(field.type) and pc.any(pc.match_substring(column.cast(pa.string()), "E")).as_py()
        if has_exponent or any(is_kind(field.type) for is_kind in as_text):
            values = [to_json_value(value) for value in to_values(column)]
            texts = [
                value if value is None or isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
                for value in values
            ]
            rows = rows.set_column(at, field.name, pa.array(texts, pa.string()))
    csv.write_csv(rows, sys.stdout.buffer)


def print_table(name: str, rows: pa.Table, max_rows: int | None = None) -> None:
    """Rows for people: the first `max_rows` of them, or all."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cut = max_rows is not None and rows.num_rows > max_rows
    rows = rows.slice(0, max_rows)
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
        # A line for each value, where a row does not fit into one.
        lines = [title]
        for number, row in enumerate(texts, 1):
            width = max(map(len, row))
            lines += ["", f"row {number}", *(f"  {name:<{width}}  {text}".rstrip() for name, text in row.items())]
        console.print(Text("\n".join(lines)), soft_wrap=True)
    else:
        table = Table(title=Text(title), title_justify="left")
        for column in names:
            table.add_column(Text(column), overflow="fold")
        for row in texts:
            table.add_row(*map(Text, row.values()))
        console.print(table)
    if cut:
        console.print("There are more rows. --limit 0 prints all, --where and --limit select, --csv and --json write all.")


# `replicator history`: the changes of one row.

OPERATION_WORDS = {"c": "created", "u": "updated", "d": "deleted", "r": "read", "t": "truncated"}


@command("history", "replicator history public.orders 42")
@click.argument("table", shell_complete=complete_tables)
@click.argument("key", nargs=-1, required=True)
def history(session: CommandSession, table: str, key: tuple[str, ...]) -> None:
    """Print all changes of one row, from the event log.

    TABLE is the name of the table in the source, with or without its schema. KEY has one value for each key column; put --
    before a value that begins with a minus. For each change: time, operation, transaction, and the changed values.

    With --json, each change has the whole row before and after it.
    """
    from replicator.application.operations.change_history import read_history
    from replicator.application.operations.lanes import find_source_table
    from replicator.domain.timeline import to_json
    from replicator.wiring.event_logs import open_reader

    table = find_source_table(session.components, table)
    with open_reader(session.loaded, table) as log:
        entries, read = read_history(log, table, key, session.print_note)
    _note_rejected(session, table, read.rejected)
    summary = "; ".join([f"{table} {' '.join(key)}: {format_count(len(entries), 'change')}", *read.missing_sentences])
    session.emit(
        [to_json_value(to_json(entry)) for entry in entries], summary, text=lambda: _print_entries(summary, entries)
    )


def _note_rejected(session: CommandSession, table: str, count: int) -> None:
    if count:
        session.print_note(f"Left out: {format_count(count, 'rejected record')} of {table}. See `replicator dlq list`.")


def _print_entries(title: str, entries: list[HistoryEntry]) -> None:
    echo(title)
    for entry in entries:
        at = "(no time)" if entry.at is None else str(entry.at)
        if entry.moved_away:
            change = "got another key"
        else:
            change = f"had the key {_to_text(entry.moved_from)}" if entry.moved_from else OPERATION_WORDS[entry.operation]
        words = [at, change, *([f"transaction {entry.transaction}"] if entry.transaction else [])]
        echo("  ".join(["", *words, f"{entry.topic}:{entry.partition}:{entry.offset}"]).lstrip())
        if entry.after is None:
            continue
        if entry.before is None:
            lines = [f"{name} = {_to_text(value)}" for name, value in entry.after.items()]
        else:
            lines = [f"{name}: {_to_text(entry.before.get(name))} → {_to_text(entry.after[name])}" for name in entry.changed]
        for line in lines:
            echo(f"    {line}")


def _to_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_to_text(one)}" for name, one in value.items())
    return "NULL" if value is None else str(to_json_value(value))


# `replicator audit`: the changes of a table.

MAX_AUDIT_ROWS = 100


@command("audit", "replicator audit public.orders --since 2026-01-31 --by updated_by")
@click.argument("table", shell_complete=complete_tables)
@click.option("--since", type=TIME, help=f"Only changes at this source time or later. {IN_UTC}")
@click.option("--until", type=TIME, help=f"Only changes at this source time or earlier. {IN_UTC}")
@click.option("--by", metavar="COLUMN", help="Column that names the user of a change, such as updated_by.")
@click.option("--limit", type=COUNT, help="Print the last N changes; 0 prints all.  [default: 100 as a table, else all]")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def audit(
    session: CommandSession,
    table: str,
    since: datetime | None,
    until: datetime | None,
    by: str | None,
    limit: int | None,
    as_csv: bool,
) -> None:
    """Print all changes of a table, from its event log.

    TABLE is the name of the table in the source, with or without its schema. For each change: time, key, changed columns,
    transaction, and the position of its record. Changed columns are known if the record contains the row before the change.

    Change records do not name the user of a change. If the table has a column such as updated_by, name it with --by.
    """
    import pyarrow.compute as pc

    from replicator.application.operations.change_history import read_audit
    from replicator.application.operations.lanes import find_source_table
    from replicator.wiring.event_logs import open_reader

    refuse_two_formats(session, as_csv=as_csv)
    table = find_source_table(session.components, table)
    period = {name: at.isoformat() for name, at in (("since", since), ("until", until)) if at is not None}
    with open_reader(session.loaded, table, period) as log:
        rows, read = read_audit(log, table, session.print_note, by)
    _note_rejected(session, table, read.rejected)
    most = MAX_AUDIT_ROWS if limit is None and not (as_csv or session.as_json) else limit or None
    newest = rows if most is None else rows.slice(max(0, rows.num_rows - most))
    unknown = pc.sum(pc.and_(pc.equal(newest["operation"], "u"), pc.is_null(newest["changed"]))).as_py()
    if unknown:
        session.print_note(
            f"`changed` is empty in {format_count(unknown, 'update')}: the record does not contain the row before the "
            "change (PostgreSQL sends it with REPLICA IDENTITY FULL). `replicator history TABLE KEY` compares each change "
            "of a row with the one before it."
        )
    if as_csv:
        write_csv(newest)
        return
    for sentence in read.missing_sentences:
        session.print_note(sentence)
    summary = "; ".join([f"{table}: {format_count(rows.num_rows, 'change')}", *read.missing_sentences])
    title = table if newest.num_rows == rows.num_rows else f"{table}, the last of {format_count(rows.num_rows, 'change')}"
    session.emit(to_json_rows(newest) if session.as_json else None, summary, text=lambda: print_table(title, newest))


# `replicator inspect`: prints decoded records.


@command("inspect", "replicator inspect shop --limit 5", "replicator inspect recorded.jsonl --format debezium_json")
@click.argument("source", shell_complete=complete_sources_or_files)
@click.option(
    "--format", "form", metavar="FORMAT", help="Format of the records.  [default: the format of the source in the config]"
)
@click.option("--timezone", "zone", metavar="ZONE", default="UTC", show_default=True, help="Time zone of the printed times.")
@click.option("--limit", type=COUNT, default=MAX_SHOWN, show_default=True, help="Print the first N records; 0 prints all.")
def inspect(session: CommandSession, source: str, form: str | None, zone: str, limit: int) -> None:
    """Print the first records of a source, decoded.

    SOURCE is a source of the config, or an archive: a file or folder, which needs --format. Writes nothing, and moves no
    position.
    """
    from zoneinfo import ZoneInfo

    import pyarrow as pa
    import pyarrow.compute as pc

    from replicator.wiring.diagnosis import inspect_archive, inspect_source

    try:
        zone = ZoneInfo(zone).key
    except (KeyError, OSError, ValueError):  # Unknown, a folder of zones, or no name of one.
        sentence = f"there is no time zone {zone!r}"
        raise ConfigProblem(sentence, next_step="Name one such as UTC or Asia/Shanghai.") from None
    path = Path(source)
    if path.exists():
        if form is None:
            raise ConfigProblem(f"the format of {source} is not known", next_step="Add --format, such as dts_avro.")
        records = inspect_archive(path, form, limit)
    else:
        records = inspect_source(session.loaded, source, form, limit)
    for at, field in enumerate(records.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            local = pc.local_timestamp(records[field.name].cast(pa.timestamp("us", zone)))
            text = pc.replace_substring_regex(local.cast(pa.string()), r"\.0+$", "")  # Whole seconds have no fraction.
            records = records.set_column(at, field.name, text)
    result = to_json_rows(records) if session.as_json else None
    session.emit(result, format_count(records.num_rows, "record"), text=lambda: print_table(source, records))


# `replicator record`: writes topics to an archive file.


@command("record", "replicator record 'cdc.public.*' shop.jsonl.gz")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_files)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--source", metavar="NAME", shell_complete=complete_sources, help="Kafka source with the broker, if there are several."
)
def record(session: CommandSession, topics: tuple[str, ...], file: Path, source: str | None) -> None:
    """Write the records of Kafka topics to a file.

    TOPIC is a name or a glob. FILE ends in .jsonl, .jsonl.gz or .parquet, and gets the records that the topics hold now. A
    source with `transport: archive` reads it. The running pipeline is not affected.
    """
    from replicator.application.operations.archive_files import record_topics
    from replicator.wiring.adapters import build_topic_reader

    records = record_topics(partial(build_topic_reader, session.loaded, source, topics), topics, file, session.print_note)
    session.emit({"path": str(file), "records": records}, f"{format_count(records, 'record')} in {file}")


# `replicator events`: lists the events of the event store.


@command("events", "replicator events order 42")
@click.argument("aggregate_type")
@click.argument("aggregate_id", required=False)
@click.option("--until", type=TIME, help=f"Only events stored up to this time. {IN_UTC}")
@click.option("--limit", type=COUNT, help="Print the first N events.  [default: all]")
def events(
    session: CommandSession, aggregate_type: str, aggregate_id: str | None, until: datetime | None, limit: int | None
) -> None:
    """List the events of an aggregate, or of an aggregate type.

    Without AGGREGATE_ID, lists the events of all aggregates of AGGREGATE_TYPE, ordered by time and version.
    """
    from replicator.wiring.adapters import open_store

    store = open_store(session.loaded)
    try:
        events = store.read(aggregate_type, aggregate_id, until=until, limit=limit)
    finally:
        store.close()
    summary = f"{' '.join(filter(None, (aggregate_type, aggregate_id)))}: {format_count(len(events), 'event')}"
    session.emit([event_to_json(e) for e in events], summary, text=lambda: _print_events(summary, events))


def _print_events(title: str, events: Iterable[Event]) -> None:
    echo(title)
    for event in events:
        echo(f"{event.created_at}  {event.aggregate_id}  version {event.event_version}  {event.event_type}")
        metadata = ((f"metadata {name}", value) for name, value in event.metadata.items())
        for name, value in (*event.event_data.items(), *metadata):
            echo(f"    {name} = {'NULL' if value is None else value}")


# `replicator serve`: serves targets and events over HTTP.


@command("serve", "replicator serve --address 127.0.0.1:8091")
@click.option("--address", metavar="HOST:PORT", help="Use this address instead of `serve.address` of the config.")
def serve(session: CommandSession, address: str | None) -> None:
    """Serve targets, their history and events over HTTP.

    Serves the rows of targets, now and at earlier times, and the history of rows, as JSON and Arrow; /docs describes the
    API. With an `event_store` in the config it also accepts events: POST /events.

    Events, and any address but 127.0.0.1, need the token of `serve.token`. SIGTERM finishes the requests in progress and
    exits with 0.
    """
    signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    from replicator.ports.runtime import Endpoints
    from replicator.wiring.adapters import make_emitter
    from replicator.wiring.components import build_read_side, build_server
    from replicator.wiring.process_setup import configure_logs, raise_limit

    configure_logs(session.verbosity)
    raise_limit()
    if address:
        session.overrides += (f"serve.address={address}",)
    side = build_server(session.loaded)
    store = make_emitter(session.loaded) if session.loaded.settings.event_store is not None else None
    stop = threading.Event()
    handle_signals(stop)
    try:
        at = side.start(Endpoints(store.emit if store else None, build_read_side(session.loaded)))
        session.print_note(f"targets: {at}/docs{f', events: {at}/events' if store else ''}")
        stop.wait()
        side.close()
    finally:
        if store is not None:
            store.store.close()
    session.emit(None, "stopped cleanly")
