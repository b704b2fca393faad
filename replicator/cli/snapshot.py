"""`replicator snapshot`: stores checkpoints of the lanes of a table, from which replays start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.plain_values import format_count

from .completion import complete_tables, complete_target_lanes
from .session import CommandSession, command

if TYPE_CHECKING:
    from replicator.domain.checkpoints import Checkpoint


@command("snapshot", "replicator snapshot public.orders")
@click.argument("table", shell_complete=complete_tables)
@click.option(
    "--lane", metavar="LANE", shell_complete=complete_target_lanes, help="Only this lane (SINK.TARGET) of the table."
)
def snapshot(session: CommandSession, table: str, lane: str | None) -> None:
    """Store a checkpoint of the lanes of a table.

    TABLE is the name of the table in the source, with or without its schema. Replays and `query --as-of` start from the
    newest checkpoint, so that they do not read the event log from its beginning. The daemon may run meanwhile, and no lane
    waits.
    """
    from replicator.application.operations import checkpoint, rebuild
    from replicator.application.operations.lanes import find_source_table

    table = find_source_table(session.components, table)
    parts = session.components
    lanes = tuple(one for one in parts.resolve_lanes(table) if rebuild.can_rebuild(parts, one))
    if lane is not None or not lanes:
        lanes = (rebuild.find_lane(parts, table, lane),)
    if any(one.refused for one in lanes):
        raise ConfigProblem(f"table {table} has a lane without a target", next_step="Name the other lanes with `--lane`.")
    taken = [checkpoint.take_checkpoint(parts, one, session.print_note) for one in lanes]
    session.emit([one.to_json() for one in taken], "\n".join(map(describe_checkpoint, taken)))


def describe_checkpoint(one: Checkpoint) -> str:
    """A checkpoint as a line of text."""
    return format_line(one.to_json())


def format_line(one: dict[str, Any]) -> str:
    """A checkpoint as `Checkpoint.to_json` returns it, as a line of text."""
    at = ",".join(f"{topic}:{p}:{o}" for topic, places in one["position"].items() for p, o in places.items())
    figures = f"{format_count(one['rows'], 'row')}, {format_count(one['bytes'], 'byte')}"
    return f"{one['lane']}: snapshot {one['number']} of {one['taken_at']}, {figures}, at {at}"
