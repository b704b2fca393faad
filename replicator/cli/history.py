"""`replicator history`: the changes of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from replicator.domain.plain_values import format_count, to_plain

from .completion import complete_tables
from .session import CommandSession, command, echo

if TYPE_CHECKING:
    from replicator.domain.timeline import HistoryEntry

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
    session.emit([to_plain(to_json(entry)) for entry in entries], summary, text=lambda: _print_entries(summary, entries))


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
    return "NULL" if value is None else str(to_plain(value))
