"""Private columns: masked in what is decoded, and in the records themselves before they are stored.

A record that is stored is the JSON that it was, with other values in the columns that have a mask, in both images, in the
key and in the headers that repeat keys, and without what may hold values besides (the statement in `source.query`). Its
schema then says so: a column whose values became text has the type string and the name `MASKED`, and decoding it leaves such
a column as it is. A value that was not sent stays the placeholder that it is.

What cannot be read, and may be of a table with private columns, is withheld.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import changes_schema
from replicator.domain.columns import Changed, Mask, Remade, refuse_mask
from replicator.domain.conditions import unknown_column
from replicator.domain.errors import ConfigProblem
from replicator.domain.table import Column, TableSpec

from ..json.faults import UNREADABLE
from ..json.limits import of_table
from ..masks import written
from ..remaking import remade
from .headers import NEW_KEY, OLD_KEY
from .options import Options
from .unsent import Placeholders

MASKED = "replicator.Masked"
"""The name, in a schema, of a column whose values are no longer what they were."""

WITHHELD = b'{"withheld": "cannot be read, and may hold private values"}'
KEPT = ("before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction")
"""Of an event. What others there are hold nobody knows."""
IMAGES = ("before", "after")
NULL = b"null"
UNFIT = msgspec.Raw(b"{}")
"""In place of what is no value of its column: rejected as that was."""
BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
MOST_SCHEMAS = 1024
PLAIN = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)
"""Types whose text is the same in the JSON and in what is decoded from it."""

Masks = Mapping[str, Mask]
Object = dict[str, msgspec.Raw]
Record = tuple[str, Any, bytes | None, bytes | None]
"""Topic, headers, key and value."""
_object = msgspec.json.Decoder(Object).decode


class Said(NamedTuple):
    """What a schema says: its text for what is kept; the columns that are masked already; the types of the others that are
    private, where they stand for nothing else."""

    text: bytes = NULL
    marked: frozenset[str] = frozenset()
    kinds: Mapping[str, str] = MappingProxyType({})

    def left(self, masks: Masks) -> Masks:
        """The masks of columns that are not masked yet."""
        return {name: mask for name, mask in masks.items() if name not in self.marked} if self.marked else masks


BARE = Said()
"""There is no schema."""


@dataclass
class Private:
    """The private columns of a source's tables."""

    options: Options
    _schemas: dict[tuple[bytes, tuple[str, ...]], Said] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._placeholders = Placeholders(self.options.unavailable_value)

    def __bool__(self) -> bool:
        return any(self.options.private.values())

    def of(self, table: str) -> Masks:
        """The masks of its columns."""
        return of_table(self.options.private, table) or {}

    def masks_of(self, table: str | None, topic: str) -> Masks | None:
        """Those of a record's table, which its topic names where it is not known; None where nothing is said of that."""
        return of_table(self.options.private, table or ".".join(topic.split(".")[-2:]))

    def spec(self, table: TableSpec) -> TableSpec:
        """The table as decoding gives it, whether its records are masked already or not. ConfigProblem for a mask that does
        not suit it."""
        for name in self.of(table.name):
            if name not in table.column_names:
                raise unknown_column(name, table, "columns")
        rules = self._rules(table)
        for name, rule in rules.changed:
            if rule.mask is not None:
                _refuse(rule.mask, table.column(name), table)
        made = rules.of(table) if rules else table
        columns = (replace(c, source_type="") if c.source_type == MASKED else c for c in made.columns)
        return replace(made, columns=tuple(columns))

    def _rules(self, table: TableSpec) -> Remade:
        """What becomes of the columns of a table as its records describe it, but for those that are masked already."""
        known = {c.name: c for c in table.columns if c.source_type != MASKED}
        return Remade(tuple((n, Changed(mask=mask)) for n, mask in self.of(table.name).items() if n in known))

    def before(self, table: TableSpec, learnt: TableSpec) -> TableSpec:
        """`table`, its private columns with the types that they have in the records of which `learnt` was learnt."""
        private, types = self.of(table.name), {c.name: c for c in learnt.columns}
        return replace(table, columns=tuple(types.get(c.name, c) if c.name in private else c for c in table.columns))

    def masked(self, changes: pa.Table, before: TableSpec, table: TableSpec) -> pa.Table:
        """The changes of `before` as those of `table`."""
        rules = self._rules(before)
        columns = dict(zip(changes.column_names, changes.columns, strict=True))
        done = remade(columns, rules, table) if rules else columns
        schema = changes_schema(table)
        return pa.Table.from_arrays([done[name].cast(schema.field(name).type) for name in schema.names], schema=schema)

    def veiled(self, raw: pa.Table, tables: Sequence[str | None], errors: Sequence[str | None]) -> pa.Table:
        """The records as they may be stored. Of each is known the table it is of, or why it cannot be read."""
        if not raw.num_rows:
            return raw
        headers = raw["headers"].to_pylist() if _repeats_keys(raw["headers"]) else repeat(None, raw.num_rows)
        records = zip(raw["topic"].to_pylist(), headers, raw["key"].to_pylist(), raw["value"].to_pylist(), strict=True)
        done = [self._record(*row) for row in zip(records, tables, errors, strict=True)]
        for name, values in zip(("headers", "key", "value"), zip(*done, strict=True), strict=True):
            if name == "headers" and isinstance(headers, repeat):
                continue
            at, kind = raw.column_names.index(name), raw.schema.field(name).type
            raw = raw.set_column(at, raw.schema.field(name), pa.chunked_array([pa.array(values, kind)]))
        return raw

    def _record(self, record: Record, table: str | None, error: str | None) -> tuple[Any, bytes | None, bytes | None]:
        topic, headers, key, value = record
        masks = self.masks_of(table, topic)
        if error is not None or (value is None and masks is None):
            # Of a table whose name is not known nothing is.
            return (headers, key, value) if masks == {} else (None, key and WITHHELD, value and WITHHELD)
        if not masks or (table is None and value is not None):
            return headers, key, value
        try:
            said = of_key = BARE
            if value is not None:
                value, said = self._value(value, masks)
            if key is not None:
                key, of_key = self._key(key, masks)
            return self._headers(headers, of_key.left(said.left(masks))), key, value
        except (KeyError, TypeError, AttributeError, *UNREADABLE):
            return None, key and WITHHELD, value and WITHHELD

    def _value(self, value: bytes, masks: Masks) -> tuple[bytes, Said]:
        whole = _object(value)
        if "payload" not in whole or "op" in whole:
            return msgspec.json.encode(self._event(whole, masks, BARE)), BARE
        said = self._schema(whole.get("schema"), masks)
        payload = self._event(_object(whole["payload"]), said.left(masks), said)
        return msgspec.json.encode({"schema": msgspec.Raw(said.text), "payload": payload}), said

    def _event(self, event: Object, masks: Masks, said: Said) -> Object:
        kept = {name: event[name] for name in KEPT if name in event}
        for side in IMAGES:
            if side in kept and bytes(kept[side]) != NULL:
                kept[side] = msgspec.Raw(msgspec.json.encode(self._image(_object(kept[side]), masks, said)))
        if "source" in kept:
            kept["source"] = _without_statement(kept["source"])
        return kept

    def _image(self, image: Object, masks: Masks, said: Said) -> Object:
        kinds = said.kinds
        return {n: self._token(v, masks[n], kinds.get(n)) if n in masks else v for n, v in image.items()}

    def _token(self, value: msgspec.Raw, mask: Mask, kind: str | None) -> msgspec.Raw:
        said = bytes(value)
        if said == NULL:
            return value
        if not _suits(said, kind):
            return UNFIT
        text = msgspec.json.decode(said, type=str) if said[:1] == b'"' else said.decode()
        if self._placeholders.is_text(text):
            return value
        if mask.kind == "nothing":
            return msgspec.Raw(NULL)
        return msgspec.Raw(msgspec.json.encode(mask.text if mask.kind == "fixed" else written(mask)(text)))

    def _key(self, key: bytes, masks: Masks) -> tuple[bytes | None, Said]:
        """A key that is no object of columns may be a value: it is not kept. What needs it is rejected before."""
        try:
            return self._columns_of_key(key, masks)
        except (KeyError, TypeError, AttributeError, *UNREADABLE):
            return None, BARE

    def _columns_of_key(self, key: bytes, masks: Masks) -> tuple[bytes, Said]:
        is_struct = key.startswith(b"{") and (b'"payload"' not in key or b'"fields"' in key)
        if is_struct and b"\\" not in key and not any(name.encode() in key for name in masks):
            return key, BARE  # Without an escape in it a key that has a column also has its name.
        whole = _object(key)
        if "schema" not in whole or "payload" not in whole:
            return msgspec.json.encode(self._image(whole, masks, BARE)), BARE
        said = self._schema(whole["schema"], masks)
        payload = self._image(_object(whole["payload"]), said.left(masks), said)
        return msgspec.json.encode({"schema": msgspec.Raw(said.text), "payload": payload}), said

    def _headers(self, headers: list[dict[str, Any]] | None, masks: Masks) -> list[dict[str, Any]] | None:
        """Those that repeat keys."""
        return headers and [
            h | {"value": self._key(h["value"], masks)[0]} if h["name"] in (OLD_KEY, NEW_KEY) and h["value"] else h
            for h in headers
        ]

    def _schema(self, schema: msgspec.Raw | None, masks: Masks) -> Said:
        if schema is None or bytes(schema) == NULL:
            return BARE
        known = bytes(schema), tuple(masks)
        if known not in self._schemas:
            if len(self._schemas) >= MOST_SCHEMAS:
                self._schemas.clear()
            self._schemas[known] = _said(json.loads(known[0]), masks)
        return self._schemas[known]


def _repeats_keys(headers: pa.ChunkedArray) -> bool:
    """Whether some header may hold what the key holds."""
    names = pc.struct_field(pc.list_flatten(headers), "name")
    return bool(pc.any(pc.is_in(names, value_set=pa.array([OLD_KEY, NEW_KEY]))).as_py())


def _without_statement(source: msgspec.Raw) -> msgspec.Raw:
    """A source block without the text of the statement, which repeats values."""
    said = bytes(source)
    if b"query" not in said and b"\\u" not in said:
        return source
    block = _object(source)
    return msgspec.Raw(msgspec.json.encode(block | {"query": msgspec.Raw(NULL)})) if "query" in block else source


def _said(schema: dict[str, Any], masks: Masks) -> Said:
    images = [field for field in schema["fields"] if field.get("field") in IMAGES and field.get("type") == "struct"]
    structs = images or [schema]
    private = [field for struct in structs for field in struct["fields"] if field.get("field") in masks]
    kinds = {field["field"]: field["type"] for field in private if not field.get("name")}
    marked = frozenset(field["field"] for field in private if field.get("name") == MASKED)
    for struct in structs:
        struct["fields"] = [_field(field, masks) for field in struct["fields"]]
    return Said(json.dumps(schema, separators=(",", ":")).encode(), marked, kinds)


def _suits(said: bytes, kind: str | None) -> bool:
    """Whether JSON is a value of that type of Kafka Connect, as far as can be told: what is none must not become one."""
    if kind in BITS:
        try:
            return -(1 << BITS[kind]) <= int(said) < 1 << BITS[kind]
        except ValueError:
            return False
    return said in (b"true", b"false") if kind == "boolean" else kind != "string" or said[:1] == b'"'


def _field(said: dict[str, Any], masks: Masks) -> dict[str, Any]:
    name = str(said.get("field"))
    if name not in masks or said.get("name") == MASKED:
        return said
    if masks[name].kind == "nothing":
        return {k: v for k, v in said.items() if k != "default"} | {"optional": True}
    return {"type": "string", "optional": said.get("optional", False), "name": MASKED, "field": name}


def _refuse(mask: Mask, column: Column, table: TableSpec) -> None:
    refuse_mask(mask, column, table)
    if mask.kind in ("hmac", "truncate") and not any(plain(column.type) for plain in PLAIN):
        raise ConfigProblem(
            f"'columns' of table {table.name} masks {column.name!r} ({column.type}) for all that is stored of it, and "
            "records do not write such values as targets do",
            next_step="Use `mask: nothing`, `mask: fixed` or `drop` for the table, or write the mask in its `to` entries.",
        )
