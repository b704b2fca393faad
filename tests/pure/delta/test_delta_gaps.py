"""What is said of a gap can be typed as it stands."""

from __future__ import annotations

import pytest

from adapters.sinks.delta.lane import _refuse_gaps
from replicator.domain.errors import DataLoss
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Lane
from replicator.wiring.daemon import parse_position


def test_the_command_that_accepts_a_gap_is_one_that_skip_takes() -> None:
    at = TopicPartition("cdc.public.items", 3)
    span = Span(Position({at: 9}), Position({at: 12}))
    lane = Lane("lake.items", "p", "s", "public.items", "lake", "items", "scd1")
    with pytest.raises(DataLoss) as raised:
        _refuse_gaps(lane, span, LaneState(position=Position({at: 5})))
    until = raised.value.next_step.partition("--until ")[2].partition("`")[0]
    assert parse_position(until) == Position({at: 9})
