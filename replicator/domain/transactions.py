"""Transactions of a source, and the completeness watermark of a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from .position import TopicPartition
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
