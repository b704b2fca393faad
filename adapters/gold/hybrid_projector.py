"""Projectors with inputs and tables in lakes and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.errors import ConfigProblem
from replicator.domain.projection import Groups, InputVersions, Projection, RefreshRecord, RefreshWork
from replicator.ports.projector import ReplaceResult

from ..delta.table_writer import TableWriter
from ..postgres.options import TableLocations
from .delta_projector import DeltaProjector
from .postgres_inputs import PostgresInputs
from .postgres_tables import PostgresTables


class HybridProjector(DeltaProjector):
    """`DeltaProjector` whose sinks may also be in PostgreSQL (see `TableLocations`).

    Rows from PostgreSQL, and results for it, are held in memory.
    """

    def __init__(self, options: Mapping[str, object], writer: TableWriter | None = None) -> None:
        given = options.get("sinks")
        if not isinstance(given, Mapping):
            raise ConfigProblem("option sinks is a mapping of sinks by their names")
        lakes = {name: said for name, said in given.items() if "dsn" not in said}
        super().__init__({**options, "sinks": lakes}, writer)
        self._places = TableLocations({name: said for name, said in given.items() if name not in lakes})
        self._inputs = PostgresInputs(self._places)
        self._tables = PostgresTables(self._places)

    def place(self, sink: str, table: str | None) -> str:
        return self._places.locate(sink, table).url if sink in self._places else super().place(sink, table)

    def reads(self, projection: Projection) -> InputVersions:
        elsewhere = [one for one in projection.inputs if one.sink in self._places]
        stored = replace(projection, inputs=tuple(one for one in projection.inputs if one not in elsewhere))
        found = {**super().reads(stored), **self._inputs.read_versions(projection, elsewhere)}
        return {one.name: found[one.name] for one in projection.inputs}

    def last(self, projection: Projection) -> RefreshRecord | None:
        return self._tables.read_last(projection) if projection.sink in self._places else super().last(projection)

    def replace(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> ReplaceResult:
        if projection.sink not in self._places:
            return super().replace(projection, work, record)
        rows = None if work.groups == frozenset() else self._compute_in_memory(projection, work.groups, record)
        self.looked_up()
        return self._tables.replace(projection, work, record, rows)

    def versions(self, projection: Projection) -> str:
        """See `ports.projector.Projector.versions`. PostgreSQL has no old versions."""
        return "" if projection.sink in self._places else super().versions(projection)

    def end_versions(self, projection: Projection) -> str:
        mine = projection.sink in self._places
        return self._tables.end_versions(projection) if mine else super().end_versions(projection)

    def let_go(self) -> None:
        self._inputs.release()
        super().let_go()

    def close(self) -> None:
        try:
            self.let_go()
            self._tables.close()
        finally:
            super().close()

    def _compute_in_memory(self, projection: Projection, groups: Groups | None, record: RefreshRecord) -> pa.Table:
        """The rows of the groups, or all, with the query's column names."""
        raise NotImplementedError

    def _read_newest_target(self, projection: Projection) -> DeltaTable | None:
        return None if projection.sink in self._places else super()._read_newest_target(projection)

    def _read_group_type(self, projection: Projection) -> pa.DataType | None:
        mine = projection.sink in self._places
        return self._tables.read_group_type(projection) if mine else super()._read_group_type(projection)
