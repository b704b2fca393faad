"""Events as they may be stored: of private columns, and of private fields of the payload, what their masks keep.

A change event of the outbox table is kept without its schema and key, with the columns that an event is made of; of one that
is none (a delete) no row is kept. Of an event of EventRouter are kept key, payload, and the headers that it is made of; of
others the names. What cannot be read, and may be of a table with private columns, is withheld. A header says what is masked
(`adapters.arrow.veils.marks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from replicator.domain.columns import Mask
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import TableSpec

from ...arrow.debezium.beside import source_block
from ...arrow.json.faults import UNREADABLE, Unfit, unreadable
from ...arrow.json.framing import split
from ...arrow.json.headers import without_values
from ...arrow.masks import written
from ...arrow.veils.json_values import NULL, Object, read_object
from ...arrow.veils.marks import HEADER, Header, Mark, marked, marks
from ...arrow.veils.records import WITHHELD, Stored
from ...arrow.veils.tables import Masks, PrivateTables
from .event import ID, TYPES, Event
from .options import FIELDS, Options

FIELD = "payload."
"""What the names of private fields of the payload begin with."""
KEPT = ("op", "source", "ts_ms", "ts_us", "ts_ns", "transaction")
"""Of a change event, beside its row."""
NO_OBJECT = "its payload is no JSON object, and fields of it are private"
Said = Event | str | Reject


class _Record(NamedTuple):
    topic: str
    headers: list[Header] | None
    key: bytes | None
    value: bytes | None


class Veiling:
    """Writes events anew, without private values."""

    def __init__(self, options: Options) -> None:
        self._options, self._tables = options, PrivateTables(options.private)

    def __bool__(self) -> bool:
        return bool(self._tables)

    def of(self, table: str) -> Masks:
        """The masks of a table, of columns and of fields."""
        return self._tables.of(table)

    def spec(self, table: TableSpec) -> TableSpec:
        """The table as decoding gives it. ConfigProblem for a mask that does not suit it. Which fields payloads have nobody
        knows."""
        columns = {name: mask for name, mask in self.of(table.name).items() if not name.startswith(FIELD)}
        return PrivateTables({table.name: columns}).spec(table)

    def veiled(self, raw: pa.Table, said: Sequence[Said]) -> pa.Table:
        """See `ports.decoder.KeepsPrivate.veiled`. `said`: what each of the records is."""
        if not self._tables or not raw.num_rows:
            return raw
        known = marks(raw["headers"].combine_chunks())
        columns = (raw[name].to_pylist() for name in _Record._fields)
        records = map(_Record, *columns)
        done = [self._stored(record, one, known.get(i)) for i, (record, one) in enumerate(zip(records, said, strict=True))]
        for name, values in zip(Stored._fields, zip(*done, strict=True), strict=True):
            field = raw.schema.field(name)
            raw = raw.set_column(raw.column_names.index(name), field, pa.chunked_array([pa.array(values, field.type)]))
        return raw

    def _stored(self, record: _Record, said: Said, mark: Mark | None) -> Stored:
        as_it_is = Stored(record.headers, record.key, record.value)
        if not isinstance(said, Event):
            return as_it_is if mark is not None else self._apart(record, said)
        masks = self.of(said.table)
        left = masks if mark is None else {name: mask for name, mask in masks.items() if name not in mark.columns}
        if not left:
            return as_it_is
        now = Mark(said.table, tuple(sorted(masks)))
        try:
            found = self._routed(record, said, left) if _is_routed(record) else self._inserted(record, said, left)
        except (KeyError, TypeError, *UNREADABLE) as error:
            why = unreadable(error) if isinstance(error, UNREADABLE) else Reject(RejectCode.MALFORMED, "it cannot be masked")
            return _withheld(record)._replace(headers=marked(None, now, why))
        others = [one for one in record.headers or () if one["name"] not in (ID, *TYPES, HEADER)]
        told = {"name": HEADER, "value": msgspec.json.encode(now)}
        return found._replace(headers=[*(found.headers or ()), *(without_values(others) or ()), told])

    def _apart(self, record: _Record, said: str | Reject) -> Stored:
        """A record that is no event: of which table it would be only a topic of EventRouter tells."""
        if isinstance(said, Reject):
            is_open = _is_routed(record) and self._tables.said_of(record.topic) == {}
            return Stored(record.headers, record.key, record.value) if is_open else _withheld(record)
        value = record.value and msgspec.json.encode(self._around(record.value))
        return Stored(without_values(record.headers), record.key and WITHHELD, value)

    def _around(self, value: bytes) -> Object:
        """A change event without its row."""
        whole = read_object(split(value, self._options.limits.depth)[1])
        kept = {name: whole[name] for name in KEPT if name in whole}
        return {**kept, "source": source_block(kept["source"])}

    def _inserted(self, record: _Record, event: Event, masks: Masks) -> Stored:
        value = record.value or b""
        row = read_object(read_object(split(value, self._options.limits.depth)[1])["after"])
        kept: Object = {}
        for field in FIELDS:
            name = self._options.outbox.columns.get(field, field)  # type: ignore[call-overload]
            if field == "payload":
                kept[name] = msgspec.Raw(_payload(bytes(row[name]), masks))
            else:
                kept[name] = _json(masks[field], getattr(event, field)) if field in masks else row[name]
        return Stored([], None, msgspec.json.encode({**self._around(value), "after": kept}))

    def _routed(self, record: _Record, event: Event, masks: Masks) -> Stored:
        key = bytes(_json(masks["aggregateid"], event.aggregateid)) if "aggregateid" in masks else record.key
        return Stored(_headers(record, event, masks), key, self._message(record.value, masks))

    def _message(self, value: bytes | None, masks: Masks) -> bytes | None:
        """A payload below a schema stays below one."""
        if value is None:
            return None
        schema, payload = split(value, self._options.limits.depth) if value.lstrip().startswith(b"{") else (None, value)
        if schema is None:
            return _payload(value, masks)
        return b'{"schema":{},"payload":' + _payload(payload, masks) + b"}"


def _is_routed(record: _Record) -> bool:
    return any(header["name"] == ID for header in record.headers or ())


def _headers(record: _Record, event: Event, masks: Masks) -> list[Header]:
    """Those that the event is made of, as JSON."""
    said = {header["name"] for header in record.headers or ()}
    types = [name for name in TYPES if name in said][:1]
    made = [(ID, _masked(masks.get(ID), event.id)), *((name, _masked(masks.get("type"), event.type)) for name in types)]
    return [{"name": name, "value": msgspec.json.encode(text)} for name, text in made]


def _payload(token: bytes, masks: Masks) -> bytes:
    """A payload, which is JSON or text that holds JSON. Unfit for one that has no fields where some are private."""
    fields = {name.removeprefix(FIELD): mask for name, mask in masks.items() if name.startswith(FIELD)}
    if "payload" in masks:
        return bytes(NULL)
    is_text = token.lstrip().startswith(b'"')
    text = msgspec.json.decode(token, type=str).encode() if is_text else token
    if not fields or text.strip() == bytes(NULL):
        return token
    if not text.lstrip().startswith(b"{"):
        raise Unfit(RejectCode.MALFORMED, NO_OBJECT)
    kept = {name: _field(value, fields.get(name)) for name, value in read_object(text).items()}
    made = msgspec.json.encode(kept)
    return msgspec.json.encode(made.decode()) if is_text else made


def _field(value: msgspec.Raw, mask: Mask | None) -> msgspec.Raw:
    """A value of any type: text is its own, others are the JSON that they are written in."""
    said = bytes(value)
    if mask is None or said == bytes(NULL):
        return value
    return _json(mask, msgspec.json.decode(said, type=str) if said.startswith(b'"') else said.decode())


def _json(mask: Mask, text: str | None) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_masked(mask, text)))


def _masked(mask: Mask | None, text: str | None) -> str | None:
    if mask is None or text is None:
        return text
    if mask.kind in ("nothing", "fixed"):
        return mask.text if mask.kind == "fixed" else None
    return written(mask)(text)


def _withheld(record: _Record) -> Stored:
    return Stored(None, record.key and WITHHELD, record.value and WITHHELD)
