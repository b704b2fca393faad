"""The cutover of a lane to its rebuilt target, and the position where it continues."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from replicator.application.operations.checkpoint import refuse_missing_records
from replicator.application.operations.rebuild import make_rebuild_lane
from replicator.application.operations.table_swap import Cutover, find_gap, refuse_lost_records, swap_in_sink
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position, TopicPartition
from replicator.ports.components import TransactionRules
from replicator.ports.frames import Lane
from replicator.ports.sink import SinkFeatures

ONE, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)
LANE = Lane("lake.orders", "shop", "db", "public.orders", "lake", "orders", "scd1", config_line="config:9")
LIVE = LaneState(Position({ONE: 9, TWO: 4}), identity=(("orders", "id-1"),), rule="scd1 by id", max_sequence=(9,))


def make_state(**offsets: int) -> LaneState:
    places = {"one": ONE, "two": TWO}
    return LaneState(
        Position({places[name]: offset for name, offset in offsets.items()}), rule="scd1 where", max_sequence=(7,)
    )


def test_lane_resumes_at_the_end_of_the_rebuilt_rows() -> None:
    """With their whole state and its own topic ids."""
    state = Cutover(LANE, Position())(LIVE, make_state(one=5, two=6))
    assert state.position == Position({ONE: 5, TWO: 6}) and (state.rule, state.max_sequence) == ("scd1 where", (7,))
    assert state.identity == LIVE.identity
    assert Cutover(LANE, Position())(None, make_state(one=5)).position == Position({ONE: 5})


def test_partition_missing_from_the_log_is_data_loss() -> None:
    """Unless nothing of it was applied; otherwise rows would be lost."""
    assert Cutover(LANE, Position({TWO: 4}))(LIVE, make_state(one=9)).position == LIVE.position
    with pytest.raises(DataLoss, match=r"no records of orders\[1\]"):
        Cutover(LANE, Position({TWO: 3}))(LIVE, make_state(one=9))


def test_rebuild_ahead_of_the_lane_is_refused_with_transactions() -> None:
    assert Cutover(LANE, Position(), TransactionRules("marks"))(LIVE, make_state(one=9, two=3)).position[TWO] == 3
    with pytest.raises(Fatal, match="ahead") as refused:
        Cutover(LANE, Position(), TransactionRules("marks"))(LIVE, make_state(one=10, two=4))
    assert "Repeat" in refused.value.next_step


class Source:
    """Has records from `first` on."""

    def __init__(self, first: int) -> None:
        self.first, self.asked = first, 0

    def losses(self, position: Position, identity: Mapping[str, str]) -> dict[TopicPartition, str]:
        self.asked += 1
        assert dict(identity) == dict(LIVE.identity)
        return {p: "Its records are gone." for p, offset in position.items() if offset < self.first}


def test_records_missing_from_the_log_must_be_in_the_source() -> None:
    assert find_gap(LIVE, make_state(one=5, two=4)) == Position({ONE: 5})
    far: Any = Source(6)
    with pytest.raises(DataLoss, match="orders:0:5") as refused:
        refuse_lost_records(far, LANE, LIVE, make_state(one=5, two=4))
    assert "is running" in refused.value.next_step
    refuse_lost_records(far, LANE, LIVE, make_state(one=6, two=9))
    near: Any = Source(100)
    refuse_lost_records(near, LANE, LIVE, make_state(one=9, two=4))
    assert not near.asked, "it may be away"


def test_log_must_have_the_first_records_of_the_lane() -> None:
    """By its first offset or by its first records, because offsets have gaps."""
    refuse_missing_records(LANE, "raw", {ONE: 3}, (Position({ONE: 3}), Position({ONE: 7})), "Wait")
    refuse_missing_records(LANE, "raw", {ONE: 3}, (Position(), Position({ONE: 2})), "Wait")
    for kept, missing in (((Position({ONE: 5}), Position({ONE: 6})), "from 3 to 4"), ((Position(),), "from 3 on")):
        with pytest.raises(DataLoss, match=missing):
            refuse_missing_records(LANE, "raw", {ONE: 3}, kept, "Wait")


def test_sink_without_swap_is_refused() -> None:
    assert (make_rebuild_lane(LANE, "x").id, make_rebuild_lane(LANE, "x").config_line) == ("lake.x", "")
    sink = SimpleNamespace(features=SinkFeatures(policies=frozenset()))
    with pytest.raises(ConfigProblem, match="cannot swap"):
        swap_in_sink(sink, LANE, make_rebuild_lane(LANE, "x"), Cutover(LANE, Position()))
