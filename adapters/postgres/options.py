"""Options of sinks in PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Self

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from replicator.domain.errors import ConfigProblem

from .answer_timeout import ANSWER_SECONDS


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
    """`schema`: the schema of the tables. `query_timeout`: seconds that a query may take. `answer_timeout`: see
    the module `answer_timeout`."""

    schema_name: str = Field("public", alias="schema")
    query_timeout: float = Field(60, gt=0)
    answer_timeout: float = Field(ANSWER_SECONDS, gt=0)


class EventLogOptions(PostgresOptions):
    """`schema` and `table` of the event log."""

    schema_name: str = Field("cdc_raw", alias="schema")
    table: str = "cdc_events"
