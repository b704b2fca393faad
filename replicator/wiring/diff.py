"""Compares tables of sources with their targets: once, repeatedly, and with a repair of the rows that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import Any

from replicator.application.lane_runs import LaneRuns, LaneStatus
from replicator.application.operations.diff import DiffOperation, compare_with_log
from replicator.application.operations.diff_runs import DiffScheduler, ScheduledDiff
from replicator.domain.differences import LaneDiff
from replicator.domain.errors import ConfigProblem
from replicator.domain.policy import CHANGE_POLICIES, VERSION_POLICIES
from replicator.ports.frames import Lane
from replicator.ports.options import to_timedelta
from replicator.ports.reads import ComparableTable, Repair
from replicator.ports.runtime import Telemetry
from replicator.settings import LaneSettings, Loaded
from replicator.settings.plugins import load_adapter
from replicator.settings.tables import PolicyKeys, VerifySettings

from . import adapters
from .backfill import build_reader_options, build_waiter, find_source
from .components import ConfiguredComponents

PATIENCE = 120.0


def diff_tables(
    loaded: Loaded,
    tables: Sequence[str],
    report: Callable[[str], None],
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
    parts = ConfiguredComponents(loaded).use_local()
    for lanes in [list_lanes(parts, table, sink, lane) for table in tables]:
        for name in dict.fromkeys(one.source for one in lanes):
            mine = [one for one in lanes if one.source == name]
            with_source = [one for one in mine if against == "source" or (against is None and has_source_rows(loaded, one))]
            if with_source:
                comparison = build_comparison(loaded, mine[0].table, name, patience=timeout)
                with closing(parts.open_source(name)) as source:
                    operation = DiffOperation(
                        parts, with_source, comparison, source, report, timeout, show, rows_per_second, from_scratch, where
                    )
                    yield from operation.run()
            for one in mine:
                if one in with_source:
                    continue
                try:
                    parts.find_log(one.table)
                except ConfigProblem as problem:
                    if against is not None or not with_source:
                        raise
                    report(f"{one.id} is not compared: it appends every change, and {problem.sentence}")
                    continue
                yield compare_with_log(parts, one, report, patience=timeout, show=show)


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


def repair_table(loaded: Loaded, diff: LaneDiff, report: Callable[[str], None]) -> Repair:
    """Write the rows that differ again, as the source has them now. Return when the lanes of the table have applied them.

    The changes are stored with those of backfills, so all lanes of the table get them. Errors as of `refuse_repair`, of
    `ports.reads.ComparableTable.repair` and of a backfill.
    """
    refuse_repair(loaded, diff)
    parts = ConfiguredComponents(loaded)
    lane = next(lane for lane in parts.resolve_lanes(diff.table) if lane.id == diff.lane)
    repair = build_comparison(loaded, lane.table, lane.source).repair(diff.keys, report)
    build_waiter(loaded, lane.table, lane.source, report).wait(repair.end)
    if lane.policy in VERSION_POLICIES:
        report(f"{lane.id}: closed versions are unchanged. Changes of the repaired rows before now stay unknown.")
    return repair


def build_comparison(loaded: Loaded, table: str, name: str, patience: float | None = None) -> ComparableTable:
    """The reader of a table in the database of source `name`. `patience`: the longest wait for an open transaction of the
    source, in seconds; None is no limit."""
    find_source(loaded, table, name)
    settings: Any = loaded.settings.sources[name]
    made: ComparableTable = load_adapter("replicator.comparisons", settings.database.kind)(
        {**build_reader_options(loaded, table, name), "patience": patience}
    )
    return made


def build_scheduler(loaded: Loaded, lanes: LaneRuns, telemetry: Telemetry) -> DiffScheduler:
    """The scheduler of the comparisons that `verify` asks for."""

    @cache
    def list_lane_settings(table: str, source: str) -> tuple[LaneSettings, ...]:
        return tuple(lane for lane in loaded.settings.resolve_lanes(table, source) if lane.verify is not None)

    def find() -> list[ScheduledDiff]:
        # A lane that has applied nothing has no target yet.
        running = [run.lane for run in lanes.list_runs() if run.shown_status is LaneStatus.RUNNING and run.applied]
        return [
            _schedule_lane(loaded, lane, said.verify)
            for lane in running
            for said in list_lane_settings(lane.table, lane.source)
            if f"{said.sink}.{said.into}" == lane.id and said.verify is not None
        ]

    settings = loaded.settings
    levels: list[PolicyKeys] = [settings.defaults, *settings.tables, *(one for table in settings.tables for one in table.to)]
    wanted = any(level.verify is not None for level in levels)
    return DiffScheduler(find, adapters.get_state_folder(loaded), telemetry, wanted=wanted)


def _schedule_lane(loaded: Loaded, lane: Lane, verify: VerifySettings) -> ScheduledDiff:
    def compare(report: Callable[[str], None]) -> LaneDiff:
        [diff] = diff_tables(loaded, [lane.table], report, lane=lane.id, show=0, rows_per_second=verify.rows_per_second)
        return diff

    return ScheduledDiff(lane.id, lane.table, to_timedelta(verify.every), compare)


def list_lanes(parts: ConfiguredComponents, table: str, sink: str | None, lane: str | None = None) -> list[Lane]:
    """The lanes of a table, in one sink or in all, or the one with the id `lane`. ConfigProblem if there are none."""
    lanes = [one for one in parts.resolve_lanes(table) if sink in (None, one.sink) and lane in (None, one.id)]
    if not lanes:
        where = f" in sink {sink!r}" if sink else ""
        raise ConfigProblem(
            f"table {table!r} has no target{where}", next_step="`replicator plan` lists the tables and their targets."
        )
    return lanes
