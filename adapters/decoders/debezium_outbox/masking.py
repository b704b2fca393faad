"""Masking of events, in private columns and in private fields of the payload.

- A change event of the outbox table is stored without schema and key, and with only the columns that make up an event.
  Ignored change events (deletes) are stored without their row.
- A message of EventRouter is stored with key, payload and the headers that make up the event. Other headers keep only
  their names.
- Unreadable records that may belong to a table with private columns are stored without content.

A header lists the masked columns (`adapters.decoders.masking.records`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import TableSpec
from replicator.domain.transform.columns import Mask

from ...arrow.masks import make_text_mask
from ...arrow.record_errors import UNREADABLE, ValueMisfit, unreadable_reject
from ..debezium.metadata_fields import mask_source_block
from ..json.headers import WITHHELD, strip_values
from ..json.schema_frames import split_record
from ..masking.json_values import NULL, Object, read_object
from ..masking.records import (
    HEADER,
    Header,
    MaskedRecord,
    MaskHeader,
    add_mask_header,
    read_mask_headers,
    redact_whole,
    replace_records,
)
from ..masking.tables import MaskedTables, Masks
from ..options import FIELDS, OutboxDecoderOptions
from .event import ID, TYPES, OutboxEvent

FIELD = "payload."
"""Prefix of private payload fields in the configuration."""
KEPT = ("op", "source", "ts_ms", "ts_us", "ts_ns", "transaction")
"""Fields of a change event that are kept besides its row."""
NO_OBJECT = "its payload is no JSON object, and fields of it are private"
Said = OutboxEvent | str | Reject


class _RawRecord(NamedTuple):
    topic: str
    headers: list[Header] | None
    key: bytes | None
    value: bytes | None


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

    def mask_records(self, raw: pa.Table, said: Sequence[Said]) -> pa.Table:
        """See `ports.decoder.DecoderFeatures.mask_records`. `said`: the event, ignored kind or error of each record."""
        if not self._tables or not raw.num_rows:
            return raw
        known = read_mask_headers(raw["headers"].combine_chunks())
        columns = (raw[name].to_pylist() for name in _RawRecord._fields)
        records = map(_RawRecord, *columns)
        done = [
            self._mask_record(record, one, known.get(i)) for i, (record, one) in enumerate(zip(records, said, strict=True))
        ]
        return replace_records(raw, done)

    def _mask_record(self, record: _RawRecord, said: Said, mark: MaskHeader | None) -> MaskedRecord:
        as_it_is = MaskedRecord(record.headers, record.key, record.value)
        if not isinstance(said, OutboxEvent):
            return as_it_is if mark is not None else self._mask_other(record, said)
        masks = self.get_masks(said.table)
        left = masks if mark is None else {name: mask for name, mask in masks.items() if name not in mark.columns}
        if not left:
            return as_it_is
        now = MaskHeader(said.table, tuple(sorted(masks)))
        try:
            found = self._mask_routed(record, said, left) if _is_routed(record) else self._mask_inserted(record, said, left)
        except (KeyError, TypeError, *UNREADABLE) as error:
            why = (
                unreadable_reject(error)
                if isinstance(error, UNREADABLE)
                else Reject(RejectCode.MALFORMED, "it cannot be masked")
            )
            return redact_whole(record.key, record.value)._replace(headers=add_mask_header(None, now, why))
        others = [one for one in record.headers or () if one["name"] not in (ID, *TYPES, HEADER)]
        told = {"name": HEADER, "value": msgspec.json.encode(now)}
        return found._replace(headers=[*(found.headers or ()), *(strip_values(others) or ()), told])

    def _mask_other(self, record: _RawRecord, said: str | Reject) -> MaskedRecord:
        """A record that is not an event. Only the topic of an EventRouter message names its table."""
        if isinstance(said, Reject):
            is_open = _is_routed(record) and self._tables.find_masks(record.topic) == {}
            as_it_is = MaskedRecord(record.headers, record.key, record.value)
            return as_it_is if is_open else redact_whole(record.key, record.value)
        value = record.value and msgspec.json.encode(self._strip_row(record.value))
        return MaskedRecord(strip_values(record.headers), record.key and WITHHELD, value)

    def _strip_row(self, value: bytes) -> Object:
        whole = read_object(split_record(value, self._options.limits.depth)[1])
        kept = {name: whole[name] for name in KEPT if name in whole}
        return {**kept, "source": mask_source_block(kept["source"])}

    def _mask_inserted(self, record: _RawRecord, event: OutboxEvent, masks: Masks) -> MaskedRecord:
        value = record.value or b""
        row = read_object(read_object(split_record(value, self._options.limits.depth)[1])["after"])
        kept: Object = {}
        for field in FIELDS:
            name = self._options.outbox.columns.get(field, field)  # type: ignore[call-overload]
            if field == "payload":
                kept[name] = msgspec.Raw(_mask_payload(bytes(row[name]), masks))
            else:
                kept[name] = _mask_to_json(masks[field], getattr(event, field)) if field in masks else row[name]
        return MaskedRecord([], None, msgspec.json.encode({**self._strip_row(value), "after": kept}))

    def _mask_routed(self, record: _RawRecord, event: OutboxEvent, masks: Masks) -> MaskedRecord:
        key = bytes(_mask_to_json(masks["aggregateid"], event.aggregateid)) if "aggregateid" in masks else record.key
        return MaskedRecord(_build_headers(record, event, masks), key, self._mask_message(record.value, masks))

    def _mask_message(self, value: bytes | None, masks: Masks) -> bytes | None:
        """The masked message. A payload below a schema stays below an empty one."""
        if value is None:
            return None
        schema, payload = (
            split_record(value, self._options.limits.depth) if value.lstrip().startswith(b"{") else (None, value)
        )
        if schema is None:
            return _mask_payload(value, masks)
        return b'{"schema":{},"payload":' + _mask_payload(payload, masks) + b"}"


def _is_routed(record: _RawRecord) -> bool:
    return any(header["name"] == ID for header in record.headers or ())


def _build_headers(record: _RawRecord, event: OutboxEvent, masks: Masks) -> list[Header]:
    """The headers that make up the event, as JSON."""
    said = {header["name"] for header in record.headers or ()}
    types = [name for name in TYPES if name in said][:1]
    made = [
        (ID, _mask_text(masks.get(ID), event.id)),
        *((name, _mask_text(masks.get("type"), event.type)) for name in types),
    ]
    return [{"name": name, "value": msgspec.json.encode(text)} for name, text in made]


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
    kept = {name: _mask_field(value, fields.get(name)) for name, value in read_object(text).items()}
    made = msgspec.json.encode(kept)
    return msgspec.json.encode(made.decode()) if is_text else made


def _mask_field(value: msgspec.Raw, mask: Mask | None) -> msgspec.Raw:
    """A masked value: strings by their text, other values by their JSON text."""
    said = bytes(value)
    if mask is None or said == bytes(NULL):
        return value
    return _mask_to_json(mask, msgspec.json.decode(said, type=str) if said.startswith(b'"') else said.decode())


def _mask_to_json(mask: Mask, text: str | None) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_mask_text(mask, text)))


def _mask_text(mask: Mask | None, text: str | None) -> str | None:
    if mask is None or text is None:
        return text
    if mask.kind in ("nothing", "fixed"):
        return mask.text if mask.kind == "fixed" else None
    return make_text_mask(mask)(text)
