"""`replicator replay`: a target made anew from the event log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from .session import Session, command

TIME = click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"])


@command("replay")
@click.argument("table")
@click.option("--into", required=True, help="The new target's name, in the sink of the lane.")
@click.option("--lane", help="Which lane of the table (SINK.TARGET), where it has several.")
@click.option("--policy", type=click.Choice(["scd1", "scd2", "append"]), help="Another policy than the lane's.")
@click.option("--since", type=TIME, help="Only records of this time at the source or later.")
@click.option("--until", type=TIME, help="Only records of this time at the source or earlier.")
def replay(
    session: Session,
    table: str,
    into: str,
    lane: str | None,
    policy: Any,
    since: datetime | None,
    until: datetime | None,
) -> None:
    """Make a target of TABLE (SCHEMA.TABLE, as its source calls it) anew from its event log, under today's config, beside
    the one there is. The daemon may run meanwhile. Killed or failed, the command goes on where it was when it is repeated;
    repeated when it is done, it applies what has come since. `replicator drop SINK.TARGET` takes it away."""
    from replicator.wiring import rebuilding
    from replicator.wiring.container import Container
    from replicator.wiring.running import run_once

    from .progress import telling_progress
    from .run import on_signals

    times = (None if time is None else time.isoformat() for time in (since, until))
    asked = rebuilding.Replay(rebuilding.lane_of(session.loaded, table, lane), into, policy, *times)
    made = Container(loaded=rebuilding.prepared(session.loaded, asked))
    on_signals(made.stop())
    supervisor = run_once(made, telling_progress)
    report = made.status().report().to_dict()
    result = _result(report, asked.id, supervisor.rejected)
    figures = {name: f"{result[name]:,}" for name in ("records", "applied", "rejected")}
    summary = "{id}: {records} records read, {applied} changes applied, {rejected} rejected".format(id=asked.id, **figures)
    session.emit(result, summary)


def _result(report: dict[str, Any], lane: str, rejected: int) -> dict[str, Any]:
    applied = sum(one["counts"]["applied"] for one in report["lanes"])
    records = sum(source["records"] for source in report["sources"])
    return {"lane": lane, "records": records, "applied": applied, "rejected": rejected}
