"""`replicator history`: what became of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from replicator.domain.plain import plain

from .session import Session, command, counted, echo

if TYPE_CHECKING:
    from replicator.domain.timeline import Entry

WORDS = {"c": "created", "u": "updated", "d": "deleted", "r": "read", "t": "truncated"}


@command("history")
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
def history(session: Session, table: str, key: tuple[str, ...]) -> None:
    """Every change of the row of TABLE (or SCHEMA.TABLE, as its source calls it) with that KEY, a value for each key column
    (behind `--` where one begins with a minus), as the table's event log has them: when, by which transaction, and what
    differs. With `--json`, `result` is the list, with the row before and after each."""
    from replicator.domain.timeline import told
    from replicator.wiring import histories
    from replicator.wiring.offline import source_table

    table = source_table(session.loaded, table)
    entries, read = histories.history(session.loaded, table, key, session.note)
    if read.rejected:
        session.note(
            f"{read.rejected:,} records of {table} were rejected, and are not among them; see `replicator dlq list`."
        )
    summary = "; ".join([f"{table} {' '.join(key)}: {counted(len(entries), 'change')}", *read.gone])
    session.emit([plain(told(entry)) for entry in entries], summary, text=lambda: _show(summary, entries))


def _show(title: str, entries: list[Entry]) -> None:
    echo(title)
    for entry in entries:
        at = "(no time)" if entry.at is None else str(entry.at)
        words = [at, _what(entry), *([f"transaction {entry.transaction}"] if entry.transaction else [])]
        echo("  ".join(["", *words, f"{entry.topic}:{entry.partition}:{entry.offset}"]).lstrip())
        for line in _values(entry):
            echo(f"    {line}")


def _what(entry: Entry) -> str:
    if entry.moved_away:
        return "got another key"
    return f"had the key {_text(entry.moved_from)}" if entry.moved_from else WORDS[entry.operation]


def _values(entry: Entry) -> list[str]:
    """What differs, or the whole row where it is new."""
    if entry.after is None:
        return []
    if entry.before is None:
        return [f"{name} = {_text(value)}" for name, value in entry.after.items()]
    return [f"{name}: {_text(entry.before.get(name))} → {_text(entry.after[name])}" for name in entry.changed]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_text(one)}" for name, one in value.items())
    return "NULL" if value is None else str(plain(value))
