"""Commands that recover: dlq for rejected records, and replay, which rebuilds a target from the event log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem, ExitCode, Fatal
from replicator.domain.plain_values import format_count, to_printable
from replicator.domain.policy import POLICY_NAMES

from .parameters import (
    COUNT,
    IN_UTC,
    TIME,
    complete_codes,
    complete_lanes,
    complete_table_names,
    complete_tables,
    complete_target_lanes,
    parse_duration,
)
from .session import CommandSession, command, echo, format_examples

if TYPE_CHECKING:
    from replicator.ports.components import Components
    from replicator.ports.stores import DeadLetterFilter, DeadLetters

# `replicator dlq`: rejected records.

MAX_SHOWN_BYTES = 4_000
"""Characters of a record that `explain` prints as text. --json prints the whole record."""


@click.group("dlq", epilog=format_examples("replicator dlq list --state open"))
def dlq() -> None:
    """List, explain, export, retry or delete rejected records.

    A record that cannot be decoded or applied becomes a dead letter, and the other records continue.
    """


def add_filters(state: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that select dead letters, with `state` as the default state. Together they are one `DeadLetterFilter`."""
    options = (
        click.option(
            "--event",
            "events",
            multiple=True,
            metavar="ID",
            help="Only this record (TOPIC-PARTITION-OFFSET, as `dlq list` prints it). Repeatable.",
        ),
        click.option(
            "--lane",
            metavar="LANE",
            shell_complete=complete_lanes,
            help="Only records rejected by this lane (name or glob). "
            "Use '' for records rejected before they reached a lane.",
        ),
        click.option(
            "--table",
            metavar="TABLE",
            shell_complete=complete_table_names,
            help="Only records of this table (name or glob).",
        ),
        click.option(
            "--code", metavar="CODE", shell_complete=complete_codes, help="Only records with this code, such as MALFORMED."
        ),
        click.option(
            "--stage",
            type=click.Choice(["route", "decode", "shape", "apply"]),
            help="Only records rejected in this stage: route finds the table, decode reads the values, "
            "shape applies the row transforms, apply writes.",
        ),
        click.option(
            "--state",
            type=click.Choice(["open", "replayed", "all"]),
            default=state,
            show_default=True,
            help="Only records in this state. A successful retry makes an open record replayed.",
        ),
        click.option(
            "--older-than",
            metavar="DURATION",
            help="Only records that were last rejected longer than DURATION ago, such as '30 days'.",
        ),
    )

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def build_filter(events: tuple[str, ...], state: str, older_than: str | None, **fields: Any) -> DeadLetterFilter:
    """The filter that the options describe."""
    from replicator.ports.stores import DeadLetterFilter

    before = None if older_than is None else datetime.now(UTC) - parse_duration(older_than)
    return DeadLetterFilter(events=frozenset(events), state=None if state == "all" else state, before=before, **fields)


def _open_store(session: CommandSession) -> closing[DeadLetters]:
    from replicator.wiring.adapters import build_dead_letters

    return closing(build_dead_letters(session.loaded))


@command("list", "replicator dlq list --table public.orders --code MALFORMED")
@add_filters("all")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="Print the newest N records.")
def list_dead_letters(session: CommandSession, limit: int, **chosen: Any) -> None:
    """List rejected records, newest first."""
    from replicator.application.operations import dead_letters
    from replicator.domain.patterns import is_exact

    with _open_store(session) as store:
        letters, total = dead_letters.read_newest(store, build_filter(**chosen), limit)
    count = format_count(total, "rejected record")
    count = count if total == len(letters) else f"{len(letters)} of {count} (`--limit`)"
    table = chosen["table"]
    if not letters and table and is_exact(table) and session.loaded.settings.find_table(table) is None:
        session.print_note(f"No entry of `tables` matches {table}.")
    session.emit([dead_letters.to_json(each) for each in letters], count, text=lambda: _print_dead_letters(letters, count))


@command("explain", "replicator dlq explain cdc.public.orders-0-1042")
@click.argument("event")
@click.option("--lane", metavar="LANE", shell_complete=complete_lanes, help="Only the rejection by this lane.")
def explain(session: CommandSession, event: str, lane: str | None) -> None:
    """Show why a record was rejected, and what to do.

    EVENT is TOPIC-PARTITION-OFFSET, as `dlq list` prints it. Prints the reason, the next step, and the record itself.
    """
    from replicator.application.operations import dead_letters

    with _open_store(session) as store:
        letters = dead_letters.read_named(store, event, lane)
    settings, remedies = session.loaded.settings, []
    for each in letters:
        on_reject = settings.on_reject if each.stage == "route" else settings.get_on_reject(each.table, each.source)
        remedies.append(dead_letters.describe_remedy(each, on_reject))
    result = [{**dead_letters.to_json(each), "what_to_do": remedy} for each, remedy in zip(letters, remedies, strict=True)]
    session.emit(result, format_count(len(letters), "rejected record"), text=lambda: _print_explanation(letters, remedies))


@command("export", "replicator dlq export rejected.jsonl.gz --table public.orders")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@add_filters("open")
def export(session: CommandSession, path: Path | None, **chosen: Any) -> None:
    """Write rejected records to a file.

    PATH ends in .jsonl, .jsonl.gz or .parquet. Without PATH, or with -, prints JSON Lines. A source with
    `transport: archive` reads the file.
    """
    from replicator.application.operations import dead_letters

    path = None if path == Path("-") else path
    with _open_store(session) as store:
        letters = dead_letters.read_selected(store, build_filter(**chosen))
    lacking = len([each for each in letters if not each.has_position])
    if lacking:
        session.print_note(
            f"warning: left out: {format_count(lacking, 'dead letter')} of an older version, without the whole record"
        )
    if path is None and session.as_json:
        raise ConfigProblem("--json and the records cannot both be on stdout", next_step="Name a PATH for the records.")
    records = dead_letters.export_records(letters, sys.stdout.buffer if path is None else path)
    if path is not None:
        session.emit(
            {"path": str(path), "records": records, "left_out": lacking}, f"{format_count(records, 'record')} in {path}"
        )


@command("replay", "replicator dlq replay --code MALFORMED")
@add_filters("open")
def retry(session: CommandSession, **chosen: Any) -> int:
    """Retry rejected records with the present config.

    Stop the daemon first. An older change never overwrites a newer one, and no change is applied twice. Records that are
    rejected again stay open.
    """
    from replicator.wiring.container import retry_dead_letters

    done = retry_dead_letters(session.loaded, build_filter(**chosen))
    result = {"replayed": done.applied, "rejected": done.rejected, "left": dict(done.untried)}
    report = f"{format_count(done.applied, 'record')} replayed, {done.rejected:,} rejected again (see `replicator dlq list`)"
    good = not done.rejected and not done.untried
    untried = [f"{event}: not retried, {why}" for event, why in done.untried.items()]
    session.emit(result, report, ok=good, text=lambda: echo("\n".join([*untried, report])))
    return int(ExitCode.OK if good else ExitCode.RUNTIME)


@command("purge", "replicator dlq purge --state replayed --older-than '30 days'")
@add_filters("all")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def purge(session: CommandSession, yes: bool, **chosen: Any) -> None:
    """Delete rejected records for good.

    With `on_reject: hold_key`, later records of the same key stay rejected: retry these with `dlq replay`.
    """
    from replicator.application.operations import dead_letters

    with _open_store(session) as store:
        letters = dead_letters.read_selected(store, build_filter(**chosen))
    records = format_count(len(letters), "rejected record")
    if letters and not yes:
        if not session.as_json:
            _print_dead_letters(letters, records)
        session.confirm(f"Delete {records}?", f"{records} {'was' if len(letters) == 1 else 'were'} not deleted")
    with _open_store(session) as store:
        store.remove(letters)
    session.emit({"purged": len(letters)}, f"{records} deleted")


def _print_dead_letters(letters: Any, summary: str) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table("record", "table", "rejected by", "reason", "last seen", "times", "state")
        for each in letters:
            by = escape(each.lane or each.stage)
            reason = f"[bold]{escape(each.code)}[/bold] {escape(each.sentence)}"
            last_seen = each.last_seen.strftime("%Y-%m-%d %H:%M:%S")
            names = escape(each.event_id), escape(each.table or "?"), by
            table.add_row(*names, reason, last_seen, str(each.attempts), each.state)
        Console().print(table)
    else:
        if letters:
            echo("record  table  rejected by  reason")
        for each in letters:
            where, state = each.lane or each.stage, "" if each.is_open else f" ({each.state})"
            echo(f"{each.event_id}  {each.table or '?'}  {where}  {each.code}: {each.sentence}{state}")
    echo(summary)


def _print_explanation(letters: Any, remedies: Sequence[str]) -> None:
    from replicator.application.operations import dead_letters

    for each, remedy in zip(letters, remedies, strict=True):
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
    """Bytes as text that cannot control the terminal."""
    if data is None:
        return "none"
    text = to_printable(data[:MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace"))
    return text + (f" ... ({format_count(len(data), 'byte')})" if len(data) > MAX_SHOWN_BYTES else "")


for _command in (list_dead_letters, explain, export, retry, purge):
    dlq.add_command(_command)


# `replicator replay`: rebuilds a target from the event log.


@command(
    "replay", "replicator replay public.orders --dry-run", "replicator replay public.orders --into orders_scd2 --policy scd2"
)
@click.argument("table", shell_complete=complete_tables)
@click.option("--into", metavar="TARGET", help="Write a second target in the same sink, and keep the target of the lane.")
@click.option(
    "--lane", metavar="LANE", shell_complete=complete_target_lanes, help="Lane (SINK.TARGET), if the table has several."
)
@click.option(
    "--policy",
    type=click.Choice(POLICY_NAMES),
    help="Use this policy instead of the policy of the lane. Needs --into or --dry-run.",
)
@click.option(
    "--since",
    "--from",
    "since",
    type=TIME,
    help=f"Only records of this source time or later. Needs --into or --dry-run. {IN_UTC}",
)
@click.option("--until", type=TIME, help=f"Only records of this source time or earlier. Needs --into or --dry-run. {IN_UTC}")
@click.option("--dry-run", is_flag=True, help="Show the differences without changing anything.")
def replay(
    session: CommandSession,
    table: str,
    into: str | None,
    lane: str | None,
    policy: Any,
    since: datetime | None,
    until: datetime | None,
    dry_run: bool,
) -> None:
    """Rebuild a target from the event log.

    TABLE is the name of the table in the source, with or without its schema. The rebuild uses the present config. It
    replaces the target in one commit; with --into it becomes a second target.

    The daemon may run meanwhile, and continues with the rebuilt target. If the command is interrupted, run it again: it
    resumes.
    """
    from replicator.application.operations import rebuild, table_swap
    from replicator.application.operations.checkpoint import prepare_restored_rebuild
    from replicator.application.operations.lanes import find_source_table
    from replicator.ports.components import RebuildRequest

    table = find_source_table(session.components, table)
    target_lane = rebuild.find_rebuildable_lane(session.components, table, lane)
    period = {"since": since, "until": until}
    times: dict[str, Any] = {name: time.isoformat() for name, time in period.items() if time is not None}
    run_rebuild = partial(_run_rebuild, session, target_lane.into)
    if dry_run:
        if into is not None:
            raise ConfigProblem("--dry-run and --into exclude each other", next_step="Use either --dry-run or --into.")
        result = table_swap.compare_target(
            session.components, target_lane, run_rebuild, session.print_note, policy=policy, **times
        )
        session.emit(result, "", text=lambda: echo("\n".join(table_swap.to_lines(result))))
        return
    if into is None:
        if policy is not None or times:
            raise ConfigProblem(
                "a partial replay or a different policy cannot replace the target of the lane",
                next_step="Write a second target with `--into NAME`, or compare with `--dry-run`.",
            )
        result = table_swap.swap_target(session.components, target_lane, run_rebuild, session.print_note)
        session.emit(result, _summarize(result) + "; the target is replaced")
        return
    request = RebuildRequest(target_lane, into, policy, **times)
    with rebuild.lock_rebuild(session.components, request.id):
        prepared = prepare_restored_rebuild(session.components, request, session.print_note)
        result = {"lane": request.id, **_run_rebuild(session, request.into, prepared)}
    session.emit(result, _summarize(result))


def _run_rebuild(session: CommandSession, title: str, rebuild: Components) -> dict[str, Any]:
    """Run the rebuild until it has caught up. Returns the counts of its records."""
    from replicator.wiring.process_setup import tune_collector

    from .progress import make_bar
    from .run import handle_signals

    tune_collector()
    stop = Event()
    handle_signals(stop)
    counts = rebuild.catch_up(stop, in_batches=True, show_progress=make_bar(session, title))
    if stop.is_set():
        raise Fatal("the replay was interrupted", next_step="Repeat the command: it resumes.")
    return counts


def _summarize(result: dict[str, Any]) -> str:
    records, applied = format_count(result["records"], "record"), format_count(result["applied"], "change")
    return f"{result['lane']}: {records} read, {applied} applied, {result['rejected']:,} rejected"
