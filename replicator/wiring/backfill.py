"""Backfills of tables; comparisons of tables with their targets, once or by schedule, and their repair."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache, partial
from typing import Any

import pyarrow as pa

from replicator.application.lane_registry import find_target_problem
from replicator.application.lane_runs import LaneRuns, LaneStatus
from replicator.application.operations.backfill import BackfillOperation, BackfillOutcome, BackfillWaiter
from replicator.application.operations.diff import DiffOperation, compare_with_log
from replicator.application.operations.diff_runs import DiffScheduler, ScheduledDiff
from replicator.application.sink_features import require_feature
from replicator.domain.differences import LaneDiff
from replicator.domain.errors import ConfigProblem
from replicator.domain.policy import CHANGE_POLICIES, VERSION_POLICIES
from replicator.ports.frames import Lane
from replicator.ports.options import to_timedelta
from replicator.ports.reads import ComparableTable, Repair
from replicator.ports.runtime import ShowLine, Telemetry
from replicator.ports.source import Backfill
from replicator.settings import LaneSettings, Loaded
from replicator.settings.adapter_models import FORMATS, get_format
from replicator.settings.plugins import load_adapter
from replicator.settings.schema import to_plain_options
from replicator.settings.tables import PolicyKeys, VerifySettings

from . import adapters
from .components import ConfiguredComponents
from .container import Container, run_until_caught_up
from .daemon_client import ask_status

ALTERNATIVE_STEP = "Debezium's incremental snapshots by a signal load tables of every database (docs/reference/debezium.md)."


def backfill_table(
    loaded: Loaded, table: str, show_line: ShowLine, *, source: str | None = None, from_scratch: bool = False
) -> BackfillOutcome:
    """Read `table` whole and have the lanes apply it: in the daemon if one runs, otherwise in this process.

    ConfigProblem for a table or source without backfills, and for a lane without a target of its own. Errors of
    `ports.source.Backfill`. The error of a lane that stops. After an error the journal stays, and the next call resumes.
    """
    name = find_source(loaded, table, source)
    lanes, components = _list_lanes(loaded, table, name), ConfiguredComponents(loaded)
    for lane in lanes:
        _refuse_taken_target(components, lane)
    with ExitStack() as opened:
        reading = _build_reader(loaded, table, name)
        opened.callback(reading.close)
        stream = adapters.build_source(loaded, name, adapters.find_reading_engine(loaded))
        opened.callback(stream.close)
        waiter = build_waiter(loaded, table, name, show_line)
        find_rows = partial(_find_older_rows, components)
        use_case = BackfillOperation(reading, waiter.wait, stream.end, find_rows, show_line, waiter.refuse_halted)
        return use_case.run(table, lanes, from_scratch=from_scratch)


def build_waiter(loaded: Loaded, table: str, source: str, show_line: ShowLine) -> BackfillWaiter:
    """Waits for the lanes of a table."""
    rules = loaded.settings.sources[source].transactions
    return BackfillWaiter(
        source,
        _list_lanes(loaded, table, source),
        rules.topic if rules else None,
        partial(ask_status, loaded),
        partial(_run_here, loaded),
        show_line,
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
    name = named[0]
    form_name, where = settings.sources[name].format, loaded.describe_origin("sources", name)
    form = get_format(form_name)
    if not form.has_backfills:
        formats = " and ".join(sorted(name for name, one in FORMATS.items() if one.has_backfills))
        raise ConfigProblem(
            f"source {name} has the format {form_name!r}, but backfills need {formats} ({where})",
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
    return name


def _list_lanes(loaded: Loaded, table: str, source: str) -> list[Lane]:
    settings = loaded.settings.resolve_lanes(table, source)
    if not settings:
        raise ConfigProblem(f"table {table} only goes to event logs, which have the records of the stream and nothing else")
    by_offset = next((lane for lane in settings if lane.tombstones == "delete"), None)
    if by_offset is not None:
        line = adapters.get_config_line(loaded, by_offset)
        raise ConfigProblem(
            f"table {table} has `tombstones: delete`, so its changes are in the order of their topic. Rows of a backfill "
            f"have no position in it ({line})",
            next_step=ALTERNATIVE_STEP,
        )
    return [adapters.build_lane(loaded, lane) for lane in settings]


def _build_reader(loaded: Loaded, table: str, source: str) -> Backfill:
    settings: Any = loaded.settings.sources[source]
    reader: Backfill = load_adapter("replicator.backfills", settings.database.kind)(
        build_reader_options(loaded, table, source)
    )
    return reader


def build_reader_options(loaded: Loaded, table: str, source: str) -> dict[str, Any]:
    """The options of an adapter that reads a whole table of the source's database."""
    settings: Any = loaded.settings.sources[source]
    keys = adapters.find_keys(loaded.settings.resolve_lanes(table, source)) or None
    options = to_plain_options(settings)
    masks = adapters.find_masks(loaded, table, source)
    private: dict[str, Any] = {}
    if masks:
        rules = [
            (name, mask.kind, mask.length, mask.text, mask.key and hmac.new(mask.key, name.encode(), "sha256").hexdigest())
            for name, mask in sorted(masks.items())
        ]
        # The decoder of the stream masks private columns before rows are written to the journal.
        decoder = adapters.build_unfiltered_decoder(loaded, source)
        private = {"private": decoder, "masked": tuple(masks), "masks": repr(rules)}
    return {
        **options["database"],
        "connect": options.get("connect"),
        "table": table,
        "keys": keys,
        "state": str(adapters.get_backfills_folder(loaded, source)),
        "plain_names": get_format(settings.format).has_plain_names,
        **private,
    }


def _refuse_taken_target(components: ConfiguredComponents, lane: Lane) -> None:
    """ConfigProblem if the target of the lane has no valid name, or belongs to another table."""
    if problem := find_target_problem(lane, components.register.load(lane.source)):
        raise problem


def _find_older_rows(components: ConfiguredComponents, lane: Lane, where: str) -> pa.Table | None:
    _refuse_taken_target(components, lane)  # The lanes of a new table began only when its rows were read.
    with closing(components.open_sink(lane.sink)) as sink:
        reader = require_feature(
            sink.features.reader, f"sink {lane.sink} cannot be queried for its rows", next_step=ALTERNATIVE_STEP
        )
        return reader.read(lane.into, where=where) if lane.into in reader.tables() else None


def _run_here(loaded: Loaded) -> Sequence[Mapping[str, Any]]:
    container = Container(loaded=loaded)
    run_until_caught_up(container)
    lanes: Sequence[Mapping[str, Any]] = container.status().report().to_dict()["lanes"]
    return lanes


# Compares tables of sources with their targets: once, repeatedly, and with a repair of the rows that differ.

PATIENCE = 120.0


def diff_tables(
    loaded: Loaded,
    tables: Sequence[str],
    show_line: Callable[[str], None],
    *,
    sink: str | None = None,
    lane: str | None = None,
    against: str | None = None,
    where: str = "",
    show: int = 10,
    timeout: float = PATIENCE,
    rows_per_second: int | None = None,
    from_scratch: bool = False,
) -> Iterator[LaneDiff]:
    """Compare each lane of `tables`, one after the other, with its source or with the event log of its table. `against` is
    `source` or `log`; by default the source where that is possible. `where`: see `DiffOperation`. `lane`: compare only the
    lane with this id.

    ConfigProblem for a table or a sink without such lanes, and for a lane that cannot be compared. Other errors as of
    `DiffOperation.run` and `compare_with_log`.
    """
    components = ConfiguredComponents(loaded).use_local()

    def diff_with_source(lanes: Sequence[Lane]) -> Iterator[LaneDiff]:
        """Compare lanes of one table of one source."""
        comparison = build_comparison(loaded, lanes[0].table, lanes[0].source, patience=timeout)
        with closing(components.open_source(lanes[0].source)) as source:
            operation = DiffOperation(
                components, lanes, comparison, source, show_line, timeout, show, rows_per_second, from_scratch, where
            )
            yield from operation.run()

    for lanes in [list_lanes(components, table, sink, lane) for table in tables]:
        for name in dict.fromkeys(one.source for one in lanes):
            mine = [one for one in lanes if one.source == name]
            with_source = [one for one in mine if against == "source" or (against is None and has_source_rows(loaded, one))]
            if with_source:
                yield from diff_with_source(with_source)
            for one in (lane_of_log for lane_of_log in mine if lane_of_log not in with_source):
                try:
                    components.find_log(one.table)
                except ConfigProblem as problem:
                    if against is not None or not with_source:
                        raise
                    show_line(f"{one.id} is not compared: it appends every change, and {problem.sentence}")
                    continue
                yield compare_with_log(components, one, show_line, patience=timeout, show=show)


def has_source_rows(loaded: Loaded, lane: Lane) -> bool:
    """True if the target has the rows of a database that can be read."""
    return lane.policy not in CHANGE_POLICIES and adapters.has_backfills(loaded, lane.source)


def refuse_repair(loaded: Loaded, diff: LaneDiff) -> None:
    """ConfigProblem if the rows that differ cannot be written again, because their keys in the source are not known."""
    line = next(lane.config_line for lane in ConfiguredComponents(loaded).resolve_lanes(diff.table) if lane.id == diff.lane)
    if diff.against == "log":
        raise ConfigProblem(
            f"a repair takes rows from the source, and lane {diff.lane} was compared with the event log ({line})",
            next_step=f"Build the target again from the log: `replicator replay {diff.table}`. Or repair others: `--sink`.",
        )
    if not diff.keys.num_columns:
        raise ConfigProblem(
            f"rows of lane {diff.lane} cannot be repaired by their keys, which are masked or cast ({line})",
            next_step=f"Load the whole table again: `replicator backfill {diff.table}`.",
        )


def repair_table(loaded: Loaded, diff: LaneDiff, show_line: Callable[[str], None]) -> Repair:
    """Write the rows that differ again, as the source has them now. Return when the lanes of the table have applied them.

    The changes are stored with those of backfills, so all lanes of the table get them. Errors as of `refuse_repair`, of
    `ports.reads.ComparableTable.repair` and of a backfill.
    """
    refuse_repair(loaded, diff)
    components = ConfiguredComponents(loaded)
    lane = next(lane for lane in components.resolve_lanes(diff.table) if lane.id == diff.lane)
    repair = build_comparison(loaded, lane.table, lane.source).repair(diff.keys, show_line)
    build_waiter(loaded, lane.table, lane.source, show_line).wait(repair.end)
    if lane.policy in VERSION_POLICIES:
        show_line(f"{lane.id}: closed versions are unchanged. Changes of the repaired rows before now stay unknown.")
    return repair


def build_comparison(loaded: Loaded, table: str, name: str, patience: float | None = None) -> ComparableTable:
    """The reader of a table in the database of source `name`. `patience`: the longest wait for an open transaction of the
    source, in seconds; None is no limit."""
    find_source(loaded, table, name)
    settings: Any = loaded.settings.sources[name]
    comparison: ComparableTable = load_adapter("replicator.comparisons", settings.database.kind)(
        {**build_reader_options(loaded, table, name), "patience": patience}
    )
    return comparison


def build_scheduler(loaded: Loaded, lanes: LaneRuns, telemetry: Telemetry) -> DiffScheduler:
    """The scheduler of the comparisons that `verify` asks for."""

    @cache
    def list_lane_settings(table: str, source: str) -> tuple[LaneSettings, ...]:
        return tuple(lane for lane in loaded.settings.resolve_lanes(table, source) if lane.verify is not None)

    def find() -> list[ScheduledDiff]:
        # A lane that has applied nothing has no target yet.
        running = [run.lane for run in lanes.list_runs() if run.shown_status is LaneStatus.RUNNING and run.applied]
        return [
            _schedule_lane(loaded, lane, settings.verify)
            for lane in running
            for settings in list_lane_settings(lane.table, lane.source)
            if f"{settings.sink}.{settings.into}" == lane.id and settings.verify is not None
        ]

    settings = loaded.settings
    levels: list[PolicyKeys] = [settings.defaults, *settings.tables, *(one for table in settings.tables for one in table.to)]
    wanted = any(level.verify is not None for level in levels)
    return DiffScheduler(find, adapters.get_state_folder(loaded), telemetry, wanted=wanted)


def _schedule_lane(loaded: Loaded, lane: Lane, verify: VerifySettings) -> ScheduledDiff:
    def compare(show_line: Callable[[str], None]) -> LaneDiff:
        [diff] = diff_tables(loaded, [lane.table], show_line, lane=lane.id, show=0, rows_per_second=verify.rows_per_second)
        return diff

    return ScheduledDiff(lane.id, lane.table, to_timedelta(verify.every), compare)


def list_lanes(components: ConfiguredComponents, table: str, sink: str | None, lane: str | None = None) -> list[Lane]:
    """The lanes of a table, in one sink or in all, or the one with the id `lane`. ConfigProblem if there are none."""
    lanes = [one for one in components.resolve_lanes(table) if sink in (None, one.sink) and lane in (None, one.id)]
    if not lanes:
        where = f" in sink {sink!r}" if sink else ""
        raise ConfigProblem(
            f"table {table!r} has no target{where}", next_step="`replicator plan` lists the tables and their targets."
        )
    return lanes
