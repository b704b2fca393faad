"""Commands that remove data: drop and forget."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from .operate import describe_refresh
from .parameters import complete_sources, complete_tables, complete_targets
from .session import CommandSession, command, echo

if TYPE_CHECKING:
    from replicator.application.operations.drop import DropScope
    from replicator.application.operations.erase import ErasureScope

# `replicator drop`: deletes a target and everything stored about its lane.


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

    scope = drop.find_lane_to_drop(session.components, table)
    lane, width = scope.lane.id, max(len(one.what) for one in scope.artifacts)
    lines = [lane]
    lines += [f"  {one.what:<{width}}  {one.where}{f'  ({one.stays})' if one.stays else ''}" for one in scope.artifacts]
    if scope.config_line:
        again = "the next start creates the target again, and loads it from `start_from`."
        lines.append(f"The config contains the lane ({scope.config_line}): {again}")
    if not yes:
        session.confirm(f"Delete all of this of {lane}?", f"{lane} was not dropped", lines, _drop_to_json(scope))
    drop.drop_lane(session.components, scope.lane)
    stays = next((one for one in scope.artifacts if one.what == "table" and one.stays), None)
    summary = f"{lane}: dropped" + (f", but table {stays.where} stays: {stays.stays}" if stays else "")
    output = [*(lines if yes else ()), summary]
    session.emit(_drop_to_json(scope), summary, text=lambda: echo("\n".join(output)))


def _drop_to_json(scope: DropScope) -> dict[str, Any]:
    return {
        "lane": scope.lane.id,
        "table": scope.lane.table or None,
        "config": scope.config_line or None,
        "belongings": [{"what": one.what, "where": one.where, "stays": one.stays or None} for one in scope.artifacts],
    }


# `replicator forget`: erases one row everywhere, for good.


@command("forget", "replicator forget public.customers 42 --vacuum")
@click.argument("table", shell_complete=complete_tables)
@click.argument("key", nargs=-1, required=True)
@click.option(
    "--source", metavar="NAME", shell_complete=complete_sources, help="Source, if several have a table of this name."
)
@click.option(
    "--vacuum", is_flag=True, help="Also delete the older versions of the Delta tables. This ends time travel to them."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def forget(session: CommandSession, table: str, key: tuple[str, ...], source: str | None, vacuum: bool, yes: bool) -> None:
    """Erase one row from targets, event logs and dead letters.

    TABLE is the name of the table in the source, with or without its schema. KEY has one value for each key column. Later
    records of the key are dropped. This cannot be undone.

    Stop the daemon first. If the command is interrupted, run it again: it resumes.
    """
    from replicator.application.operations import erase
    from replicator.application.operations.lanes import find_source_table
    from replicator.wiring.projections import build_projections, open_refresher

    table = find_source_table(session.components, table)
    scope = erase.find_row(session.components, partial(build_projections, session.loaded), table, key, source)
    lines = [
        f"{scope.table} of source {scope.source}, one key ({', '.join(scope.columns)})",
        *(f"  target        {lane.id}" for lane in scope.targets),
        *(f"  event log     {lane.sink}" for lane in scope.logs),
        f"  dead letters  {scope.dead_letters}",
        *(f"  projection    {one.label}" for one in scope.projections),
        *(["  older versions of these tables"] if vacuum else []),
    ]
    if not yes:
        session.confirm("Erase this row, for good?", f"no row of {scope.table} was erased", lines, _erasure_to_json(scope))
    refresher = partial(open_refresher, session.loaded)
    outcome = erase.erase_row(session.components, refresher, scope, end_versions=vacuum, report=session.print_note)
    repeat = "run `replicator forget` again with the same key and `--vacuum` to delete them, which ends time travel to them"
    notes = [f"Still there: {where}." for where in outcome.versions]
    notes += [f"Older versions: {repeat}."] if outcome.versions else []
    notes += [f"The row had another key too: {table} {' '.join(key)}. Erase it as well." for key in sorted(outcome.linked)]
    notes += [f"Not changed: {one}." for one in scope.stays]
    removed = ", ".join(f"{count:,} from {store}" for store, count in outcome.removed.items())
    notes += [f"Computed again: {describe_refresh(one)}." for one in outcome.refreshed]
    summary = f"{table}: one key erased; rows and records removed: {removed}"
    result = {
        **_erasure_to_json(scope),
        "removed": outcome.removed,
        "versions": outcome.versions,
        "linked": sorted(map(list, outcome.linked)),
    }
    session.emit(result, summary, text=lambda: echo("\n".join([*(lines if yes else ()), summary, *notes])))


def _erasure_to_json(scope: ErasureScope) -> dict[str, Any]:
    return {
        "table": scope.table,
        "source": scope.source,
        "columns": list(scope.columns),
        "targets": [lane.id for lane in scope.targets],
        "event_logs": [lane.sink for lane in scope.logs],
        "projections": [one.label for one in scope.projections],
        "stays": list(scope.stays),
    }
