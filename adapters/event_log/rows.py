"""Raw records to rows of the event log."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.erasures import ERASED_RECORD
from replicator.domain.event_log import EVENT_LOG
from replicator.ports.decoder import Decoder, FiltersErased, MasksRecords

from ..arrow.record_positions import RAW_PLACE


def build_rows(raw: pa.Table, decoder: Decoder, ingested_at: datetime) -> pa.Table:
    """The columns of `domain.event_log.EVENT_LOG`, one row per record. Erased ones keep only position and time."""
    withheld = decoder.find_erased(raw) if isinstance(decoder, FiltersErased) else None
    raw = raw if withheld is None else _blank_erased_records(raw, withheld)
    raw = decoder.mask_records(raw) if isinstance(decoder, MasksRecords) else raw
    envelope = decoder.envelope(raw)
    known = {
        "event_id": pc.binary_join_element_wise(*(raw[n].cast(pa.string()) for n in RAW_PLACE), "-"),
        "headers": _headers_to_json(raw["headers"]),
        "ingested_at": pa.repeat(pa.scalar(ingested_at, pa.timestamp("us", "UTC")), raw.num_rows),
    }
    if withheld is not None:
        known["error"] = pc.if_else(withheld, pa.scalar(ERASED_RECORD), envelope["error"])
    columns = {}
    for column in EVENT_LOG:
        values = known.get(column.name)
        if values is None:
            values = envelope[column.name] if column.name in envelope.column_names else raw[column.name]
        columns[column.name] = values.cast(column.type)
    return pa.table(columns)


def _blank_erased_records(raw: pa.Table, withheld: pa.Array) -> pa.Table:
    """The records, with null key, value and headers for erased ones."""
    for name in ("headers", "key", "value"):
        field = raw.schema.field(name)
        kept = pc.if_else(pc.invert(withheld), raw[name], pa.scalar(None, field.type))
        raw = raw.set_column(raw.column_names.index(name), field, kept)
    return raw


def _headers_to_json(headers: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Headers as JSON text. Each distinct list of headers is written once, as there are few."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), pa.string())
    written: dict[str, str] = {}
    out = []
    for entry in headers.to_pylist():
        key = repr(entry)
        if key not in written:
            written[key] = (
                json.dumps([[h["name"], _to_text(h["value"])] for h in entry], ensure_ascii=False) if entry else ""
            )
        out.append(written[key] or None)
    return pa.array(out, pa.string())


def _to_text(value: bytes | None) -> object:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
