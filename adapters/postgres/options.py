"""Connection strings, and the locations of tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from replicator.domain.errors import ConfigProblem

from .names import quote_name


def read_dsn(dsn: SecretStr) -> str:
    """A libpq connection string or `postgresql://` URL, in clear. Also accepts SQLAlchemy's form, with the driver's name in
    the scheme.

    Raises ConfigProblem if libpq cannot parse it. libpq's own error would quote the DSN with its password.
    """
    plain = re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", dsn.get_secret_value())
    try:
        conninfo_to_dict(plain)
    except ProgrammingError:
        sentence = "`dsn` is neither a libpq connection string nor a postgresql:// URL"
        raise ConfigProblem(sentence, next_step="Correct it.") from None
    return plain


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
        settings = conninfo_to_dict(self.dsn)
        host, port = settings.get("host") or settings.get("hostaddr") or "localhost", settings.get("port") or 5432
        database = settings.get("dbname") or settings.get("user") or ""
        return f"postgres://{host}:{port}/{database}.{self.schema}.{self.table}"
