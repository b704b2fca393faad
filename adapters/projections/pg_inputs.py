"""Inputs of projections in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from replicator.domain.projections import Input, Projection, Reads

from ..delta.projector import not_there
from ..sql.pg_moment import Moment
from ..sql.pg_places import Place, Places


class PostgresInputs:
    """Versions and rows of inputs: those of a projection that are in one database are of one moment, which is held from
    `reads` until `let_go`. A database keeps no earlier versions, so there is nothing to compare a version with."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._moments: dict[str, Moment] = {}

    def reads(self, projection: Projection, inputs: Sequence[Input]) -> Reads:
        """See `ports.projector.Projector.reads`."""
        self.let_go()
        placed = {one.name: self._place(one) for one in inputs}
        for dsn in dict.fromkeys(place.dsn for place in placed.values()):
            self._moments[dsn] = Moment(dsn, [place for place in placed.values() if place.dsn == dsn])
        lacking = [place for moment in self._moments.values() for place in moment.lacking]
        found = {}
        for one in sorted(inputs, key=lambda each: placed[each.name] not in lacking):
            place = placed[one.name]
            read = None if place in lacking else self._moments[place.dsn].read(place)
            if read is None:
                raise not_there(projection, one)
            found[one.name] = read
        return found

    def rows(self, one: Input) -> pa.Table:
        """The rows of the version that `reads` found, in the columns that the query may look at."""
        place = self._place(one)
        return self._moments[place.dsn].rows(place, one.columns)

    def let_go(self) -> None:
        """See `ports.projector.Projector.let_go`."""
        for moment in self._moments.values():
            moment.end()
        self._moments.clear()

    def _place(self, one: Input) -> Place:
        return self._places.place(one.sink, one.table)
