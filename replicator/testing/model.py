"""The meaning of each policy: a naive fold, one change at a time in the order of arrival, over plain dicts.

This module is the definition. It knows no plan, no engine and no target, and it shares no code with them; every engine
and every sink must end with the same rows as the model, however the stream is cut into batches, replayed or retried.

Accounting. The model gives every change exactly one `Outcome`; it has no word for `folded`, because it never looks at
two changes at once. An implementation that is handed the same changes in the same order counts them so that

    applied <= applied(model) <= applied + folded
    superseded + duplicate <= superseded(model) + duplicate(model),    rejected <= rejected(model)
    filtered = filtered(model)

with equality on the right, `applied(model) = applied + folded`, and everywhere else, when nothing was rejected and no
change came twice: what a later change of the same batch replaces is `folded` there and `applied` here, and it is also
`folded` when alone it would have been stale or incomplete. The totals are always equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .model_row_transforms import ModelRowTransforms

Key = tuple[Any, ...]
Sequence = tuple[Any, ...]
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
"""A row of a target: the table's columns, then `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_seq_1..n` (and, under `append` and
`scd2`, `_cdc_unsent`; with soft deletes `_cdc_deleted`, `_cdc_deleted_at`; under `scd2` also `__START_AT`, `__END_AT`,
`_cdc_end_seq_1..n`, `_cdc_last_seq_1..n`). `_cdc_applied_at` is the target's own and part of no equality."""


@dataclass(frozen=True)
class Change:
    """One change of one table.

    `op`: c create, u update, r read by a snapshot, d delete, t truncate. `image`: the values as sent; a column that is
    missing from it is NULL (it did not exist yet, or a delete did not carry it) unless `unsent` names it: then the source
    did not say. `moved_from` is the old key on the create half of a key change; `moved_to` is true on its delete half.
    `doubtful`: the image of a delete may be another than the row. `ignore_null`: columns in which a NULL leaves what the
    row of the key holds, if there is one. `at`: what versions show of where they begin and end, if not the event time.
    `computed`: columns whose values do not come from the source.
    `counted`: the last element of the sequence only counts changes that share the others (rows of one COPY, of a table
    without a key), and may be another one when the change is sent again. `partition`: the ordered
    log it came in. `arrived`: when it came to the target, by a clock that the test gives. `tx`: the number of its
    transaction, where the sequence does not say that.
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
    ignore_null: Container[str] = ()
    at: Any = None
    computed: frozenset[str] = frozenset()
    arrived: datetime | None = None
    doubtful: bool = False
    tx: str | None = None

    @property
    def shown_sequence(self) -> Any:
        """Where a version begins or ends, for people."""
        return self.ts if self.at is None else self.at

    def bookkeeping(self) -> Row:
        """What a target stores beside the values."""
        elements = {f"_cdc_seq_{i}": element for i, element in enumerate(self.sequence, 1)}
        return {"_cdc_op": self.op, "_cdc_ts": self.ts, "_event_id": self.event_id, **elements}


class Outcome(StrEnum):
    """What became of one change."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"  # older than what is known of its key or of the whole table
    DUPLICATE = "duplicate"  # seen before
    REJECTED = "rejected"  # INCOMPLETE: values were not sent and there is nothing to take them from; LATE; and others
    FILTERED = "filtered"  # the configuration leaves it out


class Policy(Protocol):
    """A target under one policy. `apply_change` is called once per change, in the order of arrival."""

    def apply_change(self, change: Change) -> Outcome:
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
    - A delete half of a key change takes the row that its image shows. Where the last change of the living row belongs to
      the same transaction and left other values, it is another row, which took the key before that one left it: it stays,
      and the delete is superseded; or rejected, if its image is doubtful. Where only the changes say their transaction
      (`tx`), nothing tells it of the living row: if the values differ, the row stays, and the delete is rejected. A batch
      that has the row's last change can tell, and rejects nothing.
    - A NULL in a column that is kept leaves what the living row of the key holds; without one it is NULL.
    - A truncate removes every row below its sequence; every change at or below it that comes later is superseded.
    - With a retention, deletes up to the highest one that had come a retention ago are forgotten when the first change after
      that moment comes (moments are in sixteenths of the retention, rounded up). A change at or below that one is late, and
      rejected, when its key has no row, and no delete is remembered that no truncate came after.
    """

    purged_operations = "d"

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...], retention: timedelta | None = None) -> None:
        self.columns = columns
        self.keys = keys
        self.retention = retention
        self.gone: list[tuple[datetime, Change]] = []
        self.forgotten: Sequence = ()
        self.rows: dict[Key, tuple[Sequence, Row]] = {}
        self.deletes: dict[Key, Sequence] = {}
        self.departed: dict[Key, Row] = {}
        self.floor: Sequence = ()

    def apply_change(self, change: Change) -> Outcome:
        """As the class says."""
        self._purge(change)
        if change.op == "t":
            return self._truncate_rows(change)
        key = tuple(change.image[k] for k in self.keys)
        known = max(self.deletes.get(key, ()), self.rows[key][0] if key in self.rows else ())
        if change.sequence <= max(known, self.floor):
            return Outcome.DUPLICATE if change.sequence == known else Outcome.SUPERSEDED
        absent = key not in self.rows and self.deletes.get(key, ()) <= self.floor
        if absent and change.sequence <= self.forgotten:
            return Outcome.REJECTED
        return self._delete_row(key, change) if change.op == "d" else self._put_row(key, change)

    def pass_time(self, now: datetime) -> None:
        """A record came then, be it one without a change: what is too old by that moment is forgotten."""
        if self.retention is not None:
            self._purge_all([gone for came, gone in self.gone if came <= now - self.retention])

    def _purge(self, change: Change) -> None:
        """What is too old by the time the change comes."""
        if self.retention is None or change.arrived is None:
            return
        self.pass_time(change.arrived)
        if change.op in self.purged_operations:
            part = self.retention / 16
            self.gone.append((BEGINNING + ((change.arrived - BEGINNING) // part + 1) * part, change))

    def _purge_all(self, old: list[Change]) -> None:
        floor = max((change.sequence for change in old), default=())
        if floor > self.forgotten:
            self.forgotten = floor
            self.deletes = {key: sequence for key, sequence in self.deletes.items() if sequence > floor}

    def _put_row(self, key: Key, change: Change) -> Outcome:
        base = self._find_base(key, change) if change.unsent else {}
        if base is None:
            return Outcome.REJECTED
        _, there = self.rows.get(key, ((), {}))
        values = {c: base[c] if c in change.unsent else change.image.get(c) for c in self.columns}
        kept = [c for c in self.columns if c in change.ignore_null and c not in change.unsent and values[c] is None]
        values |= {c: there.get(c) for c in kept}
        self.rows[key] = (change.sequence, values | change.bookkeeping())
        return Outcome.APPLIED

    def _find_base(self, key: Key, change: Change) -> Row | None:
        """The row that values come from which were not sent."""
        sequence, row = self._find_living(change.moved_from or key)
        if change.moved_from is None:
            return row
        return row if row is not None and sequence < change.sequence else self.departed.get(change.moved_from)

    def _find_living(self, key: Key) -> tuple[Sequence, Row | None]:
        return self.rows.get(key, ((), None))

    def _delete_row(self, key: Key, change: Change) -> Outcome:
        values = [c for c in self.columns if c not in self.keys]
        if is_other_row(change, *self._find_living(key), values):
            return another(change)
        self.deletes[key] = change.sequence
        self.departed.pop(key, None)
        _, row = self._find_living(key)
        self.rows.pop(key, None)
        if change.moved_to and row is not None:
            self.departed[key] = row
        return Outcome.APPLIED

    def _truncate_rows(self, change: Change) -> Outcome:
        if change.sequence <= self.floor:
            return Outcome.DUPLICATE if change.sequence == self.floor else Outcome.SUPERSEDED
        self.floor = change.sequence
        self.rows = {key: entry for key, entry in self.rows.items() if entry[0] >= change.sequence}
        return Outcome.APPLIED

    def table(self) -> list[Row]:
        """One row per living key."""
        return [row for _, row in self.rows.values()]


class SoftScd1(Scd1):
    """As `Scd1`, but what is deleted stays, marked: `_cdc_deleted` is true, and `_cdc_deleted_at` the time of the delete.

    - A delete leaves the values that the row had, be it marked already, and writes its own bookkeeping; it makes no row.
    - A truncate marks every living row below its sequence, and writes nothing else into it.
    - Marked rows are no living rows: values that were not sent do not come from them. An upsert above the row's sequence
      brings it back, with its own values only.
    - With a retention, truncates are forgotten as deletes are. Whenever something is forgotten, the marked rows go whose
      delete is not above what is, and those whose truncate had come a retention ago, or lies below one that had.
    """

    purged_operations = "dt"

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...], retention: timedelta | None = None) -> None:
        super().__init__(columns, keys, retention)
        self.struck: dict[Key, Sequence] = {}
        self.known: tuple[Sequence, Sequence] = ((), ())

    def _purge_all(self, old: list[Change]) -> None:
        super()._purge_all(old)
        known = self.forgotten, max((change.sequence for change in old if change.op == "t"), default=())
        if known != self.known:
            self.known = known
            self.rows = {key: entry for key, entry in self.rows.items() if not self._is_old(key, *entry)}

    def _is_old(self, key: Key, sequence: Sequence, row: Row) -> bool:
        floor, truncated = self.known
        old = self.struck[key] <= truncated if key in self.struck else sequence <= floor
        return old and bool(row["_cdc_deleted"])

    def _put_row(self, key: Key, change: Change) -> Outcome:
        outcome = super()._put_row(key, change)
        if outcome is Outcome.APPLIED:
            self.rows[key][1].update(_cdc_deleted=False, _cdc_deleted_at=None)
            self.struck.pop(key, None)
        return outcome

    def _find_living(self, key: Key) -> tuple[Sequence, Row | None]:
        sequence, row = super()._find_living(key)
        return ((), None) if row is not None and row["_cdc_deleted"] else (sequence, row)

    def _delete_row(self, key: Key, change: Change) -> Outcome:
        there = self.rows.get(key)
        outcome = super()._delete_row(key, change)
        if there is not None and outcome is Outcome.APPLIED:
            mark = {"_cdc_deleted": True, "_cdc_deleted_at": change.ts}
            self.rows[key] = (change.sequence, there[1] | change.bookkeeping() | mark)
            self.struck.pop(key, None)
        return outcome

    def _truncate_rows(self, change: Change) -> Outcome:
        before = self.rows
        outcome = super()._truncate_rows(change)
        for key in before.keys() - self.rows.keys():
            sequence, row = before[key]
            if row["_cdc_deleted"]:
                self.rows[key] = (sequence, row)
            else:
                self.rows[key] = (sequence, row | {"_cdc_deleted": True, "_cdc_deleted_at": change.ts})
                self.struck[key] = change.sequence
        return outcome


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

    def apply_change(self, change: Change) -> Outcome:
        """As the class says."""
        if self._is_late(change):
            return Outcome.REJECTED
        values = {c: None if c in change.unsent else change.image.get(c) for c in self.columns}
        identity = (*(repr(values[c]) for c in self.identity), change.sequence)
        if change.counted:
            identity = self._count_copy((*identity[:-1], change.sequence[:-1]), change.sequence)
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

    def _count_copy(self, alike: tuple[Any, ...], sequence: Sequence) -> tuple[Any, ...]:
        """Which of the changes that are alike it is, in this reading of the log."""
        if sequence <= self.last:
            self.copies.clear()
        self.last = sequence
        self.copies[alike] += 1
        return (*alike, self.copies[alike])

    def table(self) -> list[Row]:
        """One row per change."""
        return list(self.rows.values())


class Scd2:
    """Every version of every row, by sequence and not by arrival: what a reader would have written that saw the changes of
    each key in the order of their sequence.

    - A change is known by key and sequence: one that is known is a duplicate, any other counts, however late it comes.
    - A version begins with an upsert that follows nothing or a delete, or that differs from the version it follows in a
      tracked column. One that does not differ is taken into that version, whose untracked columns then hold what it says.
    - A version ends where the next one begins, at a delete of its key, or at a truncate.
    - Values that were not sent are those of the upsert before, by sequence. When the change comes there must be one, and no
      delete between the two, otherwise the change is rejected; should a delete come in between later, the values stay.
    - A key change is a delete of the old key and a create of the new one. Values that the create did not send come from the
      old key's version that ends there, or is open there, when the create comes.
    - A delete half of a key change that does not show the row which its key has, as in `Scd1`, ends nothing and is
      superseded, or rejected. The tracked columns tell.

    `untracked`: columns whose change alone begins no version. A version has the bookkeeping of the upsert it began with;
    `_cdc_last_seq_*` is the sequence of the last one that was taken into it.
    """

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...], untracked: frozenset[str] = frozenset()) -> None:
        self.columns = columns
        self.keys = keys
        self.untracked = [c for c in columns if c not in keys and c in untracked]
        self.tracked = [c for c in columns if c not in keys and c not in untracked]
        self.changes: dict[Key, dict[Sequence, Change]] = {}
        self.truncates: dict[Sequence, Change] = {}

    def apply_change(self, change: Change) -> Outcome:
        """As the class says."""
        key = tuple(change.image[k] for k in self.keys) if change.op != "t" else ()
        known = self.changes.setdefault(key, {}) if change.op != "t" else self.truncates
        if change.sequence in known:
            return Outcome.DUPLICATE
        if change.moved_to and is_other_row(change, *self._find_last(key, change.sequence), self.tracked):
            return another(change)
        if change.op not in ("d", "t") and change.unsent:
            base = self._find_alive(change.moved_from or key, change.sequence)
            if base is None:
                return Outcome.REJECTED
            image = {**change.image, **{c: base[c] for c in change.unsent}}
            change = replace(change, image=image, unsent=frozenset() if change.moved_from else change.unsent)
        known[change.sequence] = change
        return Outcome.APPLIED

    def _find_alive(self, key: Key, sequence: Sequence) -> Row | None:
        """The newest upsert of the key below that sequence, unless a delete lies between."""
        return self._find_last(key, sequence)[1]

    def _find_last(self, key: Key, sequence: Sequence) -> tuple[Sequence, Row | None]:
        """The newest change of the key below that sequence, and what the row held after it."""
        below = [(change.sequence, row) for change, row in self._list_images(key) if change.sequence < sequence]
        return below[-1] if below else ((), None)

    def _list_images(self, key: Key) -> list[tuple[Change, Row | None]]:
        """The changes of a key by sequence, each with what the row held after it; None after a delete."""
        out: list[tuple[Change, Row | None]] = []
        row: Row | None = None
        changes = self.changes.get(key, {}) | self.truncates
        for change in sorted(changes.values(), key=lambda c: c.sequence):
            if change.op in ("d", "t"):
                row = None
            else:
                kept = row or {}
                row = {
                    c: kept.get(c, change.image.get(c)) if c in change.unsent else change.image.get(c) for c in self.columns
                }
            out.append((change, row))
        return out

    def _list_versions(self, key: Key) -> list[Row]:
        versions: list[Row] = []
        open_version: Row | None = None
        for change, row in self._list_images(key):
            last = {f"_cdc_last_seq_{i}": element for i, element in enumerate(change.sequence, 1)}
            if open_version is not None and row is not None and all(is_alike(open_version[c], row[c]) for c in self.tracked):
                open_version.update({c: row[c] for c in self.untracked} | last)
                continue
            if open_version is not None:
                open_version["__END_AT"] = change.shown_sequence
                open_version.update({f"_cdc_end_seq_{i}": element for i, element in enumerate(change.sequence, 1)})
            open_version = None
            if row is not None:
                unsent = sorted(change.unsent) or None
                open_version = (
                    row | change.bookkeeping() | last | {"__START_AT": change.shown_sequence, "_cdc_unsent": unsent}
                )
                versions.append(open_version)
        return versions

    def table(self) -> list[Row]:
        """One row per version."""
        return [version for key in self.changes for version in self._list_versions(key)]


def another(change: Change) -> Outcome:
    """What becomes of a delete that `is_other_row`."""
    return Outcome.REJECTED if change.doubtful or change.tx is not None else Outcome.SUPERSEDED


def is_other_row(change: Change, last: Sequence, row: Row | None, columns: Iterable[str]) -> bool:
    """True for the delete half of a key change whose image shows another row than this, of which `last` is the newest change
    and in the same transaction: of that all have the same first element, unless columns order changes (`at`). Where the
    changes say it (`tx`), that is not asked, and a NULL is no value in columns that are kept. An image without values shows
    no row."""
    if not change.moved_to or change.at is not None or row is None:
        return False
    if change.tx is None and (len(last) < 2 or last[0] != change.sequence[0]):
        return False
    sent = {c: change.image.get(c) for c in columns if c not in change.unsent | change.computed}
    if change.tx is not None:
        sent = {c: v for c, v in sent.items() if v is not None or c not in change.ignore_null}
    return any(v is not None for v in sent.values()) and not all(is_alike(v, row[c]) for c, v in sent.items())


def is_alike(one: Any, other: Any) -> bool:
    """True for values that make no difference: NULL and NULL, NaN and NaN included, in lists too."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_alike, one, other))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124  (NaN)


MODELS: dict[str, Callable[[tuple[str, ...], tuple[str, ...]], Policy]] = {"scd1": Scd1, "append": Append, "scd2": Scd2}
"""Policy name to its meaning, called with the columns and the key columns of the table."""


def fold_changes(
    policy: str,
    columns: tuple[str, ...],
    keys: tuple[str, ...],
    changes: Iterable[Change],
    grace: timedelta | None = None,
    *,
    untracked: frozenset[str] = frozenset(),
    wanted: ModelRowTransforms | None = None,
    retention: timedelta | None = None,
    now: datetime | None = None,
) -> tuple[list[Row], Counter[Outcome]]:
    """The rows that `policy` ends with after `changes`, and how many changes had each outcome. `grace`: of a watermark;
    `untracked`: of a history; `wanted`: what the lane makes of the changes before; `retention`: of remembered deletes;
    `now`: when the last record came, where time is told."""
    from .model_column_versions import Scd1ColumnVersions  # noqa: PLC0415  (which is made of these words)

    of_source = keys
    columns, keys = (columns, keys) if wanted is None else wanted.list_names(columns, keys)
    target = MODELS[policy](columns, keys) if grace is None else Append(columns, keys, grace)
    target = Scd2(columns, keys, untracked) if untracked else target
    target = Scd1(columns, keys, retention) if retention is not None else target
    target = SoftScd1(columns, keys, retention) if wanted is not None and wanted.soft_deletes else target
    target = Scd1ColumnVersions(columns, keys) if wanted is not None and wanted.has_column_versions else target
    shaped = target if wanted is None else wanted.wrap_policy(target, of_source)
    outcomes = Counter(shaped.apply_change(change) for change in changes)
    if isinstance(target, Scd1) and now is not None:
        target.pass_time(now)
    return shaped.table(), outcomes
