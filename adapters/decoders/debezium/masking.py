"""Masking of private columns, in decoded changes and in records before they are stored.

A stored record has the same JSON with masked values in both images, in the key and in the headers that repeat keys.
Other headers and metadata that may contain values are removed (see the allow-list below). The schema marks the columns.
A column whose values became text has the type string and the name `MASKED_SCHEMA`, and decoding does not mask it again.
Values are read like decoded values (`TokenReader`), so both get the same text for every type. Placeholders of unchanged
values stay placeholders.

Unreadable records that may belong to a table with private columns are stored without content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from replicator.domain.change import changes_schema
from replicator.domain.out_of_range import ReadMode as HowOutOfRange
from replicator.domain.patterns import is_exact, is_regex, matches
from replicator.domain.table import TableSpec
from replicator.domain.transform.columns import ColumnRule, ColumnTransforms, Mask, refuse_unknown_masks
from replicator.domain.transform.typed_expressions import is_hashable

from ...arrow import decimals
from ...arrow.masks import mask_values
from ...arrow.record_errors import FAILURES, UNREADABLE, ValueMisfit, find_table_entry
from ...arrow.temporal_values import make_lenient
from ...arrow.value_readers import ValueReader
from ...transforms.column_transforms import transform_columns
from ..json.headers import WITHHELD, is_harmless, strip_values
from ..masking import MaskHeader, add_mask_header, read_mask_headers
from ..options import DebeziumOptions
from .changes import CONTEXT, NEW_KEY, OLD_KEY, Placeholders, build_column
from .schema import ConnectSchema, find_readers, find_schema_reader, holds_decimals

# Values of private columns in records, collected by column and masked at once.
#
# They are read like decoded values, so the stored value equals the decoded value for every type.


Object = dict[str, Any]
"""An object whose values are JSON (`msgspec.Raw`) or such objects."""
RAW_NULL = msgspec.Raw(b"null")
UNFIT = (msgspec.Raw(b"{}"), msgspec.Raw(b"0"), msgspec.Raw(b'"\\ud800"'))
"""Invalid tokens that replace invalid values. The first one that is invalid for a column is used, so that its record is
rejected like the original."""


class TokenReader:
    """Reads values of one column, with the first node that can."""

    def __init__(self, *nodes: ValueReader) -> None:
        self._nodes = nodes
        self._ways = [(node, msgspec.json.Decoder(node.wire).decode) for node in nodes]

    def read(self, tokens: Sequence[msgspec.Raw]) -> tuple[Iterable[tuple[ValueReader, list[int], list[Any]]], list[int]]:
        """The values that each node read, with their indices, and the indices of unreadable values."""
        node, decode = self._ways[0]
        with suppress(*UNREADABLE):
            return [(node, list(range(len(tokens))), [decode(token) for token in tokens])], []
        by_node: list[tuple[ValueReader, list[int], list[Any]]] = [(node, [], []) for node in self._nodes]
        bad = []
        for index, token in enumerate(tokens):
            for (_, decode), (_, indices, values) in zip(self._ways, by_node, strict=True):
                try:
                    values.append(decode(token))
                except UNREADABLE:
                    continue
                indices.append(index)
                break
            else:
                bad.append(index)
        return [one for one in by_node if one[1]], bad

    @cached_property
    def for_headers(self) -> TokenReader:
        """The reader for header values: Connect's usual header converter writes decimals as numbers."""
        return TokenReader(decimals.accept_numbers(self._nodes[0]))

    @cached_property
    def misfit_token(self) -> msgspec.Raw:
        """JSON that is invalid for the column. Unreadable JSON comes before values that are only out of range, because in
        a deleted row the latter count as unchanged."""
        node, decode = self._ways[0]
        for is_value in (decode, lambda token: node.build([decode(token)])):
            for token in UNFIT[:-1]:
                try:
                    is_value(token)
                except (*FAILURES, *UNREADABLE):
                    return token
        return UNFIT[-1]


def _to_text(values: Sequence[Any]) -> pa.Array:
    """Text as it is, other values as their JSON."""
    texts = (None if value is None else bytes(value) for value in values)
    plain = [msgspec.json.decode(text, type=str) if text and text[:1] == b'"' else text and text.decode() for text in texts]
    return pa.array(plain, pa.string())


UNTYPED = TokenReader(ValueReader(pa.string(), msgspec.Raw, _to_text, "raw"))
"""Reader for values of unknown types and for types without a unique text. Lanes stop at such a column, but the stored
records are masked all the same."""


def make_schema_reader(connect: Mapping[str, Any], mask: Mask, mode: HowOutOfRange = "reject") -> TokenReader:
    """The reader of values with this Connect schema. `mode`: the treatment of values out of range."""
    try:
        schema = msgspec.convert(connect, ConnectSchema)
        nodes = [find_schema_reader(schema)]
        if holds_decimals(schema):
            nodes.append(find_schema_reader(schema, numeric=True))
    except (ValueMisfit, msgspec.ValidationError):
        return UNTYPED
    return make_reader([make_lenient(node, mode) for node in nodes], mask)


def make_reader(nodes: Sequence[ValueReader], mask: Mask) -> TokenReader:
    """The reader that uses these nodes, the most likely one first."""
    needs_text = mask.kind in ("hmac", "truncate")
    return UNTYPED if needs_text and not is_hashable(nodes[0].type) else TokenReader(*nodes)


@dataclass
class TokenCells:
    """The values of one column, with the objects that contain them."""

    name: str
    reader: TokenReader
    mask: Mask
    images: list[Object] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """Indices of values in deleted rows outside the key: invalid ones count as unchanged."""

    def mask_values(self, placeholders: Placeholders) -> None:
        """Replace every value by its masked value."""
        tokens = [image[self.name] for image in self.images]
        by_node, bad = self.reader.read(tokens)
        for index in bad:
            self.images[index][self.name] = self._misfit_token
        for node, indices, values in by_node:
            column = build_column(node, values, self.name, placeholders)
            for index, token in zip(indices, self._mask_tokens(column.array), strict=True):
                self.images[index][self.name] = token
            for number in column.unchanged:
                index = indices[number]
                self.images[index][self.name] = self._unchanged_token(tokens[index], placeholders)
            for number in column.errors:
                index = indices[number]
                self.images[index][self.name] = (
                    self._unchanged_token(RAW_NULL, placeholders) if index in self.lost else self._misfit_token
                )

    @property
    def _misfit_token(self) -> msgspec.Raw:
        return self.reader.misfit_token if self.mask.kind == "nothing" else UNFIT[0]

    def _mask_tokens(self, values: pa.Array) -> Iterable[msgspec.Raw]:
        if self.mask.kind in ("nothing", "fixed"):
            same = RAW_NULL if self.mask.kind == "nothing" else msgspec.Raw(msgspec.json.encode(self.mask.text))
            return [same] * len(values)
        encode: Callable[[Any], bytes] = msgspec.json.encode
        return [msgspec.Raw(encode(text)) for text in mask_values(pa.chunked_array([values]), self.mask).to_pylist()]

    def _unchanged_token(self, token: msgspec.Raw, placeholders: Placeholders) -> msgspec.Raw:
        """The placeholder for an unchanged value in a column of the stored type. `token`: the original placeholder."""
        if self.mask.kind == "nothing":
            return token
        text = bytes(token)
        is_one = text[:1] == b'"' and placeholders.is_text(msgspec.json.decode(text, type=str))
        return token if is_one else msgspec.Raw(msgspec.json.encode(placeholders.text))


class TokenMasker:
    """Collects values, and masks those of one column at once."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders
        self._cells: dict[tuple[str, TokenReader, Mask], TokenCells] = {}

    def add(
        self, image: Object, masks: Mapping[str, Mask], readings: Mapping[str, TokenReader], keys: Collection[str] | None
    ) -> None:
        """Add the values of an object, which `mask_all` replaces. `keys`: the key's columns, for a deleted row."""
        for name, mask in masks.items():
            if name not in image or bytes(image[name]) == b"null":
                continue
            reading = readings.get(name, UNTYPED)
            cells = self._cells.setdefault((name, reading, mask), TokenCells(name, reading, mask))
            if keys is not None and name not in keys:
                cells.lost.add(len(cells.images))
            cells.images.append(image)

    def mask_all(self) -> None:
        """Replace all collected values."""
        for cells in self._cells.values():
            cells.mask_values(self._placeholders)
        self._cells.clear()


# Records, in which every place is found that repeats a value.


MASKED_SCHEMA = "replicator.Masked"
"""The schema name of a column whose values are masked already."""

EVENT_MEMBERS = ("before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction")
"""Members of an event that are kept. Others have unknown content."""
BEFORE = "before"
IMAGES = (BEFORE, "after")
DELETE = b'"d"'
NULL = b"null"
OF_KEYS = (OLD_KEY, NEW_KEY)
MAX_SCHEMAS = 1024

Masks = Mapping[str, Mask]
Readings = Mapping[str, TokenReader]
Headers = list[dict[str, Any]] | None
Record = tuple[str, Headers, bytes | None, bytes | None]
"""Topic, headers, key and value."""
RecordParts = tuple[Headers, bytes | Object | None, bytes | Object | None]
"""Headers, key and value, as bytes or as objects to encode."""
_object: Callable[[bytes], Object] = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class MaskedSchema(NamedTuple):
    """A schema: the text to store, the columns that are masked already, and readers for the other private columns."""

    text: bytes = NULL
    marked: frozenset[str] = frozenset()
    readers: Readings = MappingProxyType({})

    def remaining_masks(self, masks: Masks) -> Masks:
        """The masks of columns that are not masked yet."""
        return {name: mask for name, mask in masks.items() if name not in self.marked} if self.marked else masks


BARE = MaskedSchema()
"""Stands for a missing schema."""


@dataclass
class DebeziumMasker:
    """The private columns of a source's tables."""

    options: DebeziumOptions
    _schemas: dict[tuple[bytes, tuple[str, ...], str], MaskedSchema] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._placeholders = Placeholders(self.options.unavailable_value)
        self._masked = masked_patterns(self.options.private)
        self._columns: dict[str, frozenset[str]] = {}
        self._readings: dict[str, Readings] = {}
        self._declared: dict[str, Readings] = {}
        self._found: dict[tuple[str | None, str], Masks | None] = {}

    def __bool__(self) -> bool:
        return any(self.options.private.values())

    def get_masks(self, table: str) -> Masks:
        """The masks of the table's columns."""
        return find_table_entry(self.options.private, table) or {}

    def find_masks(self, table: str | None, topic: str) -> Masks | None:
        """The masks of a record's table; the topic names the table if it is not known. None if that table is not
        configured or may be another one."""
        which = (table, topic)
        if which not in self._found:
            if len(self._found) >= MAX_SCHEMAS:
                self._found.clear()
            masks = find_table_entry(self.options.private, table or ".".join(topic.split(".")[-2:]))
            unsaid = masks == {} and table is None and not is_unmasked_topic(topic, self._masked)
            self._found[which] = None if unsaid else masks
        return self._found[which]

    def is_masked(self, table: str | None, topic: str) -> bool:
        """True if the record's table has private columns, or is unknown and may have some."""
        masks = self.find_masks(table, topic)
        return bool(masks) or (table is None and masks is None)

    def masked_spec(self, table: TableSpec, values: pa.ChunkedArray) -> TableSpec:
        """The table as decoding returns it, for masked and unmasked records alike. Raises ConfigProblem for a mask that
        does not fit the column. `values`: the records that define its columns. Tombstones alone define only the key."""
        if values.null_count < len(values):
            refuse_unknown_masks(self.get_masks(table.name), table, self.options.columns_of(table.name) or ())
        rules = self._column_rules(table)
        spec = rules.apply_to(table) if rules else table
        columns = (replace(c, source_type="") if c.source_type == MASKED_SCHEMA else c for c in spec.columns)
        return replace(spec, columns=tuple(columns))

    def _column_rules(self, table: TableSpec) -> ColumnTransforms:
        """The masks as column transforms, for columns that are not masked already."""
        unmasked = {c.name: c for c in table.columns if c.source_type != MASKED_SCHEMA}
        return ColumnTransforms(
            tuple((n, ColumnRule(mask=mask)) for n, mask in self.get_masks(table.name).items() if n in unmasked)
        )

    def unmasked_spec(self, table: TableSpec, learnt: TableSpec) -> TableSpec:
        """`table` with the original types of its private columns, from `learnt`."""
        private, types = self.get_masks(table.name), {c.name: c for c in learnt.columns}
        return replace(table, columns=tuple(types.get(c.name, c) if c.name in private else c for c in table.columns))

    def mask_changes(self, changes: pa.Table, before: TableSpec, table: TableSpec) -> pa.Table:
        """The changes of `before` as changes of `table`."""
        rules = self._column_rules(before)
        columns = dict(zip(changes.column_names, changes.columns, strict=True))
        columns = transform_columns(columns, rules, table) if rules else columns
        schema = changes_schema(table)
        return pa.Table.from_arrays([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)

    def mask_records(self, raw: pa.Table, tables: Sequence[str | None], errors: Sequence[str | None]) -> pa.Table:
        """The records as they may be stored. Each has either a table or an error."""
        if not raw.num_rows:
            return raw
        marks = read_mask_headers(raw["headers"].combine_chunks())
        plain = not marks and is_harmless(raw["headers"], CONTEXT)
        headers = repeat(None, raw.num_rows) if plain else raw["headers"].to_pylist()
        records = zip(raw["topic"].to_pylist(), headers, raw["key"].to_pylist(), raw["value"].to_pylist(), strict=True)
        marked = map(marks.get, range(raw.num_rows))
        tokens = TokenMasker(self._placeholders)
        masked = [self._mask_record(*row, tokens) for row in zip(records, tables, errors, marked, strict=True)]
        tokens.mask_all()
        rows = [(_encode_headers(headers), _encode_record(key), _encode_record(value)) for headers, key, value in masked]
        if plain and any(one[0] for one in rows):
            before = raw["headers"].to_pylist()
            rows = [
                ((old or []) + (new or []) or old, key, value) for old, (new, key, value) in zip(before, rows, strict=True)
            ]
            plain = False
        for name, values in zip(("headers", "key", "value"), zip(*rows, strict=True), strict=True):
            if name == "headers" and plain:
                continue
            at, kind = raw.column_names.index(name), raw.schema.field(name).type
            raw = raw.set_column(at, raw.schema.field(name), pa.chunked_array([pa.array(values, kind)]))
        return raw

    def _mask_record(
        self, record: Record, table: str | None, error: str | None, mark: MaskHeader | None, tokens: TokenMasker
    ) -> RecordParts:
        topic, headers, key, value = record
        masks = self.find_masks(table, topic)
        if not self.is_masked(table, topic):
            return headers, key, value
        if error is not None or (value is None and masks is None):
            # Nothing is stored of a record whose table has no known name.
            return None, key and WITHHELD, value and WITHHELD
        try:
            if table is None and value is not None:
                masked_key = key if key is None or is_control_key(key) else WITHHELD
                return strip_values(headers, CONTEXT), masked_key, mask_control(value)
            return self._mask_table_record(record, masks or {}, mark, table or ".".join(topic.split(".")[-2:]), tokens)
        except (KeyError, TypeError, AttributeError, *UNREADABLE):
            return None, key and WITHHELD, value and WITHHELD

    def _mask_table_record(
        self, record: Record, masks: Masks, mark: MaskHeader | None, table: str, tokens: TokenMasker
    ) -> RecordParts:
        topic, headers, key, value = record
        all_of_them = masks
        masks = masks if mark is None else {name: mask for name, mask in masks.items() if name not in mark.columns}
        schema, of_key, columns = BARE, BARE, self._columns.get(topic)
        readings: Readings = {**self._readings.get(topic, {}), **self._declared_readers(table, all_of_them)}
        event: Object | None = None
        if value is not None:
            keys = self.options.keys_of(table) or _list_key_names(key)
            event, schema, names = self._mask_value(value, masks, readings, keys, tokens, table=table)
            columns = self._note_columns(topic, names) if names else columns
            if schema is not BARE:
                # Stored for tombstones of the topic, which may lack a schema.
                readings = schema.readers
                if topic not in self._readings and len(self._readings) >= MAX_SCHEMAS:
                    self._readings.clear()
                self._readings[topic] = readings
        masked_key = None
        if key is not None:
            # All parts of a record are masked together: the value's schema also applies to a key without a
            # schema.
            masked_key, of_key = self._mask_key(
                key, schema.remaining_masks(masks), readings, columns, tokens, is_told=value is not None
            )
        read = readings if value is not None else {**readings, **of_key.readers}
        entries = self._mask_headers(headers, of_key.remaining_masks(schema.remaining_masks(masks)), read, columns, tokens)
        is_bare = schema is BARE and (value is not None or (key is not None and of_key is BARE))
        header = MaskHeader(table, tuple(sorted(all_of_them)))
        return add_mask_header(entries, header, None, CONTEXT, *OF_KEYS) if is_bare else entries, masked_key, event

    def _note_columns(self, topic: str, columns: frozenset[str]) -> frozenset[str]:
        """Store the columns of a topic's records. Tombstones, which have no columns, use them."""
        names = self._columns.get(topic, frozenset())
        if not columns <= names:
            if len(self._columns) >= MAX_SCHEMAS:
                self._columns.clear()
            self._columns[topic] = names | columns
        return columns

    def _declared_readers(self, table: str, masks: Masks) -> Readings:
        """The readers of a table whose records have no schema."""
        if table not in self._declared:
            if len(self._declared) >= MAX_SCHEMAS:
                self._declared.clear()
            columns = {n: kind for n, kind in (self.options.columns_of(table) or {}).items() if n in masks}
            nodes = find_readers(table, columns, decimals_are=self.options.decimals)
            modes = {name: self.options.reading_of(table, name) for name in nodes}
            self._declared[table] = {
                name: make_reader([make_lenient(node, modes[name])], masks[name]) for name, node in nodes.items()
            }
        return self._declared[table]

    def _mask_value(
        self, value: bytes, masks: Masks, readings: Readings, keys: Collection[str], tokens: TokenMasker, *, table: str
    ) -> tuple[Object, MaskedSchema, frozenset[str]]:
        """The masked event, its schema, and its columns."""
        whole = _object(value)
        if "payload" not in whole or "op" in whole:
            event, columns = self._mask_event(whole, masks, readings, keys, tokens)
            return event, BARE, columns
        schema = self._read_schema(whole.get("schema"), masks, table)
        readings = readings if schema is BARE else schema.readers
        event, columns = self._mask_event(_object(whole["payload"]), schema.remaining_masks(masks), readings, keys, tokens)
        return {"schema": msgspec.Raw(schema.text), "payload": event}, schema, columns

    def _mask_event(
        self, event: Object, masks: Masks, readings: Readings, keys: Collection[str], tokens: TokenMasker
    ) -> tuple[Object, frozenset[str]]:
        masked: Object = {name: event[name] for name in EVENT_MEMBERS if name in event}
        columns: frozenset[str] = frozenset()
        is_delete = bytes(event.get("op", b"")) == DELETE
        for side in IMAGES:
            if side in masked and bytes(masked[side]) != NULL:
                image = _object(masked[side])
                tokens.add(image, masks, readings, keys if is_delete and side == BEFORE else None)
                masked[side] = image
                columns = columns.union(image)
        if "source" in masked:
            masked["source"] = mask_source_block(masked["source"])
        return masked, columns

    def _mask_key(
        self,
        key: bytes,
        masks: Masks,
        readings: Readings,
        columns: Collection[str] | None,
        tokens: TokenMasker,
        *,
        is_told: bool = True,
    ) -> tuple[bytes | Object | None, MaskedSchema]:
        """The masked key. A key that is not an object of columns may be a value: it is dropped, and records that need it
        were rejected before. `columns`: None if they are unknown. `is_told`: `readings` come from this record's value,
        and decoding reads the key with them; otherwise the key's schema, if any, comes first."""
        try:
            whole = _object(key)
            has_schema = "payload" in whole
            schema = self._read_schema(whole["schema"], masks) if has_schema else BARE
            fields = _object(whole["payload"]) if has_schema else whole
            if not _is_column_key(fields, columns, is_typed=schema is not BARE):
                return None, BARE
            if not masks.keys() & fields.keys():
                return key, BARE
            read = {**schema.readers, **readings} if is_told else {**readings, **schema.readers}
            tokens.add(fields, schema.remaining_masks(masks), read, None)
        except (KeyError, TypeError, AttributeError, *UNREADABLE):
            return None, BARE
        return {"schema": msgspec.Raw(schema.text), "payload": fields} if has_schema else fields, schema

    def _mask_headers(
        self, headers: Headers, masks: Masks, readings: Readings, columns: Collection[str] | None, tokens: TokenMasker
    ) -> Headers:
        """The headers that repeat keys, masked, and only the names of other headers."""
        entries = strip_values(headers, CONTEXT, *OF_KEYS)
        if not entries:
            return entries
        read = {name: reading.for_headers for name, reading in readings.items()}
        unmasked = [h["value"] if h["name"] in OF_KEYS else None for h in entries]
        keys = [value and self._mask_key(value, masks, read, columns, tokens)[0] for value in unmasked]
        return [h | {"value": key} if value else h for h, value, key in zip(entries, unmasked, keys, strict=True)]

    def _read_schema(self, schema: msgspec.Raw | None, masks: Masks, table: str = "") -> MaskedSchema:
        """`table` is the table of a row. Keys are read in the same way for all tables."""
        if schema is None or bytes(schema) == NULL:
            return BARE
        key = bytes(schema), tuple(masks), table
        if key not in self._schemas:
            if len(self._schemas) >= MAX_SCHEMAS:
                self._schemas.clear()
            self._schemas[key] = _to_masked_schema(json.loads(key[0]), masks, partial(self.options.reading_of, table))
        return self._schemas[key]


def _is_column_key(key: Object, columns: Collection[str] | None, *, is_typed: bool) -> bool:
    """True if all fields of a key are columns, as far as is known. `is_typed`: the key has a schema."""
    if columns is not None:
        return all(name in columns for name in key)
    return is_typed or not any(bytes(value).startswith((b"{", b"[")) for value in key.values())


def _to_masked_schema(schema: dict[str, Any], masks: Masks, modes: Callable[[str], HowOutOfRange]) -> MaskedSchema:
    images = [field for field in schema["fields"] if field.get("field") in IMAGES and field.get("type") == "struct"]
    structs = images or [schema]
    private = [field for struct in structs for field in struct["fields"] if field.get("field") in masks]
    readings = {field["field"]: make_schema_reader(field, masks[field["field"]], modes(field["field"])) for field in private}
    marked = frozenset(field["field"] for field in private if field.get("name") == MASKED_SCHEMA)
    for struct in structs:
        struct["fields"] = [_mask_field(field, masks) for field in struct["fields"]]
    return MaskedSchema(json.dumps(schema, separators=(",", ":")).encode(), marked, readings)


def _list_key_names(key: bytes | None) -> Collection[str]:
    """The column names in a key, if it is readable."""
    try:
        whole = _object(key or b"{}")
        return _object(whole["payload"]) if "payload" in whole else whole
    except UNREADABLE:
        return ()


def _encode_record(content: bytes | Object | None) -> bytes | None:
    return msgspec.json.encode(content) if isinstance(content, dict) else content


def _encode_headers(headers: Headers) -> Headers:
    return headers and [h | {"value": _encode_record(h["value"])} if isinstance(h["value"], dict) else h for h in headers]


def _mask_field(field: dict[str, Any], masks: Masks) -> dict[str, Any]:
    name = str(field.get("field"))
    if name not in masks or field.get("name") == MASKED_SCHEMA:
        return field
    if masks[name].kind == "nothing":
        return {k: v for k, v in field.items() if k != "default"} | {"optional": True}
    return {"type": "string", "optional": field.get("optional", False), "name": MASKED_SCHEMA, "field": name}


# Metadata of records with private columns that may be stored: an allow-list of field names.


T = TypeVar("T")
SOURCE = frozenset(
    {
        *("version", "connector", "name", "snapshot", "db", "schema", "table", "collection", "sequence", "txId", "txSeq"),
        *("gtid", "file", "scn", "commit_scn", "start_scn", "lcr_position", "rs_id", "row_id", "redo_thread", "user_name"),
        *("commit_lsn", "change_lsn", "begin_lsn", "event_serial_no", "ord", "rs", "origin", "transaction_id"),
        *("keyspace", "shard", "vgtid", "ts_ms", "ts_us", "ts_ns"),
    }
)
"""Fields of source blocks that hold no values of rows. Others do, such as `query` and Oracle's `redo_sql`."""
CONTROL = frozenset(
    {
        *("ts_ms", "ts_us", "ts_ns", "status", "id", "event_count", "data_collections", "source", "op", "transaction"),
        *("databaseName", "schemaName", "aggregate_type", "type", "timestamp"),
    }
)
"""Fields of control records that hold no values of rows. Statements, messages and signals contain free text, and
notifications contain the keys that a snapshot has read."""
KEYS_OF_CONTROL = frozenset({"serverName", "databaseName", "id", "prefix"})
COMPOUND = (b'"', b"{", b"[")
"""First bytes of JSON values other than numbers and booleans."""
PARTS = 3
"""Least number of parts in a topic name, as connectors build it: prefix, schema or database, table."""
_unusual = re.compile(r"[^A-Za-z0-9._\-]")
_unusual_in_glob = re.compile(r"[^A-Za-z0-9._\-*?\[\]!]")


def mask_source_block(source: msgspec.Raw) -> msgspec.Raw:
    """The source block, with null for fields that may hold values of rows."""
    if bytes(source) == b"null":
        return source
    block = _object(source)
    wrong = [name for name, value in block.items() if name not in SOURCE and bytes(value).startswith(COMPOUND)]
    return msgspec.Raw(msgspec.json.encode(block | dict.fromkeys(wrong, RAW_NULL))) if wrong else source


def mask_control(value: bytes) -> bytes:
    """The value of a control record, unchanged if all its fields are allowed. Raises one of UNREADABLE."""
    whole = _object(value)
    if "payload" not in whole or "op" in whole:
        metadata = _keep_metadata(whole)
        return value if metadata == whole else msgspec.json.encode(metadata)
    if bytes(whole["payload"]) == b"null":
        return value
    payload = _object(whole["payload"])
    metadata = _keep_metadata(payload)
    schema = whole.get("schema", RAW_NULL)
    return value if metadata == payload else msgspec.json.encode({"schema": schema, "payload": metadata})


def _keep_metadata(fields: Object) -> Object:
    metadata = {name: value if name in CONTROL else RAW_NULL for name, value in fields.items()}
    return metadata | {"source": mask_source_block(metadata["source"])} if "source" in metadata else metadata


def is_control_key(key: bytes) -> bool:
    """True if it is the key of a control record."""
    try:
        whole = _object(key)
        payload = _object(whole["payload"]) if "payload" in whole else whole
    except UNREADABLE:
        return False
    return payload.keys() <= KEYS_OF_CONTROL


def is_unmasked_topic(topic: str, masked: Collection[str]) -> bool:
    """True if the topic's name shows that no pattern in `masked` matches its records' tables. The topic may have lost
    characters of the table's name, and a transform may have renamed it."""
    parts = topic.split(".")
    if len(parts) < PARTS:
        return False
    return not any(_can_match(pattern, topic, ".".join(parts[-2:])) for pattern in masked)


def _can_match(pattern: str, topic: str, name: str) -> bool:
    if is_regex(pattern):
        return "_" in name  # which may stand for anything
    if is_exact(pattern):
        return topic.endswith("." + _unusual.sub("_", pattern))
    return matches(_unusual_in_glob.sub("_", pattern), name)


def masked_patterns(by_table: Mapping[str, Mapping[str, object]]) -> tuple[str, ...]:
    """The patterns of tables with private columns."""
    return tuple(pattern for pattern, masks in by_table.items() if masks)
