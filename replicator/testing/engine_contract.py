"""The promises of an engine. Inherit `EngineContract`, and `EnginePrefetchContract` if it prefetches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from replicator.domain.change import ERROR, OFFSET, OP, PARTITION, RAW, TOPIC, TX, changes_schema
from replicator.domain.erasures import UNKEYED_HASHES, KeyHashes
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.event_log import EVENT_LOG
from replicator.domain.expr import Expr
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import EMPTY_SPAN, Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.domain.transactions import TransactionPart
from replicator.domain.transform.expressions import list_columns
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.decoder import TABLE_DROPPED, Decoder
from replicator.ports.engine import Engine, Prefetch
from replicator.ports.frames import ApplyOutcome, RecordSlice, RejectRows, Write

from .contract import FrameContract
from .delivery import DeliveryRun, Plans, assert_equals_model, make_watermark_plans, to_canonical_rows
from .fakes import DROP, FakeDecoder, FakeSink, FakeStore, FakeTarget, encode_change
from .histories import History, any_histories, changes_frame, histories, list_events
from .model import Change, Row
from .model_transforms import ModelRowTransforms
from .sink_base import make_history, make_writes, require_feature
from .sink_contract import KEYED_TYPES
from .sink_retention import DISORDER, GRACE
from .source import FIRST_OFFSET, SourceTable, Statement, StreamShape, to_micros
from .transform_cases import CASES, check_transform_histories

# Shared parts: the factories of an adapter, and an engine for the fake sink


class EngineBase(FrameContract):
    """Helpers of the tests."""

    def read_changes(self, history: History, start: int = 0, end: int | None = None) -> Any:
        """The changes of the events [start, end), under the table's last schema."""
        table = history.table()
        parts = [self.to_frame(frame) for _, frame in history.runs(start, len(history.events) if end is None else end)]
        return self.new_engine().frames.concat(parts or [self.to_frame(history.frame((), table))], table)

    def check_history(
        self, history: History, policy: str, plans: Plans = plan_for, wanted: ModelRowTransforms | None = None
    ) -> None:
        """The history, folded by batch and applied row by row, ends like the model."""
        arguments = self.new_engine(), ConvertingTarget(self), history, policy, plans, wanted
        delivering = DeliveryRun(*arguments, to_frame=self.to_frame, to_arrow=self.to_arrow)
        delivering.run()
        assert_equals_model(delivering)

    def rows(self, frame: Any, names: Sequence[str]) -> Counter[str]:
        """The rows of a frame as a multiset."""
        return to_canonical_rows(self.to_arrow(frame).to_pylist(), names)


class ConvertingSink(FakeSink):
    """A `FakeSink` for frames of the engine of a suite."""

    def __init__(self, store: FakeStore, suite: EngineBase) -> None:
        super().__init__(store)
        self.suite = suite

    def apply(self, writes: Sequence[Write[Any]], reject: RejectRows[Any]) -> ApplyOutcome:
        frames = [self.suite.to_arrow(write.folded.frame) for write in writes]
        plain = [replace(w, folded=replace(w.folded, frame=frame)) for w, frame in zip(writes, frames, strict=True)]
        return super().apply(plain, lambda lane, rows: reject(lane, self.suite.to_frame(rows)))


class ConvertingTarget(FakeTarget):
    """The target of `ConvertingSink`."""

    def __init__(self, suite: EngineBase) -> None:
        super().__init__()
        self.suite = suite

    def open(self) -> FakeSink:
        return ConvertingSink(self.store, self.suite)


# Frames divided by key: `ports.engine.KeyPartitions`

PARTITIONS = 5


class EnginePartitions(EngineBase):
    """The promises of `KeyPartitions`, for engines that have them."""

    def test_every_key_is_in_one_partition(self) -> None:
        """Every row is in one partition, in order. A key has the same partition in every frame."""

        @self.for_all(history=any_histories(KEYED_TYPES))
        def check(history: History) -> None:
            partitions = require_feature(self.new_engine().features.partitions, "the engine cannot partition frames by key")
            keys = history.table().keys
            changes, half = self.read_changes(history), self.read_changes(history, len(history.events) // 2)
            whole, part = (partitions.split(frame, keys, PARTITIONS) for frame in (changes, half))
            assert len(whole) == len(part) == PARTITIONS
            homes = {key: i for i, rows in enumerate(whole) for key in _read_keys(rows, keys)}
            for i, rows in enumerate([*whole, *part]):
                assert {homes[key] for key in _read_keys(rows, keys)} <= {i % PARTITIONS}
            for frame, parts in ((changes, whole), (half, part)):
                numbers = [homes[key] for key in _read_keys(frame, keys)]
                for i, rows in enumerate(parts):
                    assert rows.equals(frame.filter(pa.array([number == i for number in numbers], pa.bool_())))


def _read_keys(rows: pa.Table, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))


# Row transforms

KEY_CHANGE = (Statement("write", 0, salt=4), Statement("move", 0, 1, salt=9, mask=1))


def list_expressions(shape: RowTransforms) -> list[Expr]:
    """The expressions of the computed columns."""
    return [added.expression for _, added in shape.column_transforms.additions if added.expression is not None]


class EngineRowTransforms(EngineBase):
    """Row transforms."""

    def test_row_transforms_equal_model(self) -> None:
        """Random histories with row transforms end like the model, under every policy: order by columns, rows as
        deletes or truncates, excluded columns and deletes."""
        for policy in ("scd1", "append"):
            check_transform_histories(self, policy)

    def test_row_transforms_account_for_every_change(self) -> None:
        """The result has the order of arrival and the columns of the plan's table. Other changes are filtered, or
        rejected with a reason."""
        engine = self.new_engine()
        history = make_history(
            *make_writes(0, 1), Statement("write", 0, salt=6), Statement("delete", 1), *KEY_CHANGE, Statement("truncate")
        )
        for name, case in self.sample_cases((name, case) for name, case in CASES.items() if "text" in case.first_types):
            plan = case.plan("scd1", history.table())
            shaped = engine.transform_rows(self.read_changes(history), plan)
            frame, rejects = self.to_arrow(shaped.frame), self.to_arrow(shaped.rejects)
            assert frame.schema.names == rejects.schema.names == changes_schema(plan.table).names, name
            assert frame.schema.types == changes_schema(plan.table).types, name
            assert frame[OFFSET].to_pylist() == sorted(frame[OFFSET].to_pylist()), name
            assert frame[ERROR].null_count == frame.num_rows == engine.frames.count(shaped.frame), name
            assert rejects.num_rows == shaped.counts.rejected == engine.frames.count(shaped.rejects), name
            assert frame.num_rows + shaped.counts.total == len(history.changes()), name
            codes = {Reject.parse(error).code for error in rejects[ERROR].to_pylist()}
            expected = {RejectCode.SEQUENCE} if case.row_transforms.sequence_by else set()
            asks = case.row_transforms.where is not None or any(
                len(list_columns(expression)) > 1 for expression in list_expressions(case.row_transforms)
            )
            expected |= {RejectCode.INCOMPLETE} if asks and not expected else set()
            assert codes == expected, name
            empty = engine.transform_rows(self.read_changes(history, 0, 0), plan)
            assert (engine.frames.count(empty.frame), empty.counts.total) == (0, 0)

    def test_partial_change_out_of_order_starts_a_segment(self) -> None:
        """A partial change starts a segment unless it is the first of its key in the segment. A later change of the key
        with a lower sequence starts a segment too."""
        engine, case = self.new_engine(), CASES["in the order of a column"]
        half: Row = {"k1": 1, "v2": 1}
        images = [
            *({"k1": 1, "v1": text, "v2": 1} for text in "bc"),
            half | {"v1": "d"},
            half | {"v1": "a"},
            half | {"v1": "e"},
        ]
        unchanged = [frozenset[str]()] * 2 + [frozenset({"v2"})] + [frozenset[str]()] * 2
        changes = [
            Change("u", (at, 0, 0), image, lacks) for at, (image, lacks) in enumerate(zip(images, unchanged, strict=True))
        ]
        table = make_history().table()
        frame = self.to_frame(changes_frame(list_events(changes), table, SourceTable.topic))
        plan = case.plan("scd1", table)
        pieces = engine.frames.segments(engine.transform_rows(frame, plan).frame, plan.table)
        assert [self.to_arrow(piece)["v1"].to_pylist() for piece in pieces] == [["b", "c"], ["d"], ["a", "e"]]
        assert len(engine.frames.segments(frame, table)) == 1


# Dropped tables

ITEMS = TableSpec("public.items", (Column("id", pa.int64()),), ("id",), fingerprint="0")
VALUES = (
    ("a", "items"), ("a", "drop public.items"), ("a", "items"), ("a", "drop public.other"), ("a", "drop public.items"),
    ("b", "drop public.items"), ("b", "items"),
)  # fmt: skip
"""Topics and record contents, in order."""


class EngineDrops(EngineBase):
    """The part of the contract of `ports.engine.Engine` for records of dropped tables."""

    def test_route_returns_the_positions_of_dropped_tables(self) -> None:
        """Records of dropped tables are ignored. Their positions are returned by table, in order, also if there are no
        other records."""
        rows: list[dict[str, Any]] = []
        for topic, text in VALUES:
            offset = sum(row["topic"] == topic for row in rows)
            change = [{"_op": "c", "_seq_1": offset, "id": offset}]
            value = encode_change(pa.Table.from_pylist(change), ITEMS) if text == "items" else text.encode()
            assert text == "items" or value.startswith(DROP)
            rows.append({"topic": topic, "partition": 0, "offset": offset, "value": value})
        engine, records = self.new_engine(), pa.Table.from_pylist(rows, RAW)
        routed = engine.route(self.to_frame(records), FakeDecoder())
        assert dict(routed.ignored) == {TABLE_DROPPED: 4}
        assert [engine.frames.count(run.frame) for run in routed.slices] == [3]
        of_items = [_make_position("a", 1), _make_position("a", 4), _make_position("b", 0)]
        assert _to_plain(routed.drops) == {"public.items": of_items, "public.other": [_make_position("a", 3)]}
        alone = engine.route(self.to_frame(records.slice(3, 2)), FakeDecoder())
        assert not alone.slices
        assert _to_plain(alone.drops) == {"public.other": [_make_position("a", 3)], "public.items": [_make_position("a", 4)]}
        assert not engine.route(self.to_frame(records.slice(0, 1)), FakeDecoder()).drops


def _make_position(topic: str, offset: int) -> Position:
    return Position({TopicPartition(topic, 0): offset})


def _to_plain(drops: Any) -> dict[str, list[Position]]:
    return {table: list(positions) for table, positions in drops.items()}


# The contract

BOOKKEEPING = ("_op", "_seq_1", "_seq_2", "_seq_3", "_topic", "_partition", "_offset", "_unsent", "_moved_from", "_reset")
UNSEEN_SHAPE = StreamShape(values=("text", "int"), tombstones=False, unseen=True)


class EngineContract(EnginePartitions, EngineRowTransforms, EngineDrops):
    """Every promise of `ports.engine.Engine` as a test. Define `new_engine`, and the conversions for other frames
    than `pyarrow.Table`."""

    def test_fold_equals_model(self) -> None:
        """Random histories, folded by batch and applied row by row, end like the model, under scd1 and append.

        The folds of scd2 are tested with a sink: `SinkContract.test_histories_under_scd2_equal_the_model`."""
        for policy, keys in (("scd1", KEYED_TYPES), ("append", (*KEYED_TYPES, "none"))):
            self._check_model(policy, keys)

    def test_fold_under_a_watermark_equals_model(self) -> None:
        """The same with a watermark and disordered event times."""
        self._check_model("append", (*KEYED_TYPES, "none"), make_watermark_plans(GRACE), DISORDER)

    def _check_model(self, policy: str, keys: tuple[str, ...], plans: Plans = plan_for, disorder: int = 0) -> None:
        @self.for_all(history=any_histories(keys, disorder))
        def check(history: History) -> None:
            self.check_history(history, policy, plans)

    def test_fold_keeps_equal_changes_of_several_partitions(self) -> None:
        """Equal rows of a table without a key, at one log position but in several partitions, are not duplicates. Each
        is the first of its partition."""
        shape = StreamShape(key="none", values=("truth",), partitions=3, snapshot=3)
        self.check_history(History(shape, (Statement("write"), Statement("resend"))), "append")

    def test_fold_under_a_watermark_keeps_every_change(self) -> None:
        """Repeated changes are kept too, in the order of arrival. `Facts` have the event times, without those of
        snapshot reads. Folding the result again gives the same."""
        engine, shape = self.new_engine(), StreamShape(partitions=3, snapshot=3, disorder=DISORDER)
        history = History(shape, (*make_writes(0, 1, 2, 3, 4, 0, 1), Statement("resend", salt=4), Statement("truncate")))
        plan = plan_for("append", history.table(), GRACE)
        folded = engine.fold(self.read_changes(history), plan)
        again = engine.fold(engine.frames.concat([folded.frame]), plan)
        mine = [(c.partition, to_micros(c.ts)) for c in history.changes() if c.op != "r" and c.ts is not None]
        newest = {partition: max(time for p, time in mine if p == partition) for partition, _ in mine}
        for one in (folded, again):
            assert self._group_in_order(one.frame) == self._group_in_order(self.read_changes(history))
            assert (one.rows, one.counts.total) == (len(history.changes()), 0)
            assert one.facts.oldest == min(time for _, time in mine)
            assert {p.partition: time for p, time in one.facts.max_event_times.items()} == newest
        assert not engine.fold(self.read_changes(history), plan_for("append", history.table())).facts.max_event_times

    def test_fold_keeps_the_order_of_arrival(self) -> None:
        """With column versions the effect of a change depends on the changes before it. So it does in a history with
        unchanged values. A second fold keeps the order too. The first of several equal changes stays."""
        engine, shape = self.new_engine(), StreamShape(partitions=3, snapshot=3, shuffle=5)
        writes = (*make_writes(0, 1, 2, 3, 4, 0, 1, 5, 6, 2), Statement("write", 2, salt=9, mask=1))
        history = History(shape, (*writes, Statement("truncate"), *make_writes(3, 0, 7)))
        whole = self.to_arrow(self.read_changes(history))
        positions = list(zip(whole[PARTITION].to_pylist(), whole[OFFSET].to_pylist(), strict=True))
        for plan in (
            plan_for("scd1", history.table(), None, RowTransforms(has_column_versions=True)),
            plan_for("scd2", history.table()),
        ):
            parts = [self.to_frame(part) for part in (whole, whole.slice(0, 4))]
            folded = engine.fold(engine.frames.concat(parts), plan)
            again = engine.fold(engine.frames.concat([folded.frame]), plan)
            for one in (folded, again):
                rows = self.to_arrow(one.frame)
                assert list(zip(rows[PARTITION].to_pylist(), rows[OFFSET].to_pylist(), strict=True)) == positions
            assert (folded.counts.duplicate, again.counts.total, again.rows) == (4, 0, whole.num_rows)

    def _group_in_order(self, frame: Any) -> dict[int, list[int]]:
        arrow = self.to_arrow(frame)
        positions = zip(arrow[PARTITION].to_pylist(), arrow[OFFSET].to_pylist(), strict=True)
        out: dict[int, list[int]] = {}
        for partition, offset in positions:
            out.setdefault(partition, []).append(offset)
        return out

    def test_fold_of_folded_frames_equals_one_fold(self) -> None:
        """Folding the concatenation of folded frames equals folding all their changes."""
        engine = self.new_engine()

        @self.for_all(history=histories(keys=KEYED_TYPES), at=st.floats(0, 1))
        def check(history: History, at: float) -> None:
            plan = plan_for("scd1", history.table())
            names = (*BOOKKEEPING, *plan.table.column_names)
            for segment in engine.frames.segments(self.read_changes(history), plan.table):
                whole = self.to_arrow(segment)
                cut = int(at * whole.num_rows)
                parts = [self.to_frame(whole.slice(0, cut)), self.to_frame(whole.slice(cut))]
                folded = [engine.fold(part, plan) for part in parts]
                again = engine.fold(engine.frames.concat([f.frame for f in folded]), plan)
                once = engine.fold(segment, plan)
                assert self.rows(again.frame, names) == self.rows(once.frame, names)
                total = sum((f.counts.total for f in folded), again.counts.total) + again.rows
                assert total == whole.num_rows == once.rows + once.counts.total

    def test_whole_row_completes_folded_partial_changes(self) -> None:
        """A whole row supplies the values that later partial changes did not send, also if these were folded before."""
        engine = self.new_engine()
        halves = (Statement("write", 0, salt=1, mask=1), Statement("write", 0, salt=2, mask=2))
        history = make_history(*make_writes(0), *halves)
        plan = plan_for("scd1", history.table())
        whole = self.to_arrow(self.read_changes(history))
        parts = [engine.fold(self.to_frame(part), plan).frame for part in (whole.slice(0, 1), whole.slice(1))]
        (row,) = self.to_arrow(engine.fold(engine.frames.concat(parts), plan).frame).to_pylist()
        assert row["_unsent"] is None

    def test_fold_keeps_the_image_of_a_delete(self) -> None:
        """The values of a delete stay as sent, even if changes of other keys lack values."""
        engine = self.new_engine()
        partial = Statement("write", 0, salt=1, mask=1)
        history = make_history(*make_writes(0, 1), partial, Statement("delete", 1), shape=replace(UNSEEN_SHAPE, full=True))
        plan = plan_for("scd1", history.table())
        rows = self.to_arrow(engine.fold(self.read_changes(history), plan).frame).to_pylist()
        assert [row["v1"] is None for row in rows if row["_op"] == "d"] == [False]

    def test_fold_sets_reset_after_a_delete_or_truncate(self) -> None:
        """`_reset` is true if the key was deleted, or the table truncated, earlier in the batch; otherwise false."""
        engine = self.new_engine()
        moved = make_history(*make_writes(0, 1), Statement("delete", 1), Statement("move", 0, 1, salt=9, mask=1))
        plan = plan_for("scd1", moved.table())
        for start, expected in ((2, [True]), (3, [False])):
            rows = self.to_arrow(engine.fold(self.read_changes(moved, start), plan).frame).to_pylist()
            assert [row["_reset"] for row in rows if row["_op"] == "c"] == expected
            assert [row["_unsent"] for row in rows if row["_op"] == "c"] == [["v1"]]
        cleared = make_history(*make_writes(0), Statement("truncate"), *make_writes(0, 1))
        rows = self.to_arrow(engine.fold(self.read_changes(cleared), plan).frame).to_pylist()
        assert [row["_reset"] for row in rows if row["_op"] == "c"] == [True, True]

    def test_fold_of_partial_changes_stays_partial(self) -> None:
        """Two changes that together sent every column still need an existing row, like each of them alone."""
        engine = self.new_engine()
        halves = (Statement("write", 0, salt=1, mask=1), Statement("write", 0, salt=2, mask=2))
        history = make_history(*halves, shape=UNSEEN_SHAPE)
        plan = plan_for("scd1", history.table())
        (row,) = self.to_arrow(engine.fold(self.read_changes(history), plan).frame).to_pylist()
        assert row["_unsent"] == []
        assert row["v1"] is not None
        assert row["v2"] is not None

    def test_fold_returns_the_facts_of_the_batch(self) -> None:
        """`Facts` describe the batch, and the counts cover all input changes."""
        engine = self.new_engine()
        history = make_history(
            *make_writes(0, 1), Statement("truncate"), *KEY_CHANGE, *make_writes(2), Statement("delete", 2)
        )
        plan = plan_for("scd1", history.table())
        folded = engine.fold(self.read_changes(history), plan)
        sequences = [change.sequence for change in history.changes()]
        assert (folded.facts.lowest, folded.facts.highest) == (min(sequences), max(sequences))
        assert folded.facts.truncated_at == sequences[2]
        assert folded.facts.has_deletes
        assert folded.facts.max_delete == max(change.sequence for change in history.changes() if change.op == "d")
        back = make_history(*make_writes(0, 1), Statement("delete", 0), *make_writes(0))
        again = engine.fold(self.read_changes(back), plan)
        assert (again.facts.has_deletes, again.facts.max_delete) == (False, back.changes()[2].sequence)
        assert folded.rows == engine.frames.count(folded.frame)
        assert folded.rows + folded.counts.total == len(sequences)
        empty = engine.fold(self.read_changes(make_history()), plan_for("scd1", make_history().table()))
        assert (empty.rows, empty.facts.lowest, empty.facts.highest, empty.facts.max_delete) == (0, None, None, None)

    # Cutting a stream.

    def test_open_key_changes_are_found(self) -> None:
        """A key change that is cut in the middle is held back from its delete half on. A whole one is not."""
        engine = self.new_engine()
        for partitions in (1, 3):
            history = make_history(*KEY_CHANGE, shape=StreamShape(partitions=partitions, tombstones=False))
            half = history.events[1]
            at = TopicPartition(history.source.topic, half.partition)
            assert engine.frames.find_open_key_changes(self.read_changes(history, 0, 2)) == Position({at: half.offset})
            assert not engine.frames.find_open_key_changes(self.read_changes(history, 0, 3))
            assert not engine.frames.find_open_key_changes(self.read_changes(history, 0, 1))

    def test_segments_keep_the_old_row_readable(self) -> None:
        """The old row must be readable for changes without all values, so these start a new segment:

        - a partial move of a key that was written in the segment,
        - a partial change after a delete of its key, or after such a move to it.

        A truncate among partial changes is alone. Otherwise there is one segment.
        """
        engine = self.new_engine()
        history = make_history(*KEY_CHANGE, *make_writes(2))
        pieces = [self.to_arrow(piece) for piece in engine.frames.segments(self.read_changes(history), history.table())]
        assert [piece[OFFSET].to_pylist() for piece in pieces] == [[10], [11, 12, 13]] or len(pieces) > 2
        assert self.rows(engine.frames.concat([self.to_frame(p) for p in pieces]), BOOKKEEPING[:7]) == self.rows(
            self.read_changes(history), BOOKKEEPING[:7]
        )
        void = make_history(
            *make_writes(0, 1), Statement("delete", 1), Statement("skip"), Statement("move", 0, 1, salt=9, mask=1)
        )
        pieces = [self.to_arrow(piece) for piece in engine.frames.segments(self.read_changes(void, 2), void.table())]
        assert [piece["_op"].to_pylist() for piece in pieces] == [["d"], ["d", "c"]]
        after = make_history(*KEY_CHANGE, Statement("write", 1, salt=2, mask=1), Statement("truncate"), *make_writes(0))
        pieces = [self.to_arrow(piece) for piece in engine.frames.segments(self.read_changes(after, 1), after.table())]
        assert [piece["_op"].to_pylist() for piece in pieces] == [["d", "c"], ["u"], ["t"], ["c"]]
        plain = make_history(*make_writes(0, 1, 0), Statement("move", 0, 3, salt=3))
        assert len(engine.frames.segments(self.read_changes(plain), plain.table())) == 1

    def test_split_divides_by_span(self) -> None:
        """`split` divides changes and records per partition. Rows of partitions outside the span are others."""
        frames = self.new_engine().frames
        history = make_history(*make_writes(0, 1, 2, 3, 4, 0, 1, 2), shape=StreamShape(partitions=3))
        changes, raw = self.read_changes(history), self.to_frame(make_fake_raw(history))
        everything = Counter((history.source.topic, e.partition, e.offset) for e in history.events)
        at = TopicPartition(history.source.topic, history.events[0].partition)
        mine = Counter(position for position in everything if position[:2] == at)
        first, second = (Position({at: FIRST_OFFSET + number}) for number in (0, 1))
        below = Counter([(*at, FIRST_OFFSET)])
        for span, expected in (
            (Span.below(second), below),
            (Span(first, second), below),
            (Span.from_position(second), mine - below),
            (Span.from_position(first), mine),
            (Span.from_position(Position({TopicPartition("other", 0): 0})), below - below),
            (EMPTY_SPAN, below - below),
            (history.span(0, len(history.events)), everything),
        ):
            for frame in (changes, raw):
                inside, others = frames.split(frame, span)
                assert (self._count_positions(inside), self._count_positions(others)) == (expected, everything - expected)
                assert frames.count(inside) == expected.total()

    def _count_positions(self, frame: Any) -> Counter[tuple[str, int, int]]:
        arrow = self.to_arrow(frame)
        names = (TOPIC, PARTITION, OFFSET) if TOPIC in arrow.column_names else ("topic", "partition", "offset")
        return Counter(zip(*(arrow[name].to_pylist() for name in names), strict=True))

    def test_ends_are_after_the_last_records(self) -> None:
        """`ends` has exactly the partitions with rows."""
        engine = self.new_engine()
        history = make_history(*make_writes(0, 1, 2, 3, 4), shape=StreamShape(partitions=3))
        assert engine.frames.ends(self.read_changes(history)) == history.position(5)
        assert not engine.frames.ends(self.read_changes(history, 0, 0))

    def test_concat_keeps_order_and_fills_with_null(self) -> None:
        """Frames of several schemas become one, in order. Missing columns are null, and do not count as unchanged."""
        history = make_history(*make_writes(0), Statement("add_column", salt=3), *make_writes(1, salt=1))
        arrow = self.to_arrow(self.read_changes(history))
        assert arrow[OFFSET].to_pylist() == [10, 11]
        assert arrow["v3"].to_pylist()[0] is None
        assert arrow["v3"].to_pylist()[1] is not None
        assert arrow["_unsent"].null_count == 2

    # Records.

    def test_route_accounts_for_every_record(self) -> None:
        """Every record is in exactly one slice, ignored by kind, or rejected with its bytes and a reason."""
        engine, history = (
            self.new_engine(),
            make_history(*make_writes(0, 1), Statement("add_column", salt=3), *make_writes(2)),
        )
        raw = pa.concat_tables([make_fake_raw(history), make_odd_records()])
        routed = engine.route(self.to_frame(raw), FakeDecoder())
        placed = Counter(p for run in routed.slices for p in self._count_positions(run.frame))
        placed += self._count_positions(routed.rejects)
        assert max(placed.values()) == 1
        assert placed.total() + sum(routed.ignored.values()) == raw.num_rows
        assert dict(routed.ignored) == {"tombstone": 1}
        assert routed.reject_count == 1
        assert [(run.table, run.fingerprint) for run in routed.slices] == [("public.items", "0"), ("public.items", "1")]
        assert routed.topics == {"public.items": frozenset({history.source.topic})}

    def test_decode_separates_changes_and_rejects(self) -> None:
        """`decode` of a slice returns each of its changes once, as the decoder does."""
        engine, decoder, history = self.new_engine(), FakeDecoder(), make_history(*make_writes(0, 1, 2))
        (run,) = engine.route(self.to_frame(make_fake_raw(history)), decoder).slices
        table = _learn(engine, run, decoder)
        assert (table.column_names, table.keys) == (history.table().column_names, history.table().keys)
        changes, rejects = engine.decode(run, decoder, table)
        names = (*BOOKKEEPING[:7], *table.column_names)
        assert self.rows(changes, names) == self.rows(self.read_changes(history), names)
        assert engine.frames.count(rejects) == 0

    def test_exact_parts_count_a_change_once(self) -> None:
        """A repeated change counts once. A snapshot read belongs to no transaction; a reject does."""
        engine, history = self.new_engine(), make_history(*make_writes(0, 1, 2, 3))
        exact_parts = require_feature(engine.features.transactions, "the engine does not see transactions").exact_parts
        whole = self.to_arrow(self.read_changes(history))
        sequences = list(zip(*(whole[name].to_pylist() for name in ("_seq_1", "_seq_2")), strict=True))
        again = _replace_columns(whole.slice(1, 2), **{OFFSET: [100, 101], "_seq_3": [98, 99]})
        frame = pa.concat_tables([whole, again])
        frame = _replace_columns(frame, **{OP: ["r", "c", "c", None, "c", "c"], TX: ["7", "7", "7", "8", "7", None]})
        at = TopicPartition(whole[TOPIC][0].as_py(), 0)
        first, second, third = whole[OFFSET].to_pylist()[1:]
        parts = sorted(exact_parts(self.to_frame(frame), "t"), key=lambda part: part.tx)
        assert parts == [
            TransactionPart("7", "t", at, 3, first, 100, 2, min(sequences[1:3]), max(sequences[1:3])),
            TransactionPart("8", "t", at, 1, third, third, 1, sequences[3], sequences[3]),
        ]
        assert second < third
        (none,) = exact_parts(self.to_frame(_replace_columns(frame.slice(1, 1), _seq_1=[None])), "t")
        assert (none.changes, none.low, none.high) == (1, None, None)
        assert not exact_parts(self.to_frame(frame.slice(0, 1)), "t")

    def test_from_arrow_returns_a_raw_frame_in_order(self) -> None:
        """`from_arrow` makes a frame like that of a source, in the same order."""
        engine, history = self.new_engine(), make_history(*make_writes(0, 1, 2, 0))
        raw = make_fake_raw(history)
        routed = engine.route(engine.frames.from_arrow(raw), FakeDecoder())
        assert self.to_arrow(routed.slices[0].frame)["offset"].to_pylist() == raw["offset"].to_pylist()
        assert engine.frames.count(engine.route(engine.frames.from_arrow(raw.slice(0, 0)), FakeDecoder()).rejects) == 0

    def test_later_records_of_a_blocked_key_are_split_off(self) -> None:
        """From an offset on, in one partition of one topic. The others stay, in order."""
        engine, history = self.new_engine(), make_history(*make_writes(0, 1, 2, 0, 1, 0))
        raw = make_fake_raw(history)
        offsets, keys = raw["offset"].to_pylist(), [f"k{n}".encode() for n in (0, 1, 2, 0, 1, 0)]
        raw = raw.set_column(raw.column_names.index("key"), RAW.field("key"), pa.array([*keys[:-1], None], pa.binary()))
        at = raw["topic"][0].as_py(), raw["partition"][0].as_py()
        for hashes in (UNKEYED_HASHES, KeyHashes(b"secret")):
            since = {(*at, hashes.hash_key(key)): offsets[1] for key in keys[:2]} | {
                ("other", 0, hashes.hash_key(keys[2])): 0
            }
            free, blocked = engine.frames.split_blocked(self.to_frame(raw), since, "HELD: why", hashes)
            assert self.to_arrow(free)["offset"].to_pylist() == [offsets[n] for n in (0, 2, 5)]
            rejects = [(r.offset, r.key, r.error) for r in engine.frames.rejected(blocked, [])]
            assert rejects == [(offsets[n], keys[n], "HELD: why") for n in (1, 3, 4)]
        free, blocked = engine.frames.split_blocked(self.to_frame(raw), {}, "HELD: why")
        assert (engine.frames.count(free), engine.frames.count(blocked)) == (6, 0)

    def test_rejected_returns_the_bytes_of_the_record(self) -> None:
        """Each rejected row of any frame has the bytes of its record. A record is returned once."""
        engine, history = self.new_engine(), make_history(*make_writes(0, 1, 2))
        raw = make_fake_raw(history)
        error = str(Reject(RejectCode.OUT_OF_RANGE, "too much"))
        arrow = self.to_arrow(self.read_changes(history)).slice(1)
        bad = arrow.set_column(arrow.column_names.index(ERROR), ERROR, pa.array([error, error]))
        frames = [self.to_frame(raw.slice(0, 2))]
        rejects = engine.frames.rejected(self.to_frame(pa.concat_tables([bad, bad.slice(0, 1)])), frames)
        assert [(r.offset, r.error) for r in rejects] == [(11, error), (12, error)]
        assert [r.value for r in rejects] == [raw["value"][1].as_py(), None]
        assert [r.timestamp for r in rejects] == [raw["timestamp"][1].as_py(), None]
        routed = engine.frames.rejected(self.to_frame(raw.append_column(ERROR, pa.array([error] * 3))), [])
        assert [r.value for r in routed] == raw["value"].to_pylist()

    def test_log_keeps_every_record(self) -> None:
        """The event log has one row per record, readable or not, with its bytes and the columns of `EVENT_LOG`."""
        engine, history = self.new_engine(), make_history(*make_writes(0, 1))
        raw = pa.concat_tables([make_fake_raw(history), make_odd_records()])
        log = self.to_arrow(engine.log(self.to_frame(raw), FakeDecoder()))
        assert log.schema.names == [c.name for c in EVENT_LOG]
        assert [log.schema.field(c.name).type for c in EVENT_LOG] == [c.type for c in EVENT_LOG]
        assert log["value"].to_pylist() == raw["value"].to_pylist()
        assert log["event_id"].to_pylist()[0] == f"{history.source.topic}-0-{FIRST_OFFSET}"
        assert len(set(log["ingested_at"].to_pylist())) == 1


def _learn(engine: Engine[Any], run: RecordSlice[Any], decoder: Decoder) -> TableSpec:
    return decoder.learn(engine.frames.sample(run.frame), run.table, run.fingerprint)


def _replace_columns(frame: pa.Table, **columns: Sequence[Any]) -> pa.Table:
    """The frame with other values in some columns."""
    for name, values in columns.items():
        if name in frame.column_names:
            at = frame.column_names.index(name)
            frame = frame.set_column(at, frame.field(at), pa.array(values, frame.field(at).type))
    return frame


def make_fake_raw(history: History) -> pa.Table:
    """The changes of a history as records for `FakeDecoder`."""
    tables = history.source.versions
    rows = []
    for event in history.events:
        frame = history.frame([event], tables[event.version])
        position = {"topic": history.source.topic, "partition": event.partition, "offset": event.offset}
        rows.append({**position, "key": repr(event.key).encode(), "value": encode_change(frame, tables[event.version])})
    return pa.Table.from_pylist(rows, RAW)


def make_odd_records() -> pa.Table:
    """A null record, and an unreadable one."""
    positions = [{"topic": "odd", "partition": 0, "offset": offset} for offset in (0, 1)]
    return pa.Table.from_pylist([{**positions[0], "key": b"k", "value": None}, {**positions[1], "value": b"\xff"}], RAW)


# Prefetch

BATCH_ROWS = 1_000
"""Rows of a batch. Fewer may not be worth prefetching."""
OTHERS = TableSpec("public.others", (Column("id", pa.int64()),), ("id",), fingerprint="1")


class EnginePrefetchContract(EngineBase):
    """The contract of `ports.engine.Prefetch`."""

    def test_prefetched_batches_decode_the_same(self) -> None:
        """Batches of one table, of others, of several, with unreadable or empty records, and without records. Also
        after `rest`."""
        engine = self.new_engine()
        prefetch = engine.features.prefetch
        assert prefetch is not None
        plain = [_make_item_records(ITEMS, number) for number in range(3)]
        half = BATCH_ROWS // 2
        mixed = pa.concat_tables([plain[0].slice(0, half), _make_item_records(OTHERS, 3).slice(0, half)])
        rows = plain[2].to_pylist()
        rows[3]["value"], rows[700]["value"], rows[900]["key"] = b"nothing", None, None
        batches = [*plain, mixed, pa.Table.from_pylist(rows, RAW), RAW.empty_table(), *plain[:2]]
        expected = [self._describe_batch(self.new_engine(), self.to_frame(raw), FakeDecoder()) for raw in batches]
        assert self._decode_in_turn(engine, prefetch, [self.to_frame(raw) for raw in batches]) == expected
        prefetch.stop_workers()
        assert self._decode_in_turn(engine, prefetch, [self.to_frame(raw) for raw in plain]) == expected[:3]
        prefetch.stop_workers()

    def _decode_in_turn(self, engine: Engine[Any], prefetch: Prefetch[Any], frames: list[Any]) -> list[Any]:
        decoder, begun, batches = FakeDecoder(), 0, []
        for number, frame in enumerate(frames):
            while begun < min(len(frames), number + 1 + prefetch.depth):
                prefetch.begin(frames[begun], decoder)
                begun += 1
            batches.append(self._describe_batch(engine, frame, decoder))
        return batches

    def _describe_batch(self, engine: Engine[Any], frame: Any, decoder: FakeDecoder) -> Any:
        routed = engine.route(frame, decoder)
        runs = []
        for run in routed.slices:
            frames = engine.decode(run, decoder, _learn(engine, run, decoder))
            runs.append((run.table, run.fingerprint, *(self.to_arrow(frame).to_pylist() for frame in frames)))
        rejects = self.to_arrow(routed.rejects).to_pylist()
        return runs, dict(routed.ignored), rejects, routed.reject_count, dict(routed.topics), dict(routed.drops)


def _make_item_records(table: TableSpec, number: int) -> pa.Table:
    rows = []
    for offset in range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS):
        change = pa.Table.from_pylist([{"_op": "c", "_seq_1": offset, "id": offset}])
        position = {"topic": table.name, "partition": 0, "offset": offset}
        rows.append({**position, "key": b"k", "value": encode_change(change, table)})
    return pa.Table.from_pylist(rows, RAW)
