"""A decoder that is not shown the records which ended the program."""

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
    Reject(RejectCode.CRASHED, "the program ended whenever it decoded this record, so it is not decoded any more")
)
UNREADABLE = b"\xff"


class PoisonRecordFilter:
    """`ports.decoder.Decoder` over another one: records at the given places are rejects, of which that one gets nothing."""

    def __init__(self, decoder: Any, places: Iterable[RecordPosition]) -> None:
        self._decoder = decoder
        self._offsets: dict[TopicPartition, list[int]] = {}
        for topic, partition, offset in sorted(places):
            self._offsets.setdefault(TopicPartition(topic, partition), []).append(offset)

    def route(self, raw: pa.Table) -> pa.Table:
        return self._decode_others(raw, self._decoder.route)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """Of records that were routed, as `decode`."""
        found: TableSpec = self._decoder.learn(sample, table, fingerprint)
        return found

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        return self._decoder.decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return self._decode_others(raw, self._decoder.envelope)

    def find_erased(self, raw: pa.Table) -> pa.Array | None:
        """What is spared is nobody's."""
        if not isinstance(self._decoder, FiltersErased):
            return None
        spared = self.find_poison_records(raw)
        if spared is None:
            return self._decoder.find_erased(raw)
        found = self._decoder.find_erased(raw.filter(pc.invert(spared)))
        hits = iter(found.to_pylist()) if found is not None else None
        return hits and pa.array([not is_spared and next(hits) for is_spared in spared.to_pylist()], pa.bool_())

    def _decode_others(self, raw: pa.Table, ask: Any) -> pa.Table:
        """What is said of the other records, and the error of those that are spared, in the order of the records."""
        spared = self.find_poison_records(raw)
        if spared is None:
            return ask(raw)
        said = ask(raw.filter(pc.invert(spared)))
        error = pa.Table.from_pylist([{"error": POISON_REASON}], said.schema)
        return pa.concat_tables([said, error]).take(_merge_order(spared, said.num_rows, [said.num_rows] * raw.num_rows))

    def find_poison_records(self, raw: pa.Table) -> pa.Array | None:
        """True for each record that is spared; None when there is none."""
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
        """What is spared is withheld where what cannot be read is."""
        spared = self.find_poison_records(raw)
        if spared is None:
            return self._decoder.mask_records(raw)
        said, hidden = self._decoder.mask_records(raw.filter(pc.invert(spared))), raw.filter(spared)
        shown = self._decoder.mask_records(_make_unreadable(hidden))["value"].to_pylist()
        rows = [row if value else {**row, **_NOTHING} for row, value in zip(hidden.to_pylist(), shown, strict=True)]
        kept = pa.Table.from_pylist(rows, said.schema)
        places = iter(range(said.num_rows, raw.num_rows))
        at = [next(places) if is_spared else 0 for is_spared in spared.to_pylist()]
        return pa.concat_tables([said, kept]).take(_merge_order(spared, said.num_rows, at))


class _FullPoisonFilter(_TransactionPoisonFilter, _MaskingPoisonFilter):
    pass


_NOTHING: Mapping[str, object] = {"key": None, "value": None, "headers": None}
_FILTERS = {
    (True, True): _FullPoisonFilter,
    (True, False): _TransactionPoisonFilter,
    (False, True): _MaskingPoisonFilter,
    (False, False): PoisonRecordFilter,
}


def filter_poison_records(decoder: Decoder, places: Iterable[RecordPosition]) -> Decoder:
    """The decoder itself where there is nothing to be spared; what else it can do it still can."""
    places = tuple(places)
    kind = _FILTERS[isinstance(decoder, ReadsTransactionMarks), isinstance(decoder, MasksRecords)]
    return kind(decoder, places) if places else decoder


def _merge_order(spared: pa.Array, free: int, at: Sequence[int]) -> pa.Array:
    """Where each record is found: the free ones one after the other, the others where `at` says."""
    others = iter(range(free))
    return pa.array([at[i] if hit else next(others) for i, hit in enumerate(spared.to_pylist())], pa.int64())


def _make_unreadable(raw: pa.Table) -> pa.Table:
    """Records at the same places that no format can read."""
    for name in ("key", "value"):
        values = pa.chunked_array([pa.array([UNREADABLE] * raw.num_rows, raw.schema.field(name).type)])
        raw = raw.set_column(raw.column_names.index(name), raw.schema.field(name), values)
    return raw
