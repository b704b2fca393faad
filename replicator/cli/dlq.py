"""`replicator dlq`: rejected records."""

from __future__ import annotations

from typing import Any

import click

from .session import COUNT, Session, command


@click.group("dlq")
def dlq() -> None:
    """Look at rejected records."""


@command("list")
@click.option("--limit", type=COUNT, default=100, show_default=True)
def list_letters(session: Session, limit: int) -> None:
    """The rejected records, newest first; with `--json`, result is the list."""
    from replicator.wiring.adapters import dead_letters

    store = dead_letters(session.loaded)
    try:
        letters = store.read(limit=limit)
    finally:
        store.close()
    result = [_plain(letter) for letter in letters]
    session.emit(result, f"{len(letters)} rejected records", text=lambda: _print(letters))


def _plain(letter: Any) -> dict[str, Any]:
    fields = {name: getattr(letter, name) for name in letter.__dataclass_fields__}
    record = fields.pop("record")
    return {**fields, "record": None if record is None else record.decode("utf-8", "replace")}


def _print(letters: Any) -> None:
    for letter in letters:
        where = letter.lane or letter.stage
        click.echo(f"{letter.event_id}  {letter.table or '?'}  {where}  {letter.code}: {letter.sentence}")
    click.echo(f"{len(letters)} rejected records")


dlq.add_command(list_letters)
