"""`replicator drop`: deletes a target and everything stored about its lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .completion import complete_targets
from .session import CommandSession, command, echo

if TYPE_CHECKING:
    from replicator.application.operations.drop import DropScope


@command("drop", "replicator drop lake.orders")
@click.argument("table", shell_complete=complete_targets)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def drop(session: CommandSession, table: str, yes: bool) -> None:
    """Delete a target and everything stored about its lane.

    TABLE is SINK.TARGET (as `lanes list` prints it), the name of the target, or the name of the table in the source. The
    command deletes the target table, its tombstones, schemas and position. It also works if the config no longer contains
    the table.

    Stop the daemon first. It may run if neither it nor the config has the table.
    """
    from replicator.application.operations import drop

    found = drop.find_lane_to_drop(session.components, table)
    lane, lines = found.lane.id, list(_list_lines(found))
    if not yes:
        session.confirm(f"Delete all of this of {lane}?", f"{lane} was not dropped", lines, _to_json(found))
    drop.drop_lane(session.components, found.lane)
    said = [*(lines if yes else ()), f"{lane}: {_describe_outcome(found)}"]
    session.emit(_to_json(found), said[-1], text=lambda: echo("\n".join(said)))


def _list_lines(found: DropScope) -> list[str]:
    width = max(len(one.what) for one in found.artifacts)
    lines = [f"  {one.what:<{width}}  {one.where}{f'  ({one.stays})' if one.stays else ''}" for one in found.artifacts]
    if found.config_line:
        again = "the next start creates the target again, and loads it from `start_from`."
        lines.append(f"The config contains the lane ({found.config_line}): {again}")
    return [found.lane.id, *lines]


def _describe_outcome(found: DropScope) -> str:
    """The outcome. It names a table that stays."""
    stays = next((one for one in found.artifacts if one.what == "table" and one.stays), None)
    return f"dropped, but table {stays.where} stays: {stays.stays}" if stays else "dropped"


def _to_json(found: DropScope) -> dict[str, Any]:
    return {
        "lane": found.lane.id,
        "table": found.lane.table or None,
        "config": found.config_line or None,
        "belongings": [{"what": one.what, "where": one.where, "stays": one.stays or None} for one in found.artifacts],
    }
