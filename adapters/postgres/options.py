"""Options of sinks in PostgreSQL, and the locations of projected tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from replicator.domain.errors import ConfigProblem

from .names import quote_name


def normalize_dsn(dsn: SecretStr) -> SecretStr:
    """Also accepts SQLAlchemy's form, with the driver's name in the scheme.

    Raises ValueError if libpq cannot parse it. libpq's own error would quote the DSN with its password.
    """
    plain = re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", dsn.get_secret_value())
    try:
        conninfo_to_dict(plain)
    except ProgrammingError:
        raise ValueError("is neither a libpq connection string nor a postgresql:// URL") from None
    return SecretStr(plain)


def read_dsn(dsn: SecretStr) -> str:
    """`normalize_dsn` in clear. Raises ConfigProblem instead of ValueError."""
    try:
        return normalize_dsn(dsn).get_secret_value()
    except ValueError as why:
        raise ConfigProblem(f"`dsn` {why}", next_step="Correct it.") from None


class PostgresServerOptions(BaseModel):
    """`dsn`: a libpq connection string or `postgresql://` URL."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    dsn: Annotated[SecretStr, AfterValidator(normalize_dsn)]

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Self:
        """The options. Raises ConfigProblem with each missing, unknown or invalid option, but never with a value."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            found = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False)]
            names = [f.alias or name for name, f in cls.model_fields.items()]
            raise ConfigProblem(
                f"options of a PostgreSQL sink: {'; '.join(found)}", next_step=f"The options are: {', '.join(names)}."
            ) from None


class PostgresOptions(PostgresServerOptions):
    """`schema`: the schema of the tables."""

    schema_name: str = Field("public", alias="schema")


class EventLogOptions(PostgresOptions):
    """`schema` and `table` of the event log."""

    schema_name: str = Field("cdc_raw", alias="schema")
    table: str = "cdc_events"


class EventOptions(PostgresServerOptions):
    """`schema` and `table` of the events."""

    schema_name: str = Field("events", alias="schema", min_length=1, max_length=63)
    table: str = Field("events", min_length=1, max_length=50)


# Locations of projected tables: a sink, an event log, or the event store.

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
