"""A decoder wrapper that rejects poison records without decoding them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.connectors import Connector
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.position import TopicPartition
from replicator.domain.table import TableSpec
from replicator.domain.transactions import TransactionMark
from replicator.ports.decoder import Decoder, FiltersErased, MasksRecords, ReadsTransactionMarks

RecordPosition = tuple[str, int, int]
"""Topic, partition and offset."""

POISON_REASON = str(
    Reject(RejectCode.CRASHED, "the program crashed each time it decoded this record, so it is not decoded any more")
)
UNREADABLE = b"\xff"


class PoisonRecordFilter:
    """`ports.decoder.Decoder` over another one.

    Records at the given positions are rejects, and the other one never gets them.
    """

    def __init__(self, decoder: Any, positions: Iterable[RecordPosition]) -> None:
        self._decoder = decoder
        self._offsets: dict[TopicPartition, list[int]] = {}
        for topic, partition, offset in sorted(positions):
            self._offsets.setdefault(TopicPartition(topic, partition), []).append(offset)

    def route(self, raw: pa.Table) -> pa.Table:
        return self._decode_others(raw, self._decoder.route)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """The records have passed `route`, as for `decode`: none is a poison record."""
        found: TableSpec = self._decoder.learn(sample, table, fingerprint)
        return found

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        return self._decoder.decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return self._decode_others(raw, self._decoder.envelope)

    def find_erased(self, raw: pa.Table) -> pa.Array | None:
        """A poison record belongs to no key."""
        if not isinstance(self._decoder, FiltersErased):
            return None
        spared = self.find_poison_records(raw)
        if spared is None:
            return self._decoder.find_erased(raw)
        found = self._decoder.find_erased(raw.filter(pc.invert(spared)))
        hits = iter(found.to_pylist()) if found is not None else None
        return hits and pa.array([not is_spared and next(hits) for is_spared in spared.to_pylist()], pa.bool_())

    def _decode_others(self, raw: pa.Table, ask: Any) -> pa.Table:
        """The result of `ask` for the other records, and an error for each poison record, in record order."""
        spared = self.find_poison_records(raw)
        if spared is None:
            return ask(raw)
        decoded = ask(raw.filter(pc.invert(spared)))
        error = pa.Table.from_pylist([{"error": POISON_REASON}], decoded.schema)
        order = _merge_order(spared, decoded.num_rows, [decoded.num_rows] * raw.num_rows)
        return pa.concat_tables([decoded, error]).take(order)

    def find_poison_records(self, raw: pa.Table) -> pa.Array | None:
        """True for each poison record; None without any."""
        found = pa.repeat(pa.scalar(False), raw.num_rows)
        for at, offsets in self._offsets.items():
            mine = pc.and_(pc.equal(raw["topic"], at.topic), pc.equal(raw["partition"], at.partition))
            hit = pc.and_(mine, pc.is_in(raw["offset"], pa.array(offsets, pa.int64())))
            found = pc.or_(found, hit.combine_chunks() if isinstance(hit, pa.ChunkedArray) else hit)
        return found if pc.any(found).as_py() else None


class _TransactionPoisonFilter(PoisonRecordFilter):
    def marks(self, raw: pa.Table) -> Sequence[TransactionMark]:
        spared = self.find_poison_records(raw)
        found: Sequence[TransactionMark] = self._decoder.marks(raw if spared is None else raw.filter(pc.invert(spared)))
        return found

    def connector(self, raw: pa.Table) -> Connector | None:
        spared = self.find_poison_records(raw)
        found: Connector | None = self._decoder.connector(raw if spared is None else raw.filter(pc.invert(spared)))
        return found


class _MaskingPoisonFilter(PoisonRecordFilter):
    def mask_records(self, raw: pa.Table) -> pa.Table:
        """A poison record is treated like one that cannot be read: kept, or emptied."""
        spared = self.find_poison_records(raw)
        if spared is None:
            return self._decoder.mask_records(raw)
        decoded, hidden = self._decoder.mask_records(raw.filter(pc.invert(spared))), raw.filter(spared)
        shown = self._decoder.mask_records(_make_unreadable(hidden))["value"].to_pylist()
        rows = [row if value else {**row, **_NOTHING} for row, value in zip(hidden.to_pylist(), shown, strict=True)]
        kept = pa.Table.from_pylist(rows, decoded.schema)
        positions = iter(range(decoded.num_rows, raw.num_rows))
        at = [next(positions) if is_spared else 0 for is_spared in spared.to_pylist()]
        return pa.concat_tables([decoded, kept]).take(_merge_order(spared, decoded.num_rows, at))


class _FullPoisonFilter(_TransactionPoisonFilter, _MaskingPoisonFilter):
    pass


_NOTHING: Mapping[str, object] = {"key": None, "value": None, "headers": None}
_FILTERS = {
    (True, True): _FullPoisonFilter,
    (True, False): _TransactionPoisonFilter,
    (False, True): _MaskingPoisonFilter,
    (False, False): PoisonRecordFilter,
}


def filter_poison_records(decoder: Decoder, positions: Iterable[RecordPosition]) -> Decoder:
    """The decoder with a filter, or itself without `places`. The filter has the same optional ports as the decoder."""
    positions = tuple(positions)
    kind = _FILTERS[isinstance(decoder, ReadsTransactionMarks), isinstance(decoder, MasksRecords)]
    return kind(decoder, positions) if positions else decoder


def _merge_order(spared: pa.Array, free: int, at: Sequence[int]) -> pa.Array:
    """The index of each record: the next free one for the others, `at` for poison records."""
    others = iter(range(free))
    return pa.array([at[i] if hit else next(others) for i, hit in enumerate(spared.to_pylist())], pa.int64())


def _make_unreadable(raw: pa.Table) -> pa.Table:
    """The same records with a key and a value that no format can read."""
    for name in ("key", "value"):
        values = pa.chunked_array([pa.array([UNREADABLE] * raw.num_rows, raw.schema.field(name).type)])
        raw = raw.set_column(raw.column_names.index(name), raw.schema.field(name), values)
    return raw
