"""Transactions of a source: what a stream tells of them, and up to which of them a target is complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from .position import TopicPartition
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class TransactionMark:
    """A record that says that a transaction began or, with `ended`, that it ended.

    `tx` is the transaction as changes name it (`_tx`), `name` as the source does. `events` (of an end): how many changes it
    made to each table. `at`: when, as the source says.
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
    """What some records of one partition hold of a transaction: `count` changes to `table`, at the offsets `first` to
    `last`.

    Told exactly (`ports.engine.TracksTransactions.exact_parts`): `changes`, how many different ones they are at least, which
    are fewer where the source sent some again; the lowest and the highest place in the log that they have, None where one
    has none.
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
    """Published with the rows: up to which transaction of `source` all its tables in a target are complete.

    `transaction` is the source's name of it, None while none is known; `ended_at` its end. `exact`: the target holds
    nothing beyond it either, so that all tables together are as the source was after it. Otherwise rows of later
    transactions may be there, whole or in part. `behind`: lanes that are not with the others.
    """

    source: str
    transaction: str | None = None
    ended_at: datetime | None = None
    exact: bool = False
    behind: tuple[str, ...] = ()
