"""The meaning of each policy: a naive fold, one change at a time in the order of arrival, over plain dicts.

This module is the definition. It knows no plan, no engine and no target, and it shares no code with them; every engine
and every sink must end with the same rows as the model, however the stream is cut into batches, replayed or retried.

Accounting. The model gives every change exactly one `Outcome`; it has no word for `folded`, because it never looks at
two changes at once. An implementation that is handed the same changes in the same order counts them so that

    applied <= applied(model) <= applied + folded
    superseded + duplicate <= superseded(model) + duplicate(model),    rejected <= rejected(model)

with equality on the right, `applied(model) = applied + folded`, and everywhere else, when nothing was rejected and no
change came twice: what a later change of the same batch replaces is `folded` there and `applied` here, and it is also
`folded` when alone it would have been stale or incomplete. The totals are always equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

Key = tuple[Any, ...]
Sequence = tuple[int, ...]
Row = dict[str, Any]
"""A row of a target: the table's columns, then `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_seq_1..n` (and, under `append`,
`_cdc_unsent`). `_cdc_applied_at` is the target's own and part of no equality."""


@dataclass(frozen=True)
class Change:
    """One change of one table.

    `op`: c create, u update, r read by a snapshot, d delete, t truncate. `image`: the values as sent; a column that is
    missing from it is NULL (it did not exist yet, or a delete did not carry it) unless `unsent` names it: then the source
    did not say. `moved_from` is the old key on the create half of a key change; `moved_to` is true on its delete half.
    `counted`: the last element of the sequence only counts changes that share the others (rows of one COPY, of a table
    without a key), and may be another one when the change is sent again. `partition`: the ordered log it came in.
    """

    op: str
    sequence: Sequence
    image: Mapping[str, Any]
    unsent: frozenset[str] = frozenset()
    moved_from: Key | None = None
    moved_to: bool = False
    ts: datetime | None = None
    event_id: str = ""
    counted: bool = False
    partition: int = 0

    def bookkeeping(self) -> Row:
        """What a target stores beside the values."""
        elements = {f"_cdc_seq_{i}": element for i, element in enumerate(self.sequence, 1)}
        return {"_cdc_op": self.op, "_cdc_ts": self.ts, "_event_id": self.event_id, **elements}


class Outcome(StrEnum):
    """What became of one change."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"  # older than what is known of its key or of the whole table
    DUPLICATE = "duplicate"  # seen before
    REJECTED = "rejected"  # INCOMPLETE: values were not sent and there is nothing to take them from; or LATE


class Policy(Protocol):
    """A target under one policy. `take` is called once per change, in the order of arrival."""

    def take(self, change: Change) -> Outcome:
        """Apply one change to the target, or say why not."""

    def table(self) -> list[Row]:
        """The rows of the target now, in no particular order (`append`: in the order of arrival)."""


class Scd1:
    """Current rows; a delete removes the row (hard delete).

    - A change at or below what is known of its key is dropped: the sequence of its row, of its remembered delete, of the
      last truncate. Equal to what is known of the key itself: a duplicate; below: superseded.
    - Values that were not sent keep what the living row holds; without a living row the change is rejected.
    - A key change is a delete of the old key and a create of the new one. Values that the create did not send come from the
      old row as it was: as the delete half found it, or as it is when that half has not come yet.
    - A truncate removes every row below its sequence; every change at or below it that comes later is superseded.
    """

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...]) -> None:
        self.columns = columns
        self.keys = keys
        self.rows: dict[Key, tuple[Sequence, Row]] = {}
        self.deletes: dict[Key, Sequence] = {}
        self.departed: dict[Key, Row] = {}
        self.floor: Sequence = ()

    def take(self, change: Change) -> Outcome:
        """As the class says."""
        if change.op == "t":
            return self._truncate(change)
        key = tuple(change.image[k] for k in self.keys)
        known = max(self.deletes.get(key, ()), self.rows[key][0] if key in self.rows else ())
        if change.sequence <= max(known, self.floor):
            return Outcome.DUPLICATE if change.sequence == known else Outcome.SUPERSEDED
        return self._delete(key, change) if change.op == "d" else self._put(key, change)

    def _put(self, key: Key, change: Change) -> Outcome:
        base = self._base(key, change) if change.unsent else {}
        if base is None:
            return Outcome.REJECTED
        values = {c: base[c] if c in change.unsent else change.image.get(c) for c in self.columns}
        self.rows[key] = (change.sequence, values | change.bookkeeping())
        return Outcome.APPLIED

    def _base(self, key: Key, change: Change) -> Row | None:
        """The row that values come from which were not sent."""
        sequence, row = self.rows.get(change.moved_from or key, ((), None))
        if change.moved_from is None:
            return row
        return row if row is not None and sequence < change.sequence else self.departed.get(change.moved_from)

    def _delete(self, key: Key, change: Change) -> Outcome:
        self.deletes[key] = change.sequence
        self.departed.pop(key, None)
        _, row = self.rows.pop(key, ((), None))
        if change.moved_to and row is not None:
            self.departed[key] = row
        return Outcome.APPLIED

    def _truncate(self, change: Change) -> Outcome:
        if change.sequence <= self.floor:
            return Outcome.DUPLICATE if change.sequence == self.floor else Outcome.SUPERSEDED
        self.floor = change.sequence
        self.rows = {key: entry for key, entry in self.rows.items() if entry[0] >= change.sequence}
        return Outcome.APPLIED

    def table(self) -> list[Row]:
        """One row per living key."""
        return [row for _, row in self.rows.values()]


class Append:
    """Every change as a row, truncates included, in the order of arrival.

    A change that is there already is a duplicate: same key and sequence; without a key, same values and sequence. Where the
    sequence ends in a count, the n-th of changes that are equal but for it is the same in every reading of the log; the
    source begins to read anew where the sequence does not rise. Values that were not sent are NULL and named in
    `_cdc_unsent`.

    With a watermark, a change is late, and rejected, when its event time lies more than the grace before the newest one
    among the changes that came before it in its partition. That is asked first: a late change was never there, so it is
    late again when it is sent again. What a snapshot reads has the time of reading, and what has no event time none:
    neither is ever late, and neither makes others late.
    """

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...], grace: timedelta | None = None) -> None:
        self.columns = columns
        self.identity = keys or columns
        self.grace = grace
        self.newest: dict[int, datetime] = {}
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.copies: Counter[tuple[Any, ...]] = Counter()
        self.last: Sequence = ()

    def take(self, change: Change) -> Outcome:
        """As the class says."""
        if self._is_late(change):
            return Outcome.REJECTED
        values = {c: None if c in change.unsent else change.image.get(c) for c in self.columns}
        identity = (*(repr(values[c]) for c in self.identity), change.sequence)
        if change.counted:
            identity = self._copy((*identity[:-1], change.sequence[:-1]), change.sequence)
        if identity in self.rows:
            return Outcome.DUPLICATE
        self.rows[identity] = values | change.bookkeeping() | {"_cdc_unsent": sorted(change.unsent) or None}
        return Outcome.APPLIED

    def _is_late(self, change: Change) -> bool:
        if self.grace is None or change.ts is None or change.op == "r":
            return False
        newest = self.newest.get(change.partition, change.ts)
        self.newest[change.partition] = max(newest, change.ts)
        return newest - change.ts > self.grace

    def _copy(self, alike: tuple[Any, ...], sequence: Sequence) -> tuple[Any, ...]:
        """Which of the changes that are alike it is, in this reading of the log."""
        if sequence <= self.last:
            self.copies.clear()
        self.last = sequence
        self.copies[alike] += 1
        return (*alike, self.copies[alike])

    def table(self) -> list[Row]:
        """One row per change."""
        return list(self.rows.values())


MODELS: dict[str, Callable[[tuple[str, ...], tuple[str, ...]], Policy]] = {"scd1": Scd1, "append": Append}
"""Policy name to its meaning, called with the columns and the key columns of the table."""


def fold(
    policy: str,
    columns: tuple[str, ...],
    keys: tuple[str, ...],
    changes: Iterable[Change],
    grace: timedelta | None = None,
) -> tuple[list[Row], Counter[Outcome]]:
    """The rows that `policy` ends with after `changes`, and how many changes had each outcome. `grace`: of a watermark."""
    target = MODELS[policy](columns, keys) if grace is None else Append(columns, keys, grace)
    outcomes = Counter(target.take(change) for change in changes)
    return target.table(), outcomes
