"""`replicator drop`: a target and everything that is kept of its lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .completion import complete_targets
from .session import CommandSession, command, echo

if TYPE_CHECKING:
    from replicator.application.operations.drop import DropScope


@command("drop")
@click.argument("table", shell_complete=complete_targets)
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(session: CommandSession, table: str, yes: bool) -> None:
    """Remove a target with its remembered deletes, schemas and positions. TABLE is the target's name, SINK.TARGET (as
    `lanes list` has it), or the table's name in the source; the config need not name it any more. The daemon must not write
    it meanwhile."""
    from replicator.application.operations import drop

    found = drop.find_lane_to_drop(session.components, table)
    lane, lines = found.lane.id, list(_list_lines(found))
    if not yes:
        session.confirm(f"Remove this of {lane}?", f"{lane} was not dropped", lines, _to_json(found))
    drop.drop_lane(session.components, found.lane)
    said = [*(lines if yes else ()), f"{lane}: {_describe_outcome(found)}"]
    session.emit(_to_json(found), said[-1], text=lambda: echo("\n".join(said)))


def _list_lines(found: DropScope) -> list[str]:
    width = max(len(one.what) for one in found.artifacts)
    lines = [f"  {one.what:<{width}}  {one.where}{f'  ({one.stays})' if one.stays else ''}" for one in found.artifacts]
    if found.config_line:
        again = "the next start makes it again, and loads it from where `start_from` says."
        lines.append(f"The config names it ({found.config_line}): {again}")
    return [found.lane.id, *lines]


def _describe_outcome(found: DropScope) -> str:
    """What was done, in the words of one who looks for the table afterwards."""
    stays = next((one for one in found.artifacts if one.what == "table" and one.stays), None)
    return f"dropped, but table {stays.where} stays: {stays.stays}" if stays else "dropped"


def _to_json(found: DropScope) -> dict[str, Any]:
    return {
        "lane": found.lane.id,
        "table": found.lane.table or None,
        "config": found.config_line or None,
        "belongings": [{"what": one.what, "where": one.where, "stays": one.stays or None} for one in found.artifacts],
    }
