"""What the sinks of mirrors in a lake have in common, whoever writes the rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.errors import ConfigProblem
from replicator.domain.plan import ApplyPlan
from replicator.ports.frames import F, Lane
from replicator.ports.sink import SinkCapabilities

from .column_names import stored_columns
from .errors import translating
from .folders import Folder
from .lane_sink import LaneSink
from .lanes import Lanes, refuse_policy
from .layout import Lake
from .names import decode
from .options import TableOptions, config_place
from .partitions import (
    RANDOM_FOLDERS,
    checked_partitions,
    partition_columns,
    refuse_foreign_paths,
    refuse_other_partitions,
)
from .reading import read_table, table_name
from .schemas import remember_schema
from .tables import create, exists, refuse_unsafe, widen

POLICIES = frozenset({"scd1", "append"})
CHANGE_DATA_FEED = "delta.enableChangeDataFeed"
DELETION_VECTORS = "delta.enableDeletionVectors"
ON = "true"


class Ledger(Protocol):
    """Remembered deletes that can be forgotten."""

    def drop(self, lane: Lane) -> None:
        """Forget every delete of this lane's target."""


class Mirrors(LaneSink[F]):
    """`ports.sink.Sink` and `ports.reader.Reader` over a lake, but for the stages of a plan and their explanation.

    `tables` and `read` are safe for use from several threads.
    """

    capabilities = SinkCapabilities(atomic_across_lanes=False, policies=POLICIES, watermarks=True)

    def __init__(self, lake: Lake, lanes: Lanes, ledger: Ledger) -> None:
        self._lake = lake
        self._ledger = ledger
        super().__init__(lanes)

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """See `ports.sink.Sink.prepare`."""
        refuse_policy(lane, plan, POLICIES)
        options = TableOptions.of(lane)
        partitions = checked_partitions(lane, plan, options.partition_by)
        with translating(lane.into):
            self._lake.refuse_collision(lane.into)
            held = self._lanes.hold(lane)
            path = self._lake.table(lane.into)
            if exists(path):
                self._refuse_other_writer(lane)
            else:
                create(path, lane.into, stored_columns(plan.target), settings=_settings(options), partition_by=partitions)
                held.forget_snapshot()
            table = held.newest()
            refuse_unsafe(table, lane.into, plan.target)
            refuse_other_partitions(table, lane, options.partition_by)
            refuse_foreign_paths(table, lane.into)
            widened = widen(table, lane.into, plan.target)
            if self._switched_on(lane, table, path, options) or widened:
                held.forget_snapshot()
            remember_schema(self._lake.schemas(lane.into), plan.table)

    def _refuse_other_writer(self, lane: Lane) -> None:
        """Two lanes in one table would each write every row."""
        for home in self._lake.other_writers(lane):
            pipeline, other = decode(home.parent.name), decode(home.name)
            raise ConfigProblem(
                f"table {lane.into} is written by lane {other} of pipeline {pipeline}",
                next_step=f"Name another table with `into`, or another lake. If that lane is no more, load the table anew: "
                f"stop the daemon, remove {home} and the table's folder, and `replicator lanes resync {lane.id}`.",
            )

    def _switched_on(self, lane: Lane, table: DeltaTable, path: Folder, options: TableOptions) -> bool:
        """Give an existing table the properties it lacks; true when there were any."""
        there = table.metadata().configuration
        wanted = _settings(options) | ({RANDOM_FOLDERS: ON} if partition_columns(table) else {})
        missing = {name: value for name, value in wanted.items() if there.get(name) != value}
        if missing:
            table.alter.set_table_properties(missing)
        if options.deletion_vectors and there.get(DELETION_VECTORS) != ON:
            if not self._marks_deletes(path):
                raise ConfigProblem(
                    "delta-rs writes no deletion vectors",
                    next_step=f"Remove `deletion_vectors` in {config_place(lane)}, or set `engine: spark`.",
                )
            return True
        return bool(missing)

    def _marks_deletes(self, _: Folder, /) -> bool:
        """From now on deleted rows of the table there are marked; False where the sink cannot do that."""
        return False

    def reset(self, lane: Lane) -> None:
        """See `ports.sink.Sink.reset`. The table stays, empty, with its history; remembered deletes go."""
        super().reset(lane)
        self._ledger.drop(lane)

    def tables(self) -> Sequence[str]:
        """See `ports.reader.Reader.tables`."""
        with translating("of the lake"):
            return [table_name(folder) for folder in self._lake.folders()]

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """See `ports.reader.Reader.read`."""
        with translating(name):
            return read_table(self._lake.table(name), name, version=version, as_of=as_of, where=where, limit=limit)


def _settings(options: TableOptions) -> dict[str, str]:
    """The properties of a table that `options` ask for and every engine keeps."""
    settings = {CHANGE_DATA_FEED: ON} if options.change_data_feed else {}
    return settings | ({RANDOM_FOLDERS: ON} if options.partition_by else {})
