"""Shared parts of the engine contract: the factories of an adapter, and an engine for the fake sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from replicator.domain.table import TableSpec
from replicator.ports.engine import Engine

from .contract import Contract
from .delivery import to_canonical_rows
from .histories import History


class EngineBase(Contract):
    """The factories of an adapter, and helpers of the tests."""

    def new_engine(self) -> Engine[Any]:
        """An engine."""
        raise NotImplementedError

    def to_frame(self, frame: pa.Table) -> Any:
        """A `pyarrow.Table` as a frame of the engine."""
        return frame

    def to_arrow(self, frame: Any) -> pa.Table:
        """A frame of the engine as a `pyarrow.Table`, rows in order."""
        return frame

    def read_changes(self, history: History, start: int = 0, end: int | None = None) -> Any:
        """The changes of the events [start, end), under the table's last schema."""
        table = history.table()
        parts = [self.to_frame(frame) for _, frame in history.runs(start, len(history.events) if end is None else end)]
        return self.new_engine().unite(parts or [self.to_frame(history.frame((), table))], table)

    def rows(self, frame: Any, names: Sequence[str]) -> Counter[str]:
        """The rows of a frame as a multiset."""
        return to_canonical_rows(self.to_arrow(frame).to_pylist(), names)


class PlainFrames:
    """An engine of any frame type as one of `pyarrow.Table`, for use with `FakeSink`."""

    frame = pa.Table

    def __init__(self, suite: EngineBase) -> None:
        self.suite = suite
        self.engine = suite.new_engine()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def transform_rows(self, changes: Any, plan: Any) -> Any:
        shaped = self.engine.transform_rows(changes, plan)
        return type(shaped)(shaped.frame, self.suite.to_arrow(shaped.rejects), shaped.counts)

    def fold(self, changes: Any, plan: Any) -> Any:
        folded = self.engine.fold(changes, plan)
        return type(folded)(self.suite.to_arrow(folded.frame), folded.facts, folded.counts, folded.rows, folded.size)

    def unite(self, parts: Iterable[pa.Table], table: TableSpec) -> Any:
        return self.engine.unite([self.suite.to_frame(part) for part in parts], table)
