"""The promises of a sink for row transforms and column versions; part of `sink_contract.SinkContract`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain, pairwise, permutations, product
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from replicator.domain.expr import Compare, Lit, source
from replicator.domain.patterns import ColumnSelection
from replicator.domain.policy import POLICY_NAMES
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.policy.policies import plan_for
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms

from .contract import require
from .delivery import SinkTarget, to_canonical
from .histories import History, any_histories
from .model import Change
from .model_transforms import ModelRowTransforms
from .sink_base import LaneWriter, SinkBase
from .source import EPOCH
from .transform_cases import KEYED_TYPES, check_transform_histories

TEXTS = ("", "A", "B", "Z", "a", "aa", "back\\'slash", "it's", 'q"', "é", "\ue000", "𝄞")
"""In byte order, which differs from language order, and from UTF-16 order, in which the last two are swapped."""

CUT_TEXT = "back\\'slash"

TEXT_TABLE = TableSpec("public.items", tuple(Column(n, pa.string()) for n in ("id", "at", "what")), ("id",), 2)
BY_TEXT = RowTransforms(("at",), truncates=Compare("=", source("what"), Lit("t")))
TIMED_TABLE = TableSpec(
    "public.items", (Column("id", pa.int64()), Column("at", pa.timestamp("us")), Column("value", pa.int64())), ("id",), 2
)
PARTIAL_TABLE = TableSpec("public.items", tuple(Column(n, pa.int64()) for n in ("id", "a", "b", "plain")), ("id",), 2)
BUT_PLAIN = RowTransforms(ignore_null=ColumnSelection(("plain",), excluded=True))
EMPLOYEES = TableSpec(
    "employees",
    (
        *(Column(n, pa.int64()) for n in ("run", "id", "sequenceNum")),
        *(Column(n, pa.string()) for n in ("role", "operation")),
    ),
    ("run", "id"),
    2,
)
BY_NUMBER = RowTransforms(
    sequence_by=("sequenceNum",),
    deletes=Compare("=", source("operation"), Lit("DELETE")),
    columns=ColumnSelection(("operation", "sequenceNum"), excluded=True),
)
ROLES = ("chef", "owner", "security", "cleaner")
HIRED = [{"id": n, "role": role, "operation": "INSERT", "sequenceNum": n} for n, role in enumerate(ROLES, 1)]
CHRIS = [
    {"id": 5, "role": "owner", "operation": "INSERT", "sequenceNum": 6},
    {"id": 5, "role": "manager", "operation": "UPDATE", "sequenceNum": 5},
]
PAT = [
    {"id": 6, "role": "mechanic", "operation": "DELETE", "sequenceNum": 8},
    {"id": 6, "role": "mechanic", "operation": "INSERT", "sequenceNum": 7},
]
SALES = TableSpec(
    "delta_cdc.sales",
    (
        *(Column(n, pa.int64()) for n in ("run", "id")),
        Column("date", pa.date32()),
        Column("name", pa.string()),
        Column("sales", pa.decimal128(7, 2)),
    ),
    ("run", "id"),
    2,
)
SOLD = [
    {"op": "r", "log": 1, "id": 1, "date": date(2019, 11, 11), "name": "Robert", "sales": Decimal("323.00")},
    {"op": "r", "log": 2, "id": 2, "date": date(2019, 11, 11), "name": "Lee", "sales": Decimal("500.00")},
    {"op": "r", "log": 3, "id": 3, "date": date(2019, 11, 12), "name": "Robert", "sales": Decimal("136.00")},
    {"op": "r", "log": 4, "id": 4, "date": date(2019, 11, 13), "name": "Lee", "sales": Decimal("211.00")},
    {"op": "d", "log": 5, "id": 1},
    {"op": "u", "log": 6, "id": 2, "date": date(2019, 11, 11), "name": "Lee", "sales": Decimal("150.00")},
    {"op": "u", "log": 7, "id": 2, "date": date(2019, 11, 11), "name": "Lee", "sales": Decimal("175.00")},
    {"op": "c", "log": 8, "id": 5, "date": date(2019, 11, 14), "name": "Robert", "sales": Decimal("233.00")},
]
"""The first copy of a table, then inserts, updates and deletes."""
REMAINING = {2: Decimal("175.00"), 3: Decimal("136.00"), 4: Decimal("211.00"), 5: Decimal("233.00")}

REMAINING_ROLES = {1: "chef", 2: "owner", 3: "security", 4: "cleaner", 5: "owner"}
"""The worked example of a feed whose order is a column: the row of Pat is deleted, and Chris is an owner."""


PARTIAL_CHANGES: list[dict[str, Any]] = [
    {"op": "c", "id": 1, "a": 1, "b": 1, "plain": 1},
    {"op": "c", "id": 2, "a": 2, "b": 2, "plain": 2},
    {"op": "d", "id": 3},
    {"op": "c", "id": 4, "a": 4},
    {"op": "u", "id": 1, "a": 10},
    {"op": "d", "id": 1, "a": 99},
    {"op": "t"},
    {"op": "d", "id": 4},
    {"op": "u", "id": 2, "b": 20},
    {"op": "c", "id": 5, "a": 5},
    {"op": "d", "id": 5},
    {"op": "d", "id": 6},
]
LEFT_COLUMNS = ("a", "b", "plain", "_cdc_op", "_cdc_seq_1", "_cdc_deleted", "_cdc_deleted_at")
LEFT_ROWS: dict[int, tuple[Any, ...]] = {
    1: (10, None, None, "d", 5, True, EPOCH + timedelta(seconds=5)),
    2: (None, 20, None, "u", 8, False, None),
    4: (4, None, None, "d", 7, True, EPOCH + timedelta(seconds=7)),
    5: (5, None, None, "d", 10, True, EPOCH + timedelta(seconds=10)),
}
"""The rows after the soft deletes: the values of a delete's image are not used."""


class LaneStream(LaneWriter):
    """A stream into one lane of a target. The test defines the rows, and each `send` applies one batch.

    - `log`: the log position of the next change. `at`: the time of the next batch, if any.
    - `rejects`: rejected rows. Only with a retention may there be any.
    """

    def __init__(
        self,
        suite: SinkBase,
        target: SinkTarget,
        table: TableSpec,
        shape: RowTransforms,
        retention: timedelta | None = None,
        *,
        policy: str = "scd1",
    ) -> None:
        plan = plan_for(policy, table, None, shape, retention=retention)
        super().__init__(suite, target, plan, may_reject=retention is not None)
        self.table, self.log = table, 0
        self.at: datetime | None = None

    def send(self, rows: Iterable[Mapping[str, Any]], op: str = "c") -> None:
        """Apply one batch, in this order. A row may have its own `op`, its log position `log`, and `unsent` columns."""
        changes = []
        for row in rows:
            image = {name: value for name, value in row.items() if name not in ("op", "log", "unsent")}
            log = row.get("log", self.log)
            unchanged = frozenset(row.get("unsent", ()))
            changes.append(Change(row.get("op", op), (log, 0), image, unchanged, ts=EPOCH + timedelta(seconds=log)))
            self.log += 1
        self.send_changes(changes, self.at)

    def by_id(self, name: str) -> dict[Any, Any]:
        """One column of the target, by `id`."""
        return {row["id"]: row[name] for row in self.rows()}


class StreamBase(SinkBase):
    """Tests with a `LaneStream`."""

    @contextmanager
    def open_stream(
        self, table: TableSpec, shape: RowTransforms, retention: timedelta | None = None
    ) -> Iterator[LaneStream]:
        """A stream into a fresh target. Both are closed afterwards."""
        with self.target() as target, closing(LaneStream(self, target, table, shape, retention)) as lines:
            yield lines


class SinkRowTransforms(StreamBase):
    """Row transforms."""

    def test_histories_with_row_transforms_equal_the_model(self) -> None:
        """Random histories with row transforms end like the model: order by columns, rows as deletes or truncates,
        excluded columns and deletes. With any batches, repetitions and faults."""
        for policy in sorted(self.features().policies.intersection(POLICY_NAMES)):
            check_transform_histories(self, policy)

    def test_text_is_ordered_by_its_bytes(self) -> None:
        """With two changes ordered by text, the higher one stays, also a delete. A truncate removes the rows below its
        text, and nothing lower is applied later."""
        require("scd1" in self.features().policies, "the sink does not know policy scd1")
        upwards = list(pairwise(TEXTS))
        pairs = {str(key): pair for key, pair in enumerate([*upwards, *((high, low) for low, high in upwards)])}
        deleted = {key for key in pairs if int(key) % 3 == 0}
        left = {key: max(pair, key=str.encode) for key, pair in pairs.items() if key not in deleted or pair[0] > pair[1]}
        with self.open_stream(TEXT_TABLE, BY_TEXT) as lines:
            lines.send({"id": key, "at": pair[0]} for key, pair in pairs.items())
            assert lines.by_id("at") == {key: first for key, (first, _) in pairs.items()}
            lines.send(({"id": key, "at": pair[1]} for key, pair in pairs.items() if key in deleted), "d")
            lines.send(({"id": key, "at": pair[1]} for key, pair in pairs.items() if key not in deleted), "u")
            assert lines.by_id("at") == left
            lines.send([{"id": "t", "at": CUT_TEXT, "what": "t"}])
            left = {key: text for key, text in left.items() if text > CUT_TEXT}
            assert lines.by_id("at") == left
            lines.send([{"id": "low", "at": "aa"}, {"id": "high", "at": "\ue000"}])
            assert lines.by_id("at") == left | {"high": "\ue000"}

    def test_changes_with_equal_sequence_columns_follow_log_order(self) -> None:
        """Five updates of a row, the last three in the same second, end with the last. An insert and a delete in the
        same second end without a row. In one batch and in one each; a repetition changes nothing."""
        require("scd1" in self.features().policies, "the sink does not know policy scd1")
        start = (EPOCH + timedelta(days=18_000)).replace(tzinfo=None)
        seconds = ((61, 47), (62, 48), (63, 52), (64, 52), (65, 52))
        updates = [{"id": 1, "at": start + timedelta(seconds=second), "value": value} for value, second in seconds]
        for size in (5, 1):
            with self.open_stream(TIMED_TABLE, RowTransforms(("at",))) as lines:
                for _ in range(2):
                    lines.log = 0
                    for at in range(0, 5, size):
                        lines.send(updates[at : at + size], "u")
                    lines.send([{"id": 2, "at": start}])
                    lines.send([{"id": 2, "at": start}], "d")
                    assert lines.by_id("value") == {1: 65}

    def test_ignored_null_keeps_the_stored_value(self) -> None:
        """A NULL in an upsert keeps the value of the row, from its batch or the target. Without the same row it is
        NULL. Other columns are written as sent."""
        require("scd1" in self.features().policies, "the sink does not know policy scd1")
        sent = [("c", 1, None, 1), ("u", None, 2, None), ("u", 3, None, 2), ("d", None, None, None), ("u", None, 4, 3)]
        after = [(1, None, 1), (1, 2, None), (3, 2, 2), None, (None, 4, 3)]
        rows = [{"op": op, "id": 1, "a": a, "b": b, "plain": plain} for op, a, b, plain in sent]
        for size in (1, 2, 3, 5) if self.one_in == 1 else (2, 5):
            with self.open_stream(PARTIAL_TABLE, BUT_PLAIN) as lines:
                for start in range(0, len(rows), size):
                    lines.send(rows[start : start + size])
                    expected = after[min(start + size, len(rows)) - 1]
                    stored = [(row["a"], row["b"], row["plain"]) for row in lines.rows()]
                    assert stored == ([] if expected is None else [expected]), (size, start)

    def test_soft_delete_keeps_the_values_of_the_row(self) -> None:
        """A deleted row keeps its values, from its batch or the target, until an upsert restores it with its own
        values.

        A delete of a missing row writes nothing. A truncate marks living rows. The result is the same for any
        batches.
        """
        require("scd1" in self.features().policies, "the sink does not know policy scd1")
        for size in (1, 2, 3, 4, len(PARTIAL_CHANGES)) if self.one_in == 1 else (2, len(PARTIAL_CHANGES)):
            with self.open_stream(PARTIAL_TABLE, RowTransforms(soft_deletes=True)) as lines:
                for start in range(0, len(PARTIAL_CHANGES), size):
                    lines.send(PARTIAL_CHANGES[start : start + size])
                stored = {row["id"]: tuple(row[name] for name in LEFT_COLUMNS) for row in lines.rows()}
            times = {key: row[-1] and to_canonical(row[-1]) for key, row in stored.items()}
            assert {key: row[:-1] for key, row in stored.items()} == {key: row[:-1] for key, row in LEFT_ROWS.items()}, size
            assert times == {key: at and to_canonical(at) for key, (*_, at) in LEFT_ROWS.items()}, size

    def test_employees_in_any_order(self) -> None:
        """A feed with its own numbers and operations, one row per batch, in every order of the rows of one id. All
        end alike, without the columns that only describe the operation."""
        require("scd1" in self.features().policies, "the sink does not know policy scd1")
        orders = [[*HIRED, *chris, *pat] for chris, pat in product(permutations(CHRIS), permutations(PAT))]
        with self.open_stream(EMPLOYEES, BY_NUMBER) as lines:
            for rows in zip(*orders, strict=True):
                lines.send({"run": run, **row} for run, row in enumerate(rows))
            stored = lines.rows()
        for run in range(len(orders)):
            assert {row["id"]: row["role"] for row in stored if row["run"] == run} == REMAINING_ROLES
        assert not {"operation", "sequenceNum"} & stored[0].keys()

    def test_sales_in_any_order(self) -> None:
        """A first copy and later changes, in one batch and with one row per batch, in every order of the rows of
        one id. Deleted rows are gone, and of two updates the second counts."""
        require("scd1" in self.features().policies, "the sink does not know policy scd1")
        of_key = [[row for row in SOLD if row["id"] == key] for key in range(1, 6)]
        orders = [list(chain(*order)) for order in product(*map(permutations, of_key))]
        for size in (len(SOLD), 1):
            with self.open_stream(SALES, NO_ROW_TRANSFORMS) as lines:
                for start in range(0, len(SOLD), size):
                    lines.send({"run": run, **row} for run, rows in enumerate(orders) for row in rows[start : start + size])
                stored = lines.rows()
            for run in range(len(orders)):
                assert {row["id"]: row["sales"] for row in stored if row["run"] == run} == REMAINING


# Lanes with column versions, whose partial rows may arrive in any order

ITEMS = TableSpec("public.items", tuple(Column(n, pa.int64()) for n in ("run", "id", "a", "b", "c")), ("run", "id"), 2)

COLUMN_CHANGES: tuple[dict[str, Any], ...] = (
    {"op": "c", "log": 1, "a": 1, "b": 1, "c": 1},
    {"op": "u", "log": 2, "a": 2, "unsent": ("b", "c")},
    {"op": "d", "log": 3},
    {"op": "u", "log": 4, "b": 4, "unsent": ("a", "c")},
    {"op": "u", "log": 5, "a": 5, "unsent": ("b", "c")},
    {"op": "u", "log": 6, "b": None, "unsent": ("a", "c")},
)


def partial_histories() -> st.SearchStrategy[History]:
    """Histories with some columns in each record, in order or in any order."""

    def scramble(history: History, seed: int | None) -> History:
        shape = history.shape if seed is None else replace(history.shape, scramble=seed, shuffle=None)
        return replace(history, shape=replace(shape, parts=True))

    return st.builds(scramble, any_histories(KEYED_TYPES), st.none() | st.integers(0, 999) | st.integers(0, 999))


def plan_column_versions(policy: str, table: TableSpec) -> ApplyPlan:
    """`plan_for` with column versions."""
    return plan_for(policy, table, None, RowTransforms(has_column_versions=True))


class SinkColumnVersions(StreamBase):
    """Column versions. `cuts`: the batch sizes, for sinks that are too slow for all of them."""

    cuts: tuple[int, ...] = ()

    def test_partial_updates_in_any_order_equal_the_model(self) -> None:
        """Random histories with some columns in each record end like the model, with any batches, repetitions and
        faults, and every change is accounted for."""
        wanted = ModelRowTransforms(has_column_versions=True)
        self.check_model(partial_histories(), "scd1", plan_column_versions, wanted=wanted)

    def test_every_order_and_batch_size_gives_the_same_rows(self) -> None:
        """Partial changes of a row, with a delete, in every possible order and several batch sizes. Each order has a
        key of its own."""
        orders = list(permutations(COLUMN_CHANGES))
        expected = (5, None, None, ["c"], "u", 6)
        for size in self.cuts or (1, 2, 3, len(COLUMN_CHANGES)):
            with self.open_stream(ITEMS, RowTransforms(has_column_versions=True)) as lines:
                for start in range(0, len(COLUMN_CHANGES), size):
                    lines.send(
                        {"run": run, "id": 1, **row} for run, rows in enumerate(orders) for row in rows[start : start + size]
                    )
                stored = lines.rows()
            assert len(stored) == len(orders), size
            columns = ("a", "b", "c", "_cdc_unsent", "_cdc_op", "_cdc_seq_1")
            texts = {tuple(map(repr, (row[name] for name in columns))) for row in stored}
            assert texts == {tuple(map(repr, expected))}, size

    def test_late_truncate_removes_older_column_values(self) -> None:
        """A row that survives a late truncate loses the values sent before it, also if the row has no other change."""
        for size in self.cuts or (1, 2, 5):
            with self.open_stream(ITEMS, RowTransforms(has_column_versions=True)) as lines:
                changes: list[dict[str, Any]] = [
                    {"op": "c", "log": 1, "run": 1, "id": 1, "a": 1, "b": 1, "c": 1},
                    {"op": "u", "log": 9, "run": 1, "id": 1, "a": 9, "unsent": ("b", "c")},
                    {"op": "c", "log": 2, "run": 1, "id": 2, "a": 2, "b": 2, "c": 2},
                    {"op": "c", "log": 3, "run": 1, "id": 3, "a": 3, "b": 3, "c": 3},
                    {"op": "u", "log": 8, "run": 1, "id": 3, "b": 8, "unsent": ("a", "c")},
                    {"op": "t", "log": 5},
                    {"op": "u", "log": 4, "run": 1, "id": 1, "b": 4, "unsent": ("a", "c")},
                    {"op": "u", "log": 6, "run": 1, "id": 1, "c": 6, "unsent": ("a", "b")},
                ]
                for start in range(0, len(changes), size):
                    lines.send(changes[start : start + size])
                names = ("id", "a", "b", "c", "_cdc_unsent", "_cdc_seq_1")
                stored = sorted([row[n] for n in names] for row in lines.rows())
            assert stored == [[1, 9, None, 6, ["b"], 9], [3, None, 8, None, ["a", "c"], 8]], size
