"""The promises of a sink for tombstone retention; part of `sink_contract.SinkContract`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st

from replicator.domain.change import ERROR, OFFSET, PARTITION
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.policy.plan import Counts, LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.policy.retention import to_micros
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Lane, Write
from replicator.ports.sink import Sink

from .contract import require
from .delivery import DeliveryRun, assert_equals_model, list_arrivals, make_lane, make_retention_plans
from .histories import History, changes_frame, make_random_history
from .model import Change, Outcome, Scd1
from .sink_base import IDENTITY, make_history
from .sink_positions import SinkPositions
from .source import SourceEvent
from .value_types import EPOCH

HOUR = timedelta(hours=1)
RETENTION = 16 * HOUR
"""Its sixteenths are hours."""

BEGINNING = EPOCH + timedelta(days=20_000)
TOPIC = "cdc.public.items"
IN_ANY_ORDER = 2
"""One of this number of random histories is run."""


def make_time(hour: int) -> datetime:
    """The time `hour` and a half hours after the beginning."""
    return BEGINNING + hour * HOUR + HOUR / 2


def long_histories() -> st.SearchStrategy[History]:
    """Histories of many batches, with records in any order."""

    def scramble(seed: int, length: int) -> History:
        history = make_random_history(seed, length, keys=("int", "text", "composite"))
        return replace(history, shape=replace(history.shape, scramble=seed % 1000, shuffle=None))

    return st.builds(scramble, st.integers(0, 2**32), st.integers(30, 70))


def gaps() -> st.SearchStrategy[list[int]]:
    """Hours between the batches."""
    return st.lists(st.sampled_from((0, 1, 4, 9, 17, 40)), min_size=4, max_size=9)


def make_times(hours: Sequence[int]) -> list[datetime]:
    """The times of the batches."""
    return [make_time(sum(hours[: number + 1])) for number in range(len(hours))]


def make_changes(*changes: tuple[str, int, int]) -> list[tuple[SourceEvent, Change]]:
    """Changes in this order: operation, key, sequence."""
    out = []
    for place, (op, key, sequence) in enumerate(changes):
        image = {} if op == "t" else {"k1": key, "v1": f"{op}{sequence}"}
        change = Change(op, (sequence, 0, 0), image, event_id=f"{TOPIC}-0-{place}")
        out.append((SourceEvent(0, place, 0, None if op == "t" else (key,), change), change))
    return out


STORY = make_changes(
    *(("c", 1, 10), ("c", 2, 20), ("d", 1, 30), ("c", 3, 40)),  # 0 to 3: hour 0
    *(("u", 1, 25), ("c", 9, 28), ("d", 4, 50)),  # 4 to 6: hour 10; deletes have tombstones
    *(
        ("u", 1, 26),
        ("c", 5, 29),
        ("d", 6, 30),
        ("c", 5, 31),
        ("u", 2, 27),
    ),  # 7 to 11: hour 18; purged up to 30
    *(("d", 2, 29), ("c", 2, 30), ("c", 4, 45)),  # 12 to 14: a late delete has a tombstone, too
    *(("c", 4, 46), ("c", 2, 28), ("c", 6, 51)),  # 15 to 17: hour 40; purged up to 50
)
ENDS = ((4, 0), (7, 10), (12, 18), (13, 18), (15, 18), (18, 40))
"""The end of each batch, and its hour."""

LATE = [7, 9, 15]
"""Late changes. Change 8 would be late too, but a newer change of its key is in the same batch."""

OLD = [4, 14, 16]
"""Changes that are older than a row or a tombstone."""


class SinkRetention(SinkPositions):
    """Tombstones that are purged."""

    def test_histories_with_purged_tombstones_equal_the_model(self) -> None:
        """Random histories in any order, with time between their batches. The rows equal the model, and its late
        changes are rejected, unless the fold replaced them."""
        require(self.features().retention, "the sink remembers deletes for ever")

        @self.for_all(IN_ANY_ORDER, history=long_histories(), hours=gaps())
        def check(history: History, hours: list[int]) -> None:
            with self.target() as target:
                engine, plans = self.new_engine(), make_retention_plans(RETENTION)
                frames = (self.to_frame, self.to_arrow)
                delivering = DeliveryRun(
                    engine, target, history, "scd1", plans, to_frame=frames[0], to_arrow=frames[1], times=make_times(hours)
                )
                delivering.run()
                assert_equals_model(delivering)
                assert_rejects(delivering)

    def test_tombstones_are_purged(self) -> None:
        """A change whose key may have been deleted since is LATE after tombstones of its time were purged, and not
        before.

        A change of a key with a row or tombstone is compared by sequence as usual. The state has the purged
        sequence and its time.
        """
        require(self.features().retention, "the sink remembers deletes for ever")
        lane = make_lane("scd1")
        with self.target() as target:
            sink, start, counts = target.open(), 0, Counts()
            rejects: list[dict[str, Any]] = []
            for end, hour in ENDS:
                done, bad = self._apply_retained(sink, lane, start, end, make_time(hour))
                counts, rejects, start = counts + done, rejects + bad, end
            state = sink.state(lane)
            sink.close()
            assert [row[OFFSET] for row in rejects] == LATE
            assert [Reject.parse(row[ERROR]).code for row in rejects] == [RejectCode.LATE] * len(LATE)
            assert all(f"lanes resync {lane.id}" in row[ERROR] and "tombstone_retention" in row[ERROR] for row in rejects)
            assert (counts.rejected, counts.total) == (len(LATE), len(STORY))
            assert counts.superseded == len(OLD)
            assert {row["k1"]: row["_cdc_seq_1"] for row in target.rows(lane)} == expect_rows(18)
            assert state is not None
            assert state.purged_up_to is not None
            assert (state.purged_up_to.max_sequence, state.purged_up_to.until) == (
                (50, 0, 0),
                to_micros(BEGINNING + 11 * HOUR),
            )

    @pytest.mark.parametrize("together", [False, True])
    def test_a_truncate_counts_from_the_beginning_of_its_write(self, together: bool) -> None:
        """A change between the row of its key and the purged deletes is applied if the truncate of that row comes in
        a later write. In the write of the truncate it is late, whichever comes first."""
        require(self.features().retention, "the sink remembers deletes for ever")
        lane, story = make_lane("scd1"), make_changes(("c", 1, 10), ("d", 2, 30), ("u", 1, 25), ("t", 0, 20))
        with self.target() as target:
            sink, rejects = target.open(), []
            for start, end, hour in ((0, 2, 0), (2, 4, 18)) if together else ((0, 2, 0), (2, 3, 18), (3, 4, 18)):
                rejects += self._apply_retained(sink, lane, start, end, make_time(hour), story=story)[1]
            sink.close()
            assert [row[OFFSET] for row in rejects] == ([2] if together else [])
            assert {row["k1"]: row["_cdc_seq_1"] for row in target.rows(lane)} == ({} if together else {1: 25})

    def test_the_purged_sequence_is_stored(self) -> None:
        """The next instance reads it, also if tombstones are kept forever from then on. A lane that was reset has
        none."""
        require(self.features().retention, "the sink remembers deletes for ever")
        lane = make_lane("scd1")
        with self.target() as target:
            sink = target.open()
            for start, end, hour in ((0, 4, 0), (4, 4, 18)):
                assert not self._apply_retained(sink, lane, start, end, make_time(hour), more=hour > 0)[1]
            floor = get_purged_sequence(sink.state(lane))
            sink.close()
            sink = target.open()
            assert floor == (30, 0, 0)
            assert len(self._apply_retained(sink, lane, 5, 6, make_time(19), kept=None, skipped=1)[1]) == 1
            assert get_purged_sequence(sink.state(lane)) == floor
            sink.reset(lane)
            assert not self._apply_retained(sink, lane, 4, 6, make_time(20))[1]
            assert get_purged_sequence(sink.state(lane)) is None
            sink.close()

    def test_what_is_tried_again_is_judged_as_before(self) -> None:
        """A retry has the same result at any time: the write has its own time."""
        require(self.features().retention, "the sink remembers deletes for ever")
        lane = make_lane("scd1")
        with self.target() as target:
            sink = target.open()
            self._apply_retained(sink, lane, 0, 4, make_time(0))
            write = self._make_write(lane, 4, 6, make_time(10))
            for _ in range(2):
                assert sink.apply([write], refuse_rejects)[lane.id].position == write.span.end
            state = sink.state(lane)
            assert state is not None
            assert len(state.delete_horizons) == 1
            sink.close()

    def _apply_retained(
        self,
        sink: Sink[Any],
        lane: Lane,
        start: int,
        end: int,
        moment: datetime,
        *,
        kept: timedelta | None = RETENTION,
        more: bool = False,
        skipped: int = 0,
        story: Sequence[tuple[SourceEvent, Change]] = STORY,
    ) -> tuple[Counts, list[dict[str, Any]]]:
        """Apply the changes [start, end) of the story at that time; returns their counts and the rejects.

        `more`: also the offset after them, without a change. `skipped`: the number of changes before them that were
        never delivered.
        """
        write = self._make_write(lane, start, end, moment, kept=kept, more=more, skipped=skipped, story=story)
        rejects: list[dict[str, Any]] = []
        sink.prepare(lane, write.plan)
        applied = sink.apply([write], lambda _, rows: rejects.extend(self.to_arrow(rows).to_pylist()))
        return write.folded.counts + applied[lane.id].counts, sorted(rejects, key=lambda row: row[OFFSET])

    def _make_write(
        self,
        lane: Lane,
        start: int,
        end: int,
        moment: datetime,
        *,
        kept: timedelta | None = RETENTION,
        more: bool = False,
        skipped: int = 0,
        story: Sequence[tuple[SourceEvent, Change]] = STORY,
    ) -> Write[Any]:
        table = make_history().table()
        table = replace(table, columns=table.columns[:2])
        plan = plan_for("scd1", table, retention=kept)
        folded = self.new_engine().fold(self.to_frame(changes_frame(story[start:end], table, TOPIC)), plan)
        return Write(lane, plan, folded, make_span(start - skipped, end + more), IDENTITY, moment)


def make_span(start: int, end: int) -> Span:
    """The span between two offsets."""
    place = TopicPartition(TOPIC, 0)
    return Span(Position({place: start}), Position({place: end}))


def get_purged_sequence(state: LaneState | None) -> Sequence[Any] | None:
    """The purged sequence of a lane."""
    return state.purged_up_to.max_sequence if state and state.purged_up_to else None


def refuse_rejects(lane: Lane, rows: Any) -> None:
    """Fail the test, because nothing should be rejected."""
    raise AssertionError(f"rows of lane {lane.id} were rejected: {rows}")


def expect_rows(end: int) -> dict[int, int]:
    """The model's rows after the changes of `STORY` before `end`: the sequence by key."""
    model, hours = Scd1(("k1", "v1"), ("k1",), RETENTION), iter(ENDS)
    upto, hour = next(hours)
    for number, (_, change) in enumerate(STORY[:end]):
        if number >= upto:
            upto, hour = next(hours)
        model.apply_change(replace(change, arrived=make_time(hour)))
    return {row["k1"]: row["_cdc_seq_1"] for row in model.table()}


def assert_rejects(delivering: DeliveryRun) -> None:
    """The sink's rejects are rejects of the model. Other rejects of the model were not the last of their key in
    their batch."""
    history, plan = delivering.history, delivering.plan
    table = history.table()
    model = Scd1(table.column_names, table.keys, plan.retention)
    events = [e for e in history.events if e.change is not None]
    changes = list_arrivals(history, None, delivering.arrived)
    due = {
        (e.partition, e.offset) for e, c in zip(events, changes, strict=True) if model.apply_change(c) is Outcome.REJECTED
    }
    found = {(row[PARTITION], row[OFFSET]) for row in delivering.rejects}
    assert found <= due, f"rejected, but not late: {found - due}"
    alone = all(delivery.end - delivery.start <= 1 for delivery in history.deliveries)
    assert found == due or not alone, f"late, but not rejected: {due - found}"
