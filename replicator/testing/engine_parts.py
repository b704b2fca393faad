"""What an engine promises that parts frames by key (`ports.laying.PartsByKey`); a part of `EngineContract`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from replicator.ports.laying import PartsByKey

from .contract import needs
from .engine_base import EngineBase
from .histories import History, any_history
from .sink_contract import KEYED

NUMBER = 5


class EngineParts(EngineBase):
    """The promises of `PartsByKey`, of engines that are one."""

    def test_parts_are_those_of_keys(self) -> None:
        """Of an engine that parts frames: every row is in one part, in its order; the part of a key is the same in every
        frame."""

        @self.for_all(history=any_history(KEYED))
        def check(history: History) -> None:
            engine: Any = self.new_engine()
            needs(isinstance(engine, PartsByKey), "the engine parts no frames")
            keys = history.table().keys
            changes, some = self.changes(history), self.changes(history, len(history.events) // 2)
            whole, part = (engine.apart(frame, keys, NUMBER) for frame in (changes, some))
            assert len(whole) == len(part) == NUMBER
            homes = {key: i for i, rows in enumerate(whole) for key in _keys(rows, keys)}
            for i, rows in enumerate([*whole, *part]):
                assert {homes[key] for key in _keys(rows, keys)} <= {i % NUMBER}
            for frame, parts in ((changes, whole), (some, part)):
                places = [homes[key] for key in _keys(frame, keys)]
                for i, rows in enumerate(parts):
                    assert rows.equals(frame.filter(pa.array([place == i for place in places], pa.bool_())))


def _keys(rows: pa.Table, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))
