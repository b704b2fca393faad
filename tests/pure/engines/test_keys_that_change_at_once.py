"""Rows whose keys change within one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.budget import LONG, select_evenly
from support.history_in_memory import InMemoryTarget

from adapters.apply.reconcile_in_process import drop_foreign_deletes, reconcile_rows
from adapters.apply.rows_frame import to_rows
from adapters.engines.local import LocalEngine
from adapters.transforms.row_transforms import transform_rows
from replicator.domain.change import KEY_CHANGE_DELETE, OFFSET, OLD_KEY, OP, PARTITION, TOPIC, changes_schema
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.policy.policies import plan_for, scd2
from replicator.domain.position import Position, Span
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Write
from replicator.testing.delivery import make_lane
from replicator.testing.histories import changes_frame
from replicator.testing.model import Change, Outcome, fold_changes
from replicator.testing.sink_contract import plan_soft_deletes
from replicator.testing.source import SourceEvent

TABLE = TableSpec(
    "public.items",
    (Column("a", pa.int64()), Column("b", pa.string()), Column("v", pa.string()), Column("w", pa.float64())),
    ("a", "b"),
    2,
    by_commit=True,
)
BY_TX = replace(TABLE, by_commit=False, by_tx=True)
"""A table of GoldenGate, or DTS: only the changes say their transaction."""
TRANSACTION = 100
AFTER_9999 = 600_000_000_000_000_000
"""In microseconds since 1970, a year after 9999."""
Key = tuple[int, str]
Log = list[tuple[SourceEvent, Change]]

CASES: dict[str, tuple[dict[int, str], Sequence[tuple[int, int, str]], dict[int, str]]] = {
    "shift": ({1: "x", 2: "y"}, [(1, 2, "x"), (2, 3, "y")], {2: "x", 3: "y"}),
    "shift that also changes values": ({1: "x", 2: "y"}, [(1, 2, "X"), (2, 3, "Y")], {2: "X", 3: "Y"}),
    "shift from above": ({1: "x", 2: "y"}, [(2, 3, "y"), (1, 2, "x")], {2: "x", 3: "y"}),
    "swap": ({1: "x", 2: "y"}, [(1, 2, "x"), (2, 1, "y")], {1: "y", 2: "x"}),
    "rotation": ({1: "x", 2: "y", 3: "z"}, [(1, 2, "x"), (2, 3, "y"), (3, 1, "z")], {1: "z", 2: "x", 3: "y"}),
    "chain": ({1: "x"}, [(1, 2, "x"), (2, 3, "x")], {3: "x"}),
    "swap by way of a third key": ({1: "x", 2: "y"}, [(1, 9, "x"), (2, 1, "y"), (9, 2, "x")], {1: "y", 2: "x"}),
}
"""By name the rows before, the changes of keys in the order of the log with the values after, and the rows after. What went
through a key in between is told by `before` of the stream that the case makes."""
OF_ANY_IMAGE = ("shift from above", "chain", "swap by way of a third key")
"""Here no row takes a key that another one has, so that images are not needed."""


def key(number: int) -> Key:
    """A key of two columns; neighbours differ in one of them only."""
    return number // 2, "ab"[number % 2]


def image(number: int, value: str | None) -> dict[str, Any]:
    """A row."""
    return dict(zip("ab", key(number), strict=True)) | ({} if value is None else {"v": value, "w": float("nan")})


def stream(name: str, *, images: bool, doubtful: bool = False) -> Log:
    """The log of a case. Records are placed by their key. `doubtful`: nobody can tell whether images are whole."""
    before, moves, _ = CASES[name]
    changes = [(number, Change("c", (n, n), image(number, value))) for n, (number, value) in enumerate(before.items())]
    held = dict(before)
    arrived: dict[int, str] = {}
    for n, (old, new, value) in enumerate(moves, TRANSACTION):
        left = held.pop(old, None) or arrived.pop(old)
        changes.append(
            (old, Change("d", (TRANSACTION, n), image(old, left if images else None), moved_to=True, doubtful=doubtful))
        )
        changes.append((new, Change("c", (TRANSACTION, n), image(new, value), moved_from=key(old))))
        arrived[new] = value
    made = [replace(change, ts=datetime(2024, 1, 1, tzinfo=UTC)) for _, change in changes]
    return [
        (SourceEvent(number % 2, i, 0, key(number), c), c)
        for i, ((number, _), c) in enumerate(zip(changes, made, strict=True))
    ]


def by_tx(log: Log) -> Log:
    """The same log where the sequence is the place in it, and each change says its transaction."""
    return [(e, replace(c, sequence=(sum(c.sequence), int(c.op == "c")), tx=str(c.sequence[0]))) for e, c in log]


def list_interleavings(log: Log) -> Iterator[Log]:
    """Every order of arrival that keeps the order of each of two partitions."""
    mine, others = ([entry for entry in log if entry[0].partition == p] for p in (0, 1))
    for places in combinations(range(len(log)), len(mine)):
        heads, tails = iter(mine), iter(others)
        yield [next(heads) if i in places else next(tails) for i in range(len(log))]


def list_cuts(log: Log) -> list[list[Log]]:
    """In two at every place, one by one, and all at once."""
    return [*([log[:i], log[i:]] for i in range(1, len(log))), [[entry] for entry in log], [log]]


def segments(batches: list[Log], table: TableSpec = TABLE) -> Iterator[pa.Table]:
    """What is folded of these batches."""
    for batch in batches:
        frame = changes_frame(batch, table, "t")
        frame = transform_rows(frame, RowTransforms(soft_deletes=True), table) if table.soft_deletes else frame
        yield from LocalEngine({}).frames.segments(frame, table)


def current(plan: ApplyPlan, batches: list[Log], rejects: list[Any] | None = None) -> dict[Key, Any]:
    """The living rows after these batches, by stages 1 to 4 of the local engine. `rejects` gets offsets and keys."""
    engine, rows = LocalEngine({}), dict[Key, dict[str, Any]]()
    for segment in segments(batches, plan.table):
        folded = engine.fold(segment, plan)
        frame = to_rows(folded.frame, plan, datetime.now(UTC))
        related = pa.Table.from_pylist(list(rows.values()), pa.schema([(c.name, c.type) for c in plan.target]))
        write = Write(make_lane("scd1"), plan, folded, Span(Position(), Position()), {})
        done = reconcile_rows(write, frame, related, None, LaneState())
        if rejects is not None:
            rejects += [(row["_offset"], row["a"], row["b"]) for row in done.rejects.to_pylist()]
        for row in done.write.to_pylist():
            there = rows.pop((row["a"], row["b"]), None)
            if row["_op"] != "d":
                rows[row["a"], row["b"]] = {c.name: row[c.name] for c in plan.target}
            elif there is not None and plan.soft_deletes:
                rows[row["a"], row["b"]] = there | {c.name: row[c.name] for c in plan.target if c.name.startswith("_cdc")}
                rows[row["a"], row["b"]]["_cdc_deleted"] = True
    return {at: row["v"] for at, row in rows.items() if not row.get("_cdc_deleted")}


def open_versions(batches: list[Log], table: TableSpec = TABLE) -> dict[Key, Any]:
    """The versions that are open after these batches."""
    memory = InMemoryTarget(scd2(table))
    for segment in segments(batches, table):
        memory.apply(segment)
    return {(row["a"], row["b"]): row["v"] for row in memory.rows.values() if row["_cdc_end_seq_1"] is None}


@pytest.mark.parametrize(
    ("key_type", "kind", "first"),
    [(pa.time64("ns"), pa.time64("ns"), 0), (pa.timestamp("us"), pa.list_(pa.timestamp("us")), AFTER_9999)],
    ids=str,
)
def test_times_that_python_does_not_have_identify_rows(key_type: pa.DataType, kind: pa.DataType, first: int) -> None:
    """Nanoseconds, which Arrow refuses without pandas and may truncate with it, and years after 9999."""
    table = TableSpec("public.items", (Column("id", key_type), Column("at", kind)), ("id",), 2, by_commit=True)
    schema, plan, is_list = changes_schema(table), plan_for("scd1", table), pa.types.is_list(kind)
    numbers = {
        "id": pa.int64(),
        "at": pa.list_(pa.int64()) if is_list else pa.int64(),
        OLD_KEY: pa.struct({"id": pa.int64()}),
    }

    def make_changes(*rows: tuple[str, int, int, int | None]) -> pa.Table:
        records = [
            {OP: op, TOPIC: "t", PARTITION: 0, OFFSET: i, "_seq_1": 100, "_seq_2": i, KEY_CHANGE_DELETE: op == "d" or None}
            | {"id": first + key, "at": [first + at] if is_list else first + at}
            | {OLD_KEY: None if old is None else {"id": first + old}}
            for i, (op, key, at, old) in enumerate(rows)
        ]
        return pa.Table.from_pylist(records, pa.schema([f.with_type(numbers.get(f.name, f.type)) for f in schema])).cast(
            schema
        )

    engine = LocalEngine({})
    moves = make_changes(("d", 1, 7, None), ("c", 2, 7, 1), ("d", 2, 8, None), ("c", 3, 8, 2))
    assert not engine.frames.find_open_key_changes(moves) and len(engine.frames.segments(moves, table)) == 1
    folded = engine.fold(moves, plan).frame
    keys = pc.subtract(folded["id"].cast(pa.int64()), first).to_pylist()
    assert dict(zip(keys, folded[OP].to_pylist(), strict=True)) == {1: "d", 2: "c", 3: "c"}
    # The same delete in the next batch is compared with the row of the target.
    delete = to_rows(engine.fold(moves.slice(2, 1), plan).frame, plan, datetime.now(UTC))
    target = to_rows(engine.fold(moves.slice(1, 1), plan).frame, plan, datetime.now(UTC)).select(
        [c.name for c in plan.target]
    )
    assert [drop_foreign_deletes(plan, delete, row)[1] for row in (target, target.slice(0, 0))] == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_row_is_lost_if_keys_change_together(name: str) -> None:
    """What is right is what the database has, under every policy that keeps rows; where keys are free when rows take them,
    without images too."""
    right = {key(number): value for number, value in CASES[name][2].items()}
    hard, soft = plan_for("scd1", TABLE), plan_soft_deletes("scd1", TABLE)
    for images in (True, False) if name in OF_ANY_IMAGE else (True,):
        log = stream(name, images=images)
        several = list(list_interleavings(log))
        for number, order in enumerate([log, *select_evenly(several[:: 1 + len(several) // 4], 2)]):
            cuts = list_cuts(order)
            # Every cut of the log's own order, another one of each interleaving; by default one in three under all policies.
            for place, batches in enumerate(cuts if not number else [cuts[number % len(cuts)]]):
                assert current(hard, batches) == right, (batches, images)
                if number % 2 == 0 if LONG else (number + place) % 3 == 0:
                    assert current(soft, batches) == right, (batches, images)
                    assert open_versions(batches) == right, (batches, images)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ambiguous_delete_is_rejected_however_batches_are_split(name: str) -> None:
    """No row is lost, and what is too many has its reject: whether images are whole, or the key and a default."""
    right = {key(number): value for number, value in CASES[name][2].items()}
    for filled_in in (False, True) if name in OF_ANY_IMAGE else (False,):
        log = stream(name, images=True, doubtful=True)
        if filled_in:
            log = [(e, replace(c, image={**c.image, "v": "default"}) if c.moved_to else c) for e, c in log]
        found = set()
        several = list(list_interleavings(log))
        for number, order in enumerate([log, *select_evenly(several[:: 1 + len(several) // 3], 2)]):
            cuts = list_cuts(order)
            for batches in cuts[::2] if not number else [cuts[number % len(cuts)]]:
                rejects, of_marked = list[Any](), list[Any]()
                rows = current(plan_for("scd1", TABLE), batches, rejects)
                assert (current(plan_soft_deletes("scd1", TABLE), batches, of_marked), of_marked) == (rows, rejects), batches
                assert right.items() <= rows.items(), batches
                assert rows.keys() - right.keys() <= {(a, b) for _, a, b in rejects}, batches
                found.add(tuple(sorted(rejects)))
                if number % 2 == 0:
                    assert open_versions(batches) == rows, batches
        assert len(found) == 1, "what is rejected must not depend on the cut"
        assert found == {()} or filled_in or name not in OF_ANY_IMAGE


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_split_transaction_loses_no_row(name: str) -> None:
    """Where only the changes say their transaction: a row too many has its reject, and the model rejects it too. With
    the whole transaction in a batch, and where keys are free when rows take them, everything is right."""
    right = {key(number): value for number, value in CASES[name][2].items()}
    log = by_tx(stream(name, images=True))
    hard, soft = (of("scd1", BY_TX) for of in (plan_for, plan_soft_deletes))
    _, outcomes = fold_changes("scd1", BY_TX.column_names, BY_TX.keys, (c for _, c in log))
    most = {(c.image["a"], c.image["b"]) for e, c in log if c.op == "d"} if outcomes[Outcome.REJECTED] else set[Key]()
    found, several = set(), list(list_interleavings(log))
    others = [list_cuts(order)[number] for number, order in enumerate(several[:: 1 + len(several) // 3])]
    for number, batches in enumerate([*list_cuts(log), *others]):
        rejects: list[Any] = []
        rows = current(hard, batches, rejects)
        doubted = {(a, b) for _, a, b in rejects}
        assert right.items() <= rows.items(), batches
        assert rows.keys() - right.keys() <= doubted <= most, batches
        assert not rejects or len(batches) > 1
        found |= doubted
        if number % 3 == 0:
            assert current(soft, batches) == rows, batches
            assert open_versions(batches, BY_TX) == rows, batches
    assert bool(found) == bool(most) == (name not in OF_ANY_IMAGE)


@pytest.mark.parametrize("name", ["swap", "rotation"])
def test_repeated_transaction_changes_nothing(name: str) -> None:
    """Sent again whole it has no rejects. In pieces the delete of a row that had lost its key before has one."""
    right = {key(number): value for number, value in CASES[name][2].items()}
    log, rejects = by_tx(stream(name, images=True)), list[Any]()
    assert current(plan_for("scd1", BY_TX), [log, log], rejects) == right
    assert not rejects
    assert current(plan_for("scd1", BY_TX), [log, *([entry] for entry in log)]) == right


@pytest.mark.parametrize("kind", ["no values", "values not sent", "no transaction"])
def test_image_without_evidence_is_not_ambiguous(kind: str) -> None:
    """The image has no value, or lacks the one in which it differs from the row; or nothing says its transaction."""
    rejects: list[Any] = []
    log = by_tx(stream("shift", images=kind == "no transaction"))
    if kind == "values not sent":
        nan, unsent = {"w": float("nan")}, frozenset("v")
        log = [(e, replace(c, image=c.image | nan, unsent=unsent) if c.moved_to else c) for e, c in log]
    elif kind == "no transaction":
        log = [(e, replace(c, tx=None)) for e, c in log]
    for at in range(1, len(log)):
        current(plan_for("scd1", BY_TX), [log[:at], log[at:]], rejects)
    assert not rejects
