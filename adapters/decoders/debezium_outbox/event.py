"""Outbox events from single records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode
from replicator.domain.out_of_range import FIRST_US, LAST_US

from ...arrow.record_errors import UNREADABLE, ValueMisfit
from ..json.schema_frames import refuse_depth, split_record
from ..options import OutboxDecoderOptions, OutboxOptions

TOMBSTONE = "tombstone"
IGNORED = {Op.DELETE: "outbox delete", Op.TRUNCATE: "outbox truncate"}
EVENTS = (Op.CREATE, Op.READ)
ID, TYPES = "id", ("type", "eventType")
"""Headers of EventRouter. It writes the type if `table.fields.additional.placement` contains it."""
NULL = b"null"
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
        return _read_routed(record, options)
    if record.value is None:
        return TOMBSTONE
    change = _change(split_record(record.value, options.limits.depth)[1])
    if change.op is None or change.source is None:
        raise ValueMisfit(RejectCode.MALFORMED, NO_EVENT)
    op = change.op
    if op in IGNORED:
        return IGNORED[Op(op)]
    if op not in EVENTS:
        said = "an update of an outbox row: an event never changes" if op == Op.UPDATE else "no insert of an outbox row"
        raise ValueMisfit(RejectCode.UNKNOWN_OPERATION, f"it is {said}")
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


def _read_routed(record: RawRecord, options: OutboxDecoderOptions) -> OutboxEvent:
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
        return None if text.strip() == NULL else text.decode()
    except UNREADABLE:
        raise ValueMisfit(RejectCode.MALFORMED, "its payload is not JSON") from None


def _read_text(value: bytes | None, depth: int) -> str | None:
    """The text of a key or header: plain, or JSON of Connect's converter."""
    if value is None:
        return None
    try:
        found = bytes(_strip_schema(value, depth))
        if found.startswith(b'"'):
            return msgspec.json.decode(found, type=str)
        return None if found == NULL else found.decode()
    except UNREADABLE:
        raise ValueMisfit(RejectCode.MALFORMED, "its key, or its header of the id or the type, is not text") from None


def _read_id(value: str | None) -> str:
    if not value:
        raise ValueMisfit(RejectCode.NULL_KEY, "the event has no id")
    return value


def _check_range(micros: int | None) -> int | None:
    return micros if micros is not None and FIRST_US <= micros <= LAST_US else None
