"""Connectors that may lose rows before they send them, and what helps."""

from __future__ import annotations

import re
from dataclasses import dataclass

VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})\.")
WITHOUT_LOSS = (3, 7)
"""Debezium's PostgreSQL connector from 3.7.0 on. Before it, a restart took a log position for done of which more rows came
(those of one COPY), and with transaction metadata it skipped rows of transactions that PostgreSQL 17 decodes anew. Every
version may skip rows by where it was stopped, of which records show nothing: doctor looks at stopped connectors."""
FIRST_AFFECTED_SERVER = 17


@dataclass(frozen=True, slots=True)
class Connector:
    """What wrote records, as they say themselves: Debezium's name of the connector, its version, its
    `provide.transaction.metadata`, None where that is not known, and its `topic.prefix`, which an upgrade keeps."""

    name: str
    version: str
    has_metadata: bool | None = None
    prefix: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """What stays when it is upgraded or set otherwise."""
        return self.name, self.prefix


@dataclass(frozen=True, slots=True)
class RowLoss:
    """What a connector may lose, in one sentence, and what to do."""

    sentence: str
    next_step: str


def find_row_loss(connector: Connector, *, server: int | None = None) -> RowLoss | None:
    """What the connector may lose when it is restarted; None where nothing is known that it loses. `server`: the major
    version of its database, None where that is not known."""
    found = VERSION.match(connector.version)
    if connector.name != "postgresql" or found is None or (int(found[1]), int(found[2])) >= WITHOUT_LOSS:
        return None
    what, until_then = "rows of one COPY", ""
    if connector.has_metadata is not False and (server is None or server >= FIRST_AFFECTED_SERVER):
        unknown = [f"PostgreSQL {FIRST_AFFECTED_SERVER} or newer"] if server is None else []
        unknown += ["provide.transaction.metadata=true"] if connector.has_metadata is None else []
        where = f" ({' with '.join(unknown)})" if unknown else ""
        what += f", and rows of transactions that are open meanwhile{where}"
        until_then = " Until then, provide.transaction.metadata=false keeps the rows of open transactions."
    sentence = f"Debezium's PostgreSQL connector {connector.version} may lose rows when it is restarted: {what}."
    step = f"Upgrade the connector to 3.7.0 or newer, then load the tables again: `replicator backfill TABLE`.{until_then}"
    return RowLoss(sentence, step)
