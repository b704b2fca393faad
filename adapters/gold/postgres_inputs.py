"""Inputs of projections in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from replicator.domain.projection import InputVersions, Projection, ProjectionInput

from ..postgres.options import TableLocation, TableLocations
from .delta_projector import missing_input_error
from .postgres_snapshot import PostgresSnapshot


class PostgresInputs:
    """Versions and rows of inputs.

    The inputs of a projection in one database are read in one snapshot, from `read_versions` until `release`. A
    database has no old versions, so versions cannot be compared.
    """

    def __init__(self, places: TableLocations) -> None:
        self._places = places
        self._moments: dict[str, PostgresSnapshot] = {}

    def read_versions(self, projection: Projection, inputs: Sequence[ProjectionInput]) -> InputVersions:
        self.release()
        placed = {one.name: self._locate(one) for one in inputs}
        for dsn in dict.fromkeys(place.dsn for place in placed.values()):
            self._moments[dsn] = PostgresSnapshot(dsn, [place for place in placed.values() if place.dsn == dsn])
        lacking = [place for moment in self._moments.values() for place in moment.lacking]
        found = {}
        for one in sorted(inputs, key=lambda each: placed[each.name] not in lacking):
            place = placed[one.name]
            read = None if place in lacking else self._moments[place.dsn].read_version(place)
            if read is None:
                raise missing_input_error(projection, one)
            found[one.name] = read
        return found

    def read_rows(self, one: ProjectionInput) -> pa.Table:
        """The rows of the version that `read_versions` found, with the columns that the query may read."""
        place = self._locate(one)
        return self._moments[place.dsn].read_rows(place, one.columns)

    def release(self) -> None:
        for moment in self._moments.values():
            moment.close()
        self._moments.clear()

    def _locate(self, one: ProjectionInput) -> TableLocation:
        return self._places.locate(one.sink, one.table)
