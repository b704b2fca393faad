"""Events of an outbox table: Debezium's change events of the table, or messages of its EventRouter transform.

An event is a row `(id, aggregatetype, aggregateid, type, payload, event_offset)` with the key `id`.
`outbox.route_to` names its table, by default `outbox.event.{aggregatetype}`.

| | change event of the outbox table | message of EventRouter |
| --- | --- | --- |
| recognised by | its `op` and `source` | its header `id` |
| table | `route_to` with its aggregatetype | its topic |
| id, aggregatetype | columns of the row (`outbox.columns`) | header `id`, topic |
| aggregateid, type | columns of the row | message key, header `type` or `eventType` |
| payload | a column: text that contains JSON, or a JSON value | the message: the same, or below a schema |
| time | commit at the source | the record's |

`payload` is the JSON text as sent, with the source type `io.debezium.data.Json`; NULL if the event has none.
`event_offset` is the record's offset, which orders the events of an aggregate in a partition.

**Deduplication.** An event never changes, so all events have the same sequence. For every policy an event with a stored
id is a duplicate, and the first one stays.

**Private** columns and fields of the payload: see `mask_records`.

**Ignored** are deletes and truncates of the outbox table, because its rows are removed after they were read, and null
values without a header `id`. **Rejected** are updates of it, events without an id, aggregate types that cannot be part of
a table's name, and payloads that are not JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.change import TIMESTAMP, Op, changes_schema
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import FIRST_US, LAST_US
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import Mask
from replicator.ports.decoder import ENVELOPE, ROUTE, DecoderFeatures

from ..arrow.frame_slices import RECORD_IDS, Part, map_slices, merge_parts, reject_records, select_records, split_frame
from ..arrow.masks import make_text_mask
from ..arrow.record_errors import UNREADABLE, ValueMisfit, malformed_reject, reject_too_long, unreadable_reject
from .common.pipeline import CompositeDecoder
from .debezium.masking import mask_source_block
from .json.headers import WITHHELD, find_entries, find_read_errors, strip_values
from .json.schema_frames import build_envelope, hint_by_names, refuse_depth, split_record
from .masking import (
    NULL,
    Header,
    MaskedTables,
    MaskHeader,
    Masks,
    Object,
    RecordContent,
    add_mask_header,
    read_mask_headers,
    read_object,
    redact_whole,
    remaining_masks,
    replace_records,
)
from .options import FIELDS, OutboxDecoderOptions, OutboxOptions

FINGERPRINT = "outbox"
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
        def route_slice(piece: pa.RecordBatch) -> pa.Table:
            outcomes = self._read_records(piece)
            columns = {
                "table": [one.table if isinstance(one, OutboxEvent) else None for one in outcomes],
                "fingerprint": [FINGERPRINT if isinstance(one, OutboxEvent) else None for one in outcomes],
                "ignored": [one if isinstance(one, str) else None for one in outcomes],
                "error": [str(one) if isinstance(one, Reject) else None for one in outcomes],
            }
            return pa.Table.from_arrays([pa.array(columns[f.name], pa.string()) for f in ROUTE], schema=ROUTE)

        return map_slices(raw, ROUTE, route_slice)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        schema = changes_schema(table)

        def decode_slice(piece: pa.RecordBatch) -> pa.Table:
            good: dict[int, OutboxEvent] = {}
            bad: dict[int, Reject] = {}
            for index, outcome in enumerate(self._read_records(piece)):
                if isinstance(outcome, OutboxEvent):
                    good[index] = outcome
                else:
                    bad[index] = outcome if isinstance(outcome, Reject) else malformed_reject("it is no event")
            records, events = select_records(piece, list(good)), list(good.values())
            by_name = {
                "_op": pa.array([event.op for event in events], pa.string()),
                "_seq_1": pa.array([SEQUENCE] * len(events), pa.int64()),
                "_ts": pa.array([event.at for event in events], pa.int64()).view(TIMESTAMP),
                "_tx": pa.array([event.tx for event in events], pa.string()),
                "event_offset": records.column("offset"),
                **{name: records.column(column) for name, column in RECORD_IDS.items()},
                **{name: pa.array([getattr(event, name) for event in events], pa.string()) for name in FIELDS},
            }
            columns = [by_name[f.name] if f.name in by_name else pa.nulls(len(events), f.type) for f in schema]
            parts: list[Part] = [(list(good), pa.Table.from_arrays(columns, schema=schema))]
            return merge_parts(parts + reject_records(piece, table, bad), schema)

        return map_slices(raw, schema, decode_slice)

    def envelope(self, raw: pa.Table) -> pa.Table:
        def envelope_slice(piece: pa.RecordBatch) -> pa.Table:
            outcomes = self._read_records(piece)
            events = [one if isinstance(one, OutboxEvent) else None for one in outcomes]
            texts = {
                name: pa.array([getattr(event, name, None) for event in events], pa.string())
                for name in ("source", "connector", "db", "table", "op", "tx")
            }
            by_name = {
                **texts,
                "after": pa.array([event.after if event else None for event in events], pa.binary()).cast(pa.string()),
                "seq_1": pa.array([SEQUENCE if event else None for event in events], pa.int64()),
                "ts": pa.array([event.at if event else None for event in events], pa.int64()).view(TIMESTAMP),
                "schema_id": pa.array([FINGERPRINT if event else None for event in events], pa.string()),
                "error": pa.array([str(one) if isinstance(one, Reject) else None for one in outcomes], pa.string()),
            }
            return build_envelope(len(outcomes), by_name)

        return map_slices(raw, ENVELOPE, envelope_slice)

    def read_records(self, raw: pa.Table) -> list[OutboxOutcome]:
        """The event, ignored kind or error of each record."""
        return [one for piece in split_frame(raw) for one in self._read_records(piece)]

    def _read_records(self, raw: pa.RecordBatch) -> list[OutboxOutcome]:
        values, large = reject_too_long(raw.column("value"), self._options.limits)
        headers: list[dict[str, bytes]] = [{} for _ in range(raw.num_rows)]
        for index, name, value in find_entries(raw.column("headers"), ID, *TYPES):
            headers[index].setdefault(name, value)
        times = raw.column("timestamp").cast(TIMESTAMP).cast(pa.int64()).to_pylist()
        topics, keys, texts = raw.column("topic").to_pylist(), raw.column("key").to_pylist(), values.to_pylist()
        records = map(RawRecord, topics, keys, texts, headers, times)
        wrong = large | find_read_errors(raw)
        outcomes: list[OutboxOutcome] = []
        for index, record in enumerate(records):
            try:
                outcomes.append(wrong.get(index) or read_event(record, self._options))
            except UNREADABLE as error:
                # Change events are the likely alternative.
                outcomes.append(hint_by_names(unreadable_reject(error), record.value or b"", "debezium_json"))
        return outcomes


# Outbox events from single records.


TOMBSTONE = "tombstone"
IGNORED = {Op.DELETE: "outbox delete", Op.TRUNCATE: "outbox truncate"}
EVENTS = (Op.CREATE, Op.READ)
ID, TYPES = "id", ("type", "eventType")
"""Headers of EventRouter. It writes the type if `table.fields.additional.placement` contains it."""
JSON = "io.debezium.data.Json"
COLUMNS = (
    *(Column(name, pa.string(), nullable=name != ID, source_type=JSON if name == "payload" else "") for name in FIELDS),
    Column("event_offset", pa.int64()),
)
NO_VALUE = b"null"
NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
"""Aggregate types that can be part of a topic's and a table's name."""
LONGEST = 200
NO_EVENT = "it is no change event of an outbox table, and has no header id as EventRouter's have"


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One record of the raw frame. `at`: its time in microseconds since 1970."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    at: int | None


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event of the outbox. `after`: the image in the event log, as JSON text."""

    table: str
    id: str
    aggregatetype: str | None
    aggregateid: str | None
    type: str | None
    payload: str | None
    at: int | None
    op: Op = Op.CREATE
    tx: str | None = None
    source: str | None = None
    connector: str | None = None
    db: str | None = None
    after: bytes | None = None


class OutboxSourceBlock(msgspec.Struct, gc=False):
    """The `source` block of a change event."""

    name: str | None = None
    connector: str | None = None
    db: str | None = None
    ts_ms: int | None = None
    ts_us: int | None = None
    txId: int | str | None = None  # noqa: N815 - the field's own name


class OutboxChange(msgspec.Struct, gc=False):
    """A change event with its row as JSON text."""

    op: str | None = None
    source: OutboxSourceBlock | None = None
    after: dict[str, msgspec.Raw] | None = None


_change = msgspec.json.Decoder(OutboxChange).decode
_any = msgspec.json.Decoder(msgspec.Raw).decode


def read_event(record: RawRecord, options: OutboxDecoderOptions) -> OutboxEvent | str:
    """The event, or the kind of an ignored record. Raises one of UNREADABLE, such as `ValueMisfit`, for others."""
    if ID in record.headers:
        value, depth = record.value, options.limits.depth
        payload = None
        if value is not None:
            refuse_depth(value, depth)
            payload = _read_payload(_strip_schema(value, depth))
        kind = next((record.headers[name] for name in TYPES if name in record.headers), None)
        return OutboxEvent(
            table=record.topic,
            id=_read_id(_read_text(record.headers[ID], depth)),
            aggregatetype=options.outbox.to_aggregate(record.topic),
            aggregateid=_read_text(record.key, depth),
            type=_read_text(kind, depth),
            payload=payload,
            at=_check_range(record.at),
            after=None if payload is None else payload.encode(),
        )
    if record.value is None:
        return TOMBSTONE
    change = _change(split_record(record.value, options.limits.depth)[1])
    if change.op is None or change.source is None:
        raise ValueMisfit(RejectCode.MALFORMED, NO_EVENT)
    op = change.op
    if op in IGNORED:
        return IGNORED[Op(op)]
    if op not in EVENTS:
        operation = "an update of an outbox row: an event never changes" if op == Op.UPDATE else "no insert of an outbox row"
        raise ValueMisfit(RejectCode.UNKNOWN_OPERATION, f"it is {operation}")
    if change.after is None:
        raise ValueMisfit(RejectCode.MALFORMED, "it carries no row: its after image is null")
    return _read_inserted(change, change.after, options.outbox)


def _read_inserted(change: OutboxChange, row: dict[str, msgspec.Raw], outbox: OutboxOptions) -> OutboxEvent:
    """The event in a row of the outbox table."""
    source = change.source or OutboxSourceBlock()
    key, aggregate, of, kind = (_read_column(row, name, outbox) for name in ("id", "aggregatetype", "aggregateid", "type"))
    if aggregate is None or len(aggregate) > LONGEST or not NAME.fullmatch(aggregate):
        raise ValueMisfit(RejectCode.MALFORMED, "its aggregatetype is NULL, or cannot be part of a table's name")
    name = outbox.columns.get("payload", "payload")
    if name not in row:
        raise _missing_column_error(name)
    micros = source.ts_us if source.ts_us is not None or source.ts_ms is None else source.ts_ms * 1000
    return OutboxEvent(
        table=outbox.to_table(aggregate),
        id=_read_id(key),
        aggregatetype=aggregate,
        aggregateid=of,
        type=kind,
        payload=_read_payload(bytes(row[name])),
        at=_check_range(micros),
        op=Op(change.op or ""),
        tx=None if source.txId is None else str(source.txId),
        source=source.name,
        connector=source.connector,
        db=source.db,
        after=msgspec.json.encode(row),
    )


def _read_column(row: dict[str, msgspec.Raw], field: str, outbox: OutboxOptions) -> str | None:
    """A column that is text or an integer, as text."""
    name = outbox.columns.get(field, field)  # type: ignore[call-overload]
    if name not in row:
        raise _missing_column_error(name)
    value: Any = msgspec.json.decode(row[name])
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise ValueMisfit(RejectCode.MALFORMED, f"column {name!r} of its outbox table is neither text nor a whole number")
    return None if value is None else str(value)


def _missing_column_error(name: str) -> ValueMisfit:
    return ValueMisfit(RejectCode.MALFORMED, f"its row has no column {name[:60]!r}, which every outbox table needs")


def _strip_schema(text: bytes, depth: int) -> bytes:
    """The JSON value of a message, without the schema of Connect's converter."""
    if not text.lstrip().startswith(b"{"):
        return text
    schema, payload = split_record(text, depth)
    return text if schema is None else payload


def _read_payload(text: bytes) -> str | None:
    """The JSON text of a payload: a JSON value or text that contains one. Raises ValueMisfit for other text."""
    try:
        _any(text)
        if text.lstrip().startswith(b'"'):
            text = msgspec.json.decode(text, type=str).encode()
            _any(text)
        return None if text.strip() == NO_VALUE else text.decode()
    except UNREADABLE:
        raise ValueMisfit(RejectCode.MALFORMED, "its payload is not JSON") from None


def _read_text(value: bytes | None, depth: int) -> str | None:
    """The text of a key or header: plain, or JSON of Connect's converter."""
    if value is None:
        return None
    try:
        text = bytes(_strip_schema(value, depth))
        if text.startswith(b'"'):
            return msgspec.json.decode(text, type=str)
        return None if text == NO_VALUE else text.decode()
    except UNREADABLE:
        raise ValueMisfit(RejectCode.MALFORMED, "its key, or its header of the id or the type, is not text") from None


def _read_id(value: str | None) -> str:
    if not value:
        raise ValueMisfit(RejectCode.NULL_KEY, "the event has no id")
    return value


def _check_range(micros: int | None) -> int | None:
    return micros if micros is not None and FIRST_US <= micros <= LAST_US else None


# Masking of events, in private columns and in private fields of the payload.
#
# - A change event of the outbox table is stored without schema and key, and with only the columns that make up an event.
#   Ignored change events (deletes) are stored without their row.
# - A message of EventRouter is stored with key, payload and the headers that make up the event. Other headers keep only
#   their names.
# - Unreadable records that may belong to a table with private columns are stored without content.
#
# A header lists the masked columns (`adapters.decoders.masking`).


FIELD = "payload."
"""Prefix of private payload fields in the configuration."""
EVENT_MEMBERS = ("op", "source", "ts_ms", "ts_us", "ts_ns", "transaction")
"""Fields of a change event that are kept besides its row."""
NO_OBJECT = "its payload is no JSON object, and fields of it are private"
OutboxOutcome = OutboxEvent | str | Reject


class OutboxMasker:
    """Masks private values in events."""

    def __init__(self, options: OutboxDecoderOptions) -> None:
        self._options, self._tables = options, MaskedTables(options.private)

    def __bool__(self) -> bool:
        return bool(self._tables)

    def get_masks(self, table: str) -> Masks:
        """The masks of a table's columns and payload fields."""
        return self._tables.get_masks(table)

    def masked_spec(self, table: TableSpec) -> TableSpec:
        """The table as decoding returns it. Raises ConfigProblem for a mask that does not fit the column. Payload fields
        are not checked, because their names are unknown."""
        columns = {name: mask for name, mask in self.get_masks(table.name).items() if not name.startswith(FIELD)}
        return MaskedTables({table.name: columns}).masked_spec(table)

    def mask_records(self, raw: pa.Table, outcomes: Sequence[OutboxOutcome]) -> pa.Table:
        """See `ports.decoder.DecoderFeatures.mask_records`. `outcomes`: the event, ignored kind or error of each record."""
        if not self._tables or not raw.num_rows:
            return raw
        marks = read_mask_headers(raw["headers"].combine_chunks())
        records = map(RecordContent, *(raw[name].to_pylist() for name in RecordContent._fields))
        rows = zip(raw["topic"].to_pylist(), records, outcomes, strict=True)
        return replace_records(raw, [self._mask_record(*row, marks.get(i)) for i, row in enumerate(rows)])

    def _mask_record(
        self, topic: str, record: RecordContent, outcome: OutboxOutcome, mark: MaskHeader | None
    ) -> RecordContent:
        if not isinstance(outcome, OutboxEvent):
            return record if mark is not None else self._mask_other(topic, record, outcome)
        masks = self.get_masks(outcome.table)
        new_masks = remaining_masks(masks, mark.columns if mark else ())
        if not new_masks:
            return record
        now = MaskHeader(outcome.table, tuple(sorted(masks)))
        try:
            mask_record = self._mask_routed if _is_routed(record) else self._mask_inserted
            masked = mask_record(record, outcome, new_masks)
        except (KeyError, TypeError, *UNREADABLE) as error:
            why = (
                unreadable_reject(error)
                if isinstance(error, UNREADABLE)
                else Reject(RejectCode.MALFORMED, "it cannot be masked")
            )
            return redact_whole(record.key, record.value)._replace(headers=add_mask_header(None, now, why))
        others = [one for one in record.headers or () if one["name"] not in (ID, *TYPES)]
        return masked._replace(headers=[*(masked.headers or ()), *add_mask_header(others, now, None)])

    def _mask_other(self, topic: str, record: RecordContent, outcome: str | Reject) -> RecordContent:
        """A record that is not an event. Only the topic of an EventRouter message names its table."""
        if isinstance(outcome, Reject):
            is_open = _is_routed(record) and self._tables.find_masks(topic) == {}
            return record if is_open else redact_whole(record.key, record.value)
        value = record.value and msgspec.json.encode(self._strip_row(record.value))
        return RecordContent(strip_values(record.headers), record.key and WITHHELD, value)

    def _strip_row(self, value: bytes) -> Object:
        whole = read_object(split_record(value, self._options.limits.depth)[1])
        metadata = {name: whole[name] for name in EVENT_MEMBERS if name in whole}
        return {**metadata, "source": mask_source_block(metadata["source"])}

    def _mask_inserted(self, record: RecordContent, event: OutboxEvent, masks: Masks) -> RecordContent:
        value = record.value or b""
        row = read_object(read_object(split_record(value, self._options.limits.depth)[1])["after"])
        columns: Object = {}
        for field in FIELDS:
            name = self._options.outbox.columns.get(field, field)  # type: ignore[call-overload]
            if field == "payload":
                columns[name] = msgspec.Raw(_mask_payload(bytes(row[name]), masks))
            else:
                columns[name] = _mask_to_json(masks[field], getattr(event, field)) if field in masks else row[name]
        return RecordContent([], None, msgspec.json.encode({**self._strip_row(value), "after": columns}))

    def _mask_routed(self, record: RecordContent, event: OutboxEvent, masks: Masks) -> RecordContent:
        key = bytes(_mask_to_json(masks["aggregateid"], event.aggregateid)) if "aggregateid" in masks else record.key

        # Only the headers that make up the event, as JSON.
        names = {header["name"] for header in record.headers or ()}
        types = [name for name in TYPES if name in names][:1]
        texts = [(ID, _mask_text(masks.get(ID), event.id))]
        texts += [(name, _mask_text(masks.get("type"), event.type)) for name in types]
        headers: list[Header] = [{"name": name, "value": msgspec.json.encode(text)} for name, text in texts]

        # A payload below a schema stays below an empty one.
        value, schema, payload = record.value, None, b""
        if value is not None and value.lstrip().startswith(b"{"):
            schema, payload = split_record(value, self._options.limits.depth)
        if schema is not None:
            value = b'{"schema":{},"payload":' + _mask_payload(payload, masks) + b"}"
        elif value is not None:
            value = _mask_payload(value, masks)
        return RecordContent(headers, key, value)


def _is_routed(record: RecordContent) -> bool:
    return any(header["name"] == ID for header in record.headers or ())


def _mask_payload(token: bytes, masks: Masks) -> bytes:
    """The masked payload, which is JSON or text that contains JSON. Raises ValueMisfit for a payload that is not an
    object, if some of its fields are private."""
    fields = {name.removeprefix(FIELD): mask for name, mask in masks.items() if name.startswith(FIELD)}
    if "payload" in masks:
        return bytes(NULL)
    is_text = token.lstrip().startswith(b'"')
    text = msgspec.json.decode(token, type=str).encode() if is_text else token
    if not fields or text.strip() == bytes(NULL):
        return token
    if not text.lstrip().startswith(b"{"):
        raise ValueMisfit(RejectCode.MALFORMED, NO_OBJECT)
    masked = read_object(text)
    for name, mask in fields.items():
        content = bytes(masked.get(name, NULL))
        if content != bytes(NULL):
            # Strings are masked by their text, other values by their JSON text.
            is_string = content.startswith(b'"')
            masked[name] = _mask_to_json(mask, msgspec.json.decode(content, type=str) if is_string else content.decode())
    payload = msgspec.json.encode(masked)
    return msgspec.json.encode(payload.decode()) if is_text else payload


def _mask_to_json(mask: Mask, text: str | None) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_mask_text(mask, text)))


def _mask_text(mask: Mask | None, text: str | None) -> str | None:
    if mask is None or text is None:
        return text
    if mask.kind in ("nothing", "fixed"):
        return mask.text if mask.kind == "fixed" else None
    return make_text_mask(mask)(text)
