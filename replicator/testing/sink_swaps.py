"""The promises of a sink that can swap targets (`ports.sink.SinkFeatures.swap`); part of `sink_contract.SinkContract`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicator.domain.errors import Fatal, Fenced, ReplicatorError
from replicator.domain.policy.plan import LaneState
from replicator.domain.policy.policy_names import POLICY_NAMES
from replicator.ports.frames import Lane

from .contract import require
from .delivery import make_lane
from .sink_base import SinkBase, make_history, make_writes, refuse_rejects, require_feature
from .sink_out_of_band import OutOfBandRun
from .source import Statement

NO_SWAP = "the sink exchanges no targets"
HISTORY = make_history(*make_writes(0, 1), Statement("delete", 0), *make_writes(1, salt=5), *make_writes(2))
LATE = make_history(*make_writes(0), Statement("delete", 0))
"""An insert, then its delete."""


def decide_rebuilt(_: LaneState | None, rebuilt: LaneState) -> LaneState:
    """A decision that accepts the rebuilt state."""
    return rebuilt


def make_rebuild_lane(lane: Lane) -> Lane:
    """The lane that rebuilds the target."""
    return replace(lane, id=f"{lane.id}_anew", into=f"{lane.into}_anew")


class SinkSwaps(SinkBase):
    """The promises of `SinkFeatures.swap`, for sinks that have it."""

    @pytest.mark.parametrize("policy", POLICY_NAMES)
    def test_a_target_is_swapped(self, policy: str) -> None:
        """Under each policy the lane gets rows and state of the rebuild, which was behind, and continues from there."""
        require(policy in self.features().policies, f"the sink does not know policy {policy}")
        lane = make_lane(policy)
        with self.target() as target:
            sink = target.open()
            swap = require_feature(sink.features.swap, NO_SWAP)
            whole, part = self.write(HISTORY, 0, 5, lane), self.write(HISTORY, 0, 3, make_rebuild_lane(lane))
            self.apply_write(sink, whole)
            self.apply_write(sink, part)
            state = sink.state(part.lane)
            assert swap(lane, part.lane, decide_rebuilt) == state == sink.state(lane)
            if (removal := sink.features.removal) is not None:
                removal.drop(part.lane)
            self.assert_holds(target, HISTORY, replace(part, lane=lane), 3)
            again = self.apply_write(sink, self.write(HISTORY, 0, 3, lane))
            assert again.counts.applied == 0
            rest = self.write(HISTORY, 3, 5, lane)
            self.apply_write(sink, rest)
            self.assert_holds(target, HISTORY, rest)
            sink.close()

    def test_what_is_remembered_goes_along(self) -> None:
        """A tombstone of the rebuild rejects older changes."""
        lane = make_lane("scd1")
        with self.target() as target:
            late = OutOfBandRun(self, target, LATE, "scd1")
            sink = late.sink
            swap = require_feature(sink.features.swap, NO_SWAP)
            self.apply_write(sink, self.write(LATE, 0, 1, lane))
            self.apply_write(sink, self.write(LATE, 0, 2, make_rebuild_lane(lane)))
            assert len(target.rows(lane)) == 1
            swap(lane, make_rebuild_lane(lane), decide_rebuilt)
            assert not target.rows(lane)
            sink.prepare(lane, late.plan)
            late.apply_out_of_band(LATE.events[:1])
            assert not target.rows(lane) and late.counts.superseded + late.counts.duplicate == 1
            sink.close()

    def test_a_swap_that_is_refused(self) -> None:
        """A swap that the decision refuses changes nothing."""

        def no(_: LaneState | None, __: LaneState) -> LaneState:
            raise Fatal("no")

        lane = make_lane("scd1")
        with self.target() as target:
            sink = target.open()
            swap = require_feature(sink.features.swap, NO_SWAP)
            whole = self.write(HISTORY, 0, 5, lane)
            self.apply_write(sink, whole)
            self.apply_write(sink, self.write(HISTORY, 0, 3, make_rebuild_lane(lane)))
            before = sink.state(lane), sink.state(make_rebuild_lane(lane))
            with pytest.raises(Fatal, match="no"):
                swap(lane, make_rebuild_lane(lane), no)
            assert (sink.state(lane), sink.state(make_rebuild_lane(lane))) == before
            self.assert_holds(target, HISTORY, whole)
            sink.close()

    def test_swap_takes_the_lane(self) -> None:
        """While another instance holds the lane, either nothing is changed, or that instance fails at its next commit."""
        lane = make_lane("scd1")
        with self.target() as target:
            first, second = target.open(), target.open()
            swap = require_feature(second.features.swap, NO_SWAP)
            self.apply_write(second, self.write(HISTORY, 0, 3, make_rebuild_lane(lane)))
            self.apply_write(first, self.write(HISTORY, 0, 4, lane))
            rest = self.write(HISTORY, 4, 5, lane)
            first.prepare(lane, rest.plan)
            try:
                state = swap(lane, make_rebuild_lane(lane), decide_rebuilt)
            except Fenced:
                first.apply([rest], refuse_rejects)
                self.assert_holds(target, HISTORY, rest)
            else:
                with pytest.raises(ReplicatorError):
                    first.apply([rest], refuse_rejects)
                assert second.state(lane) == state
            first.close()
            second.close()
