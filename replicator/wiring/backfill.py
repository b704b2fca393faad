"""`backfill_table`: refuses sources without backfills, and builds the reader of the table."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.application.lane_registry import find_target_problem
from replicator.application.operations.backfill import BackfillOperation, BackfillOutcome, BackfillWaiter
from replicator.application.sink_features import require_feature
from replicator.application.state_folder import FileRegister
from replicator.domain.errors import ConfigProblem
from replicator.ports.frames import Lane
from replicator.ports.runtime import ShowLine
from replicator.ports.source import Backfill
from replicator.settings import LaneSettings, Loaded
from replicator.settings.adapter_models import FORMATS, get_format
from replicator.settings.plugins import load_adapter
from replicator.settings.schema import to_plain_options
from replicator.settings.tables import find_private_columns

from . import adapters, build, daemon
from .container import Container
from .pipeline_runs import run_until_caught_up

ALTERNATIVE_STEP = "Debezium's incremental snapshots by a signal load tables of every database (docs/reference/debezium.md)."


def backfill_table(
    loaded: Loaded, table: str, report: ShowLine, *, source: str | None = None, from_scratch: bool = False
) -> BackfillOutcome:
    """Read `table` whole and have the lanes apply it: in the daemon if one runs, otherwise in this process.

    ConfigProblem for a table or source without backfills, and for a lane without a target of its own. Errors of
    `ports.source.Backfill`. The error of a lane that stops. After an error the journal stays, and the next call resumes.
    """
    name = find_source(loaded, table, source)
    lanes = _list_lanes(loaded, table, name)
    for lane in lanes:
        _refuse_taken_target(loaded, lane)
    with ExitStack() as opened:
        reading = _build_reader(loaded, table, name)
        opened.callback(reading.close)
        stream = adapters.build_source(loaded, name, adapters.find_reading_engine(loaded))
        opened.callback(stream.close)
        waiter = build_waiter(loaded, table, name, report)
        find_rows = partial(_find_older_rows, loaded)
        use_case = BackfillOperation(reading, waiter.wait, stream.end, find_rows, report, waiter.refuse_halted)
        return use_case.run(table, lanes, from_scratch=from_scratch)


def build_waiter(loaded: Loaded, table: str, source: str, report: ShowLine) -> BackfillWaiter:
    """Waits for the lanes of a table."""
    rules = loaded.settings.sources[source].transactions
    return BackfillWaiter(
        source,
        _list_lanes(loaded, table, source),
        rules.topic if rules else None,
        partial(daemon.ask_status, loaded),
        partial(_run_here, loaded),
        report,
    )


def find_source(loaded: Loaded, table: str, source: str | None) -> str:
    """The source of the table. ConfigProblem if its tables cannot be read whole."""
    settings = loaded.settings
    named = [name for name in settings.sources if settings.find_table(table, name) is not None and source in (None, name)]
    if not named:
        where = f" of source {source!r}" if source else ""
        raise ConfigProblem(
            f"no entry of `tables` matches {table!r}{where}",
            next_step="Use the table's name at the source: SCHEMA.TABLE.",
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
    form = get_format(settings.format)
    if not form.has_backfills:
        formats = " and ".join(sorted(name for name, one in FORMATS.items() if one.has_backfills))
        raise ConfigProblem(
            f"source {name} has the format {settings.format!r}, but backfills need {formats} ({where})",
            next_step=form.reload_step,
        )
    if not adapters.has_backfills(loaded, name):
        raise ConfigProblem(
            f"source {name} has no `database`, the PostgreSQL or MariaDB database of its tables ({where})",
            next_step="Add `database: {dsn: ..., publication: ..., slot: ...}`, or `database: {dsn: ...}` for MariaDB. "
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
        raise ConfigProblem(f"table {table} only goes to event logs, which have the records of the stream and nothing else")
    by_offset = next((lane for lane in said if lane.tombstones == "delete"), None)
    if by_offset is not None:
        line = adapters.get_config_line(loaded, by_offset)
        raise ConfigProblem(
            f"table {table} has `tombstones: delete`, so its changes are in the order of their topic. Rows of a backfill "
            f"have no position in it ({line})",
            next_step=ALTERNATIVE_STEP,
        )
    return [adapters.build_lane(loaded, lane) for lane in said]


def _build_reader(loaded: Loaded, table: str, source: str) -> Backfill:
    settings: Any = loaded.settings.sources[source]
    made: Backfill = load_adapter("replicator.backfills", settings.database.kind)(
        build_reader_options(loaded, table, source)
    )
    return made


def build_reader_options(loaded: Loaded, table: str, source: str) -> dict[str, Any]:
    """The options of an adapter that reads a whole table of the source's database."""
    settings: Any = loaded.settings.sources[source]
    keys = next((lane.keys for lane in _list_lane_settings(loaded, table, source) if lane.keys), None)
    options = to_plain_options(settings)
    return {
        **options["database"],
        "connect": options.get("connect"),
        "table": table,
        "keys": keys,
        "state": str(_get_folder(loaded, source)),
        "plain_names": get_format(settings.format).has_plain_names,
        **_list_private_options(loaded, table, source),
    }


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


def _refuse_taken_target(loaded: Loaded, lane: Lane) -> None:
    """ConfigProblem if the target of the lane has no valid name, or belongs to another table."""
    if problem := find_target_problem(lane, FileRegister(build.get_register_folder(loaded)).load(lane.source)):
        raise problem


def _find_older_rows(loaded: Loaded, lane: Lane, where: str) -> pa.Table | None:
    _refuse_taken_target(loaded, lane)  # The lanes of a new table began only when its rows were read.
    with closing(adapters.build_sink(loaded, lane.sink)) as sink:
        reader = require_feature(
            sink.features.reader, f"sink {lane.sink} cannot be queried for its rows", next_step=ALTERNATIVE_STEP
        )
        return reader.read(lane.into, where=where) if lane.into in reader.tables() else None


def _run_here(loaded: Loaded) -> Sequence[Mapping[str, Any]]:
    made = Container(loaded=loaded)
    run_until_caught_up(made)
    lanes: Sequence[Mapping[str, Any]] = made.status().report().to_dict()["lanes"]
    return lanes
