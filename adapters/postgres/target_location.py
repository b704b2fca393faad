"""Locations of projected tables in PostgreSQL: a sink, an event log, or the event store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from replicator.domain.errors import ConfigProblem

from .event_table import EventOptions
from .names import quote_name
from .options import EventLogOptions, PostgresOptions

EVENTS = "event_store"
HOLDS: Mapping[str, type[Any]] = {"postgres": PostgresOptions, "event_log": EventLogOptions, EVENTS: EventOptions}
"""The options class for each value of the option `holds`."""


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table of a database. `events`: it is the event store, which exists without a lane."""

    dsn: str
    schema: str
    table: str
    events: bool = False

    @property
    def relation(self) -> str:
        """Its name as SQL."""
        return quote_name(self.schema, self.table)

    @property
    def url(self) -> str:
        """Its name for people and for lineage: server, database and table, without the user."""
        said = conninfo_to_dict(self.dsn)
        host, port = said.get("host") or said.get("hostaddr") or "localhost", said.get("port") or 5432
        database = said.get("dbname") or said.get("user") or ""
        return f"postgres://{host}:{port}/{database}.{self.schema}.{self.table}"


class TableLocations:
    """Sinks in PostgreSQL by name. Options: `holds` (see `HOLDS`), and the options of its class."""

    def __init__(self, sinks: Mapping[str, Mapping[str, object]]) -> None:
        self._said: dict[str, tuple[str, Any]] = {}
        for name, said in sinks.items():
            holds = str(said.get("holds"))
            if holds not in HOLDS:
                raise ConfigProblem(f"option sinks.{name}.holds is one of {', '.join(HOLDS)}")
            own = {key: value for key, value in said.items() if key != "holds"}
            self._said[name] = (holds, HOLDS[holds].from_options(own))

    def __contains__(self, sink: object) -> bool:
        return sink in self._said

    def locate(self, sink: str, table: str | None) -> TableLocation:
        """The location of a sink's table. None: the sink is one table."""
        holds, said = self._said[sink]
        dsn = said.dsn.get_secret_value()
        return TableLocation(dsn, said.schema_name, said.table if table is None else table, holds == EVENTS)
