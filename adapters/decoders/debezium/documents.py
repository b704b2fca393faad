"""MongoDB's events, whose images are documents in text, converted to row events with the declared columns.

A field missing in a whole document is NULL. An update without a document (`capture.mode=change_streams`) contains only
the fields that it set or removed. A change of a part of a column (`address.city`, a shortened array) cannot be applied
without the rest of the column. Such an update is rejected with the name of the column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Reject, RejectCode
from replicator.domain.table import TableSpec

from ...arrow.record_errors import UNREADABLE, ValueMisfit, unreadable_reject
from ..json.schema_frames import split_record
from .extended_json import Convert, make_converter
from .options import DebeziumOptions
from .origin import RouteProbe

CONNECTOR = "mongodb"
ID, KEY_FIELD = "_id", "id"
NULL = msgspec.Raw(b"null")
UNREAD = b"?"
"""Placeholder value of a rejected record."""


class TruncatedArray(msgspec.Struct, gc=False):
    """An array that an update shortened."""

    field: str


class UpdateDescription(msgspec.Struct, gc=False, rename="camel"):
    """The changes of an update. Nested field names contain dots."""

    updated_fields: str | None = None
    removed_fields: list[str] | None = None
    truncated_arrays: list[TruncatedArray] | None = None


class DocumentImages(RouteProbe, gc=False):
    """The fields that distinguish documents from rows, whose images are objects."""

    before: msgspec.Raw = NULL
    after: msgspec.Raw = NULL


class DocumentEvent(msgspec.Struct, gc=False):
    """A change event of a document."""

    op: msgspec.Raw = NULL
    source: msgspec.Raw = NULL
    transaction: msgspec.Raw = NULL
    before: str | None = None
    after: str | None = None
    description: UpdateDescription | None = msgspec.field(default=None, name="updateDescription")
    patch: str | None = None


_event = msgspec.json.Decoder(DocumentEvent).decode
_probe = msgspec.json.Decoder(DocumentImages).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_key = msgspec.json.Decoder(dict[str, str]).decode


def has_documents(values: pa.Array | pa.ChunkedArray, depth: int) -> bool:
    """True if the records have documents of MongoDB. The first readable record decides."""
    for text in (value.as_py() for value in values if value.is_valid):
        try:
            found = _probe(split_record(text, depth)[1])
        except UNREADABLE:
            continue
        images = (bytes(found.before), bytes(found.after))
        return found.source is not None and found.source.connector == CONNECTOR and not any(i[:1] == b"{" for i in images)
    return False


def refuse_undeclared(table: str, declared: Mapping[str, str]) -> None:
    """Raise ConfigProblem for a collection whose columns or key are not declared."""
    if ID not in declared:
        what = f"do not say which of their fields are columns: {ID!r} at least is needed" if declared else "carry no types"
        raise ConfigProblem(
            f"the documents of collection {table} {what}",
            next_step=f"Add to this table's entry under `tables`: `schema: {{{ID}: string, ...}}`, the fields that are "
            "wanted with their Arrow types.",
        )


class DocumentConverter:
    """Converts events of documents to events of rows."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options, self._depth = options, options.limits.depth
        self._known: dict[str, dict[str, Convert]] = {}

    def to_rows(self, raw: pa.RecordBatch, table: TableSpec) -> tuple[pa.RecordBatch, dict[int, Reject]]:
        """The records of a table as row events without a schema, and errors of unreadable ones. Others stay as they
        are."""
        values, keys, columns = raw.column("value"), raw.column("key"), self._column_converters(table.name)
        told = values.null_count < len(values)
        if ID not in columns or not (has_documents(values, self._depth) if told else ID in table.keys):
            return raw, {}
        made: tuple[list[Any], list[Any]] = ([], [])
        errors: dict[int, Reject] = {}
        for place, (value, key) in enumerate(zip(values.to_pylist(), keys.to_pylist(), strict=True)):
            try:
                row = _to_row_key(key, columns, self._depth)
                made[1].append(key if row is None else msgspec.json.encode(row))
                made[0].append(
                    None if value is None else self._to_row(split_record(value, self._depth)[1], row or {}, columns)
                )
            except (*UNREADABLE, OverflowError) as error:
                errors[place] = unreadable_reject(error)
                made[1][place:] = [key]
                made[0].append(UNREAD)
        for name, column in zip(("value", "key"), made, strict=True):
            raw = raw.set_column(raw.schema.get_field_index(name), name, pa.array(column, pa.binary()))
        return raw, errors

    def _column_converters(self, table: str) -> dict[str, Convert]:
        if table not in self._known:
            declared = self._options.columns_of(table) or {}
            self._known[table] = {name: make_converter(said) for name, said in declared.items()}
        return self._known[table]

    def _to_row(self, payload: bytes, key: dict[str, Any], columns: Mapping[str, Convert]) -> bytes:
        event = _event(payload)
        before, after = (None if text is None else _read_document(text, columns) for text in (event.before, event.after))
        if after is None and event.description is not None:
            after = key | _read_update(event.description, columns)
        elif after is None and event.patch is not None:
            raise ValueMisfit(
                RejectCode.MALFORMED,
                "it is an update as the oplog has it (patch), which connectors before 1.8 send; use "
                "`capture.mode=change_streams_update_full`",
            )
        images = {"before": before, "after": after}
        known = {"op": event.op, "source": event.source, "transaction": event.transaction}
        return msgspec.json.encode(known | images)


def _to_row_key(key: bytes | None, columns: Mapping[str, Convert], depth: int) -> dict[str, Any] | None:
    """The row key of a document's key; None for other keys."""
    if key is None:
        return None
    payload = split_record(key, depth)[1]
    if set(_fields(payload)) != {KEY_FIELD}:
        return None
    return {ID: _convert(ID, _key(payload)[KEY_FIELD].encode(), columns[ID])}


def _read_document(text: str, columns: Mapping[str, Convert]) -> dict[str, Any]:
    found = _fields(text)
    return {n: _convert(n, bytes(found[n]), of) if n in found else None for n, of in columns.items()}


def _read_update(said: UpdateDescription, columns: Mapping[str, Convert]) -> dict[str, Any]:
    updated = _fields(said.updated_fields or "{}")
    removed = said.removed_fields or []
    for path in (*updated, *removed, *(t.field for t in said.truncated_arrays or ())):
        column = path.partition(".")[0]
        if column in columns and not (path == column and (path in updated or path in removed)):
            raise ValueMisfit(
                RejectCode.INCOMPLETE,
                f"its update says only what became of a part of column {column!r}; have whole documents sent with "
                "`capture.mode=change_streams_update_full`",
            )
    values = {name: _convert(name, bytes(raw), columns[name]) for name, raw in updated.items() if name in columns}
    return values | {name: None for name in removed if name in columns}


def _convert(name: str, raw: bytes, of: Callable[[bytes], Any]) -> Any:
    try:
        return of(raw)
    except ValueMisfit as error:
        raise ValueMisfit(error.reject.code, f"column {name!r} {error.reject.sentence}") from None
