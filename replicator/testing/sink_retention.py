"""The promises of a sink for late changes: watermarks, the retention of tombstones and of soft-deleted rows. Parts of
`sink_contract.SinkContract`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st

from replicator.domain.change import ERROR, OFFSET, PARTITION
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.policy.late_changes import MICROSECOND, to_micros
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import TableSpec
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Lane

from .contract import require
from .delivery import DeliveryRun, list_arrivals, make_lane, make_retention_plans, make_watermark_plans, to_canonical_rows
from .histories import History, any_histories, list_events, make_random_history
from .model import Change, Outcome, Scd1, fold_changes
from .sink_base import TOPIC, LaneWriter, SinkPositions, make_history, make_keyed_changes, make_span
from .sink_row_transforms import PARTIAL_TABLE, StreamBase
from .source import EPOCH, SourceEvent
from .transform_cases import CASES, KEYED_TYPES

# Watermarks

GRACE = timedelta(milliseconds=60)
DISORDER = 150
"""Milliseconds. Two events of a history are about eight apart."""

FIRST_HISTORY = make_history()
NARROW_TABLE = replace(FIRST_HISTORY.table(), columns=FIRST_HISTORY.table().columns[:2])
ArrivingChange = tuple[str, int, int | None]
"""Operation, partition, event time in seconds."""


def make_arrivals(*changes: ArrivingChange) -> list[tuple[SourceEvent, Change]]:
    """Changes of different keys, in this order."""
    ends: Counter[int] = Counter()
    out = []
    for number, (op, partition, seconds) in enumerate(changes):
        offset, ends[partition] = ends[partition], ends[partition] + 1
        ts, event_id = None if seconds is None else make_event_time(seconds), f"{TOPIC}-{partition}-{offset}"
        change = Change(op, (number + 1, 0, 0), {"k1": number, "v1": op}, ts=ts, event_id=event_id, partition=partition)
        out.append((SourceEvent(partition, offset, 0, (number,), change), change))
    return out


def make_resent(partition: int, offset: int, *again: tuple[SourceEvent, Change]) -> list[tuple[SourceEvent, Change]]:
    """The changes again, in that partition from that offset on."""
    out = []
    for number, (event, change) in enumerate(again, offset):
        moved = replace(change, event_id=f"{TOPIC}-{partition}-{number}", partition=partition)
        out.append((replace(event, partition=partition, offset=number, change=moved), moved))
    return out


def make_event_time(seconds: int) -> datetime:
    """That time."""
    return EPOCH + timedelta(days=20_000, seconds=seconds)


def find_position(changes: Iterable[tuple[SourceEvent, Change]]) -> Position:
    """The position of a reader of both partitions after these changes."""
    read = {TopicPartition(TOPIC, event.partition): event.offset + 1 for event, _ in changes}
    return Position({TopicPartition(TOPIC, 0): 0, TopicPartition(TOPIC, 1): 0} | read)


def plan_watermark(lane: Lane) -> ApplyPlan:
    """The plan of the lane for `STREAM`."""
    return plan_for(lane.policy, NARROW_TABLE, lane.watermark)


def send_stream(run: LaneWriter, start: int, end: int) -> None:
    """Apply the changes [start, end) of `STREAM`."""
    run.send_events(STREAM[start:end], Span(find_position(STREAM[:start]), find_position(STREAM[:end])))


FIRST_CHANGES = make_arrivals(
    *(("c", 0, 100), ("u", 0, 90), ("u", 0, 89), ("c", 1, 50), ("r", 0, 500), ("r", 0, 1), ("u", 0, None)),
    *(("u", 1, 45), ("u", 1, 39), ("t", 0, 200), ("u", 0, 189), ("u", 0, 190), ("d", 1, 40)),
)
STREAM = [*FIRST_CHANGES, *make_resent(1, 4, FIRST_CHANGES[10], FIRST_CHANGES[11])]
"""For a grace of ten seconds.

- A change exactly at the watermark is not late. Each partition has its own watermark.
- Snapshot reads and changes without a time are never late, and make nothing late.
- The last two changes are repeated in another partition. One was late and is not late there; the other is a
  duplicate.
"""

LATE_EVENTS = [2, 8, 10]


class SinkWatermarks(SinkPositions):
    """Watermarks."""

    def test_histories_under_a_watermark_equal_the_model(self) -> None:
        """Random histories with disordered event times end like the model, with any batches, repetitions and
        faults. Lateness does not depend on them."""
        require(self.features().watermarks, "the sink does not know watermarks")
        self.check_model(
            any_histories(("int", "text", "composite", "none"), DISORDER), "append", make_watermark_plans(GRACE)
        )

    def test_late_changes_are_rejected(self) -> None:
        """A change that is late for earlier changes, of its batch or another, is rejected as LATE_EVENTS, with both times.
        The state has the newest time of each partition. A repeated delivery does not make changes late."""
        require(self.features().watermarks, "the sink does not know watermarks")
        lane = make_lane("append", watermark=timedelta(seconds=10))
        with self.open_lane(plan_watermark(lane), lane, may_reject=True) as run:
            for start, end in ((0, 6), (4, 8), (6, 15)):
                send_stream(run, start, end)
            state, counts = run.sink.state(lane), run.counts
            rejects = sorted(run.rejects, key=self._find_number)
            assert [self._find_number(row) for row in rejects] == LATE_EVENTS
            assert (counts.rejected, counts.applied) == (3, 11)
            assert [Reject.parse(row[ERROR]).code for row in rejects] == [RejectCode.LATE] * 3
            assert "2024-10-04 00:01:29 UTC" in rejects[0][ERROR] and "2024-10-04 00:01:30 UTC" in rejects[0][ERROR]
            assert f"lanes resync {lane.id}" in rejects[0][ERROR]
            wanted, _ = fold_changes("append", ("k1", "v1"), ("k1",), (c for _, c in STREAM), lane.watermark)
            names = ("k1", "_event_id")
            assert to_canonical_rows(run.rows(), names) == to_canonical_rows(wanted, names)
            assert state is not None
            reached = {p.partition: EPOCH + micros * MICROSECOND for p, micros in state.max_event_time.items()}
            assert reached == {0: make_event_time(200), 1: make_event_time(190)}

    def test_a_watermark_may_change(self) -> None:
        """Another grace applies from the next change on, with the known times. Without a watermark no times are
        stored, so a new watermark starts empty. Neither change counts as another rule of the lane."""
        require(self.features().watermarks, "the sink does not know watermarks")
        lane = make_lane("append", watermark=timedelta(seconds=10))
        wide, none = (replace(lane, watermark=grace) for grace in (timedelta(seconds=11), None))
        with self.open_sink() as (target, sink):
            for each, start, end, rejected in ((wide, 0, 3, 0), (lane, 3, 9, 1), (none, 9, 10, 0), (lane, 10, 13, 0)):
                run = LaneWriter(self, target, plan_watermark(each), each, sink, may_reject=True)
                send_stream(run, start, end)
                assert run.counts.rejected == rejected
                state = sink.state(lane)
                assert state is not None and bool(state.max_event_time) == (each is not none)
            assert len(target.rows(lane)) == 12

    def _find_number(self, row: dict[str, Any]) -> int:
        positions = [(event.partition, event.offset) for event, _ in STREAM]
        return positions.index((row["_partition"], row[OFFSET]))


# Retention of tombstones

HOUR = timedelta(hours=1)
RETENTION = 16 * HOUR
"""Its sixteenths are hours."""

BEGINNING = EPOCH + timedelta(days=20_000)
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
    return list_events(make_keyed_changes(*changes))


STORY = make_changes(
    *(("c", 1, 10), ("c", 2, 20), ("d", 1, 30), ("c", 3, 40)),  # 0 to 3: hour 0
    *(("u", 1, 25), ("c", 9, 28), ("d", 4, 50)),  # 4 to 6: hour 10; deletes have tombstones
    *(("u", 1, 26), ("c", 5, 29), ("d", 6, 30), ("c", 5, 31), ("u", 2, 27)),  # 7 to 11: hour 18; purged up to 30
    *(("d", 2, 29), ("c", 2, 30), ("c", 4, 45)),  # 12 to 14: a late delete has a tombstone, too
    *(("c", 4, 46), ("c", 2, 28), ("c", 6, 51)),  # 15 to 17: hour 40; purged up to 50
)
ENDS = ((4, 0), (7, 10), (12, 18), (13, 18), (15, 18), (18, 40))
"""The end of each batch, and its hour."""

LATE = [7, 9, 15]
"""Late changes. Change 8 would be late too, but a newer change of its key is in the same batch."""

OLD = [4, 14, 16]
"""Changes that are older than a row or a tombstone."""


RETAINED_PLAN = plan_for("scd1", NARROW_TABLE, retention=RETENTION)


def send_story(
    run: LaneWriter, start: int, end: int, hour: int, story: Sequence[tuple[SourceEvent, Change]] = STORY
) -> None:
    """Apply the changes [start, end) of the story at that hour."""
    run.send_events(story[start:end], make_span(start, end), make_time(hour))


class SinkRetention(SinkPositions):
    """Tombstones that are purged."""

    def test_histories_with_purged_tombstones_equal_the_model(self) -> None:
        """Random histories in any order, with time between their batches. The rows equal the model, and its late
        changes are rejected, unless the fold replaced them."""
        require(self.features().retention, "the sink purges no tombstones")

        @self.for_all(IN_ANY_ORDER, history=long_histories(), hours=gaps())
        def check(history: History, hours: list[int]) -> None:
            plans, times = make_retention_plans(RETENTION), make_times(hours)
            assert_rejects(self.check_history(history, "scd1", plans, times=times))

    def test_tombstones_are_purged(self) -> None:
        """A change whose key may have been deleted since is LATE after tombstones of its time were purged, and not
        before.

        A change of a key with a row or tombstone is compared by sequence as usual. The state has the purged
        sequence and its time.
        """
        require(self.features().retention, "the sink purges no tombstones")
        with self.open_lane(RETAINED_PLAN, may_reject=True) as run:
            for (start, _), (end, hour) in pairwise(((0, 0), *ENDS)):
                send_story(run, start, end, hour)
            lane, state, counts = run.lane, run.sink.state(run.lane), run.counts
            rejects = sorted(run.rejects, key=lambda row: int(row[OFFSET]))
            assert [row[OFFSET] for row in rejects] == LATE
            assert [Reject.parse(row[ERROR]).code for row in rejects] == [RejectCode.LATE] * len(LATE)
            assert all(f"lanes resync {lane.id}" in row[ERROR] and "tombstone_retention" in row[ERROR] for row in rejects)
            assert (counts.rejected, counts.total) == (len(LATE), len(STORY))
            assert counts.superseded == len(OLD)
            assert {row["k1"]: row["_cdc_seq_1"] for row in run.rows()} == expect_rows(18)
            assert state is not None
            assert state.purged_up_to is not None
            assert (state.purged_up_to.max_sequence, state.purged_up_to.until) == (
                (50, 0, 0),
                to_micros(BEGINNING + 11 * HOUR),
            )

    @pytest.mark.parametrize("together", [False, True])
    def test_change_in_the_write_of_a_truncate_is_late(self, together: bool) -> None:
        """A change between the row of its key and the purged deletes is applied if the truncate of that row comes in
        a later write. In the write of the truncate it is late, whichever comes first."""
        require(self.features().retention, "the sink purges no tombstones")
        story = make_changes(("c", 1, 10), ("d", 2, 30), ("u", 1, 25), ("t", 0, 20))
        with self.open_lane(RETAINED_PLAN, may_reject=True) as run:
            for start, end, hour in ((0, 2, 0), (2, 4, 18)) if together else ((0, 2, 0), (2, 3, 18), (3, 4, 18)):
                send_story(run, start, end, hour, story)
            assert [row[OFFSET] for row in run.rejects] == ([2] if together else [])
            assert {row["k1"]: row["_cdc_seq_1"] for row in run.rows()} == ({} if together else {1: 25})

    def test_the_purged_sequence_is_stored(self) -> None:
        """The next instance reads it, also if tombstones are kept forever from then on. A lane that was reset has
        none."""
        require(self.features().retention, "the sink purges no tombstones")
        with self.open_lane(RETAINED_PLAN) as run:
            send_story(run, 0, 4, 0)
            run.send_events([], make_span(4, 5), make_time(18))
            purged = get_purged_sequence(run.sink.state(run.lane))
            assert purged == (30, 0, 0)
            run.close()
            with closing(LaneWriter(self, run.target, plan_for("scd1", NARROW_TABLE), may_reject=True)) as second:
                second.send_events(STORY[5:6], make_span(4, 6), make_time(19))
                assert len(second.rejects) == 1
                assert get_purged_sequence(second.sink.state(second.lane)) == purged
                second.sink.reset(second.lane)
                send_story(LaneWriter(self, run.target, RETAINED_PLAN, sink=second.sink), 4, 6, 20)
                assert get_purged_sequence(second.sink.state(second.lane)) is None

    def test_retried_write_has_the_same_result(self) -> None:
        """At any time, because the write has its own time."""
        require(self.features().retention, "the sink purges no tombstones")
        with self.open_lane(RETAINED_PLAN) as run:
            send_story(run, 0, 4, 0)
            for _ in range(2):
                send_story(run, 4, 6, 10)
                state = run.sink.state(run.lane)
                assert state is not None
                assert (state.position, len(state.delete_horizons)) == (make_span(4, 6).end, 1)


def get_purged_sequence(state: LaneState | None) -> Sequence[Any] | None:
    """The purged sequence of a lane."""
    return state.purged_up_to.max_sequence if state and state.purged_up_to else None


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
    rejected = {(row[PARTITION], row[OFFSET]) for row in delivering.rejects}
    assert rejected <= due, f"rejected, but not late: {rejected - due}"
    alone = all(delivery.end - delivery.start <= 1 for delivery in history.deliveries)
    assert rejected == due or not alone, f"late, but not rejected: {due - rejected}"


# Soft-deleted rows with a retention

SOFT_CASES = [name for name, case in CASES.items() if case.row_transforms.soft_deletes]
LIVING, MARKED = False, True

AGEING_STEPS: list[tuple[int, list[dict[str, Any]], dict[int, bool]]] = [
    (
        0,
        [{"id": key, "a": key, "log": 10 + key} for key in (1, 2, 3, 4)] + [{"op": "d", "id": 1, "log": 20}],
        {1: MARKED, 2: LIVING, 3: LIVING, 4: LIVING},
    ),
    (
        1,
        [{"op": "t", "log": 30}, {"id": 5, "a": 5, "log": 31}, {"id": 9, "a": 9, "log": 32}],
        {1: MARKED, 2: MARKED, 3: MARKED, 4: MARKED, 5: LIVING, 9: LIVING},
    ),
    (
        2,
        [{"id": 3, "a": 30, "log": 40}, {"op": "d", "id": 5, "log": 42}],
        {1: MARKED, 2: MARKED, 3: LIVING, 4: MARKED, 5: MARKED, 9: LIVING},
    ),
    (16, [{"id": 6, "a": 6, "log": 50}], {1: MARKED, 2: MARKED, 3: LIVING, 4: MARKED, 5: MARKED, 6: LIVING, 9: LIVING}),
    # Rows that the truncate marked have changes older than the purged delete.
    (17, [{"id": 6, "a": 7, "log": 51}], {2: MARKED, 3: LIVING, 4: MARKED, 5: MARKED, 6: LIVING, 9: LIVING}),
    # A living row stays, even if it is older than the purge; a late change of it is compared by sequence.
    (18, [{"id": 5, "a": 8, "log": 41}, {"op": "d", "id": 9, "log": 39}], {3: LIVING, 5: MARKED, 6: LIVING, 9: MARKED}),
    (19, [{"id": 6, "a": 9, "log": 52}], {3: LIVING, 6: LIVING}),
    (20, [{"id": 5, "log": 41}, {"id": 2, "log": 42}, {"id": 9, "log": 43}], {3: LIVING, 6: LIVING, 9: LIVING}),
]
"""For each batch: the hour, the changes, and then the rows."""

LATE_DELETES = [15, 16]
"""The changes of the last hour whose row may have been deleted since."""


def soft_histories() -> st.SearchStrategy[tuple[str, History]]:
    """The name of a case with soft deletes, and a history of many batches for it, in any order if the case allows it."""

    def build(name: str, seed: int, length: int) -> tuple[str, History]:
        history = make_random_history(seed, length, keys=KEYED_TYPES, first=CASES[name].first_types)
        # Both halves of a key change are in one batch, as in lanes: otherwise the create may become late.
        shape = replace(history.shape, shuffle=None)
        ordered = replace(shape, partitions=1) if CASES[name].in_order else replace(shape, scramble=seed % 1000)
        return name, replace(history, shape=ordered)

    return st.builds(build, st.sampled_from(SOFT_CASES), st.integers(0, 2**32), st.integers(30, 70))


class SinkSoftDeletes(StreamBase):
    """Soft-deleted rows that are removed when their deletes are purged."""

    def test_histories_in_which_deleted_rows_age_out_equal_the_model(self) -> None:
        """Random histories with soft deletes, with time between their batches."""
        require(self.features().retention, "the sink purges no tombstones")

        @self.for_all(drawn=soft_histories(), hours=gaps())
        def check(drawn: tuple[str, History], hours: list[int]) -> None:
            case, history = CASES[drawn[0]], drawn[1]

            def plan(policy: str, table: TableSpec) -> ApplyPlan:
                return plan_for(policy, table, None, case.row_transforms, retention=RETENTION)

            self.check_history(history, "scd1", plan, case.wanted, make_times(hours))

    def test_deleted_rows_age_out(self) -> None:
        """A deleted row is removed when its delete is purged, and not before; a truncated row when the truncate is
        as old.

        Living rows stay, however old. An older change of a removed row is late.
        """
        require(self.features().retention, "the sink purges no tombstones")
        with self.open_stream(PARTIAL_TABLE, RowTransforms(soft_deletes=True), RETENTION) as lines:
            for hour, changes, expected_rows in AGEING_STEPS:
                lines.at = make_time(hour)
                lines.send(changes)
                assert lines.by_id("_cdc_deleted") == expected_rows, f"hour {hour}"
            late = sorted(row[OFFSET] for row in lines.rejects)
            assert late == LATE_DELETES, late

    def test_rows_marked_by_a_lower_truncate_age_out(self) -> None:
        """Rows that a truncate marked are removed when it is as old as the retention. A delete with a higher sequence may
        have been purged before."""
        require(self.features().retention, "the sink purges no tombstones")
        story: list[tuple[int, dict[str, Any], dict[int, bool]]] = [
            (0, {"id": 1, "log": 10}, {1: LIVING}),
            (0, {"op": "d", "id": 2, "log": 50}, {1: LIVING}),
            (5, {"op": "t", "log": 30}, {1: MARKED}),
            (20, {"id": 3, "log": 60}, {1: MARKED, 3: LIVING}),
            (22, {"id": 3, "log": 61}, {3: LIVING}),
        ]
        with self.open_stream(PARTIAL_TABLE, RowTransforms(soft_deletes=True), RETENTION) as lines:
            for hour, change, expected_rows in story:
                lines.at = make_time(hour)
                lines.send([change])
                assert lines.by_id("_cdc_deleted") == expected_rows, f"hour {hour}"

    def test_deleted_rows_stay_without_a_retention(self) -> None:
        """However much time passes."""
        with self.open_stream(PARTIAL_TABLE, RowTransforms(soft_deletes=True)) as lines:
            for hour, changes, _ in AGEING_STEPS[:4]:
                lines.at = make_time(1000 * hour)
                lines.send(changes)
            assert lines.by_id("_cdc_deleted") == AGEING_STEPS[3][2]
