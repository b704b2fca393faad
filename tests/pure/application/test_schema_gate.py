"""The schema gate at the drop of a table: which part of a slice a lane applies."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.histories_of_items import make_change
from support.tuple_engine import TupleDecoder, TupleFrames

from replicator.application.lane_runs import LaneRun
from replicator.application.stream.table_buffer import SchemaMark, TableSlice
from replicator.application.stream.write_builder import SchemaGate
from replicator.domain.position import Position, TopicPartition
from replicator.domain.schema_evolution import SchemaChangeKind, SchemaChangeMode, SchemaRules
from replicator.ports.frames import Lane

T0 = TopicPartition("t", 0)
TABLE = TupleDecoder().learn((), "public.items", "0")
WIDER = TupleDecoder().learn((), "public.items", "1")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
ROWS = tuple(make_change(offset, "c", offset) for offset in (4, 6, 7))


def make_position(offset):
    return Position({T0: offset})


def lane_at(offset, **modes):
    rules = SchemaRules(
        {SchemaChangeKind(kind): SchemaChangeMode(mode) for kind, mode in modes.items()}
        or {SchemaChangeKind.TABLE_DROPPED: SchemaChangeMode.FAIL}
    )
    run = LaneRun(Lane("a.items", "p", "s", "public.items", "a", "items", "scd1", schema_rules=rules))
    run.schema.apply_transition(run.schema.find_transition(TABLE, make_position(0), NOW))
    run.processed_to = make_position(offset)
    return run


def make_slice(start, end, *marks, rows=ROWS):
    return TableSlice(rows or None, make_position(start), make_position(end), table=TABLE if rows else None, marks=marks)


def pass_schema_gate(run, given):
    found = SchemaGate(TupleFrames(), lambda: NOW).pass_slice(run, given)
    pieces = [([r.offset for r in piece.frame or ()], piece.start[T0], piece.end[T0]) for piece, _ in found.slices]
    return pieces, found.transition is not None


@pytest.mark.parametrize("rows", [ROWS, ()], ids=["among rows", "alone"])
def test_lane_stops_before_a_drop(rows):
    drop = SchemaMark(None, make_position(5))
    assert pass_schema_gate(lane_at(4), make_slice(4, 8, drop, rows=rows)) == ([([4] if rows else [], 4, 5)], True)
    assert pass_schema_gate(lane_at(6), make_slice(4, 8, drop, rows=rows)) == ([([4, 6, 7] if rows else [], 4, 8)], False)
    for outside in (3, 8):
        assert not pass_schema_gate(lane_at(0), make_slice(4, 8, SchemaMark(None, make_position(outside)), rows=rows))[1]


def test_schema_of_a_recreated_table_is_not_used_before_the_drop():
    marks = (SchemaMark(TABLE, make_position(4)), SchemaMark(None, make_position(5)), SchemaMark(WIDER, make_position(6)))
    run = lane_at(4)
    assert pass_schema_gate(run, make_slice(4, 8, *marks)) == ([([4], 4, 5)], True) and len(run.schema.versions) == 1
    run = lane_at(4, table_dropped="evolve", added="fail")
    assert pass_schema_gate(run, make_slice(4, 8, *marks)) == ([([4], 4, 6)], True)
    assert [v.dropped for v in run.schema.versions.values()] == [False, True]


def test_drop_without_earlier_rows_is_stored_alone():
    run, gate = lane_at(0, table_dropped="evolve"), SchemaGate(TupleFrames(), lambda: NOW)
    assert not gate.pass_slice(run, make_slice(0, 3, SchemaMark(None, make_position(1)), rows=())).table_drops
    run = lane_at(0, table_dropped="evolve")
    run.schema = type(run.schema)(run.lane, tuple(run.schema.versions.values()))
    for offset in (1, 2):
        (drop,) = gate.pass_slice(run, make_slice(0, 3, SchemaMark(None, make_position(offset)), rows=())).table_drops
        assert drop.dropped and drop.position == make_position(offset)
