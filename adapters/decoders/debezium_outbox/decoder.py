"""Decoder of outbox events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from replicator.domain.change import changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import Column, TableSpec
from replicator.ports.decoder import ENVELOPE, ROUTE, DecoderFeatures

from ...arrow.frame_slices import RECORD_IDS, Part, map_slices, merge_parts, reject_records, select_records, split_frame
from ...arrow.record_errors import UNREADABLE, malformed_reject, unreadable_reject
from ...arrow.record_limits import reject_too_long
from ..common.pipeline import CompositeDecoder
from ..json.envelopes import build_envelope
from ..json.format_detection import hint_by_names
from ..json.headers import find_entries, find_read_errors
from ..options import FIELDS, OutboxDecoderOptions
from .event import ID, TYPES, OutboxEvent, RawRecord, read_event
from .masking import OutboxMasker, Said

FINGERPRINT = "outbox"
JSON = "io.debezium.data.Json"
COLUMNS = (
    *(Column(name, pa.string(), nullable=name != ID, source_type=JSON if name == "payload" else "") for name in FIELDS),
    Column("event_offset", pa.int64()),
)
STAMP = pa.timestamp("us", "UTC")
SEQUENCE = 0
"""The sequence of every event in every epoch: an event that is sent again is not newer than the first."""


class DebeziumOutboxDecoder(CompositeDecoder):
    """`ports.decoder.Decoder` of events of an outbox table; `options` as in `OutboxDecoderOptions`. Caches
    nothing of the records."""

    def __init__(self, options: OutboxDecoderOptions | Mapping[str, object] | None = None) -> None:
        read = OutboxDecoderOptions.read(options or {})
        self._events, self._masker = OutboxReader(read), OutboxMasker(read)
        super().__init__(read, routing=self._events, decoding=self._events, envelopes=self._events)

    @property
    def features(self) -> DecoderFeatures:
        return DecoderFeatures(mask_records=self.mask_records)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:  # noqa: ARG002 - arguments of the port
        """See `ports.decoder.Decoder.learn`: all tables of events have the same columns, except for masks."""
        return self._masker.masked_spec(TableSpec(table, COLUMNS, (ID,), 1, fingerprint))

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """Private columns are masked before records are decoded."""
        return super().decode(self.mask_records(raw) if self._masker.get_masks(table.name) else raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return super().envelope(self.mask_records(raw))

    def mask_records(self, raw: pa.Table) -> pa.Table:
        return self._masker.mask_records(raw, self._events.read_records(raw)) if self._masker else raw


class OutboxReader:
    """Reads records of an outbox. Pure."""

    def __init__(self, options: OutboxDecoderOptions) -> None:
        self._options = options

    def route(self, raw: pa.Table) -> pa.Table:
        return map_slices(raw, ROUTE, lambda piece: _build_routes(self._read_records(piece)))

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        return map_slices(raw, changes_schema(table), lambda piece: self._build_changes(piece, table))

    def envelope(self, raw: pa.Table) -> pa.Table:
        return map_slices(raw, ENVELOPE, lambda piece: self._build_envelopes(self._read_records(piece)))

    def read_records(self, raw: pa.Table) -> list[Said]:
        """The event, ignored kind or error of each record."""
        return [one for piece in split_frame(raw) for one in self._read_records(piece)]

    def _read_records(self, raw: pa.RecordBatch) -> list[Said]:
        values, large = reject_too_long(raw.column("value"), self._options.limits)
        headers: list[dict[str, bytes]] = [{} for _ in range(raw.num_rows)]
        for place, name, value in find_entries(raw.column("headers"), ID, *TYPES):
            headers[place].setdefault(name, value)
        times = raw.column("timestamp").cast(STAMP).cast(pa.int64()).to_pylist()
        topics, keys, texts = raw.column("topic").to_pylist(), raw.column("key").to_pylist(), values.to_pylist()
        records = map(RawRecord, topics, keys, texts, headers, times)
        wrong = large | find_read_errors(raw)
        return [wrong.get(place) or self._read_one(record) for place, record in enumerate(records)]

    def _read_one(self, record: RawRecord) -> Said:
        try:
            return read_event(record, self._options)
        except UNREADABLE as error:
            # Change events are the likely alternative.
            return hint_by_names(unreadable_reject(error), record.value or b"", "debezium_json")

    def _build_changes(self, raw: pa.RecordBatch, table: TableSpec) -> pa.Table:
        good: dict[int, OutboxEvent] = {}
        bad: dict[int, Reject] = {}
        for place, said in enumerate(self._read_records(raw)):
            if isinstance(said, OutboxEvent):
                good[place] = said
            else:
                bad[place] = said if isinstance(said, Reject) else malformed_reject("it is no event")
        parts: list[Part] = [(list(good), self._build_frame(select_records(raw, list(good)), list(good.values()), table))]
        return merge_parts(parts + reject_records(raw, table, bad), changes_schema(table))

    def _build_frame(self, raw: pa.RecordBatch, events: Sequence[OutboxEvent], table: TableSpec) -> pa.Table:
        known = {
            "_op": pa.array([event.op for event in events], pa.string()),
            "_seq_1": pa.array([SEQUENCE] * len(events), pa.int64()),
            "_ts": pa.array([event.at for event in events], pa.int64()).view(STAMP),
            "_tx": pa.array([event.tx for event in events], pa.string()),
            "event_offset": raw.column("offset"),
            **{name: raw.column(of) for name, of in RECORD_IDS.items()},
            **{name: pa.array([getattr(event, name) for event in events], pa.string()) for name in FIELDS},
        }
        schema = changes_schema(table)
        columns = [known[f.name] if f.name in known else pa.nulls(len(events), f.type) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def _build_envelopes(self, said: Sequence[Said]) -> pa.Table:
        events = [one if isinstance(one, OutboxEvent) else None for one in said]
        texts = {
            name: pa.array([getattr(event, name, None) for event in events], pa.string())
            for name in ("source", "connector", "db", "table", "op", "tx")
        }
        known = {
            **texts,
            "after": pa.array([event.after if event else None for event in events], pa.binary()).cast(pa.string()),
            "seq_1": pa.array([SEQUENCE if event else None for event in events], pa.int64()),
            "ts": pa.array([event.at if event else None for event in events], pa.int64()).view(STAMP),
            "schema_id": pa.array([FINGERPRINT if event else None for event in events], pa.string()),
            "error": pa.array([str(one) if isinstance(one, Reject) else None for one in said], pa.string()),
        }
        return build_envelope(len(said), known)


def _build_routes(said: Sequence[Said]) -> pa.Table:
    columns = {
        "table": [one.table if isinstance(one, OutboxEvent) else None for one in said],
        "fingerprint": [FINGERPRINT if isinstance(one, OutboxEvent) else None for one in said],
        "ignored": [one if isinstance(one, str) else None for one in said],
        "error": [str(one) if isinstance(one, Reject) else None for one in said],
    }
    return pa.Table.from_arrays([pa.array(columns[f.name], pa.string()) for f in ROUTE], schema=ROUTE)
