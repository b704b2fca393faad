"""The common methods of all sinks in a lake."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Generic

from replicator.domain.policy.plan import LaneState
from replicator.ports.frames import ApplyOutcome, F, Lane, RejectRows, Write
from replicator.ports.sink import CompactionResult, SinkFeatures, VacuumResult

from .lanes import DeltaLanes


class LaneSink(Generic[F]):
    """`ports.sink.Sink` over `lanes`, without `prepare`.

    Every lane commits alone. When one fails, the lanes before it in the same call stay applied. The error has a
    note that names them, and applying them again changes nothing. Only `state` is safe for use from several
    threads.
    """

    policies: frozenset[str]

    def __init__(self, lanes: DeltaLanes) -> None:
        self._lanes = lanes

    @property
    def features(self) -> SinkFeatures:
        return SinkFeatures(policies=self.policies, compact=self.compact, vacuum=self.vacuum)

    def state(self, lane: Lane) -> LaneState | None:
        return self._lanes.state(lane)

    def apply(self, writes: Sequence[Write[F]], reject: RejectRows[F]) -> ApplyOutcome:
        """See `ports.sink.Sink.apply`. Each lane must be prepared."""
        return self._lanes.apply(writes, reject)

    def skip(self, lane: Lane, state: LaneState) -> None:
        """Raises Fatal when the lane has no table yet."""
        self._lanes.skip(lane, state)

    def reset(self, lane: Lane) -> None:
        """The table stays, with its history."""
        self._lanes.reset(lane)

    def compact(self, lane: Lane) -> CompactionResult | None:
        return self._lanes.compact(lane)

    def vacuum(self, lane: Lane, retain: timedelta | None, *, dry_run: bool) -> VacuumResult | None:
        return self._lanes.vacuum(lane, retain, dry_run=dry_run)

    def close(self) -> None:
        self._lanes.close()
