"""`replicator snapshot`: a snapshot of the states of a table's lanes, from which replays go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.plain_values import format_count

from .completion import complete_tables, complete_target_lanes
from .session import CommandSession, command

if TYPE_CHECKING:
    from replicator.domain.checkpoints import Checkpoint


@command("snapshot")
@click.argument("table", shell_complete=complete_tables)
@click.option("--lane", shell_complete=complete_target_lanes, help="Of this lane of the table (SINK.TARGET) alone.")
def snapshot(session: CommandSession, table: str, lane: str | None) -> None:
    """Take a snapshot of what the event log of TABLE (or SCHEMA.TABLE, as its source calls it) makes under the rules of each
    of its lanes, so that replays and `query --as-of` need not begin at the log's beginning. The daemon may run meanwhile,
    and no lane waits."""
    from replicator.application.operations import checkpoint, rebuild
    from replicator.application.operations.lanes import find_source_table

    table = find_source_table(session.components, table)
    parts = session.components
    lanes = tuple(one for one in parts.resolve_lanes(table) if rebuild.can_rebuild(parts, one))
    if lane is not None or not lanes:
        lanes = (rebuild.find_lane(parts, table, lane),)
    if any(one.refused for one in lanes):
        raise ConfigProblem(f"table {table} has a lane without a target", next_step="Name the others with `--lane`.")
    taken = [checkpoint.take_checkpoint(parts, one, session.print_note) for one in lanes]
    session.emit([one.to_json() for one in taken], "\n".join(map(describe_checkpoint, taken)))


def describe_checkpoint(one: Checkpoint) -> str:
    """A snapshot for people."""
    return format_line(one.to_json())


def format_line(one: dict[str, Any]) -> str:
    """The same of what `Checkpoint.to_json` made."""
    at = ",".join(f"{topic}:{p}:{o}" for topic, places in one["position"].items() for p, o in places.items())
    figures = f"{format_count(one['rows'], 'row')}, {format_count(one['bytes'], 'byte')}"
    return f"{one['lane']}: snapshot {one['number']} of {one['taken_at']}, {figures}, at {at}"
