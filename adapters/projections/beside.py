"""Projectors whose inputs may be in PostgreSQL, beside those in lakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from replicator.domain.errors import ConfigProblem
from replicator.domain.projections import Projection, Reads

from ..delta.projector import DeltaProjector
from ..delta.table_writer import TableWriter
from ..sql.pg_places import Places
from .pg_inputs import PostgresInputs


class BesideDatabases(DeltaProjector):
    """`DeltaProjector`; among its sinks may be some in PostgreSQL (see `Places`), whose rows are held in memory."""

    def __init__(self, options: Mapping[str, object], writer: TableWriter | None = None) -> None:
        given = options.get("sinks")
        if not isinstance(given, Mapping):
            raise ConfigProblem("option sinks is a mapping of sinks by their names")
        lakes = {name: said for name, said in given.items() if "dsn" not in said}
        super().__init__({**options, "sinks": lakes}, writer)
        self._places = Places({name: said for name, said in given.items() if name not in lakes})
        self._inputs = PostgresInputs(self._places)

    def place(self, sink: str, table: str | None) -> str:
        """See `ports.projector.Projector.place`."""
        return self._places.place(sink, table).url if sink in self._places else super().place(sink, table)

    def reads(self, projection: Projection) -> Reads:
        """See `ports.projector.Projector.reads`."""
        elsewhere = [one for one in projection.inputs if one.sink in self._places]
        stored = replace(projection, inputs=tuple(one for one in projection.inputs if one not in elsewhere))
        found = {**super().reads(stored), **self._inputs.reads(projection, elsewhere)}
        return {one.name: found[one.name] for one in projection.inputs}

    def let_go(self) -> None:
        """See `ports.projector.Projector.let_go`."""
        self._inputs.let_go()

    def close(self) -> None:
        """See `ports.projector.Projector.close`."""
        self.let_go()
        super().close()
