"""`backfill_table`: builds the reader of the table, lets the lanes apply its rows, and reads the targets afterwards."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.application.operations.backfill import BackfillOperation, BackfillOutcome, Report
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal, Fenced
from replicator.domain.position import Position
from replicator.ports.backfill import Backfill
from replicator.ports.frames import Lane
from replicator.settings import LaneSettings, Loaded
from replicator.settings.renamed_columns import find_private_columns
from replicator.settings.schema import to_plain_options

from . import adapters, daemon
from .catch_up_run import run_until_caught_up
from .container import Container
from .plugins import load_adapter

ASK_EVERY = 0.5
STARTS_WITHIN = 30.0
"""Maximum seconds from the lock of a starting daemon until its page answers."""
ALTERNATIVE_STEP = "Debezium's incremental snapshots by a signal load tables of every database (docs/debezium.md)."
STEP_BY_FORMAT = {
    "debezium_outbox": "Its tables hold events that were sent, and no rows: have the service write events anew.",
    "dts_avro": "Have DTS do a full load of the table: its INIT records come before the changes.",
    "dms_csv": "Reload the table in the DMS task.",
    "dms_parquet": "Reload the table in the DMS task.",
    "maxwell_json": "Have Maxwell do it: `maxwell-bootstrap --database SCHEMA --table TABLE`.",
    "ogg_json": "Have an initial-load Extract of GoldenGate write the table into the topic.",
}
"""How to load a table of these formats. Only the writer of the changes can put rows into their order."""


def backfill_table(
    loaded: Loaded, table: str, report: Report, *, source: str | None = None, from_scratch: bool = False
) -> BackfillOutcome:
    """Read `table` whole and have the lanes apply it: in the daemon if one runs, otherwise in this process.

    ConfigProblem for a table or source without backfills. Errors of `ports.backfill.Backfill`. The error of a lane
    that stops. After an error the journal stays, and the next call resumes.
    """
    name = _find_source(loaded, table, source)
    lanes = _list_lanes(loaded, table, name)
    with ExitStack() as opened:
        reading = _build_reader(loaded, table, name)
        opened.callback(reading.close)
        stream = adapters.build_source(adapters.use_local_engine(loaded), name)
        opened.callback(stream.close)
        applied = _make_waiter(loaded, name, lanes, report)
        check = partial(_refuse_halted_now, loaded, {lane.id for lane in lanes})
        use_case = BackfillOperation(
            reading, applied, stream.end, lambda lane, where: _find_older_rows(loaded, lane, where), report, check
        )
        return use_case.run(table, lanes, from_scratch=from_scratch)


def _find_source(loaded: Loaded, table: str, source: str | None) -> str:
    """The source of the table. ConfigProblem if its tables cannot be read whole."""
    settings = loaded.settings
    named = [name for name in settings.sources if settings.find_table(table, name) is not None and source in (None, name)]
    if not named:
        where = f" of source {source!r}" if source else ""
        raise ConfigProblem(
            f"no entry of `tables` matches {table!r}{where}",
            next_step="Name the table as its source calls it: SCHEMA.TABLE.",
        )
    if len(named) > 1:
        raise ConfigProblem(
            f"{table!r} comes from several sources", next_step=f"Name one with `--source`: {', '.join(named)}."
        )
    _refuse_source(loaded, named[0])
    return named[0]


def _refuse_source(loaded: Loaded, name: str) -> None:
    settings = loaded.settings.sources[name]
    where = loaded.describe_origin("sources", name)
    if settings.format not in adapters.BACKFILL_FORMATS:
        formats = " and ".join(sorted(adapters.BACKFILL_FORMATS))
        raise ConfigProblem(
            f"source {name} has the format {settings.format!r}, and backfills are of {formats} ({where})",
            next_step=STEP_BY_FORMAT.get(settings.format, "Load the table with what writes its changes."),
        )
    if not adapters.has_backfills(loaded, name):
        raise ConfigProblem(
            f"source {name} does not say which database of PostgreSQL or MariaDB its tables are in ({where})",
            next_step="Add `database: {dsn: ..., publication: ..., slot: ...}` to it, of MariaDB `database: {dsn: ...}`. "
            f"{ALTERNATIVE_STEP}",
        )
    if not adapters.has_journal(loaded):
        raise ConfigProblem(
            f"backfills do not run on the engine {loaded.settings.engine!r} ({loaded.describe_origin('engine')})",
            next_step=f"Stop the daemon, and repeat with `--set engine=local`. {ALTERNATIVE_STEP}",
        )


def _list_lanes(loaded: Loaded, table: str, source: str) -> list[Lane]:
    said = loaded.settings.resolve_lanes(table, source)
    if not said:
        raise ConfigProblem(f"table {table} goes to event logs only, which keep what the stream brings")
    by_offset = next((lane for lane in said if lane.tombstones == "delete"), None)
    if by_offset is not None:
        line = adapters.get_config_line(loaded, by_offset)
        raise ConfigProblem(
            f"table {table} has `tombstones: delete`, so its changes are in the order of their topic, in which rows that "
            f"are read have no place ({line})",
            next_step=ALTERNATIVE_STEP,
        )
    return [adapters.build_lane(loaded, lane) for lane in said]


def _build_reader(loaded: Loaded, table: str, source: str) -> Backfill:
    settings: Any = loaded.settings.sources[source]
    keys = next((lane.keys for lane in _list_lane_settings(loaded, table, source) if lane.keys), None)
    own = to_plain_options(settings)["database"]
    in_avro = settings.format == "debezium_avro"
    options = {
        **own,
        "table": table,
        "keys": keys,
        "state": str(_get_folder(loaded, source)),
        "plain_names": in_avro,
        **_list_private_options(loaded, table, source),
    }
    made: Backfill = load_adapter("replicator.backfills", settings.database.kind)(options)
    return made


def _list_private_options(loaded: Loaded, table: str, source: str) -> dict[str, Any]:
    """The decoder of the stream, to mask private columns before rows are written to the journal."""
    entry = loaded.settings.find_table(table, source)
    masks = find_private_columns(entry, loaded.settings.defaults) if entry is not None else {}
    if not masks:
        return {}
    said = [
        (name, mask.kind, mask.length, mask.text, mask.key and hmac.new(mask.key, name.encode(), "sha256").hexdigest())
        for name, mask in sorted(masks.items())
    ]
    return {"private": adapters.build_unfiltered_decoder(loaded, source), "masked": tuple(masks), "masks": repr(said)}


def _list_lane_settings(loaded: Loaded, table: str, source: str) -> list[LaneSettings]:
    return list(loaded.settings.resolve_lanes(table, source))


def _get_folder(loaded: Loaded, source: str) -> Path:
    return adapters.get_backfills_folder(loaded, source)


def _find_older_rows(loaded: Loaded, lane: Lane, where: str) -> pa.Table | None:
    sink: Any = adapters.build_sink(loaded, lane.sink)
    try:
        if not hasattr(sink, "read"):
            raise ConfigProblem(f"sink {lane.sink} cannot be asked for the rows that it holds", next_step=ALTERNATIVE_STEP)
        return sink.read(lane.into, where=where) if lane.into in sink.tables() else None
    finally:
        sink.close()


def _make_waiter(loaded: Loaded, source: str, lanes: list[Lane], tell: Report) -> Callable[[Position], None]:
    """A function that waits until the lanes have applied a position: in the daemon if one runs, otherwise in a run
    here."""

    def apply(position: Position) -> None:
        for _ in range(int(STARTS_WITHIN / ASK_EVERY)):
            if daemon.ask_status(loaded) is not None:
                tell("waiting for the daemon to apply them")
                _await_daemon(loaded, source, {lane.id for lane in lanes}, position)
                return
            with suppress(Fenced):  # The daemon is starting or ending.
                _apply_here(loaded, source, lanes, position)
                return
            time.sleep(ASK_EVERY)
        _apply_here(loaded, source, lanes, position)

    return apply


def _apply_here(loaded: Loaded, source: str, lanes: Sequence[Lane], position: Position) -> None:
    made = Container(loaded=loaded)
    run_until_caught_up(made)
    by_id = {lane["id"]: lane for lane in made.status().report().to_dict()["lanes"]}
    waiting = [lane.id for lane in lanes if lane.id in by_id and not _is_released(loaded, source, by_id[lane.id], position)]
    if waiting:
        raise Fatal(
            f"Changes of {', '.join(waiting)} wait for the rest of their transactions, which has not come yet.",
            next_step="Start the daemon, which waits for it up to `patience`, and repeat the command.",
        )


def _is_released(loaded: Loaded, source: str, lane: Mapping[str, Any], position: Position) -> bool:
    """True if the lane got everything below `position`. A change that still waits could restore a deleted row."""
    rules = loaded.settings.sources[source].transactions
    handed = Position.from_json(lane["handed"])
    mine = {p: o for p, o in position.items() if p in handed and rules is not None and p.topic != rules.topic}
    return all(handed[p] >= offset for p, offset in mine.items())


def _await_daemon(loaded: Loaded, source: str, wanted: set[str], position: Position) -> None:
    """Wait until the daemon has read the stream up to `position` and the lanes have applied everything they got by
    then."""
    goal: dict[str, Position] | None = None
    while True:
        status = daemon.ask_status(loaded)
        if status is None:
            raise EnvironmentProblem(
                "The daemon has ended.", next_step="Repeat the command, with the daemon or without: it goes on where it was."
            )
        lanes = [lane for lane in status["lanes"] if lane["id"] in wanted]
        _refuse_halted(lanes)
        ready = all(lane["status"] == "running" and _is_released(loaded, source, lane, position) for lane in lanes)
        if goal is None and ready and _is_read(status, source, position):
            goal = {lane["id"]: Position.from_json(lane["handed"]) for lane in lanes}
        if goal is not None and all(_has_applied(lane, goal.get(lane["id"], Position())) for lane in lanes):
            return
        time.sleep(ASK_EVERY)


def _refuse_halted_now(loaded: Loaded, wanted: set[str]) -> None:
    """Raise Fatal if a daemon runs and one of these lanes is paused or suspended."""
    status = daemon.ask_status(loaded)
    if status is not None:
        _refuse_halted([lane for lane in status["lanes"] if lane["id"] in wanted])


def _refuse_halted(lanes: Sequence[Mapping[str, Any]]) -> None:
    halted = next((lane for lane in lanes if lane["status"] in ("paused", "suspended")), None)
    if halted is not None:
        step = halted["next_step"] or f"`replicator lanes resume {halted['id']}`."
        raise Fatal(
            f"Lane {halted['id']} is {halted['status']}{': ' + halted['error'] if halted['error'] else '.'}",
            next_step=f"{step} Then repeat the command: it goes on where it was.",
        )


def _is_read(status: Mapping[str, Any], source: str, position: Position) -> bool:
    read = next((Position.from_json(one["position"]) for one in status["sources"] if one["name"] == source), Position())
    return all(read.get(p, 0) >= offset for p, offset in position.items())


def _has_applied(lane: Mapping[str, Any], position: Position) -> bool:
    at = Position.from_json(lane["position"])
    return all(at.get(p, 0) >= offset for p, offset in position.items())
