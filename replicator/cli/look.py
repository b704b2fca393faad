"""Commands that show changes, records and events: history, audit, inspect, record, events and serve."""

from __future__ import annotations

import os
import signal
import threading
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.plain_values import format_count, to_json_value

from .completion import complete_files, complete_sources, complete_sources_or_files, complete_tables
from .operate import event_to_json
from .query import print_table, to_json_rows, write_csv
from .run import handle_signals
from .session import COUNT, CommandSession, command, echo
from .time_params import IN_UTC, TIME

if TYPE_CHECKING:
    import pyarrow as pa

    from replicator.domain.events import Event
    from replicator.domain.timeline import HistoryEntry

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
    if read.rejected:
        session.print_note(
            f"Left out: {format_count(read.rejected, 'rejected record')} of {table}. See `replicator dlq list`."
        )
    summary = "; ".join([f"{table} {' '.join(key)}: {format_count(len(entries), 'change')}", *read.missing_sentences])
    session.emit(
        [to_json_value(to_json(entry)) for entry in entries], summary, text=lambda: _print_entries(summary, entries)
    )


def _print_entries(title: str, entries: list[HistoryEntry]) -> None:
    echo(title)
    for entry in entries:
        at = "(no time)" if entry.at is None else str(entry.at)
        words = [at, _describe_change(entry), *([f"transaction {entry.transaction}"] if entry.transaction else [])]
        echo("  ".join(["", *words, f"{entry.topic}:{entry.partition}:{entry.offset}"]).lstrip())
        for line in _list_values(entry):
            echo(f"    {line}")


def _describe_change(entry: HistoryEntry) -> str:
    if entry.moved_away:
        return "got another key"
    return f"had the key {_to_text(entry.moved_from)}" if entry.moved_from else OPERATION_WORDS[entry.operation]


def _list_values(entry: HistoryEntry) -> list[str]:
    """The changed values, or all values of a new row."""
    if entry.after is None:
        return []
    if entry.before is None:
        return [f"{name} = {_to_text(value)}" for name, value in entry.after.items()]
    return [f"{name}: {_to_text(entry.before.get(name))} → {_to_text(entry.after[name])}" for name in entry.changed]


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
    from replicator.application.operations.change_history import read_audit
    from replicator.application.operations.lanes import find_source_table
    from replicator.wiring.event_logs import open_reader

    table = find_source_table(session.components, table)
    period = {name: at.isoformat() for name, at in (("since", since), ("until", until)) if at is not None}
    with open_reader(session.loaded, table, period) as log:
        found, read = read_audit(log, table, session.print_note, by)
    if read.rejected:
        session.print_note(
            f"Left out: {format_count(read.rejected, 'rejected record')} of {table}. See `replicator dlq list`."
        )
    most = MAX_AUDIT_ROWS if limit is None and not (as_csv or session.as_json) else limit or None
    shown = found if most is None else found.slice(max(0, found.num_rows - most))
    _note_unknown(session, shown)
    if as_csv:
        write_csv(shown)
        return
    for sentence in read.missing_sentences:
        session.print_note(sentence)
    summary = "; ".join([f"{table}: {format_count(found.num_rows, 'change')}", *read.missing_sentences])
    title = table if shown.num_rows == found.num_rows else f"{table}, the last of {format_count(found.num_rows, 'change')}"
    session.emit(to_json_rows(shown) if session.as_json else None, summary, text=lambda: print_table(title, shown))


def _note_unknown(session: CommandSession, shown: pa.Table) -> None:
    """Explain an empty `changed`: the records do not contain the row before the change."""
    import pyarrow.compute as pc

    unknown = pc.sum(pc.and_(pc.equal(shown["operation"], "u"), pc.is_null(shown["changed"]))).as_py()
    if unknown:
        session.print_note(
            f"`changed` is empty in {format_count(unknown, 'update')}: the record does not contain the row before the "
            "change (PostgreSQL sends it with REPLICA IDENTITY FULL). `replicator history TABLE KEY` compares each change "
            "of a row with the one before it."
        )


# `replicator inspect`: prints decoded records.

MAX_SHOWN = 100


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
    from replicator.wiring.record_inspection import inspect_archive, inspect_source

    known = _check_zone(zone)
    path = Path(source)
    if path.exists():
        if form is None:
            raise ConfigProblem(f"the format of {source} is not known", next_step="Add --format, such as dts_avro.")
        found = inspect_archive(path, form, limit)
    else:
        found = inspect_source(session.loaded, source, form, limit)
    found = _convert_zone(found, known)
    result = to_json_rows(found) if session.as_json else None
    session.emit(result, format_count(found.num_rows, "record"), text=lambda: print_table(source, found))


def _check_zone(name: str) -> str:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name).key
    except (KeyError, OSError, ValueError):  # Unknown, a folder of zones, or no name of one.
        sentence = f"there is no time zone {name!r}"
        raise ConfigProblem(sentence, next_step="Name one such as UTC or Asia/Shanghai.") from None


def _convert_zone(table: pa.Table, zone: str) -> pa.Table:
    """Times as text in local time of the zone; whole seconds without a fraction."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            local = pc.local_timestamp(table[field.name].cast(pa.timestamp("us", zone)))
            text = pc.replace_substring_regex(local.cast(pa.string()), r"\.0+$", "")
            table = table.set_column(at, field.name, text)
    return table


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
    from replicator.wiring import event_store as wiring

    store = wiring.open_store(session.loaded)
    try:
        found = store.read(aggregate_type, aggregate_id, until=until, limit=limit)
    finally:
        store.close()
    summary = f"{' '.join(filter(None, (aggregate_type, aggregate_id)))}: {format_count(len(found), 'event')}"
    session.emit([event_to_json(e) for e in found], summary, text=lambda: _print_events(summary, found))


def _print_events(title: str, found: Any) -> None:
    echo(title)
    for event in found:
        echo(f"{event.created_at}  {event.aggregate_id}  version {event.event_version}  {event.event_type}")
        for line in _list_event_values(event):
            echo(f"    {line}")


def _list_event_values(event: Event) -> list[str]:
    pairs = [(name, value) for name, value in event.event_data.items()]
    pairs += [(f"metadata {name}", value) for name, value in event.metadata.items()]
    return [f"{name} = {'NULL' if value is None else value}" for name, value in pairs]


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
    from replicator.wiring.components import build_read_side, build_server
    from replicator.wiring.event_store import make_emitter
    from replicator.wiring.file_limits import raise_limit
    from replicator.wiring.logs import configure_logs

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
