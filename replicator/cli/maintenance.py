"""`replicator compact` and `replicator vacuum`: merge small files, and delete files that are not needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ExitCode, Retryable
from replicator.domain.plain_values import format_count

from .completion import complete_stored
from .session import CommandSession, command, echo, to_cell
from .time_params import parse_duration

if TYPE_CHECKING:
    from replicator.application.operations.maintenance import MaintenanceResult

USUAL_RETENTION = timedelta(days=7)
"""The default retention of Delta Lake."""


@command("compact", "replicator compact", "replicator compact lake.orders dead_letters")
@click.argument("targets", metavar="[TABLE|LANE]...", nargs=-1, shell_complete=complete_stored)
def compact(session: CommandSession, targets: tuple[str, ...]) -> None:
    """Merge small files of Delta tables into larger ones.

    Name tables of a source, lanes (SINK.TARGET), sinks of event logs, or dead_letters; by default all of them. Rows do not
    change, and the daemon may run meanwhile.
    """
    from replicator.application.operations import maintenance

    _run_maintenance(session, maintenance.compact_targets(session.components, targets), "compacted")


@command("vacuum", "replicator vacuum --dry-run", "replicator vacuum lake.orders --retain '14 days'")
@click.argument("targets", metavar="[TABLE|LANE]...", nargs=-1, shell_complete=complete_stored)
@click.option(
    "--retain",
    metavar="DURATION",
    help="Keep files that were needed within DURATION.  [default: the retention of each table, 7 days if it has none]",
)
@click.option("--dry-run", is_flag=True, help="Count the files without deleting them.")
def vacuum(session: CommandSession, targets: tuple[str, ...], retain: str | None, dry_run: bool) -> None:
    """Delete files that Delta tables no longer need.

    Deletes files of older table versions, which cannot be read afterwards. Name tables of a source, lanes (SINK.TARGET),
    sinks of event logs, or dead_letters; by default all of them. In PostgreSQL the server runs VACUUM. The daemon may run
    meanwhile.
    """
    from replicator.application.operations import maintenance

    kept = None if retain is None else parse_duration(retain)
    if kept is not None and kept < USUAL_RETENTION and not dry_run:
        session.print_note(
            "warning: --retain is shorter than the 7 days that Delta Lake retains by default. Queries of older versions, "
            "and queries that still run, will fail."
        )
    found = maintenance.vacuum_targets(session.components, targets, kept, dry_run=dry_run)
    _run_maintenance(session, found, "would be vacuumed" if dry_run else "vacuumed")


def _run_maintenance(session: CommandSession, found: Iterable[MaintenanceResult], verb: str) -> None:
    done: list[MaintenanceResult] = []
    for one in found:
        done.append(one)
        session.print_note(f"{to_cell(one.target)}: {_describe_outcome(one, verb)}")
    result = [_to_json(one) for one in done]
    failed = [one.error for one in done if one.error is not None]
    if failed:
        code = ExitCode.ENVIRONMENT if isinstance(failed[0], Retryable) else failed[0].exit_code
        session.fail(failed[0], code, result)
    summary = f"{format_count(sum(one.result is not None for one in done), 'table')} {verb}"
    session.emit(result, summary, text=lambda: echo(summary))


def _describe_outcome(one: MaintenanceResult, verb: str) -> str:
    if one.error is not None:
        return f"failed: {one.error.sentence}"
    if one.result is None:
        return f"skipped: {one.skipped}"
    numbers = asdict(one.result)
    if "before" in numbers:
        return f"{format_count(numbers['before'], 'file')} before, {numbers['after']:,} now"
    return verb if numbers["files"] is None else f"{verb}, {format_count(numbers['files'], 'file')}"


def _to_json(one: MaintenanceResult) -> dict[str, Any]:
    error = None if one.error is None else one.error.sentence
    done = None if one.result is None else asdict(one.result)
    return {"target": one.target, "done": done, "skipped": one.skipped or None, "error": error}
