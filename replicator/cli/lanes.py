"""`replicator lanes`: controls single lanes, of a running daemon and of a stopped one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from replicator.domain.errors import EnvironmentProblem, ExitCode, Fatal
from replicator.domain.plain_values import format_count

from .completion import complete_lanes
from .session import CommandSession, command, echo, format_examples, to_cell


@click.group("lanes", epilog=format_examples("replicator lanes list"))
def lanes() -> None:
    """List, pause, resume, resync or skip lanes.

    A lane is one table, one target and one policy. LANE is its name SINK.TARGET, such as lake.customers.
    """


@command("list", "replicator lanes list")
def list_lanes(session: CommandSession) -> None:
    """List the lanes with their states and open dead letters.

    Lists the lanes of all tables that the sources have brought so far.
    """
    from replicator.application.operations.lanes import count_by_lane, list_lanes
    from replicator.wiring.daemon import ask_status

    found, running = list_lanes(session.components), ask_status(session.loaded)
    states = {lane["id"]: lane for lane in (running or {"lanes": ()})["lanes"]}
    waiting = {lane: state["dead_letters"] for lane, state in states.items()}
    if running is None:
        waiting = count_by_lane(session.components, found)
    result: list[dict[str, Any]] = [
        {
            **{"id": x.id, "table": x.table, "policy": x.policy, "config": x.config_line},
            "status": states[x.id]["status"] if x.id in states else "stopped",
            "dead_letters": waiting.get(x.id),
        }
        for x in found
    ]
    width = max((len(to_cell(x.id)) for x in found), default=0)
    lines = [
        f"{to_cell(lane['id']):<{width}}  {lane['status']}{_describe_dead_letters(lane['dead_letters'])}" for lane in result
    ]
    session.emit(result, format_count(len(found), "lane"), text=lambda: echo("\n".join(lines)))


def _describe_dead_letters(count: int | None) -> str:
    return f"  {format_count(count, 'open dead letter')}" if count else ""


@command("pause", "replicator lanes pause lake.customers")
@click.argument("lane", shell_complete=complete_lanes)
def pause(session: CommandSession, lane: str) -> None:
    """Pause a lane of the running daemon.

    The lane stays paused until `lanes resume` or a restart. The other lanes continue.
    """
    _ask_daemon(session, "pause", lane)


@command("resume", "replicator lanes resume lake.customers", "replicator lanes resume lake.customers --accept-schema 2")
@click.argument("lane", shell_complete=complete_lanes)
@click.option(
    "--accept-schema",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="Accept schema version N, on which the lane is paused, and resume.",
)
def resume(session: CommandSession, lane: str, number: int | None) -> None:
    """Resume a paused or suspended lane from its position.

    The daemon reads the config at its start only. Restart it if you changed the config.
    """
    from replicator.application.operations.lanes import accept_schema
    from replicator.wiring import daemon

    if number is None:
        _ask_daemon(session, "resume", lane, _await_outcome)
        return
    asked = daemon.ask_control(session.loaded, "resume", lane, str(number))
    if not asked:
        accept_schema(session.components, lane, number)
    became = _await_outcome(session, lane) if asked else ", from the next start on"
    session.emit({"lane": lane, "schema": number}, f"{lane}: schema {number} accepted{became}")


@command("resync", "replicator lanes resync lake.customers")
@click.argument("lane", shell_complete=complete_lanes)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--accept-missing", is_flag=True, help="Resync even if the source no longer has all records, and rows will be missing."
)
def resync(session: CommandSession, lane: str, yes: bool, accept_missing: bool) -> None:
    """Empty the target of a lane, and load it again.

    The lane reads its source again from the position that `start_from` of the config names.
    """
    from replicator.application.operations.lanes import require_lane

    require_lane(session.components, lane)
    refusal = f"{lane} was not emptied"
    if not yes:
        session.confirm(f"Delete all rows of {lane} and load them again?", refusal)
    try:
        asked = _resync_lane(session, lane, accept_missing=accept_missing)
    except Fatal as refused:
        if yes or accept_missing or refused.exit_code is not ExitCode.DATA_LOSS:
            raise
        session.confirm(f"{refused}\nResync anyway?", refusal)
        asked = _resync_lane(session, lane, accept_missing=True)
    became = _await_outcome(session, lane) if asked else ", from the next start on"
    session.emit({"lane": lane}, f"{lane}: loading again{became}")


def _resync_lane(session: CommandSession, lane: str, *, accept_missing: bool) -> bool:
    """Resync the lane. True if the running daemon does it."""
    from replicator.application.operations.lanes import resync_lane
    from replicator.domain.remedies import ACCEPT_MISSING
    from replicator.wiring import daemon

    asked = daemon.ask_control(session.loaded, "resync", lane, ACCEPT_MISSING if accept_missing else None)
    if not asked:
        resync_lane(session.components, lane, accept_missing=accept_missing)
    return asked


@command("skip", "replicator lanes skip lake.orders --until cdc.public.orders:0:1043")
@click.argument("lane", shell_complete=complete_lanes)
@click.option(
    "--until",
    metavar="POSITION",
    help="The offset to read next, as TOPIC:PARTITION:OFFSET[,...].  [default: behind the records that are lost]",
)
def skip(session: CommandSession, lane: str, until: str | None) -> None:
    """Skip records: move the position of a lane without applying them.

    The target lacks the skipped changes. Use it if the source has lost records that the lane needs.
    """
    from replicator.application.operations.lanes import skip_lane
    from replicator.wiring import daemon

    position = daemon.parse_position(until) if until else None
    asked = daemon.ask_control(session.loaded, "skip", lane, until)
    if not asked:
        skip_lane(session.components, lane, position)
    session.emit({"lane": lane}, f"{lane}: position moved{_await_outcome(session, lane) if asked else ''}")


def _await_outcome(session: CommandSession, lane: str) -> str:
    """The new status of a resumed lane, for the end of a sentence. Raises its error if it is suspended again."""
    from replicator.wiring.daemon import await_outcome

    became = await_outcome(session.loaded, lane)
    return {"": "", "running": ", and running", "catching_up": ", and catching up"}.get(became, f", and now {became}")


def _ask_daemon(
    session: CommandSession, action: str, lane: str, outcome: Callable[[CommandSession, str], str] = lambda *_: ""
) -> None:
    from replicator.wiring.daemon import ask_control

    if not ask_control(session.loaded, action, lane, None):
        raise EnvironmentProblem("the daemon does not run", next_step="Start it with `replicator run`.")
    session.emit({"lane": lane, "action": action}, f"{lane}: {action}d{outcome(session, lane)}")


for _command in (list_lanes, pause, resume, resync, skip):
    lanes.add_command(_command)
