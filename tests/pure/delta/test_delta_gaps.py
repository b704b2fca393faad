"""The command in the message of a gap can be run unchanged."""

from __future__ import annotations

import pyarrow as pa
import pytest

from adapters.apply.lane_progress import refuse_gap
from replicator.domain.errors import ConfigProblem, DataLoss
from replicator.domain.policy.plan import Counts, Facts, LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import FoldedChanges, Lane, Write
from replicator.wiring.daemon_client import parse_position


def test_command_for_a_gap_is_valid() -> None:
    at = TopicPartition("cdc.public.items", 3)
    span = Span(Position({at: 9}), Position({at: 12}))
    lane = Lane("lake.items", "p", "s", "public.items", "lake", "items", "scd1")
    plan = plan_for("scd1", TableSpec("public.items", (Column("id", pa.int64()),), ("id",), 3))
    write = Write(lane, plan, FoldedChanges(pa.table({}), Facts(), Counts(), 0, 0), span)
    with pytest.raises(DataLoss) as raised:
        refuse_gap(write, LaneState(position=Position({at: 5})))
    until = raised.value.next_step.partition("--until ")[2].partition("`")[0]
    assert parse_position(until) == Position({at: 9})


@pytest.mark.parametrize("text", ["items:0:9,items:0:5", ":0:9", "items:0", "items:-1:9", "items:0:-1", "items:0:9,", "{}"])
def test_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ConfigProblem, match="is not a position"):
        parse_position(text)
