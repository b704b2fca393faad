"""`replicator dlq`: rejected records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem, ExitCode
from replicator.domain.plain import printable

from .session import COUNT, Session, command, counted, echo
from .times import duration

if TYPE_CHECKING:
    from replicator.ports.dead_letters import Which

SHOWN = 4_000
"""Characters of a record that `explain` shows to people; --json has all of it."""


@click.group("dlq")
def dlq() -> None:
    """Look at rejected records, and do something about them."""


def filters(state: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that say which letters are meant; by default those in `state`. Together they are one `Which`."""
    options = (
        click.option(
            "--event", "events", multiple=True, metavar="ID", help="The record TOPIC-PARTITION-OFFSET; may be repeated."
        ),
        click.option("--lane", help="Rejected by this lane, or those of a glob; '' for before lanes part."),
        click.option("--table", help="Of this table, or those of a glob."),
        click.option("--code", help="With this reason."),
        click.option("--stage", type=click.Choice(["route", "decode", "shape", "apply"]), help="Rejected there."),
        click.option("--state", type=click.Choice(["open", "replayed", "all"]), default=state, show_default=True),
        click.option("--older-than", metavar="TIME", help="Not seen for so long, such as '30 days'."),
    )

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def which(events: tuple[str, ...], state: str, older_than: str | None, **fields: Any) -> Which:
    """The letters that the options mean."""
    from replicator.ports.dead_letters import Which

    before = None if older_than is None else datetime.now(UTC) - duration(older_than)
    return Which(events=frozenset(events), state=None if state == "all" else state, before=before, **fields)


@command("list")
@filters("all")
@click.option("--limit", type=COUNT, default=100, show_default=True)
def list_letters(session: Session, limit: int, **chosen: Any) -> None:
    """The rejected records, newest first; with `--json`, result is the list."""
    from replicator.wiring import letters

    found, total = letters.newest(session.loaded, which(**chosen), limit)
    said = counted(total, "rejected record")
    said = said if total == len(found) else f"{len(found)} of {said} (`--limit`)"
    if not found and (table := chosen["table"]) and not letters.is_configured(session.loaded, table):
        session.note(f"no entry of `tables` matches {table}")
    session.emit([letters.told(each) for each in found], said, text=lambda: _print(found, said))


@command("explain")
@click.argument("event")
@click.option("--lane", help="Of those that rejected it, this one.")
def explain(session: Session, event: str, lane: str | None) -> None:
    """One rejected record (EVENT as `dlq list` names it): why, where, when, what can be done, and the record itself."""
    from replicator.wiring import letters

    found = letters.named(session.loaded, event, lane)
    result = [{**letters.told(each), "what_to_do": letters.what_to_do(session.loaded, each)} for each in found]
    session.emit(result, counted(len(found), "rejected record"), text=lambda: _explain(session.loaded, found))


@command("export")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@filters("open")
def export(session: Session, path: Path | None, **chosen: Any) -> None:
    """Write rejected records as an archive to PATH (.jsonl, .jsonl.gz or .parquet), or as JSON Lines to stdout (no PATH, or
    -): a source of `transport: archive` reads it."""
    from replicator.wiring import letters

    path = None if path == Path("-") else path
    found = letters.found(session.loaded, which(**chosen))
    lacking = len([each for each in found if not each.is_placed])
    if lacking:
        session.note(f"warning: {lacking} letters from before records were kept whole are left out")
    if path is None and session.as_json:
        raise ConfigProblem("the archive and the answer would both be on stdout", next_step="Name a PATH for the archive.")
    records = letters.export(found, sys.stdout.buffer if path is None else path)
    if path is not None:
        session.emit({"path": str(path), "records": records, "left_out": lacking}, f"{counted(records, 'record')} in {path}")


@command("replay")
@filters("open")
def replay(session: Session, **chosen: Any) -> int:
    """Try rejected records again, under the config as it is now: what is older than what a target holds overwrites nothing,
    what a target has is not doubled. Those that are rejected again stay. The daemon must not run meanwhile."""
    from replicator.wiring.replaying import replay

    done = replay(session.loaded, which(**chosen))
    result = {"replayed": done.applied, "rejected": done.rejected, "left": dict(done.left)}
    said = f"{counted(done.applied, 'record')} replayed, {done.rejected} rejected again (see `replicator dlq list`)"
    good = not done.rejected and not done.left
    session.emit(result, said, ok=good, text=lambda: echo("\n".join([*_left(done.left), said])))
    return int(ExitCode.OK if good else ExitCode.RUNTIME)


def _left(left: Mapping[str, str]) -> list[str]:
    return [f"{event}: not tried, {why}" for event, why in left.items()]


@command("purge")
@filters("all")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(session: Session, yes: bool, **chosen: Any) -> None:
    """Forget rejected records for good. What is held back because of them stays rejected: replay it."""
    from replicator.wiring import letters

    found = letters.found(session.loaded, which(**chosen))
    said = counted(len(found), "rejected record")
    if found and not yes:
        if not session.as_json:
            _print(found, said)
        session.confirm(f"Forget {said}?", f"{said} {'was' if len(found) == 1 else 'were'} not forgotten")
    letters.purge(session.loaded, found)
    session.emit({"purged": len(found)}, f"{said} forgotten")


def _print(found: Any, said: str) -> None:
    if sys.stdout.isatty():
        _print_table(found)
    else:
        if found:
            echo("record  table  rejected by  reason")
        for each in found:
            where, state = each.lane or each.stage, "" if each.is_open else f" ({each.state})"
            echo(f"{each.event_id}  {each.table or '?'}  {where}  {each.code}: {each.sentence}{state}")
    echo(said)


def _print_table(found: Any) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("record", "table", "rejected by", "reason", "last seen", "times", "state")
    for each in found:
        by = each.lane or each.stage
        reason = f"[bold]{escape(each.code)}[/bold] {escape(each.sentence)}"
        seen = each.last_seen.strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(
            escape(each.event_id), escape(each.table or "?"), escape(by), reason, seen, str(each.attempts), each.state
        )
    Console().print(table)


def _explain(loaded: Any, found: Any) -> None:
    from replicator.wiring import letters

    for each in found:
        pairs = {
            "reason": f"{each.code}: {each.sentence}",
            "what to do": letters.what_to_do(loaded, each),
            "record": f"{each.event_id} ({letters.place(each)})",
            "source": each.source,
            "table": each.table,
            "rejected by": f"lane {each.lane}, stage {each.stage}" if each.lane else f"stage {each.stage}, for every lane",
            "seen": f"{each.first_seen:%Y-%m-%d %H:%M:%S} to {each.last_seen:%Y-%m-%d %H:%M:%S} UTC, "
            + counted(each.attempts, "time"),
            "state": each.state,
            "key hash": each.key_hash,
            "retry": each.retry,
        }
        for name, value in pairs.items():
            if value:
                echo(f"{name + ':':<12} {value}")
        echo(f"key:         {_shown(each.key)}")
        echo(f"value:       {_shown(each.record)}\n")


def _shown(data: bytes | None) -> str:
    """Bytes for a terminal: what a record holds must not steer it."""
    if data is None:
        return "none"
    shown = printable(data[:SHOWN].decode("utf-8", "backslashreplace"))
    return shown + (f" ... ({len(data)} bytes)" if len(data) > SHOWN else "")


for _command in (list_letters, explain, export, replay, purge):
    dlq.add_command(_command)
