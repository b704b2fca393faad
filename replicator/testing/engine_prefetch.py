"""The promises of an engine that prefetches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.table import Column, TableSpec
from replicator.ports.engine import Engine, Prefetches

from .engine_base import EngineBase
from .fake_decoder import FakeDecoder, encode_change

ROWS = 1_000
"""Rows of a batch. Fewer may not be worth prefetching."""
ITEMS = TableSpec("public.items", (Column("id", pa.int64()),), ("id",), fingerprint="0")
OTHERS = TableSpec("public.others", (Column("id", pa.int64()),), ("id",), fingerprint="1")


class EnginePrefetchContract(EngineBase):
    """The contract of `ports.engine.Prefetches`."""

    def test_prefetched_batches_decode_the_same(self) -> None:
        """Batches of one table, of others, of several, with unreadable or empty records, and without records. Also
        after `rest`."""
        engine: Any = self.new_engine()
        assert isinstance(engine, Prefetches)
        plain = [_make_records(ITEMS, number) for number in range(3)]
        mixed = pa.concat_tables([plain[0].slice(0, ROWS // 2), _make_records(OTHERS, 3).slice(0, ROWS // 2)])
        batches = [*plain, mixed, _spoil_records(plain[2]), RAW.empty_table(), *plain[:2]]
        expected = [self._describe_batch(self.new_engine(), self.to_frame(raw), FakeDecoder()) for raw in batches]
        assert self._decode_in_turn(engine, [self.to_frame(raw) for raw in batches]) == expected
        engine.rest()
        assert self._decode_in_turn(engine, [self.to_frame(raw) for raw in plain]) == expected[:3]
        engine.rest()

    def _decode_in_turn(self, engine: Any, frames: list[Any]) -> list[Any]:
        decoder, begun, said = FakeDecoder(), 0, []
        for number, frame in enumerate(frames):
            while begun < min(len(frames), number + 1 + engine.prefetch_depth):
                engine.begin(frames[begun], decoder)
                begun += 1
            said.append(self._describe_batch(engine, frame, decoder))
        return said

    def _describe_batch(self, engine: Engine[Any], frame: Any, decoder: FakeDecoder) -> Any:
        routed = engine.route(frame, decoder)
        runs = [(run.table, run.fingerprint, *self._decode_slice(engine, run, decoder)) for run in routed.slices]
        rejects = self.to_arrow(routed.rejects).to_pylist()
        return runs, dict(routed.ignored), rejects, routed.reject_count, dict(routed.topics), dict(routed.drops)

    def _decode_slice(self, engine: Engine[Any], run: Any, decoder: FakeDecoder) -> list[Any]:
        found = engine.decode(run, decoder, engine.learn(run, decoder))
        return [self.to_arrow(frame).to_pylist() for frame in found]


def _make_records(table: TableSpec, number: int) -> pa.Table:
    rows = []
    for offset in range(number * ROWS, (number + 1) * ROWS):
        change = pa.Table.from_pylist([{"_op": "c", "_seq_1": offset, "id": offset}])
        place = {"topic": table.name, "partition": 0, "offset": offset}
        rows.append({**place, "key": b"k", "value": encode_change(change, table)})
    return pa.Table.from_pylist(rows, RAW)


def _spoil_records(records: pa.Table) -> pa.Table:
    rows = records.to_pylist()
    rows[3]["value"], rows[700]["value"], rows[900]["key"] = b"nothing", None, None
    return pa.Table.from_pylist(rows, RAW)
