"""Commands that operate on lanes and tables: lanes, backfill, refresh, compact, vacuum, snapshot and emit. The last ones
remove data: drop and forget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ExitCode, Fatal, Retryable
from replicator.domain.plain_values import format_count, to_json_value

from .parameters import (
    COUNT,
    complete_lanes,
    complete_projections,
    complete_sources,
    complete_stored,
    complete_tables,
    complete_target_lanes,
    complete_targets,
    parse_duration,
)
from .session import CommandSession, command, echo, format_examples, format_position, to_cell

if TYPE_CHECKING:
    from replicator.application.operations.backfill import BackfillOutcome
    from replicator.application.operations.drop import DropScope
    from replicator.application.operations.erase import ErasureScope
    from replicator.application.operations.maintenance import MaintenanceResult
    from replicator.application.operations.refresh import RefreshResult

# `replicator lanes`: controls single lanes, of a running daemon and of a stopped one.


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
    from replicator.application.lane_registry import list_lanes
    from replicator.application.operations.lanes import count_by_lane
    from replicator.wiring.daemon_client import ask_status

    lanes, running = list_lanes(session.components), ask_status(session.loaded)
    states = {lane["id"]: lane for lane in (running or {"lanes": ()})["lanes"]}
    waiting = {lane: state["dead_letters"] for lane, state in states.items()}
    if running is None:
        waiting = count_by_lane(session.components, lanes)
    result: list[dict[str, Any]] = [
        {
            **{"id": x.id, "table": x.table, "policy": x.policy, "config": x.config_line},
            "status": states[x.id]["status"] if x.id in states else "stopped",
            "dead_letters": waiting.get(x.id),
        }
        for x in lanes
    ]
    width = max((len(to_cell(x.id)) for x in lanes), default=0)
    lines = []
    for lane in result:
        rejected = f"  {format_count(lane['dead_letters'], 'open dead letter')}" if lane["dead_letters"] else ""
        lines.append(f"{to_cell(lane['id']):<{width}}  {lane['status']}{rejected}")
    session.emit(result, format_count(len(lanes), "lane"), text=lambda: echo("\n".join(lines)))


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
    from replicator.wiring import daemon_client

    if number is None:
        _ask_daemon(session, "resume", lane, _await_outcome)
        return
    by_daemon = daemon_client.ask_control(session.loaded, "resume", lane, str(number))
    if not by_daemon:
        accept_schema(session.components, lane, number)
    became = _await_outcome(session, lane) if by_daemon else ", from the next start on"
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
        by_daemon = _resync_lane(session, lane, accept_missing=accept_missing)
    except Fatal as refused:
        if yes or accept_missing or refused.exit_code is not ExitCode.DATA_LOSS:
            raise
        session.confirm(f"{refused}\nResync anyway?", refusal)
        by_daemon = _resync_lane(session, lane, accept_missing=True)
    became = _await_outcome(session, lane) if by_daemon else ", from the next start on"
    session.emit({"lane": lane}, f"{lane}: loading again{became}")


def _resync_lane(session: CommandSession, lane: str, *, accept_missing: bool) -> bool:
    """Resync the lane. True if the running daemon does it."""
    from replicator.application.operations.lanes import resync_lane
    from replicator.domain.errors import ACCEPT_MISSING
    from replicator.wiring import daemon_client

    by_daemon = daemon_client.ask_control(session.loaded, "resync", lane, ACCEPT_MISSING if accept_missing else None)
    if not by_daemon:
        resync_lane(session.components, lane, accept_missing=accept_missing)
    return by_daemon


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
    from replicator.wiring import daemon_client

    position = daemon_client.parse_position(until) if until else None
    by_daemon = daemon_client.ask_control(session.loaded, "skip", lane, until)
    if not by_daemon:
        skip_lane(session.components, lane, position)
    session.emit({"lane": lane}, f"{lane}: position moved{_await_outcome(session, lane) if by_daemon else ''}")


def _await_outcome(session: CommandSession, lane: str) -> str:
    """The new status of a resumed lane, for the end of a sentence. Raises its error if it is suspended again."""
    from replicator.wiring.daemon_client import await_outcome

    became = await_outcome(session.loaded, lane)
    return {"": "", "running": ", and running", "catching_up": ", and catching up"}.get(became, f", and now {became}")


def _ask_daemon(
    session: CommandSession, action: str, lane: str, outcome: Callable[[CommandSession, str], str] = lambda *_: ""
) -> None:
    from replicator.wiring.daemon_client import ask_control

    if not ask_control(session.loaded, action, lane, None):
        raise EnvironmentProblem("the daemon does not run", next_step="Start it with `replicator run`.")
    session.emit({"lane": lane, "action": action}, f"{lane}: {action}d{outcome(session, lane)}")


for _command in (list_lanes, pause, resume, resync, skip):
    lanes.add_command(_command)


# `replicator backfill`: writes the present rows of a source table into its targets.


@command("backfill", "replicator backfill public.orders")
@click.argument("table", shell_complete=complete_tables)
@click.option(
    "--source", metavar="NAME", shell_complete=complete_sources, help="Source, if several have a table of this name."
)
@click.option("--anew", "from_scratch", is_flag=True, help="Start over instead of resuming an interrupted backfill.")
def backfill(session: CommandSession, table: str, source: str | None, from_scratch: bool) -> None:
    """Read a source table again, and update its targets.

    TABLE is the name of the table in a PostgreSQL or MariaDB source, with or without its schema. The lanes of the table
    apply its rows, while its changes continue. At the end, rows that the source no longer has are deleted in the targets.

    The daemon may run meanwhile. If the command is interrupted, run it again: it resumes.
    """
    from replicator.application.operations.lanes import find_source_table
    from replicator.wiring import backfill

    table = find_source_table(session.components, table)
    outcome = backfill.backfill_table(session.loaded, table, session.print_note, source=source, from_scratch=from_scratch)
    session.emit(asdict(outcome), _summarize(outcome), text=lambda: echo("\n".join([_summarize(outcome), *outcome.without])))


def _summarize(outcome: BackfillOutcome) -> str:
    went_on = " (some by an earlier run of the command)" if outcome.resumed else ""
    return f"{outcome.table}: {format_count(outcome.rows, 'row')} read{went_on}, {outcome.deleted:,} deleted in the targets"


# `replicator refresh`: updates gold tables.


@command("refresh", "replicator refresh revenue_by_city")
@click.argument("projections", nargs=-1, shell_complete=complete_projections)
@click.option("--full", is_flag=True, help="Compute all rows, not only the changed groups.")
@click.option("--engine", type=click.Choice(["local", "spark"]), help="Use this engine instead of `engine` of the config.")
def refresh(session: CommandSession, projections: tuple[str, ...], full: bool, engine: str | None) -> None:
    """Update gold tables from their inputs.

    PROJECTIONS are names of `projections` in the config; by default all. A projection with `partition_by` computes only the
    groups whose inputs have changed, others compute everything.
    """
    from replicator.wiring import projections as wiring

    if engine:
        session.overrides += (f"engine={engine}",)
    selection = wiring.select_projections(session.loaded, projections)
    with wiring.open_refresher(session.loaded) as refreshing:
        results = []
        for one in selection:
            results.append(refreshing.refresh(one, full=full))
            session.print_note(describe_refresh(results[-1]))
    written = sum(one.version is not None for one in results)
    session.emit([asdict(one) for one in results], f"{format_count(len(results), 'projection')}, {written} refreshed")


def describe_refresh(result: RefreshResult) -> str:
    """The outcome of a refresh as a line of text."""
    amount = {
        "current": "nothing has changed",
        "none": "no row that it reads has changed",
        "groups": f"{format_count(result.groups, 'group')}, {format_count(result.rows, 'row')}"
        if result.groups is not None
        else "",
        "full": f"{format_count(result.rows, 'row')}, everything: {result.reason}",
    }[result.kind]
    version = "" if result.version is None else f", version {result.version}"
    return f"{result.name} -> {result.target}: {amount}{version}, {result.seconds:.1f} s"


# `replicator compact` and `replicator vacuum`: merge small files, and delete files that are not needed.

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

    retention = None if retain is None else parse_duration(retain)
    if retention is not None and retention < USUAL_RETENTION and not dry_run:
        session.print_note(
            "warning: --retain is shorter than the 7 days that Delta Lake retains by default. Queries of older versions, "
            "and queries that still run, will fail."
        )
    outcomes = maintenance.vacuum_targets(session.components, targets, retention, dry_run=dry_run)
    _run_maintenance(session, outcomes, "would be vacuumed" if dry_run else "vacuumed")


def _run_maintenance(session: CommandSession, outcomes: Iterable[MaintenanceResult], verb: str) -> None:
    done: list[MaintenanceResult] = []
    for one in outcomes:
        done.append(one)
        session.print_note(f"{to_cell(one.target)}: {_describe_outcome(one, verb)}")
    result = [
        {
            "target": one.target,
            "done": None if one.result is None else asdict(one.result),
            "skipped": one.skipped or None,
            "error": None if one.error is None else one.error.sentence,
        }
        for one in done
    ]
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


# `replicator snapshot`: stores checkpoints of the lanes of a table, from which replays start.


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
    components = session.components
    lanes = tuple(one for one in components.resolve_lanes(table) if rebuild.can_rebuild(components, one))
    if lane is not None or not lanes:
        lanes = (rebuild.find_rebuildable_lane(components, table, lane),)
    if any(one.refused for one in lanes):
        raise ConfigProblem(f"table {table} has a lane without a target", next_step="Name the other lanes with `--lane`.")
    checkpoints = [checkpoint.take_checkpoint(components, one, session.print_note).to_json() for one in lanes]
    session.emit(checkpoints, "\n".join(map(format_checkpoint, checkpoints)))


def format_checkpoint(one: dict[str, Any]) -> str:
    """A checkpoint as `Checkpoint.to_json` returns it, as a line of text."""
    figures = f"{format_count(one['rows'], 'row')}, {format_count(one['bytes'], 'byte')}"
    position = format_position(one["position"])
    return f"{one['lane']}: checkpoint {one['number']} of {one['taken_at']}, {figures}, at {position}"


# `replicator emit`: adds one event to the event store.


@command("emit", """replicator emit order 42 OrderShipped --data '{"carrier": "DHL"}' --expected-version 3""")
@click.argument("aggregate_type")
@click.argument("aggregate_id")
@click.argument("event_type")
@click.option("--data", default="{}", show_default=True, metavar="JSON", help="Content of the event, a JSON object.")
@click.option("--metadata", default="{}", show_default=True, metavar="JSON", help="Metadata, a JSON object.")
@click.option(
    "--expected-version",
    type=COUNT,
    help="Fail unless this is the version of the aggregate before the event; 0 means that it has no events.",
)
@click.option(
    "--event-id", metavar="ID", help="Id of the event. If it is stored already, nothing changes.  [default: a new id]"
)
def emit(
    session: CommandSession,
    aggregate_type: str,
    aggregate_id: str,
    event_type: str,
    data: str,
    metadata: str,
    expected_version: int | None,
    event_id: str | None,
) -> None:
    """Add an event to the event store.

    The event belongs to the aggregate AGGREGATE_TYPE AGGREGATE_ID. The config needs an `event_store`.
    """
    from replicator.domain.events import make_event, read_json
    from replicator.wiring.adapters import make_emitter

    texts = read_json("event_data", data), read_json("metadata", metadata)
    new = make_event(aggregate_id, aggregate_type, event_type, *texts, expected_version=expected_version, event_id=event_id)
    emitting = make_emitter(session.loaded)
    try:
        (entry,) = emitting.emit([new])
    finally:
        emitting.store.close()
    event = entry.event
    subject = f"{event.aggregate_type} {event.aggregate_id}, version {event.event_version}"
    summary = f"{subject}: {event.event_type}" if entry.is_new else f"{subject}: event {event.event_id} is stored already"
    session.emit({**event_to_json(event), "is_new": entry.is_new}, summary)


def event_to_json(event: Any) -> dict[str, Any]:
    """An event as `--json` has it."""
    fields: dict[str, Any] = {name: getattr(event, name) for name in event.__dataclass_fields__}
    return {name: to_json_value(value) for name, value in fields.items()} | {"created_at": event.created_at.isoformat()}


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
    from replicator.application.operations.rebuild import lock_rebuild

    scope = drop.find_lane_to_drop(session.components, table)
    lane, width = scope.lane.id, max(len(one.what) for one in scope.artifacts)
    lines = [lane]
    lines += [f"  {one.what:<{width}}  {one.where}{f'  ({one.stays})' if one.stays else ''}" for one in scope.artifacts]
    if scope.config_line:
        again = "the next start creates the target again, and loads it from `start_from`."
        lines.append(f"The config contains the lane ({scope.config_line}): {again}")
    if not yes:
        session.confirm(f"Delete all of this of {lane}?", f"{lane} was not dropped", lines, _drop_to_json(scope))
    with lock_rebuild(session.components, lane):
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
    outcome = erase.erase_row(session.components, refresher, scope, end_versions=vacuum, show_line=session.print_note)
    repeat = "run `replicator forget` again with the same key and `--vacuum` to delete them, which ends time travel to them"
    notes = [f"Still there: {where}." for where in outcome.versions]
    notes += [f"Older versions: {repeat}."] if outcome.versions else []
    notes += [f"The row had another key too: {table} {' '.join(key)}. Erase it as well." for key in sorted(outcome.linked)]
    stays = [*scope.stays, *outcome.unclear]
    notes += [f"Not changed: {one}." for one in stays]
    removed = ", ".join(f"{count:,} from {store}" for store, count in outcome.removed.items())
    notes += [f"Computed again: {describe_refresh(one)}." for one in outcome.refreshed]
    summary = f"{table}: one key erased; rows and records removed: {removed}"
    result = {
        **_erasure_to_json(scope),
        "stays": stays,
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
