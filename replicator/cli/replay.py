"""`replicator replay`: a target made anew from the event log."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.policy.policy_names import POLICY_NAMES

from .completion import complete_tables, complete_target_lanes
from .session import CommandSession, command, echo
from .time_params import IN_UTC, TIME

if TYPE_CHECKING:
    from replicator.ports.components import Components
    from replicator.wiring.components import ConfiguredComponents


@command("replay")
@click.argument("table", shell_complete=complete_tables)
@click.option("--into", help="Another target, in the sink of the lane; the lane's own stays as it is.")
@click.option(
    "--lane", shell_complete=complete_target_lanes, help="Which lane of the table (SINK.TARGET), where it has several."
)
@click.option("--policy", type=click.Choice(POLICY_NAMES), help="Another policy than the lane's.")
@click.option("--since", "--from", "since", type=TIME, help=f"Only records of this time at the source or later ({IN_UTC}).")
@click.option("--until", type=TIME, help=f"Only records of this time at the source or earlier ({IN_UTC}).")
@click.option("--dry-run", is_flag=True, help="Tell what would be different, and change nothing.")
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
    """Make the target of TABLE (or SCHEMA.TABLE, as its source calls it) anew from its event log, under today's config,
    beside the one there is, and put it in its place in one commit; with `--into` keep both. The daemon may run meanwhile,
    and goes on with it. Killed or failed, the command goes on where it was when it is repeated."""
    from replicator.application.operations import rebuild, table_swap
    from replicator.application.operations.checkpoint_restore import prepare_restored_rebuild
    from replicator.application.operations.lanes import find_source_table
    from replicator.ports.components import RebuildRequest

    table = find_source_table(session.components, table)
    mine = rebuild.find_lane(session.components, table, lane)
    said = {"since": since, "until": until}
    times: dict[str, Any] = {name: time.isoformat() for name, time in said.items() if time is not None}
    if dry_run:
        if into is not None:
            raise ConfigProblem("`--dry-run` keeps nothing, and `--into` says where", next_step="Leave one of the two out.")
        _dry_run(session, mine, {"policy": policy, **times})
        return
    if into is None:
        if policy is not None or times:
            raise ConfigProblem(
                "a part of the records, or another policy, makes no target that the lane could go on with",
                next_step="Keep it beside with `--into NAME`, or see the difference with `--dry-run`.",
            )
        result = table_swap.swap_target(
            session.components, mine, partial(_run_rebuild, session, mine.into), session.print_note
        )
        session.emit(result, _summarize(result) + ", in its place")
        return
    asked = RebuildRequest(mine, into, policy, **times)
    result = {
        "lane": asked.id,
        **_run_rebuild(session, asked.into, prepare_restored_rebuild(session.components, asked, session.print_note)),
    }
    session.emit(result, _summarize(result))


def _dry_run(session: CommandSession, lane: Any, asked: dict[str, Any]) -> None:
    from replicator.application.operations import dry_run

    result = dry_run.compare_target(
        session.components, lane, partial(_run_rebuild, session, lane.into), session.print_note, **asked
    )
    session.emit(result, "", text=lambda: echo("\n".join(dry_run.to_lines(result))))


def _run_rebuild(session: CommandSession, named: str, rebuild: Components) -> dict[str, Any]:
    """What became of a replay that ran to its end."""
    from replicator.wiring.catch_up_run import build_container, run_until_caught_up
    from replicator.wiring.memory import tune_collector

    from .progress_bar import make_bar
    from .run import handle_signals

    made = build_container(cast("ConfiguredComponents", rebuild).loaded)
    tune_collector()
    stop = made.stop()
    handle_signals(stop)
    supervisor = run_until_caught_up(made, make_bar(session, made, named))
    if stop.is_set():
        raise Fatal("the replay was ended before it was complete", next_step="Repeat the command: it goes on.")
    report = made.status().report().to_dict()
    applied = sum(one["counts"]["applied"] for one in report["lanes"])
    records = sum(source["records"] for source in report["sources"])
    return {"records": records, "applied": applied, "rejected": supervisor.rejected_count}


def _summarize(result: dict[str, Any]) -> str:
    figures = {name: f"{result[name]:,}" for name in ("records", "applied", "rejected")}
    return "{id}: {records} records read, {applied} changes applied, {rejected} rejected".format(
        id=result["lane"], **figures
    )
