"""Transactions of a source, the completeness watermark of a target, and the rows that a connector may lose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from .position import TopicPartition

if TYPE_CHECKING:  # Shell completion reads the register, which has a connector, without loading pyarrow.
    from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class TransactionMark:
    """A record that marks the begin of a transaction or, with `ended`, its end.

    `tx` is the transaction as in changes (`_tx`), `name` its name at the source. `events` (of an end): the number of
    its changes to each table. `at`: the source's time.
    """

    partition: TopicPartition
    offset: int
    tx: str
    name: str
    ended: bool
    events: Mapping[str, int] = field(default_factory=dict)
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """The changes of one transaction to `table` in some records of one partition: `count` changes, at the offsets
    `first` to `last`.

    The exact form (`ports.engine.TransactionTracking.exact_parts`) also has `changes`, a lower bound of the number of
    different changes. It is less than `count` if the source sent some again. `low` and `high` are their lowest and
    highest positions in the source's log, None if one of the changes has no position.
    """

    tx: str
    table: str
    partition: TopicPartition
    count: int
    first: int
    last: int
    changes: int = 0
    low: Sequence | None = None
    high: Sequence | None = None


@dataclass(frozen=True, slots=True)
class CompletenessWatermark:
    """The transaction up to which all tables of `source` in a target are complete. Published with the rows.

    `transaction` is the source's name of it, None if none is known; `ended_at` is its end. `exact`: the target has
    nothing beyond it, so all tables together are as the source was after it. Otherwise rows of later transactions may
    exist, completely or partly. `behind`: lanes that have not caught up.
    """

    source: str
    transaction: str | None = None
    ended_at: datetime | None = None
    exact: bool = False
    behind: tuple[str, ...] = ()


# The connector that wrote the records. Some may lose rows before they send them.

VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})\.")
WITHOUT_LOSS = (3, 7)
"""The first version of Debezium's PostgreSQL connector without these losses, 3.7.0. After a restart, older versions
skipped the remaining rows of a COPY at a position they had already stored. With transaction metadata they also skipped
rows of transactions that PostgreSQL 17 decodes again. Any version may skip rows depending on where it was stopped.
Records do not show that, so `doctor` checks stopped connectors."""
FIRST_AFFECTED_SERVER = 17


@dataclass(frozen=True, slots=True)
class Connector:
    """The connector that wrote records, according to these records: Debezium's name of it, its version, its
    `provide.transaction.metadata` (None if it is not known), and its `topic.prefix`, which an upgrade keeps."""

    name: str
    version: str
    has_metadata: bool | None = None
    prefix: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """The part that stays the same after an upgrade or a change of settings."""
        return self.name, self.prefix


@dataclass(frozen=True, slots=True)
class RowLoss:
    """The possible loss of a connector, in one sentence, and the next step."""

    sentence: str
    next_step: str


def find_row_loss(connector: Connector, *, server: int | None = None) -> RowLoss | None:
    """The rows that the connector may lose when it is restarted; None if no loss is known. `server`: the major version
    of its database, None if it is not known."""
    version = VERSION.match(connector.version)
    if connector.name != "postgresql" or version is None or (int(version[1]), int(version[2])) >= WITHOUT_LOSS:
        return None
    lost_rows, until_then = "rows of one COPY", ""
    if connector.has_metadata is not False and (server is None or server >= FIRST_AFFECTED_SERVER):
        unknown = [f"PostgreSQL {FIRST_AFFECTED_SERVER} or newer"] if server is None else []
        unknown += ["provide.transaction.metadata=true"] if connector.has_metadata is None else []
        where = f" ({' with '.join(unknown)})" if unknown else ""
        lost_rows += f", and rows of transactions that are open meanwhile{where}"
        until_then = " Until then, provide.transaction.metadata=false keeps the rows of open transactions."
    sentence = f"Debezium's PostgreSQL connector {connector.version} may lose rows when it is restarted: {lost_rows}."
    step = f"Upgrade the connector to 3.7.0 or newer, then load the tables again: `replicator backfill TABLE`.{until_then}"
    return RowLoss(sentence, step)
