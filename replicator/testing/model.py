"""The meaning of each policy: a simple fold over plain dicts, one change at a time, in the order of arrival.

This module is the definition of the policies. It uses no plan, engine or target and shares no code with them. Every
engine and sink must end with the same rows as the model. This holds for any division of the stream into batches, and
after replays and retries.

Outcomes. The model gives every change exactly one `Outcome`. It has no outcome `folded`, because it never combines
two changes. The counts of an implementation, for the same changes in the same order, satisfy:

    applied <= applied(model) <= applied + folded
    superseded + duplicate <= superseded(model) + duplicate(model),    rejected <= rejected(model)
    filtered = filtered(model)

If no change was rejected and none came twice, `applied(model) = applied + folded`, and the other inequalities are
equalities too. A change that a later change of its batch replaces is `folded` in the implementation and `applied`
here. It is also `folded` if it would be stale or incomplete on its own. The totals are always equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .model_transforms import ModelRowTransforms

Key = tuple[Any, ...]
Sequence = tuple[Any, ...]
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
"""A row of a target: the table's columns, then `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_seq_1..n`.

- `append`, `scd2` and column versions add `_cdc_unsent`.
- Soft deletes add `_cdc_deleted`, `_cdc_deleted_at`.
- `scd2` adds `__START_AT`, `__END_AT`, `_cdc_end_seq_1..n`, `_cdc_last_seq_1..n`.

The target writes `_cdc_applied_at` itself; comparisons ignore it.
"""


@dataclass(frozen=True)
class Change:
    """One change of one table.

    - `op`: c create, u update, r read by a snapshot, d delete, t truncate.
    - `image`: the values as sent. A missing column is NULL (it did not exist yet, or the delete did not carry it),
      unless `unsent` names it.
    - `unsent`: columns whose value the source did not send.
    - `moved_from`: the old key, on the create half of a key change. `moved_to`: true on its delete half.
    - `ts`: the event time. `at`: replaces the event time where versions show their start and end.
    - `counted`: the last element of the sequence only numbers changes that share the other elements (rows of one
      COPY, of a table without a key). It may differ when the change is sent again.
    - `partition`: the ordered log of the change. `arrived`: the time of arrival at the target, by the clock of the
      test.
    - `truncated`: the highest truncate among the changes that are written together with this one.
    - `ignore_null`: columns in which a NULL keeps the value of the existing row of the key.
    - `computed`: columns whose values do not come from the source.
    - `doubtful`: the image of a delete may show another row than the one that was deleted.
    - `tx`: the transaction number, if the sequence does not contain it.
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
    truncated: Sequence = ()
    doubtful: bool = False
    tx: str | None = None

    @property
    def shown_sequence(self) -> Any:
        """The start or end of a version, as readers see it."""
        return self.ts if self.at is None else self.at

    def bookkeeping(self) -> Row:
        """The metadata that a target stores with the values."""
        elements = {f"_cdc_seq_{i}": element for i, element in enumerate(self.sequence, 1)}
        return {"_cdc_op": self.op, "_cdc_ts": self.ts, "_event_id": self.event_id, **elements}


class Outcome(StrEnum):
    """The result of one change."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"  # older than the state of its key or of the table
    DUPLICATE = "duplicate"  # seen before
    REJECTED = "rejected"  # INCOMPLETE: values were not sent, and no row has them; LATE; and others
    FILTERED = "filtered"  # excluded by the configuration


class Policy(Protocol):
    """A target under one policy. `apply_change` is called once per change, in the order of arrival."""

    def apply_change(self, change: Change) -> Outcome:
        """Apply one change to the target, or return why it was not applied."""

    def table(self) -> list[Row]:
        """The rows of the target now, in no particular order (`append`: in the order of arrival)."""


class Scd1:
    """Current rows. A delete removes the row (hard delete).

    - A change is dropped if its sequence is at or below the sequence of its row, its tombstone, or the last truncate.
      It is a duplicate if it equals the newest of its row and tombstone, otherwise superseded.
    - Values that were not sent keep the value of the living row. Without a living row the change is rejected.
    - A key change is a delete of the old key and a create of the new one. Values that the create did not send come
      from the old row as the delete half found it. If that half has not arrived, they come from the row as it is now.
    - The delete half of a key change removes the row that its image shows. The living row is another row if its
      last change belongs to the same transaction and left other values. It got the key before the moved row left it.
      Then the row stays, and the delete is superseded, or rejected if its image is doubtful.
    - If the transaction is only in the changes (`tx`), the one of the living row is unknown. If the values differ,
      the row stays, and the delete is rejected. A batch that contains the row's last change can decide, and rejects
      nothing.
    - A NULL in a column of `ignore_null` keeps the value of the living row. Without a living row it is NULL.
    - A truncate removes every row below its sequence. Later arrivals at or below it are superseded.
    - With `retention`, tombstones are purged up to the highest delete that arrived at least a retention ago.
      Arrival times are rounded up to sixteenths of the retention. The first change after that time triggers the
      purge. A change at or below the purged sequence is late if its key has neither a row nor a tombstone above the
      last truncate. It is rejected. For this a truncate counts from the beginning of the write that it belongs to.
    """

    purged_operations = "d"
    keeps_truncated = False

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...], retention: timedelta | None = None) -> None:
        self.columns = columns
        self.keys = keys
        self.retention = retention
        self.gone: list[tuple[datetime, Change]] = []
        """The deletes that arrived, with soft deletes the truncates too: each with its rounded time of arrival."""
        self.forgotten: Sequence = ()
        """The purged sequence: the highest of the purged deletes."""
        self.rows: dict[Key, tuple[Sequence, Row]] = {}
        self.deletes: dict[Key, Sequence] = {}
        self.departed: dict[Key, Row] = {}
        """By old key: the row that a key change has taken away."""
        self.floor: Sequence = ()
        """The sequence of the last truncate."""

    def apply_change(self, change: Change) -> Outcome:
        # Purge tombstones that are too old when the change arrives, and note the arrival time of a delete.
        if self.retention is not None and change.arrived is not None:
            self.pass_time(change.arrived)
            if change.op in self.purged_operations:
                part = self.retention / 16
                self.gone.append((BEGINNING + ((change.arrived - BEGINNING) // part + 1) * part, change))
        if change.op == "t":
            return self._truncate_rows(change)
        key = tuple(change.image[k] for k in self.keys)
        newest = max(self.deletes.get(key, ()), self.rows[key][0] if key in self.rows else ())
        if change.sequence <= max(newest, self.floor):
            return Outcome.DUPLICATE if change.sequence == newest else Outcome.SUPERSEDED
        if change.sequence <= self.forgotten and not self._is_known(key, change.truncated):
            return Outcome.REJECTED
        return self._delete_row(key, change) if change.op == "d" else self._put_row(key, change)

    def _is_known(self, key: Key, truncated: Sequence) -> bool:
        """The key has a row, or a tombstone above the last truncate, once the truncate of the write is applied."""
        has_row = key in self.rows and (self.keeps_truncated or self.rows[key][0] >= truncated)
        return has_row or self.deletes.get(key, ()) > max(self.floor, truncated)

    def pass_time(self, now: datetime) -> None:
        """A record arrived at `now`, with or without a change: purge the tombstones that are too old by then."""
        if self.retention is not None:
            self._purge_all([deleted for deleted_at, deleted in self.gone if deleted_at <= now - self.retention])

    def _purge_all(self, old: list[Change]) -> None:
        floor = max((change.sequence for change in old), default=())
        if floor > self.forgotten:
            self.forgotten = floor
            self.deletes = {key: sequence for key, sequence in self.deletes.items() if sequence > floor}

    def _put_row(self, key: Key, change: Change) -> Outcome:
        base = self._find_base(key, change) if change.unsent else {}
        if base is None:
            return Outcome.REJECTED
        _, stored_row = self.rows.get(key, ((), {}))
        values = {c: base[c] if c in change.unsent else change.image.get(c) for c in self.columns}
        ignored = [c for c in self.columns if c in change.ignore_null and c not in change.unsent and values[c] is None]
        values |= {c: stored_row.get(c) for c in ignored}
        self.rows[key] = (change.sequence, values | change.bookkeeping())
        return Outcome.APPLIED

    def _find_base(self, key: Key, change: Change) -> Row | None:
        """The row that supplies the values that were not sent."""
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
    """Like `Scd1`, but deleted rows stay, marked with `_cdc_deleted` = true and `_cdc_deleted_at` = time of the
    delete.

    - A delete keeps the values of the row, marked or not, and writes its own metadata. It never creates a row.
    - A truncate marks every living row below its sequence and changes nothing else in it.
    - A marked row is not a living row: it supplies no missing values. An upsert above its sequence restores it, with
      only the values of the upsert.
    - With `retention`, truncates are purged like deletes. A purge removes the marked rows whose delete is at or
      below the purged sequence. It also removes the rows whose truncate is at or below the highest truncate that
      arrived a retention ago.
    """

    purged_operations = "dt"
    keeps_truncated = True

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...], retention: timedelta | None = None) -> None:
        super().__init__(columns, keys, retention)
        self.struck: dict[Key, Sequence] = {}
        """By key of a row that a truncate has marked: the sequence of the truncate."""
        self.known: tuple[Sequence, Sequence] = ((), ())
        """The purged sequence, and the highest purged truncate, at the last purge."""

    def _purge_all(self, old: list[Change]) -> None:
        super()._purge_all(old)
        purged = self.forgotten, max((change.sequence for change in old if change.op == "t"), default=())
        if purged != self.known:
            self.known = purged
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
        stored_row = self.rows.get(key)
        outcome = super()._delete_row(key, change)
        if stored_row is not None and outcome is Outcome.APPLIED:
            mark = {"_cdc_deleted": True, "_cdc_deleted_at": change.ts}
            self.rows[key] = (change.sequence, stored_row[1] | change.bookkeeping() | mark)
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

    A change that is already stored is a duplicate: same key and sequence, or, without a key, same values and
    sequence. If the sequence ends in a count (`counted`), equal changes are numbered from 1 in each reading of the
    log instead. A sequence that does not rise starts a new reading. Values that were not sent are NULL and named in
    `_cdc_unsent`.

    With a watermark, a change is late if its event time is more than `grace` before the newest one. The newest one
    is that of the earlier changes in its partition. Late changes are rejected. This check is first: a late change
    is not stored, so it is late again when it is sent again. Snapshot reads, which have the time of reading, and
    changes without an event time are never late. They never make others late.
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
        if self._is_late(change):
            return Outcome.REJECTED
        values = {c: None if c in change.unsent else change.image.get(c) for c in self.columns}
        identity: tuple[Any, ...] = (*(repr(values[c]) for c in self.identity), change.sequence)
        if change.counted:
            # A sequence that does not rise starts a new reading of the log.
            if change.sequence <= self.last:
                self.copies.clear()
            self.last = change.sequence
            alike = (*identity[:-1], change.sequence[:-1])
            self.copies[alike] += 1
            identity = (*alike, self.copies[alike])
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

    def table(self) -> list[Row]:
        """One row per change."""
        return list(self.rows.values())


class Scd2:
    """Every version of every row, by sequence and not by arrival. The result is as if the changes of each key had
    arrived in the order of their sequence.

    - Key and sequence identify a change. A known change is a duplicate. Any other counts, however late it arrives.
    - An upsert starts a version if it is the first of its key or follows a delete. It also starts one if it differs
      from the version before in a tracked column. Otherwise that version continues, with the untracked values of the
      upsert.
    - A version ends at the next version, at a delete of its key, or at a truncate.
    - Values that were not sent come from the upsert before, by sequence. It must exist when the change arrives,
      with no delete between the two; otherwise the change is rejected. If such a delete arrives later, the values
      stay.
    - A key change is a delete of the old key and a create of the new one. Values that the create did not send come
      from the version of the old key that ends or is open there when the create arrives.
    - The delete half of a key change that shows another row than the row of its key (see `Scd1`) ends nothing. It
      is superseded or rejected. Only the tracked columns are compared.

    `untracked`: columns whose change alone starts no version. A version has the metadata of its first upsert.
    `_cdc_last_seq_*` is the sequence of its last upsert.
    """

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...], untracked: frozenset[str] = frozenset()) -> None:
        self.columns = columns
        self.keys = keys
        self.untracked = [c for c in columns if c not in keys and c in untracked]
        self.tracked = [c for c in columns if c not in keys and c not in untracked]
        self.changes: dict[Key, dict[Sequence, Change]] = {}
        self.truncates: dict[Sequence, Change] = {}

    def apply_change(self, change: Change) -> Outcome:
        key = tuple(change.image[k] for k in self.keys) if change.op != "t" else ()
        by_sequence = self.changes.setdefault(key, {}) if change.op != "t" else self.truncates
        if change.sequence in by_sequence:
            return Outcome.DUPLICATE
        if change.moved_to and is_other_row(change, *self._find_last(key, change.sequence), self.tracked):
            return another(change)
        if change.op not in ("d", "t") and change.unsent:
            _, base = self._find_last(change.moved_from or key, change.sequence)
            if base is None:
                return Outcome.REJECTED
            image = {**change.image, **{c: base[c] for c in change.unsent}}
            change = replace(change, image=image, unsent=frozenset() if change.moved_from else change.unsent)
        by_sequence[change.sequence] = change
        return Outcome.APPLIED

    def _find_last(self, key: Key, sequence: Sequence) -> tuple[Sequence, Row | None]:
        """The sequence of the newest change of the key below `sequence`, and the row after it: None after a delete."""
        below = [(change.sequence, row) for change, row in self._list_images(key) if change.sequence < sequence]
        return below[-1] if below else ((), None)

    def _list_images(self, key: Key) -> list[tuple[Change, Row | None]]:
        """The changes of a key by sequence, each with the row after it. The row is None after a delete."""
        out: list[tuple[Change, Row | None]] = []
        row: Row | None = None
        changes = self.changes.get(key, {}) | self.truncates
        for change in sorted(changes.values(), key=lambda c: c.sequence):
            if change.op in ("d", "t"):
                row = None
            else:
                old = row or {}
                row = {
                    c: old.get(c, change.image.get(c)) if c in change.unsent else change.image.get(c) for c in self.columns
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
                unchanged = sorted(change.unsent) or None
                open_version = (
                    row | change.bookkeeping() | last | {"__START_AT": change.shown_sequence, "_cdc_unsent": unchanged}
                )
                versions.append(open_version)
        return versions

    def table(self) -> list[Row]:
        """One row per version."""
        return [version for key in self.changes for version in self._list_versions(key)]


def another(change: Change) -> Outcome:
    """The outcome of a delete that `is_other_row`."""
    return Outcome.REJECTED if change.doubtful or change.tx is not None else Outcome.SUPERSEDED


def is_other_row(change: Change, last: Sequence, row: Row | None, columns: Iterable[str]) -> bool:
    """True if the delete half of a key change shows another row than `row`, whose newest change (`last`) is in the
    same transaction.

    - Changes of one transaction have the same first sequence element, unless columns order the changes (`at`).
    - If changes contain their transaction (`tx`), the transaction is not compared, and a NULL in a column of
      `ignore_null` is no value.
    - An image without values shows no row.
    """
    if not change.moved_to or change.at is not None or row is None:
        return False
    if change.tx is None and (len(last) < 2 or last[0] != change.sequence[0]):
        return False
    sent = {c: change.image.get(c) for c in columns if c not in change.unsent | change.computed}
    if change.tx is not None:
        sent = {c: v for c, v in sent.items() if v is not None or c not in change.ignore_null}
    return any(v is not None for v in sent.values()) and not all(is_alike(v, row[c]) for c, v in sent.items())


def is_alike(one: Any, other: Any) -> bool:
    """True for equal values. NULL equals NULL and NaN equals NaN, in lists too."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_alike, one, other))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124  (NaN)


MODELS: dict[str, Callable[[tuple[str, ...], tuple[str, ...]], Policy]] = {"scd1": Scd1, "append": Append, "scd2": Scd2}
"""Policy name to its model, called with the columns and the key columns of the table."""


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
    """The rows of `policy` after `changes`, and the number of changes by outcome.

    - `grace`: of the watermark. `untracked`: see `Scd2`. `retention`: of tombstones.
    - `wanted`: the row transforms of the lane before the policy.
    - `now`: the time of the last record, for a purge at the end.
    """
    of_source = keys
    columns, keys = (columns, keys) if wanted is None else wanted.list_names(columns, keys)
    target: Policy
    if wanted is not None and wanted.has_column_versions:
        target = Scd1ColumnVersions(columns, keys)
    elif wanted is not None and wanted.soft_deletes:
        target = SoftScd1(columns, keys, retention)
    elif retention is not None:
        target = Scd1(columns, keys, retention)
    elif untracked:
        target = Scd2(columns, keys, untracked)
    elif grace is not None:
        target = Append(columns, keys, grace)
    else:
        target = MODELS[policy](columns, keys)
    shaped = target if wanted is None else wanted.wrap_policy(target, of_source)
    outcomes = Counter(shaped.apply_change(change) for change in changes)
    if isinstance(target, Scd1) and now is not None:
        target.pass_time(now)
    return shaped.table(), outcomes


# scd1 with column versions


class Scd1ColumnVersions:
    """Current rows with the newest sent value of each column. A delete removes the row.

    The end of a key is the highest sequence of its deletes and of all truncates.

    - A row exists if there was an upsert above its key's end. It has the metadata of the highest one.
    - A column has the value of the highest change above the end that sent it. Columns that no change sent are NULL,
      and named in `_cdc_unsent`.
    - A key change is a delete of the old key and a create of the new one, with the values of the create.

    So the rows depend on the set of changes and not on their order. An upsert is applied if it is the highest of
    its row, or of one of its columns. Tombstones are never purged.
    """

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...]) -> None:
        self.columns = columns
        self.keys = keys
        self.values: dict[Key, dict[str, tuple[Sequence, Any]]] = {}
        self.highest: dict[Key, Change] = {}
        self.deletes: dict[Key, Sequence] = {}
        self.floor: Sequence = ()
        """The sequence of the last truncate."""

    def apply_change(self, change: Change) -> Outcome:
        if change.op == "t":
            return self._truncate_rows(change)
        key = tuple(change.image[k] for k in self.keys)
        if change.sequence <= self._find_end(key):
            return Outcome.DUPLICATE if change.sequence == self.deletes.get(key) else Outcome.SUPERSEDED
        if change.op == "d":
            self.deletes[key] = change.sequence
            return Outcome.APPLIED
        last = self.highest[key].sequence if key in self.highest else ()
        sequences, values = {last}, self.values.setdefault(key, {})
        if change.sequence > last:
            self.highest[key] = change
        applied = change.sequence > last
        for column in self.columns:
            if column in self.keys or column in change.unsent:
                continue
            sequence, _ = values.get(column, ((), None))
            sequences.add(sequence)
            if change.sequence > sequence:
                values[column] = (change.sequence, change.image.get(column))
                applied = True
        if applied:
            return Outcome.APPLIED
        return Outcome.DUPLICATE if change.sequence in sequences else Outcome.SUPERSEDED

    def _find_end(self, key: Key) -> Sequence:
        return max(self.deletes.get(key, ()), self.floor)

    def _truncate_rows(self, change: Change) -> Outcome:
        if change.sequence <= self.floor:
            return Outcome.DUPLICATE if change.sequence == self.floor else Outcome.SUPERSEDED
        self.floor = change.sequence
        return Outcome.APPLIED

    def table(self) -> list[Row]:
        """One row per living key."""
        rows = []
        for key, change in self.highest.items():
            end = self._find_end(key)
            if change.sequence <= end:
                continue
            row: Row = dict.fromkeys(self.columns) | dict(zip(self.keys, key, strict=True))
            sent = {c: value for c, (sequence, value) in self.values[key].items() if sequence > end}
            unchanged = sorted(c for c in self.columns if c not in self.keys and c not in sent)
            rows.append(row | sent | change.bookkeeping() | {"_cdc_unsent": unchanged or None})
        return rows
