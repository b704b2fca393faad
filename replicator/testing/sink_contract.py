"""The promises of a sink. Inherit `SinkContract`, and `TombstoneContract` for a tombstone store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa
import pytest

from replicator.domain.change import ERROR, OFFSET, PARTITION, TOPIC
from replicator.domain.errors import AMBIGUOUS_DELETE, DataLoss, Fatal, Fenced
from replicator.domain.policy.plan import ApplyPlan, LaneState, cdc_sequence_columns
from replicator.domain.policy.policies import plan_for, scd2
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import F, Lane, Write
from replicator.ports.sink import Sink

from .contract import FrameContract, require
from .delivery import Plans, make_lane, to_canonical_rows
from .histories import Fault, History, any_histories, list_events, scrambled_histories, statement_end_histories
from .model import Change
from .model_transforms import ModelRowTransforms
from .sink_base import LaneWriter, make_history, make_span, make_writes, refuse_rejects, to_stored_sequence
from .sink_operations import SinkBulkLoad, SinkDrops, SinkErasure, SinkOutOfBand, SinkSwaps
from .sink_retention import SinkRetention, SinkSoftDeletes, SinkWatermarks
from .sink_row_transforms import SinkRowTransforms
from .source import SourceEvent, SourceTable, Statement, StreamShape

SOFT_DELETES = ModelRowTransforms(soft_deletes=True)
ODD_NAMES = (
    "select", 'a"b', "c'; DROP TABLE x; --", "d e", "é漢", "UPPER", "../up", "100%", "a\\b", "{b}", "x" * 63, "y" * 200,
)  # fmt: skip
IN_ANY_ORDER = 8
"""One of this number of these histories is enough, because they change every row again and again."""

KEYED_TYPES = ("int", "text", "composite")
ITEMS = TableSpec(
    "public.items", (Column("k1", pa.int64()), Column("v1", pa.string()), Column("v2", pa.string())), ("k1",), 2
)


def _put(lsn: int, key: int, v1: str, v2: str | None, tx: int, *old: int) -> Change:
    return Change("c", (lsn, 1), {"k1": key, "v1": v1, "v2": v2}, moved_from=old or None, tx=str(tx))


def _leave(lsn: int, key: int, v1: str | None, v2: str | None, tx: int, *unchanged: str) -> Change:
    return Change("d", (lsn, 0), {"k1": key, "v1": v1, "v2": v2}, frozenset(unchanged), moved_to=True, tx=str(tx))


SHIFTED = (
    _put(1, 1, "a", "x", 1),
    _put(2, 2, "b", "x", 2),
    *(_put(key, key, "c", value, key) for key, value in ((3, "x"), (4, "y"), (5, "z"), (6, None))),
    _leave(20, 1, "a", "x", 20), _put(20, 2, "a", "x", 20, 1),
    _leave(21, 2, "b", "x", 20), _put(21, 10, "b", "x", 20, 2),
    _leave(30, 3, "c", "x", 30), _put(30, 11, "c", "x", 30, 3),
    _leave(31, 4, "c", None, 31, "v2"), _put(31, 12, "c", "y", 31, 4),
    _leave(32, 5, None, None, 32), _put(32, 13, "c", "z", 32, 5),
    _leave(33, 6, "c", None, 33), _put(33, 14, "c", None, 33, 6),
    _leave(19, 10, "other", "x", 19),
)  # fmt: skip
SHIFTED_CUTS = (0, 8), (8, 18), (18, 19)
SHIFTED_ROWS = [(2, "a", "x"), (10, "b", "x"), (11, "c", "x"), (12, "c", "y"), (13, "c", "z"), (14, "c", None)]
"""The remaining rows. Nothing shows that the delete of key 2 belongs to another row than the current one."""

CHAINED = (
    _put(1, 1, "a", "x", 1),
    Change("d", (20, 0), {"k1": 1, "v1": "default", "v2": "other"}, frozenset({"v1"}), moved_to=True),
    Change("c", (20, 1), {"k1": 9, "v1": "a", "v2": "x"}, moved_from=(1,)),
    Change("d", (20, 2), {"k1": 9, "v1": "default", "v2": "x"}, frozenset({"v1"}), moved_to=True),
    Change("c", (20, 3), {"k1": 3, "v1": "a", "v2": "x"}, moved_from=(9,)),
)
"""Deletes whose image may or may not have the row's `v1`."""


def plan_soft_deletes(policy: str, table: TableSpec) -> ApplyPlan:
    """`plan_for` with soft deletes."""
    return plan_for(policy, table, row_transforms=RowTransforms(soft_deletes=True))


def make_alike(offset: int, position: tuple[int, int], count: int, value: int) -> tuple[SourceEvent, Change]:
    """The insert of a row into a table without a key, at this offset."""
    change = Change("c", (*position, count), {"v1": value}, counted=True)
    return SourceEvent(0, offset, 0, None, change), change


class SinkContract(
    SinkOutOfBand,
    SinkWatermarks,
    SinkRetention,
    SinkSoftDeletes,
    SinkDrops,
    SinkErasure,
    SinkBulkLoad,
    SinkSwaps,
    SinkRowTransforms,
):
    """Every promise of `ports.sink.Sink` as a test.

    Define `new_target` (an empty target system that opens sinks and reads its rows) and `new_engine`. For other
    frames than `pyarrow.Table`, also define the two conversions.
    """

    # The policies, with any batches, repetitions and faults.

    def test_histories_under_scd1_equal_the_model(self) -> None:
        """Random histories end like the model, in every column of every row, and every change is accounted for."""
        self._check_histories("scd1", KEYED_TYPES)

    def test_histories_under_append_equal_the_model(self) -> None:
        """The same for `append`, including tables without a key."""
        self._check_histories("append", (*KEYED_TYPES, "none"))

    def test_histories_under_scd2_equal_the_model(self) -> None:
        """The same for `scd2`: every version of every row."""
        self._check_histories("scd2", KEYED_TYPES)

    def test_histories_with_untracked_columns_equal_the_model(self) -> None:
        """The same for `scd2` with untracked columns, and records in any order."""
        require("scd2" in self.features().policies, "the sink does not know policy scd2")
        self.check_model(
            scrambled_histories(KEYED_TYPES), "scd2", lambda _, table: scd2(table, ("v1", "v3")), share=IN_ANY_ORDER
        )

    def test_key_changes_in_one_statement_equal_the_model(self) -> None:
        """Random histories of a source that checks its keys at the end of a statement. Keys are shifted, swapped or
        rotated, and there are chains of key changes, with any batches and interleaving."""
        for policy, plans, wanted in (
            ("scd1", plan_for, None),
            ("scd1", plan_soft_deletes, SOFT_DELETES),
            ("scd2", plan_for, None),
        ):
            if policy in self.features().policies:
                self.check_model(statement_end_histories(KEYED_TYPES), policy, plans, share=2, wanted=wanted)

    @pytest.mark.parametrize(("policy", "plans"), [("scd1", plan_for), ("scd1", plan_soft_deletes), ("scd2", plan_for)])
    def test_delete_of_an_unknown_transaction_keeps_the_reused_key(self, policy: str, plans: Plans) -> None:
        """Keys are shifted in a transaction that only the changes name, and the batch ends within it.

        The row with the reused key stays, and the delete of the earlier row is rejected. A delete is not rejected if
        its image is the target's row, has no values, or lacks the different ones. Deletes that are older than the row
        are not rejected either.
        """
        require(policy in self.features().policies, f"the sink does not know policy {policy}")
        rows, rejects = self._in_pieces(plans(policy, replace(ITEMS, by_tx=True)), SHIFTED, SHIFTED_CUTS)
        assert [row[:3] for row in rows if not row[3]] == SHIFTED_ROWS
        assert rejects == [(2, str(AMBIGUOUS_DELETE))]

    def test_ambiguous_delete_under_soft_deletes_is_rejected(self) -> None:
        """A chain of key changes whose images are filled in, in several batches. The delete of a row from an earlier
        batch marks it, with its values. The delete of the row with the reused key is rejected."""
        rows, rejects = self._in_pieces(
            plan_soft_deletes("scd1", replace(ITEMS, by_commit=True)), CHAINED, ((0, 1), (1, 3), (3, 5))
        )
        assert rows == [(1, "a", "x", True), (3, "a", "x", False), (9, "a", "x", False)]
        assert rejects == [(9, str(AMBIGUOUS_DELETE))]

    @pytest.mark.parametrize(("policy", "plans"), [("scd1", plan_for), ("scd1", plan_soft_deletes), ("scd2", plan_for)])
    def test_delete_with_a_value_that_does_not_fit_is_applied(self, policy: str, plans: Plans) -> None:
        """The target's column keeps its type when that of the source changes. A change with a value that does not fit may
        be rejected. A delete with such a value is applied. A row that it marks keeps its values."""
        require(policy in self.features().policies, f"the sink does not know policy {policy}")
        columns = Column("k1", pa.int64()), Column("v1", pa.string())
        before, after = (
            plans(policy, TableSpec("public.items", (*columns, Column("v2", kind)), ("k1",), 2))
            for kind in (pa.int32(), pa.int64())
        )
        with self.open_lane(before, may_reject=True) as run:
            run.send_changes(
                [Change("c", (at, 0), {"k1": key, "v1": "a", "v2": key}) for key, at in ((1, 1), (2, 2), (3, 20))]
            )
            run.plan, run.table = after, after.table
            run.sink.prepare(run.lane, after)
            for key, at in ((1, 9), (2, 30)):
                run.send_changes([Change("d", (at, 0), {"k1": key, "v1": "b", "v2": 1 << 40})])
            rows = [row for row in run.rows() if row.get("_cdc_end_seq_1") is None]
        living = [row["k1"] for row in rows if not row.get("_cdc_deleted")]
        assert (living, run.rejects) == ([3], [])
        assert {(row["v1"], row["v2"] - row["k1"]) for row in rows} == {("a", 0)}

    def _in_pieces(
        self, plan: ApplyPlan, changes: Sequence[Change], cuts: Sequence[tuple[int, int]]
    ) -> tuple[list[tuple[Any, ...]], list[tuple[Any, str]]]:
        """The rows, or open versions, after one batch per cut, each with its delete mark; and the keys and errors
        of the rejects."""
        with self.open_lane(plan, may_reject=True) as run:
            for start, end in cuts:
                run.send_changes(changes[start:end])
            rows = [row for row in run.rows() if row.get("_cdc_end_seq_1") is None]
        marked_rows = sorted((*(row[n] for n in ("k1", "v1", "v2")), bool(row.get("_cdc_deleted"))) for row in rows)
        return marked_rows, [(changes[row[OFFSET]].image["k1"], row[ERROR]) for row in run.rejects]

    def test_redelivered_key_change_copies_no_newer_values(self) -> None:
        """When a partial key change is sent again, another row has the old key. That row does not supply the missing
        values."""
        begun = Statement("write", 0, mask=1), Statement("move", 0, 1, mask=1)
        rest = Statement("write", 0), Statement("write", 0), Statement("resend", 0, salt=3)
        shape = StreamShape(key="int", values=("int",), tombstones=False, unseen=True)
        one: tuple[int, int, Fault] = (1, 0, "")
        for batches in (0, 9):
            history = History(shape, (*begun, *rest), (one,) * batches)
            self.check_history(history, "scd1")

    def test_changes_out_of_order_equal_the_model(self) -> None:
        """Random histories with records in any order, under the policies `scd1` and `scd2`."""
        for policy in ("scd1", "scd2"):
            if policy in self.features().policies:
                self.check_model(scrambled_histories(KEYED_TYPES), policy, share=IN_ANY_ORDER)

    def test_value_of_an_earlier_change_with_a_higher_offset(self) -> None:
        """A missing value is that of a change that arrived before, in another partition, as rows of a backfill do.
        Offsets of two partitions are not an order of arrival."""
        require("scd2" in self.features().policies, "the sink does not know policy scd2")
        rows = [Change("c", (1, key), {"k1": key, "v1": "a", "v2": f"of {key}"}, partition=1) for key in range(20)]
        later = [Change("u", (2, key), {"k1": key, "v1": "b"}, frozenset({"v2"})) for key in range(20)]
        events = [
            *((SourceEvent(1, offset, 0, None, change), change) for offset, change in enumerate(rows, 1000)),
            *list_events(later),
        ]
        stream, backfill = (TopicPartition(SourceTable.topic, number) for number in (0, 1))
        span = Span(Position({stream: 0, backfill: 1000}), Position({stream: 20, backfill: 1020}))
        with self.open_lane(plan_for("scd2", ITEMS)) as run:
            run.send_events(events, span)
            current = {row["k1"]: (row["v1"], row["v2"]) for row in run.rows() if row["_cdc_end_seq_1"] is None}
        assert current == {key: ("b", f"of {key}") for key in range(20)}

    def test_late_value_fills_a_stored_partial_version(self) -> None:
        """A version has a value that its change did not send. A late change before the version sent another value,
        which the version gets, even if no change was absorbed before."""
        require("scd2" in self.features().policies, "the sink does not know policy scd2")
        changes = [
            Change("c", (10, 0), {"k1": 1, "v1": "a", "v2": "x"}),
            Change("u", (30, 0), {"k1": 1, "v1": "b"}, frozenset({"v2"})),
            Change("u", (20, 0), {"k1": 1, "v1": "a", "v2": "y"}),
        ]
        with self.open_lane(plan_for("scd2", ITEMS)) as run:
            for change in changes:
                run.send_changes([change])
            versions = {(row["_cdc_seq_1"], row["v1"], row["v2"]) for row in run.rows()}
        assert versions == {(10, "a", "x"), (20, "a", "y"), (30, "b", "y")}

    def test_late_truncate_splits_a_version(self) -> None:
        """The late truncate cuts a version of a key outside its batch. Upserts above the truncate start a new version.
        The end of the old version, by a delete or by the next version, is kept."""
        require("scd2" in self.features().policies, "the sink does not know policy scd2")
        table = TableSpec("public.items", (Column("k1", pa.int64()), Column("v1", pa.string())), ("k1",), 1)
        before = [
            ("c", 1, 1, "a"),
            ("u", 5, 1, "a"),
            ("c", 1, 2, "a"),
            ("d", 6, 2, None),
            ("c", 1, 3, "a"),
            ("u", 5, 3, "b"),
        ]
        ops = [*before, ("t", 3, None, None), ("c", 4, 2, "a"), ("c", 4, 3, "a")]
        changes = [Change(op, (at,), {} if key is None else {"k1": key, "v1": value}) for op, at, key, value in ops]
        with self.open_lane(plan_for("scd2", table)) as run:
            for start, end in ((0, 6), (6, 7), (7, 9)):
                run.send_changes(changes[start:end])
            versions = {(row["k1"], row["_cdc_seq_1"], row["_cdc_end_seq_1"]) for row in run.rows()}
        assert versions == {(1, 1, 3), (1, 5, None), (2, 1, 3), (2, 4, 6), (3, 1, 3), (3, 4, 5), (3, 5, None)}

    def _check_histories(self, policy: str, keys: tuple[str, ...]) -> None:
        require(policy in self.features().policies, f"the sink does not know policy {policy}")
        self.check_model(any_histories(keys), policy)

    def test_redelivered_changes_with_other_counts_are_duplicates(self) -> None:
        """A connector that was killed in a transaction sends changes of a table without a key again with other
        counts.

        In the same batch or a later one, each change is stored once. Two equal rows of one COPY are stored twice.
        """
        table = TableSpec("public.items", (Column("v1", pa.int64()),), (), 3, counted=True)
        reading = [((1, 10), 5, 1), ((1, 20), 6, 2), ((1, 20), 7, 2), ((1, 20), 8, 3)]
        resumed = [((1, 10), 1, 1), ((1, 20), 2, 2), ((1, 20), 3, 2), ((1, 20), 4, 3), ((2, 30), 1, 1)]
        events = [make_alike(offset, *change) for offset, change in enumerate([*reading, *resumed])]
        for cut in (3, 4, 9):
            with self.open_lane(plan_for("append", table)) as run:
                for start, end in ((0, cut), (cut, len(events))):
                    run.send_events(events[start:end], make_span(start, end))
                assert sorted(row["v1"] for row in run.rows()) == [1, 1, 2, 2, 3], cut

    # Lanes.

    def test_second_instance_is_fenced(self) -> None:
        """If two instances prepare one lane, one is fenced, at its commit at the latest, and writes nothing."""
        history = make_history(*make_writes(0, 1))
        with self.open_sink() as (target, first), closing(target.open()) as second:
            write = self.write(history, 0, 2)
            prepared = [try_write(sink, write, prepare=True) for sink in (first, second)]
            ready = [sink for sink, error in zip((first, second), prepared, strict=True) if error is None]
            outcomes = [*prepared, *(try_write(sink, write) for sink in ready)]
            assert any(isinstance(outcome, Fenced) for outcome in outcomes), outcomes
            assert all(outcome is None or isinstance(outcome, Fenced) for outcome in outcomes), outcomes
            first.close()
            second.close()
            with closing(target.open()) as third:
                self.apply_write(third, write)
                self.assert_holds(target, history, write)

    def test_closed_instance_fences_nobody(self) -> None:
        """After `close`, which may be called twice, another instance can write at once."""
        history = make_history(*make_writes(0, 1))
        with self.target() as target:
            for end in (1, 2):
                sink = target.open()
                self.apply_write(sink, self.write(history, end - 1, end))
                sink.close()
                sink.close()
            self.assert_holds(target, history, self.write(history, 0, 2))

    def test_lanes_are_separate(self) -> None:
        """Several lanes in one `apply` have separate rows and states."""
        history = make_history(*make_writes(0, 1, 2))
        lanes = [make_lane("scd1"), make_lane("append", "log"), make_lane("scd1", "other")]
        with self.open_sink() as (target, sink):
            several = [self.write(history, 0, end, lane) for end, lane in zip((2, 3, 1), lanes, strict=True)]
            for write in several:
                sink.prepare(write.lane, write.plan)
            applied = sink.apply(several, refuse_rejects)
            assert {lane: done.position for lane, done in applied.items()} == {w.lane.id: w.span.end for w in several}
            for write, end in zip(several, (2, 3, 1), strict=True):
                self.assert_holds(target, history, write, end)

    def test_apply_is_atomic_across_lanes(self) -> None:
        """If the sink is `atomic_across_lanes`, one failed write undoes the others of the call."""
        history = make_history(*make_writes(0, 1, 2))
        lanes = [make_lane("scd1"), make_lane("scd1", "other")]
        with self.open_sink() as (target, sink):
            require(sink.features.atomic_across_lanes, "the sink commits lane by lane")
            for lane in lanes:
                self.apply_write(sink, self.write(history, 0, 1, lane))
            with pytest.raises(DataLoss):
                sink.apply([self.write(history, 1, 2, lanes[0]), self.write(history, 2, 3, lanes[1])], refuse_rejects)
            for lane in lanes:
                self.assert_holds(target, history, self.write(history, 0, 1, lane), 1)

    def test_several_writes_of_a_lane_are_one_commit(self) -> None:
        """If the sink is `atomic_across_lanes`, consecutive writes of one call are all applied, or none."""
        history = make_history(*make_writes(0, 1, 2))
        with self.open_sink() as (target, sink):
            require(sink.features.atomic_across_lanes, "the sink commits lane by lane")
            self.apply_write(sink, self.write(history, 0, 1))
            first, last = self.write(history, 1, 2), self.write(history, 2, 3)
            beyond = Position({p: offset + 1 for p, offset in last.span.end.items()})
            with pytest.raises(DataLoss):
                sink.apply([first, replace(last, span=Span(last.span.end, beyond))], refuse_rejects)
            self.assert_holds(target, history, first, 1)
            (done,) = sink.apply([first, last], refuse_rejects).values()
            assert done.position == last.span.end and done.counts.total == first.folded.rows + last.folded.rows
            self.assert_holds(target, history, last, 3)

    def test_prepare_adds_columns(self) -> None:
        """`prepare` with more columns keeps the rows, with NULL in the new columns."""
        history = make_history(*make_writes(0), Statement("add_column", salt=3), *make_writes(1, salt=9))
        with self.open_sink() as (target, sink):
            self.apply_write(sink, self.write(history, 0, 1))
            write = self.write(history, 1, 2)
            self.apply_write(sink, write)
            self.assert_holds(target, history, write)

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_special_characters_in_names_are_stored_or_refused(self, name: str) -> None:
        """A column or target with a name that looks like SQL, a path or a keyword is stored under that name. Otherwise
        the error has the name. The same if a value of the column is not sent."""
        require(self.one_in == 1 or ODD_NAMES.index(name) % 3 == 0, "one name in three where each takes seconds")
        table = TableSpec("public.items", (Column("k1", pa.int64()), Column(name, pa.string())), ("k1",), 3)
        lane, plan, row = make_lane("scd1", name), plan_for("scd1", table), {"k1": 1, name: name}
        with self.open_sink() as (target, sink):
            try:
                run = LaneWriter(self, target, plan, lane, sink)
                run.send_changes([Change("c", (1, 0, 0), row)])
                run.send_changes([Change("u", (2, 0, 0), row | {name: None}, frozenset({name}))])
            except Fatal as refused:
                assert name in str(refused) or repr(name)[1:-1] in str(refused), refused
                return
            assert to_canonical_rows(target.rows(lane), ["k1", name]) == to_canonical_rows([row], ["k1", name])

    # Operators.

    def test_skip_changes_only_the_state(self) -> None:
        """`skip` sets the state; the rows stay."""
        history = make_history(*make_writes(0, 1, 2))
        with self.open_sink() as (target, sink):
            write = self.write(history, 0, 1)
            self.apply_write(sink, write)
            state = sink.state(write.lane)
            assert state is not None
            sink.skip(write.lane, replace(state, position=history.position(2)))
            self.assert_holds(target, history, write, 1)
            assert sink.state(write.lane) == replace(state, position=history.position(2))
            assert self.apply_write(sink, self.write(history, 2, 3)).counts.applied == 1

    def test_reset_removes_all_rows(self) -> None:
        """`reset` removes all rows, also those that are not delivered again."""
        history = make_history(*make_writes(0, 1))
        with self.open_sink() as (target, sink):
            self.apply_write(sink, self.write(history, 0, 1))
            sink.reset(make_lane("scd1"))
            write = self.write(history, 1, 2)
            self.apply_write(sink, write)
            only = [row["k1"] for row in target.rows(write.lane)]
            assert only == [history.events[1].change.image["k1"]]  # type: ignore[union-attr]

    def test_changes_apply_again_after_a_reset(self) -> None:
        """After `reset` there are no rows and no state, and everything can be applied again."""
        history = make_history(*make_writes(0, 1), Statement("delete", 1), Statement("truncate"), *make_writes(2))
        with self.open_sink() as (target, sink):
            write = self.write(history, 0, 5)
            self.apply_write(sink, write)
            sink.reset(write.lane)
            assert sink.state(write.lane) in (None, LaneState())
            self.apply_write(sink, write)
            self.assert_holds(target, history, write)


class TombstoneStore(Protocol[F]):
    """The tombstones of a target, as (key, sequence): an older update that arrives later cannot bring a row back. For a
    sink that stores them in a table of its own.

    Entries are facts: storing one twice, or before the target's own commit, is harmless.
    """

    def record(self, lane: Lane, plan: ApplyPlan, deletes: F) -> None:
        """Store the deletes of a folded frame."""

    def lookup(self, lane: Lane, plan: ApplyPlan, keys: F, applied: Position, *, again: bool = False) -> F:
        """The tombstones of these keys: the key columns and `_cdc_seq_1..n`, the highest sequence per key. Tombstones
        of records at or above `applied` are left out (test_tombstones_of_unapplied_records_are_left_out). With `again`,
        for an out-of-band write, tombstones of the records of `keys` are left out too: it is not known if they were
        applied (test_tombstones_of_retried_records_are_left_out)."""

    def forget(self, lane: Lane, plan: ApplyPlan, high: SequenceKey) -> None:
        """Delete the tombstones at or below the sequence `high`; may be repeated."""


class TombstoneContract(FrameContract):
    """Every promise of `TombstoneStore` as a test. Define `new_tombstones` and `new_engine`."""

    def new_tombstones(self) -> TombstoneStore[Any]:
        """A fresh, empty tombstone store."""
        raise NotImplementedError

    def test_tombstones_keep_the_highest_sequence(self) -> None:
        """The highest sequence per key. A second `record` changes nothing. Keys that were never deleted have no entry."""
        history = make_history(
            *make_writes(0, 1, 2), *(Statement("delete", k) for k in (0, 1)), *make_writes(0), Statement("delete", 0)
        )
        ledger, engine, lane = self.new_tombstones(), self.new_engine(), make_lane("scd1")
        plan = plan_for("scd1", history.table())
        deletes = [e for e in history.events if e.change and e.change.op == "d"]
        for batch in (deletes[:2], deletes[2:], deletes[:2]):
            folded = engine.fold(self.to_frame(history.frame(batch, plan.table)), plan)
            ledger.record(lane, plan, folded.frame)
        keys = engine.fold(self.to_frame(history.frame(history.events[:3], plan.table)), plan).frame
        rows = self.to_arrow(ledger.lookup(lane, plan, keys, find_applied(history.frame(deletes, plan.table)))).to_pylist()
        names = (*plan.table.keys, *cdc_sequence_columns(3))
        expected = [{**e.change.image, **to_stored_sequence(e.change.sequence)} for e in deletes[1:] if e.change]
        assert to_canonical_rows(rows, names) == to_canonical_rows(expected, names)

    def test_tombstones_of_unapplied_records_are_left_out(self) -> None:
        """An entry of a failed attempt does not count until its record is applied: earlier records may be applied
        again without it."""
        history = make_history(*make_writes(0), Statement("delete", 0), *make_writes(0), Statement("delete", 0))
        ledger, engine, lane = self.new_tombstones(), self.new_engine(), make_lane("scd1")
        plan = plan_for("scd1", history.table())
        first, second = (e for e in history.events if e.change and e.change.op == "d")
        for event in (first, second):
            folded = engine.fold(self.to_frame(history.frame([event], plan.table)), plan)
            ledger.record(lane, plan, folded.frame)

        def lookup(*events: Any) -> list[tuple[int, ...]]:
            position = find_applied(history.frame(events, plan.table))
            rows = self.to_arrow(ledger.lookup(lane, plan, folded.frame, position)).to_pylist()
            return [tuple(row[name] for name in cdc_sequence_columns(3)) for row in rows]

        assert lookup() == []
        assert [lookup(first), lookup(first, second)] == [[e.change.sequence] for e in (first, second) if e.change]

    def test_tombstones_of_retried_records_are_left_out(self) -> None:
        """The entry of the retried record does not count, because it may come from a failed attempt. Entries of
        others count."""
        history = make_history(*make_writes(0), Statement("delete", 0), *make_writes(0), Statement("delete", 0))
        ledger, engine, lane = self.new_tombstones(), self.new_engine(), make_lane("scd1")
        plan = plan_for("scd1", history.table())
        first, second = (e for e in history.events if e.change and e.change.op == "d")
        folded = [engine.fold(self.to_frame(history.frame([event], plan.table)), plan) for event in (first, second)]
        ledger.record(lane, plan, folded[0].frame)
        position = history.position(len(history.events))
        counts = [self.to_arrow(ledger.lookup(lane, plan, rows.frame, position, again=True)).num_rows for rows in folded]
        assert counts == [0, 1]


def find_applied(frame: pa.Table) -> Position:
    """The position of a lane that has applied these changes of one partition."""
    rows = frame.select([TOPIC, PARTITION, OFFSET]).to_pylist()
    return Position({TopicPartition(row[TOPIC], row[PARTITION]): row[OFFSET] + 1 for row in rows})


def try_write(sink: Sink[Any], write: Write[Any], *, prepare: bool = False) -> Exception | None:
    """The error of preparing or applying; None without one."""
    try:
        if prepare:
            sink.prepare(write.lane, write.plan)
        else:
            sink.apply([write], refuse_rejects)
    except Exception as error:
        return error
    return None
