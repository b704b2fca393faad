"""The table buffer: held changes, and the buffer of a lane that joins."""

from __future__ import annotations

from dataclasses import replace

from support.application_world import QUICK
from support.histories_of_items import make_change, make_key_change
from support.tuple_engine import TupleDecoder, TupleFrames

from replicator.application.delivery.bounded_queue import RecordFrame
from replicator.application.stream.table_buffer import SchemaMark, SchemaSlice, TableBuffer
from replicator.domain.position import Position, Span, TopicPartition

T0 = TopicPartition("t", 0)
TABLE = TupleDecoder().learn((), "public.items", "0")
MOVE = [r for r in make_key_change(2, 1, 9) if r.kind == "change"]


def span(start, end):
    return Span(Position({T0: start}), Position({T0: end}))


def make_buffer(at=0, waited=lambda: 0.0, **options):
    options = replace(QUICK, **{"hold_bytes": 1000} | options)
    return TableBuffer(TupleFrames(), options, Position({T0: at}), waited)


def push(to, rows, start, end):
    return to.add_changes([tuple(rows)], TABLE, span(start, end), RecordFrame(tuple(rows), 100))


def offsets(slices):
    return [[r.offset for r in c.frame] if c.frame else [] for c in slices]


def holds_changes(buffer: TableBuffer) -> bool:
    return buffer.released != buffer.read


def test_half_of_a_key_change_is_held_and_the_position_stays_before_it():
    buffer = make_buffer()
    (slice_,) = push(buffer, [make_change(0, "c", 1), MOVE[0], make_change(3, "c", 5)], 0, 4)
    assert (
        offsets([slice_]) == [[0]]
        and slice_.end == Position({T0: 2}) == buffer.released
        and buffer.read == Position({T0: 4})
    )
    (slice_,) = push(buffer, [MOVE[1]], 4, 5)
    assert offsets([slice_]) == [[2, 3, 4]] and slice_.start == Position({T0: 2}) and slice_.end == Position({T0: 5})
    assert len(slice_.raw) == 2 and not holds_changes(buffer)


def test_held_changes_are_limited():
    buffer = make_buffer(hold_batches=3)
    push(buffer, [MOVE[0]], 0, 3)
    assert holds_changes(buffer)
    seen = [offsets(push(buffer, [make_change(i, "c", i)], i, i + 1)) for i in range(3, 6)]
    assert seen[-1] == [[2, 3, 4, 5]] and not holds_changes(buffer)
    buffer = make_buffer(hold_bytes=150)
    push(buffer, [MOVE[0]], 0, 3)
    push(buffer, [make_change(3, "c", 3)], 3, 4)
    assert holds_changes(buffer)
    assert offsets(push(buffer, [make_change(4, "c", 4)], 4, 5)) == [[2, 3, 4]] and not holds_changes(buffer)


def test_half_in_a_large_batch_waits_for_the_next_batch_with_changes():
    buffer = make_buffer(hold_batches=1, hold_bytes=1)
    push(buffer, [make_change(0, "c", 1), MOVE[0]], 0, 3)
    assert offsets(buffer.add_changes((), TABLE, span(3, 4), RecordFrame((), 100))) == [[]] and holds_changes(
        buffer
    )  # Its tombstone.
    assert offsets(push(buffer, [replace(MOVE[1], offset=4)], 4, 5)) == [[2, 4]]


def test_half_that_waited_too_long_does_not_take_a_newer_one_with_it():
    buffer = make_buffer(hold_batches=1)
    push(buffer, [MOVE[0]], 0, 3)
    newer = [replace(r, offset=r.offset + 10) for r in MOVE]
    assert offsets(push(buffer, [make_change(3, "c", 3), newer[0]], 3, 13)) == [[2, 3]] and holds_changes(buffer)
    assert offsets(push(buffer, [newer[1]], 13, 15)) == [[12, 14]]


def test_each_half_of_a_key_change_is_held_for_one_batch():
    """Each half waits only for the next batch. Earlier waits must not separate it from its create half."""
    buffer = make_buffer(hold_batches=3, hold_bytes=250)
    push(buffer, [replace(MOVE[0], offset=0)], 0, 1)
    for i in range(1, 12, 2):
        rows = [replace(MOVE[1], offset=i), replace(MOVE[0], offset=i + 1)]
        (slice_,) = push(buffer, rows, i, i + 2)
        assert offsets([slice_]) == [[i - 1, i]] and holds_changes(buffer)


def test_idle_stream_releases_held_changes_after_a_time():
    now = [100.0]
    buffer = make_buffer(waited=lambda: now[0], hold_idle=5.0)
    push(buffer, [MOVE[0]], 0, 3)
    now[0] = 104.9
    assert [buffer.release_idle() for _ in range(1000)] == [()] * 1000 and holds_changes(buffer)
    now[0] = 105.0
    assert offsets(buffer.release_idle()) == [[2]] and buffer.release_idle() == ()


def test_each_batch_with_records_restarts_the_wait():
    now = [0.0]
    buffer = make_buffer(waited=lambda: now[0], hold_idle=5.0)
    push(buffer, [MOVE[0]], 0, 3)
    now[0] = 4.0
    push(buffer, [make_change(3, "c", 3)], 3, 4)
    now[0] = 8.9
    assert buffer.release_idle() == () and holds_changes(buffer)


def test_late_lane_brings_its_held_changes():
    main, own = make_buffer(at=3), make_buffer()
    push(own, [make_change(0, "c", 1), MOVE[0]], 0, 3)
    main.absorb_buffer(own)
    assert main.released == Position({T0: 2}) and main.read == Position({T0: 3})
    assert offsets(push(main, [MOVE[1]], 3, 5)) == [[2, 4]]


def test_change_held_by_both_buffers_is_held_once():
    main, own = make_buffer(), make_buffer()
    for buffer in (main, own):
        push(buffer, [make_change(0, "c", 1), MOVE[0]], 0, 3)
    main.absorb_buffer(own)
    assert offsets(push(main, [MOVE[1]], 3, 5)) == [[2, 4]]


def test_segments_end_where_the_next_one_starts():
    rows = [make_change(0, "u", 1), MOVE[0], replace(MOVE[1], offset=3), make_change(4, "u", 9)]
    slices = push(make_buffer(), rows, 0, 6)
    assert offsets(slices) == [[0], [2, 3, 4]]
    assert [(c.start[T0], c.end[T0]) for c in slices] == [(0, 1), (1, 6)]


def test_batch_without_changes_advances_the_position():
    buffer = make_buffer()
    (slice_,) = buffer.add_changes((), None, span(0, 3))
    assert slice_.frame is None and buffer.released == Position({T0: 3})


def make_position(offset):
    return Position({T0: offset})


def make_slice(rows, start):
    return SchemaSlice(tuple(rows), SchemaMark(TABLE, make_position(start)), TABLE)


def describe_boundaries(slices):
    """Where the slices say that the table was dropped; and the schemas, by where they begin."""
    return [[(m.table is None, m.start[T0]) for m in c.marks] for c in slices]


def test_drop_is_released_with_the_changes_around_it():
    buffer = make_buffer()
    slices = buffer.add_batch(
        [make_slice([make_change(0, "c", 1)], 0), make_slice([make_change(3, "c", 2)], 2)],
        TABLE,
        span(0, 4),
        drops=[make_position(1)],
    )
    assert offsets(slices) == [[0, 3]] and describe_boundaries(slices) == [[(False, 0), (True, 1), (False, 2)]]
    slices = buffer.add_batch([], TABLE, span(4, 6), drops=[make_position(5)])
    assert offsets(slices) == [[]] and describe_boundaries(slices) == [[(True, 5)]]
    assert describe_boundaries(buffer.add_batch([make_slice([make_change(6, "c", 3)], 6)], TABLE, span(6, 7))) == [
        [(False, 2), (False, 6)]
    ], "it is told once"


def test_drop_after_a_held_change_is_held():
    buffer = make_buffer()
    first = buffer.add_batch(
        [make_slice([make_change(0, "c", 1), MOVE[0]], 0)], TABLE, span(0, 6), drops=[make_position(1), make_position(5)]
    )
    assert describe_boundaries(first) == [[(False, 0), (True, 1)]] and buffer.released == make_position(2)
    assert describe_boundaries(buffer.release_all()) == [[(False, 0), (True, 5)]]


def test_drop_in_another_topic_is_ignored():
    other = Position({TopicPartition("statements", 0): 1})
    assert describe_boundaries(
        make_buffer().add_batch([make_slice([make_change(0, "c", 1)], 0)], TABLE, span(0, 4), drops=[other])
    ) == [[(False, 0)]]


def test_late_lane_brings_its_held_drops():
    main, own = make_buffer(at=4), make_buffer()
    own.add_batch(
        [make_slice([make_change(0, "c", 1), MOVE[0]], 0)], TABLE, span(0, 5), drops=[make_position(3), make_position(4)]
    )
    main.absorb_buffer(own)
    main.add_batch([make_slice([make_change(5, "c", 2)], 5)], TABLE, span(4, 6), drops=[make_position(4)])
    assert describe_boundaries(main.release_all()) == [[(False, 0), (True, 3), (True, 4), (False, 5)]]
