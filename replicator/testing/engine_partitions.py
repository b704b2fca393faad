"""The promises of an engine that divides frames by key (`ports.bulk_load.PartitionsByKey`); part of `EngineContract`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from replicator.ports.bulk_load import PartitionsByKey

from .contract import require
from .engine_base import EngineBase
from .histories import History, any_histories
from .sink_contract import KEYED_TYPES

PARTITIONS = 5


class EnginePartitions(EngineBase):
    """The promises of `PartitionsByKey`, for engines that implement it."""

    def test_every_key_is_in_one_partition(self) -> None:
        """Every row is in one partition, in order. A key has the same partition in every frame."""

        @self.for_all(history=any_histories(KEYED_TYPES))
        def check(history: History) -> None:
            engine: Any = self.new_engine()
            require(isinstance(engine, PartitionsByKey), "the engine parts no frames")
            keys = history.table().keys
            changes, some = self.read_changes(history), self.read_changes(history, len(history.events) // 2)
            whole, part = (engine.partition_rows(frame, keys, PARTITIONS) for frame in (changes, some))
            assert len(whole) == len(part) == PARTITIONS
            homes = {key: i for i, rows in enumerate(whole) for key in _read_keys(rows, keys)}
            for i, rows in enumerate([*whole, *part]):
                assert {homes[key] for key in _read_keys(rows, keys)} <= {i % PARTITIONS}
            for frame, parts in ((changes, whole), (some, part)):
                places = [homes[key] for key in _read_keys(frame, keys)]
                for i, rows in enumerate(parts):
                    assert rows.equals(frame.filter(pa.array([place == i for place in places], pa.bool_())))


def _read_keys(rows: pa.Table, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))
