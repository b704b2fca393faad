"""Where a lane stops, of a chunk with records that say that its table was dropped."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.histories_of_items import change
from support.tuple_engine import TupleDecoder, TupleEngine

from replicator.application.feed import Chunk, Mark
from replicator.application.gate import Gate
from replicator.application.lanes import LaneRun
from replicator.domain.position import Position, TopicPartition
from replicator.domain.schema_changes import Kind, Mode, SchemaRules
from replicator.ports.frames import Lane

T0 = TopicPartition("t", 0)
TABLE = TupleDecoder().learn((), "public.items", "0")
WIDER = TupleDecoder().learn((), "public.items", "1")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
ROWS = tuple(change(offset, "c", offset) for offset in (4, 6, 7))


def place(offset):
    return Position({T0: offset})


def lane_at(offset, **modes):
    rules = SchemaRules({Kind(kind): Mode(mode) for kind, mode in modes.items()} or {Kind.TABLE_DROPPED: Mode.FAIL})
    run = LaneRun(Lane("a.items", "p", "s", "public.items", "a", "items", "scd1", schema_rules=rules))
    run.schema.take(run.schema.meets(TABLE, place(0), NOW))
    run.handed = place(offset)
    return run


def chunk(start, end, *marks, rows=ROWS):
    return Chunk(rows or None, place(start), place(end), table=TABLE if rows else None, marks=marks)


def passed(run, given):
    found = Gate(TupleEngine(), lambda: NOW).passed(run, given)
    pieces = [([r.offset for r in piece.frame or ()], piece.start[T0], piece.end[T0]) for piece, _ in found.pieces]
    return pieces, found.problem is not None


@pytest.mark.parametrize("rows", [ROWS, ()], ids=["among rows", "alone"])
def test_a_lane_stops_below_a_drop_that_lies_in_the_chunk_and_before_it(rows):
    drop = Mark(None, place(5))
    assert passed(lane_at(4), chunk(4, 8, drop, rows=rows)) == ([([4] if rows else [], 4, 5)], True)
    assert passed(lane_at(6), chunk(4, 8, drop, rows=rows)) == ([([4, 6, 7] if rows else [], 4, 8)], False)
    for outside in (3, 8):
        assert not passed(lane_at(0), chunk(4, 8, Mark(None, place(outside)), rows=rows))[1]


def test_the_schema_of_the_table_that_was_made_anew_is_not_taken_before():
    marks = (Mark(TABLE, place(4)), Mark(None, place(5)), Mark(WIDER, place(6)))
    run = lane_at(4)
    assert passed(run, chunk(4, 8, *marks)) == ([([4], 4, 5)], True) and len(run.schema.versions) == 1
    run = lane_at(4, table_dropped="evolve", added="fail")
    assert passed(run, chunk(4, 8, *marks)) == ([([4], 4, 6)], True)
    assert [v.dropped for v in run.schema.versions.values()] == [False, True]


def test_a_drop_is_written_down_by_itself_once_nothing_is_to_be_written_before_it():
    run, gate = lane_at(0, table_dropped="evolve"), Gate(TupleEngine(), lambda: NOW)
    assert not gate.passed(run, chunk(0, 3, Mark(None, place(1)), rows=())).drops
    run = lane_at(0, table_dropped="evolve")
    run.schema = type(run.schema)(run.lane, tuple(run.schema.versions.values()))
    for offset in (1, 2):
        (drop,) = gate.passed(run, chunk(0, 3, Mark(None, place(offset)), rows=())).drops
        assert drop.dropped and drop.position == place(offset)
