"""`replicator dlq`: rejected records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem, ExitCode
from replicator.domain.plain_values import format_count, to_printable

from .completion import complete_codes, complete_lanes, complete_table_names
from .session import COUNT, CommandSession, command, echo
from .time_params import parse_duration

if TYPE_CHECKING:
    from replicator.ports.dead_letters import DeadLetter, DeadLetterFilter, DeadLetters

MAX_SHOWN_BYTES = 4_000
"""Characters of a record that `explain` shows to people; --json has all of it."""


@click.group("dlq")
def dlq() -> None:
    """Look at rejected records, and do something about them."""


def add_filters(state: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that say which letters are meant; by default those in `state`. Together they are one
    `DeadLetterFilter`."""
    options = (
        click.option(
            "--event", "events", multiple=True, metavar="ID", help="The record TOPIC-PARTITION-OFFSET; may be repeated."
        ),
        click.option(
            "--lane",
            shell_complete=complete_lanes,
            help="Rejected by this lane, or those of a glob; '' for records that no lane got.",
        ),
        click.option("--table", shell_complete=complete_table_names, help="Of this table, or those of a glob."),
        click.option("--code", shell_complete=complete_codes, help="With this reason, such as MALFORMED."),
        click.option("--stage", type=click.Choice(["route", "decode", "shape", "apply"]), help="Rejected there."),
        click.option("--state", type=click.Choice(["open", "replayed", "all"]), default=state, show_default=True),
        click.option("--older-than", metavar="TIME", help="Not seen for so long, such as '30 days'."),
    )

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def build_filter(events: tuple[str, ...], state: str, older_than: str | None, **fields: Any) -> DeadLetterFilter:
    """The letters that the options mean."""
    from replicator.ports.dead_letters import DeadLetterFilter

    before = None if older_than is None else datetime.now(UTC) - parse_duration(older_than)
    return DeadLetterFilter(events=frozenset(events), state=None if state == "all" else state, before=before, **fields)


def _open_store(session: CommandSession) -> closing[DeadLetters]:
    from replicator.wiring.adapters import build_dead_letters

    return closing(build_dead_letters(session.loaded))


@command("list")
@add_filters("all")
@click.option("--limit", type=COUNT, default=100, show_default=True)
def list_dead_letters(session: CommandSession, limit: int, **chosen: Any) -> None:
    """The rejected records, newest first; with `--json`, result is the list."""
    from replicator.application.operations import dead_letters

    with _open_store(session) as store:
        found, total = dead_letters.read_newest(store, build_filter(**chosen), limit)
    said = format_count(total, "rejected record")
    said = said if total == len(found) else f"{len(found)} of {said} (`--limit`)"
    if not found and (table := chosen["table"]) and not _is_configured(session, table):
        session.print_note(f"no entry of `tables` matches {table}")
    session.emit([dead_letters.to_json(each) for each in found], said, text=lambda: _print_dead_letters(found, said))


@command("explain")
@click.argument("event")
@click.option("--lane", shell_complete=complete_lanes, help="Of those that rejected it, this one.")
def explain(session: CommandSession, event: str, lane: str | None) -> None:
    """One rejected record (EVENT as `dlq list` names it): why, where, when, what can be done, and the record itself."""
    from replicator.application.operations import dead_letters

    with _open_store(session) as store:
        found = dead_letters.read_named(store, event, lane)
    remedies = [dead_letters.describe_remedy(each, _get_on_reject(session, each)) for each in found]
    result = [{**dead_letters.to_json(each), "what_to_do": remedy} for each, remedy in zip(found, remedies, strict=True)]
    session.emit(result, format_count(len(found), "rejected record"), text=lambda: _print_explanation(found, remedies))


@command("export")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@add_filters("open")
def export(session: CommandSession, path: Path | None, **chosen: Any) -> None:
    """Write rejected records as an archive to PATH (.jsonl, .jsonl.gz or .parquet), or as JSON Lines to stdout (no PATH, or
    -): a source of `transport: archive` reads it."""
    from replicator.application.operations import dead_letters

    path = None if path == Path("-") else path
    with _open_store(session) as store:
        found = dead_letters.read_selected(store, build_filter(**chosen))
    lacking = len([each for each in found if not each.is_placed])
    if lacking:
        session.print_note(
            f"warning: left out: {format_count(lacking, 'dead letter')} of an older version, without the whole record"
        )
    if path is None and session.as_json:
        raise ConfigProblem("the archive and the answer would both be on stdout", next_step="Name a PATH for the archive.")
    records = dead_letters.export_records(found, sys.stdout.buffer if path is None else path)
    if path is not None:
        session.emit(
            {"path": str(path), "records": records, "left_out": lacking}, f"{format_count(records, 'record')} in {path}"
        )


@command("replay")
@add_filters("open")
def replay(session: CommandSession, **chosen: Any) -> int:
    """Retry rejected records, under the config as it is now. An older change overwrites nothing newer, and no change is
    applied twice. Records that are rejected again stay. The daemon must not run meanwhile."""
    from replicator.wiring.retry_dead_letters import retry_dead_letters

    done = retry_dead_letters(session.loaded, build_filter(**chosen))
    result = {"replayed": done.applied, "rejected": done.rejected, "left": dict(done.untried)}
    said = f"{format_count(done.applied, 'record')} replayed, {done.rejected} rejected again (see `replicator dlq list`)"
    good = not done.rejected and not done.untried
    session.emit(result, said, ok=good, text=lambda: echo("\n".join([*_describe_untried(done.untried), said])))
    return int(ExitCode.OK if good else ExitCode.RUNTIME)


def _is_configured(session: CommandSession, table: str) -> bool:
    """True if an entry of the config covers a table, or if `table` is a glob."""
    from replicator.domain.patterns import is_exact

    return not is_exact(table) or session.loaded.settings.find_table(table) is not None


def _get_on_reject(session: CommandSession, letter: DeadLetter) -> str:
    settings = session.loaded.settings
    return settings.on_reject if letter.stage == "route" else settings.get_on_reject(letter.table, letter.source)


def _describe_untried(left: Mapping[str, str]) -> list[str]:
    return [f"{event}: not tried, {why}" for event, why in left.items()]


@command("purge")
@add_filters("all")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(session: CommandSession, yes: bool, **chosen: Any) -> None:
    """Forget rejected records for good. What is held back because of them stays rejected: replay it."""
    from replicator.application.operations import dead_letters

    with _open_store(session) as store:
        found = dead_letters.read_selected(store, build_filter(**chosen))
    said = format_count(len(found), "rejected record")
    if found and not yes:
        if not session.as_json:
            _print_dead_letters(found, said)
        session.confirm(f"Forget {said}?", f"{said} {'was' if len(found) == 1 else 'were'} not forgotten")
    with _open_store(session) as store:
        store.remove(found)
    session.emit({"purged": len(found)}, f"{said} forgotten")


def _print_dead_letters(found: Any, said: str) -> None:
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


def _print_explanation(found: Any, remedies: Sequence[str]) -> None:
    from replicator.application.operations import dead_letters

    for each, remedy in zip(found, remedies, strict=True):
        pairs = {
            "reason": f"{each.code}: {each.sentence}",
            "what to do": remedy,
            "record": f"{each.event_id} ({dead_letters.describe_position(each)})",
            "source": each.source,
            "table": each.table,
            "rejected by": f"lane {each.lane}, stage {each.stage}" if each.lane else f"stage {each.stage}, for every lane",
            "seen": f"{each.first_seen:%Y-%m-%d %H:%M:%S} to {each.last_seen:%Y-%m-%d %H:%M:%S} UTC, "
            + format_count(each.attempts, "time"),
            "state": each.state,
            "key hash": each.key_hash,
            "retry": each.retry,
        }
        for name, value in pairs.items():
            if value:
                echo(f"{name + ':':<12} {value}")
        echo(f"key:         {_to_printable(each.key)}")
        echo(f"value:       {_to_printable(each.record)}\n")


def _to_printable(data: bytes | None) -> str:
    """Bytes for a terminal: what a record holds must not steer it."""
    if data is None:
        return "none"
    shown = to_printable(data[:MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace"))
    return shown + (f" ... ({format_count(len(data), 'byte')})" if len(data) > MAX_SHOWN_BYTES else "")


for _command in (list_dead_letters, explain, export, replay, purge):
    dlq.add_command(_command)
