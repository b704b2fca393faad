"""`replicator replay`: rebuilds a target from the event log."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.plain_values import format_count
from replicator.domain.policy import POLICY_NAMES

from .completion import complete_tables, complete_target_lanes
from .session import CommandSession, command, echo
from .time_params import IN_UTC, TIME

if TYPE_CHECKING:
    from replicator.ports.components import Components
    from replicator.wiring.components import ConfiguredComponents


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
    mine = rebuild.find_lane(session.components, table, lane)
    said = {"since": since, "until": until}
    times: dict[str, Any] = {name: time.isoformat() for name, time in said.items() if time is not None}
    if dry_run:
        if into is not None:
            raise ConfigProblem("--dry-run and --into exclude each other", next_step="Use either --dry-run or --into.")
        _dry_run(session, mine, {"policy": policy, **times})
        return
    if into is None:
        if policy is not None or times:
            raise ConfigProblem(
                "a partial replay or a different policy cannot replace the target of the lane",
                next_step="Write a second target with `--into NAME`, or compare with `--dry-run`.",
            )
        result = table_swap.swap_target(
            session.components, mine, partial(_run_rebuild, session, mine.into), session.print_note
        )
        session.emit(result, _summarize(result) + "; the target is replaced")
        return
    asked = RebuildRequest(mine, into, policy, **times)
    result = {
        "lane": asked.id,
        **_run_rebuild(session, asked.into, prepare_restored_rebuild(session.components, asked, session.print_note)),
    }
    session.emit(result, _summarize(result))


def _dry_run(session: CommandSession, lane: Any, asked: dict[str, Any]) -> None:
    from replicator.application.operations import table_swap

    result = table_swap.compare_target(
        session.components, lane, partial(_run_rebuild, session, lane.into), session.print_note, **asked
    )
    session.emit(result, "", text=lambda: echo("\n".join(table_swap.to_lines(result))))


def _run_rebuild(session: CommandSession, named: str, rebuild: Components) -> dict[str, Any]:
    """Run a replay to its end. The numbers of its records."""
    from replicator.wiring.memory import tune_collector
    from replicator.wiring.pipeline_runs import build_container, run_until_caught_up

    from .progress_bar import make_bar
    from .run import handle_signals

    made = build_container(cast("ConfiguredComponents", rebuild).make_setup(in_batches=True))
    tune_collector()
    stop = made.stop()
    handle_signals(stop)
    supervisor = run_until_caught_up(made, make_bar(session, made, named))
    if stop.is_set():
        raise Fatal("the replay was interrupted", next_step="Repeat the command: it resumes.")
    report = made.status().report().to_dict()
    applied = sum(one["counts"]["applied"] for one in report["lanes"])
    records = sum(source["records"] for source in report["sources"])
    return {"records": records, "applied": applied, "rejected": supervisor.rejected_count}


def _summarize(result: dict[str, Any]) -> str:
    records, applied = format_count(result["records"], "record"), format_count(result["applied"], "change")
    return f"{result['lane']}: {records} read, {applied} applied, {result['rejected']:,} rejected"
