"""Options of the source for event logs in PostgreSQL."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from ....postgres.options import TableLocation, normalize_dsn
from ..options import LogOptions


class PostgresLogOptions(LogOptions):
    """`dsn`, `schema` and `table`: as in the `event_log` sink that writes it."""

    transport: Literal["postgres_log"] = "postgres_log"
    dsn: Annotated[SecretStr, AfterValidator(normalize_dsn)]
    schema_name: str = Field("cdc_raw", alias="schema")
    table: str = "cdc_events"

    @property
    def place(self) -> TableLocation:
        """The location of the table."""
        return TableLocation(self.dsn.get_secret_value(), self.schema_name, self.table)
