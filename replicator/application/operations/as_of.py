"""Rows of a target at an earlier time or position: from the version with exactly those records, or from the event log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa

from replicator.application.lane_registry import list_lanes
from replicator.application.lane_schema import find_altered_columns
from replicator.application.sink_features import get_reader, read_schema_versions, require_feature
from replicator.domain.errors import ConfigProblem, Fatal, ReplicatorError
from replicator.domain.event_log import LogCut
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position
from replicator.domain.read_query import InvalidReadQuery, ReadTimeout
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.sink import Sink

from .checkpoint import AS_OF_TARGET, copy_newest, list_topics, prepare_lake, refuse_partial_log
from .diff_runs import open_work_folder

AsOfValue = datetime | Position
"""A time at the source, or a position: the records below it."""


@dataclass(frozen=True)
class AsOf:
    """A requested time or position, with its cut of the event log. The cut is None for a time if records are not in
    time order."""

    value: AsOfValue
    cut: LogCut | None

    @property
    def until(self) -> datetime | LogCut:
        """The end of the records to apply: the cut, or, without one, the time, which no applied record may exceed."""
        return cast(datetime, self.value) if self.cut is None else self.cut

    def __str__(self) -> str:
        if isinstance(self.value, datetime):
            return self.value.isoformat()
        return format_offsets(self.value)


class PartitionMissing(InvalidReadQuery):
    """A position lacks a partition of which the event log has records."""


def resolve_as_of(components: Components, lane: Lane, value: AsOfValue) -> AsOf:
    """Resolve `value` for the records of the lane's table. A time without zone is in UTC.

    ConfigProblem without an event log. InvalidReadQuery for a position that lacks a partition with records, has an
    unknown one, or is beyond the end of the log. Also for a time, if the arrival of tombstones cannot be ordered by
    time.
    """
    log = components.find_log(lane.table)
    topics = list_topics(components, lane)
    if isinstance(value, datetime):
        value = value if value.tzinfo else value.replace(tzinfo=UTC)
    if not topics:
        if isinstance(value, datetime):
            return AsOf(value, None)
        raise InvalidReadQuery(
            f"no record of table {lane.table} has been read yet", next_step="Start the daemon, or query by time."
        )
    with closing(components.open_sink(log.sink)) as sink:
        state = sink.state(log)
        find_cut = require_feature(sink.features.find_cut, f"the event log {log.sink} finds no records by time or position")
        cut = find_cut(topics, value, state.position if state else Position())
    if isinstance(value, Position) and cut is not None:
        _refuse_unknown_partition(value, cut)
    if cut is None and lane.deletes_by_null_records:
        raise InvalidReadQuery(
            f"records of table {lane.table} are not in the order of their times, and its tombstones, which delete rows, "
            "have no time. So the records up to that time are unknown",
            next_step="Query by position, TOPIC:PARTITION:OFFSET, as `history` and `audit` show it.",
        )
    return AsOf(value, cut)


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """A version of a target with the effect of exactly the records below a cut. `is_ahead`: its columns are those
    of later records, or unknown."""

    number: int
    is_ahead: bool


def find_version(components: Components, lane: Lane, sink: Sink[Any], as_of: AsOf) -> TargetVersion | None:
    """The newest such version of the lane's target; None if there is none, or none is known. Older ones may have
    other rules."""
    cut, versions = as_of.cut, sink.features.versions
    if cut is None or versions is None:
        return None
    begun = components.register.load(lane.source).beginnings.get(lane.id, Position())
    number = next((version for version, at in versions.read_version_positions(lane) if cut.is_at(at, begun)), None)
    if number is None:
        return None
    altered = find_altered_columns(cut, lane, read_schema_versions(sink, lane))
    if not altered:
        return TargetVersion(number, is_ahead=False)
    try:
        columns = versions.columns_at(lane.into, number)
    except Fatal:
        return TargetVersion(number, is_ahead=True)  # The version is gone.
    column_types = dict(zip(columns.names, columns.types, strict=True))
    return TargetVersion(number, any(one.is_done(column_types.get(name)) for name, one in altered.items()))


def format_offsets(position: Position) -> str:
    """The last record of each partition below the position, in the form of `history`, `audit` and `--as-of`."""
    return Position({partition: offset - 1 for partition, offset in position.items()}).to_option()


def _refuse_unknown_partition(value: Position, cut: LogCut) -> None:
    in_log, last = set(cut.firsts), format_offsets(cut.below)
    strange, missing = sorted(set(value) - in_log), sorted(in_log - set(value))
    if strange:
        step = f"There are records of: {', '.join(map(str, sorted(in_log))) or 'none'}."
        raise InvalidReadQuery(f"the event log has no records of {strange[0]}", next_step=step)
    if missing:
        raise PartitionMissing(
            f"the table's records are in {format_count(len(in_log), 'partition')}, but there is no offset for {missing[0]}",
            next_step=f"Name an offset of each partition, for example {format_offsets(Position({**cut.end, **value}))}.",
        )
    beyond = sorted(partition for partition, offset in value.items() if offset > cut.end[partition])
    if beyond:
        raise InvalidReadQuery(f"the event log ends before that offset of {beyond[0]}", next_step=f"It ends at {last}.")


ReadTable = Callable[[Sink[Any], str], pa.Table]
"""Reads a table of a sink."""
HISTORY_STEP = "`replicator history` shows the known changes of a row. If the target has versions, query one (`--version`)"


def read_rows_as_of(
    components: Components,
    lane: Lane,
    at: AsOf,
    read: ReadTable,
    seconds: float | None = None,
    *,
    show_line: Callable[[str], None] = lambda _: None,
) -> pa.Table:
    """The result of `read` on the target of `lane` as it was at `at`.

    Applies all records up to then in this process, to a temporary lake, under the lane's policy and the current
    config. It starts from the newest checkpoint that ends by then, if there is one; `show_line` gets a sentence about
    it.

    Fatal if the log has nothing that old. DataLoss if it lacks some of these records. ReadTimeout after `seconds`.
    """
    with open_work_folder(components.folder) as folder:
        base = copy_newest(components, lane, folder, at.until)
        if base is not None:
            show_line(f"starting from checkpoint {base.number}, which ends at {base.newest}")
        refuse_partial_log(components, lane, base, HISTORY_STEP)
        lake, stop = prepare_lake(components, lane, folder, base, at.until), threading.Event()
        with stop_after(seconds, stop, f"applying the event log of {lane.table} up to {at}"):
            lake.catch_up(stop, in_batches=True)
        with closing(lake.open_sink(lane.sink)) as sink:
            if AS_OF_TARGET not in get_reader(sink).tables():
                raise Fatal(
                    f"the event log of {lane.table} has no changes up to {at}",
                    next_step="Query a later time. `replicator history` shows when a row first appeared.",
                )
            return read(sink, AS_OF_TARGET).replace_schema_metadata(None)


@contextmanager
def stop_after(seconds: float | None, stop: threading.Event, doing: str) -> Iterator[None]:
    """Set `stop` after `seconds`. If that happened, ReadTimeout at the end of the block."""
    late = threading.Event()

    def end() -> None:
        late.set()
        stop.set()

    timer = threading.Timer(seconds or 0, end)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    try:
        yield
    except ReplicatorError:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise ReadTimeout(
            f"{doing} takes longer than {seconds:g} s",
            next_step="Use the command line (`replicator query`, `replicator history`), or allow more time "
            "(`serve.query_timeout`).",
        )


def find_lane_of_target(components: Components, sink: str, into: str) -> Lane:
    """The lane that writes the target `into`. ConfigProblem if the config has none."""
    for lane in list_lanes(components):
        if lane.table and lane.id == f"{sink}.{into}":
            return lane
    raise ConfigProblem(
        f"no lane of the config has the target {sink}.{into}, so its earlier rows are unknown",
        next_step="Name a target of the config, or a version (`--version`).",
    )
