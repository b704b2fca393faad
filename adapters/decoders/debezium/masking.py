"""Masking of private columns, in decoded changes and in records before they are stored; and the decoder of events over it.

A stored record has the same JSON with masked values in both images, in the key and in the headers that repeat keys.
Other headers and metadata that may contain values are removed (see the allow-list below). The schema marks the columns.
A column whose values became text has the type string and the name `MASKED_SCHEMA`, and decoding does not mask it again.
Values are read like decoded values (`TokenWriter`), so both get the same text for every type. Placeholders of unchanged
values stay placeholders.

Unreadable records that may belong to a table with private columns are stored without content.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import groupby, repeat
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from replicator.domain.change import changes_schema
from replicator.domain.errors import ConfigProblem, Fatal, Reject
from replicator.domain.out_of_range import ReadMode as HowOutOfRange
from replicator.domain.patterns import is_exact, is_regex, matches
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Connector, TransactionMark
from replicator.domain.transform.columns import ColumnRule, ColumnTransforms, Mask, refuse_unknown_masks
from replicator.domain.transform.typed_expressions import is_hashable
from replicator.ports.decoder import DecoderFeatures

from ...arrow import decimals
from ...arrow.masks import mask_values
from ...arrow.record_errors import FAILURES, UNREADABLE, ValueMisfit, decode_or_reject
from ...arrow.temporal_values import make_lenient
from ...arrow.value_readers import ValueReader
from ...transforms.column_transforms import transform_columns
from ..common.pipeline import CompositeDecoder
from ..json.headers import WITHHELD, is_harmless, strip_values
from ..json.schema_frames import CachedFrames
from ..json.type_names import to_texts
from ..masking import (
    CellMasker,
    CellWriter,
    Header,
    Image,
    MaskedTables,
    MaskHeader,
    Masks,
    RecordContent,
    RoutedRecord,
    add_mask_header,
    read_mask_headers,
    read_object,
    redact_whole,
    remaining_masks,
    replace_records,
)
from ..options import DebeziumOptions
from .changes import CONTEXT, NEW_KEY, OLD_KEY, DebeziumFrameDecoder, Placeholders, build_column
from .records import find_connector, read_markers
from .router import DebeziumEnvelopes, DebeziumRouter, TableLearner
from .schema import MASKED_TYPE, ConnectSchema, find_readers, find_schema_reader, holds_decimals

# Values of private columns in records.
#
# They are read like decoded values, so the stored value equals the decoded value for every type.


Object = dict[str, Any]
"""An object whose values are JSON (`msgspec.Raw`) or such objects."""
RAW_NULL = msgspec.Raw(b"null")
UNFIT = (msgspec.Raw(b"{}"), msgspec.Raw(b"0"), msgspec.Raw(b'"\\ud800"'))
"""Invalid tokens that replace invalid values. The first one that is invalid for a column is used, so that its record is
rejected like the original."""


class TokenWriter(CellWriter):
    """Masks values of one column. Reads each with the first node that can."""

    def __init__(self, placeholders: Placeholders, nodes: Sequence[ValueReader]) -> None:
        self._placeholders = placeholders
        self._ways = [(node, msgspec.json.Decoder(node.wire).decode) for node in nodes]

    def is_null(self, value: msgspec.Raw) -> bool:
        return bytes(value) == b"null"

    def mask_cells(
        self, name: str, mask: Mask, values: Sequence[msgspec.Raw], required: Sequence[bool]
    ) -> tuple[Sequence[msgspec.Raw], Mapping[int, Reject]]:
        """Invalid values become others, which decoding rejects like the originals."""
        misfit = self._misfit_token if mask.kind == "nothing" else UNFIT[0]
        masked, rest = [misfit] * len(values), list(range(len(values)))
        for node, decode in self._ways:
            read = decode_or_reject(decode, [values[index] for index in rest], None)
            readable = {index: read.values[i] for i, index in enumerate(rest) if i not in read.errors}
            if readable:
                indices = list(readable)
                column = build_column(node, list(readable.values()), name, self._placeholders)
                for index, token in zip(indices, _mask_tokens(column.array, mask), strict=True):
                    masked[index] = token
                for index in [indices[i] for i in column.unchanged]:
                    masked[index] = self._unchanged_token(values[index], mask)
                for index in [indices[i] for i in column.errors]:
                    masked[index] = misfit if required[index] else self._unchanged_token(RAW_NULL, mask)
            rest = [rest[i] for i in read.errors]
        return masked, {}

    def _unchanged_token(self, token: msgspec.Raw, mask: Mask) -> msgspec.Raw:
        """The placeholder for an unchanged value in a column of the stored type. `token`: the original placeholder."""
        if mask.kind == "nothing":
            return token
        text = bytes(token)
        is_one = text[:1] == b'"' and self._placeholders.is_text(msgspec.json.decode(text, type=str))
        return token if is_one else msgspec.Raw(msgspec.json.encode(self._placeholders.text))

    @cached_property
    def for_headers(self) -> TokenWriter:
        """The writer for header values: Connect's usual header converter writes decimals as numbers."""
        return TokenWriter(self._placeholders, [decimals.accept_numbers(self._ways[0][0])])

    @cached_property
    def _misfit_token(self) -> msgspec.Raw:
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


def _mask_tokens(values: pa.Array, mask: Mask) -> Iterable[msgspec.Raw]:
    if mask.kind in ("nothing", "fixed"):
        same = RAW_NULL if mask.kind == "nothing" else msgspec.Raw(msgspec.json.encode(mask.text))
        return [same] * len(values)
    encode: Callable[[Any], bytes] = msgspec.json.encode
    return [msgspec.Raw(encode(text)) for text in mask_values(pa.chunked_array([values]), mask).to_pylist()]


UNTYPED = ValueReader(pa.string(), msgspec.Raw, to_texts, "raw")
"""Reader of values of unknown types and of types without a unique text. Lanes stop at such a column, but the stored
records are masked all the same."""


def find_schema_readers(connect: Mapping[str, Any], mode: HowOutOfRange) -> Sequence[ValueReader]:
    """The readers of values with this Connect schema, the most likely one first. `mode`: the treatment of values out of
    range."""
    try:
        schema = msgspec.convert(connect, ConnectSchema)
        nodes = [find_schema_reader(schema)]
        if holds_decimals(schema):
            nodes.append(find_schema_reader(schema, numeric=True))
    except (ValueMisfit, msgspec.ValidationError):
        return [UNTYPED]
    return [make_lenient(node, mode) for node in nodes]


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

Writers = Mapping[str, TokenWriter]
Headers = list[Header] | None
RecordParts = tuple[Headers, bytes | Object | None, bytes | Object | None]
"""Headers, key and value, as bytes or as objects to encode."""


class MaskedSchema(NamedTuple):
    """A schema: the text to store, the columns that are masked already, and writers for the other private columns."""

    text: bytes = NULL
    marked: frozenset[str] = frozenset()
    writers: Writers = MappingProxyType({})

    def remaining_masks(self, masks: Masks) -> Masks:
        """The masks of columns that are not masked yet."""
        return remaining_masks(masks, self.marked)


BARE = MaskedSchema()
"""Stands for a missing schema."""


class TopicNotes:
    """The columns and writers of a topic's last records with a value, for tombstones, which may have neither."""

    def __init__(self) -> None:
        self.columns: frozenset[str] | None = None
        self.writers: Writers = {}


class DebeziumMasker:
    """The private columns of a source's tables."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options, self._tables = options, MaskedTables(options.private)
        self._placeholders = Placeholders(options.unavailable_value)
        self._untyped = TokenWriter(self._placeholders, [UNTYPED])
        self._masked = masked_patterns(options.private)
        self._named: dict[str, set[str]] = defaultdict(set)
        self._find_topic_masks = lru_cache(MAX_SCHEMAS)(self._find_masks_by_topic)
        self._make_schema = lru_cache(MAX_SCHEMAS)(self._make_masked_schema)
        self._declared_writers = lru_cache(MAX_SCHEMAS)(self._make_declared_writers)
        self._get_notes = lru_cache(MAX_SCHEMAS)(lambda _: TopicNotes())

    def __bool__(self) -> bool:
        return bool(self._tables)

    def get_masks(self, table: str) -> Masks:
        """The masks of the table's columns."""
        return self._tables.get_masks(table)

    def note_tables(self, topics: pa.ChunkedArray, tables: pa.ChunkedArray) -> None:
        """Store the tables that the records of each topic name."""
        pairs = pa.table([topics, tables], ["topic", "table"]).group_by(["topic", "table"], use_threads=False).aggregate([])
        for topic, table in zip(*(column.to_pylist() for column in pairs.columns), strict=True):
            if table is not None:
                self._named[topic].add(table)

    def find_masks(self, table: str | None, topic: str) -> Masks | None:
        """The masks of a record's table; the topic names the table if it is not known. None if that table is not
        configured or may be another one."""
        if table is not None:
            return self._tables.find_masks(table)
        return self._find_topic_masks(topic, frozenset(self._named.get(topic, ())))

    def _find_masks_by_topic(self, topic: str, tables: frozenset[str]) -> Masks | None:
        """`tables`: those that other records of the topic name. A transform may have renamed the topic, and a pattern may
        match any name. So the name must be configured itself, or be that of one of `tables`."""
        name = name_by_topic(topic)
        masks = self._tables.find_masks(name)
        is_table = name in self._options.private or any(can_name(topic, table) for table in tables)
        if not is_table or any(self.get_masks(table) not in ({}, masks) for table in tables):
            return None
        return None if masks == {} and not is_unmasked_topic(topic, self._masked) else masks

    def is_masked(self, table: str | None, topic: str) -> bool:
        """True if the record's table has private columns, or is unknown and may have some."""
        masks = self.find_masks(table, topic)
        return bool(masks) or (table is None and masks is None)

    def masked_spec(self, table: TableSpec, values: pa.ChunkedArray) -> TableSpec:
        """The table as decoding returns it, for masked and unmasked records alike. Raises ConfigProblem for a mask that
        does not fit the column. `values`: the records that define its columns. Tombstones alone define only the key."""
        if values.null_count < len(values):
            refuse_unknown_masks(self.get_masks(table.name), table, self._options.columns_of(table.name) or ())
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

    def mask_changes(
        self, table: TableSpec, learn: Callable[[], TableSpec], decode: Callable[[TableSpec], pa.Table]
    ) -> pa.Table:
        """The changes of records that are not masked, with masks. `learn` returns their table without masks, and `decode`
        their changes as those of such a table."""
        private, before = self.get_masks(table.name), table
        # If none of the records is readable, `decode` reports it for each.
        with suppress(ConfigProblem, Fatal):
            types = {c.name: c for c in learn().columns}
            before = replace(table, columns=tuple(types.get(c.name, c) if c.name in private else c for c in table.columns))
        changes, rules = decode(before), self._column_rules(before)
        columns = dict(zip(changes.column_names, changes.columns, strict=True))
        columns = transform_columns(columns, rules, table) if rules else columns
        schema = changes_schema(table)
        return pa.Table.from_arrays([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)

    def mask_records(self, raw: pa.Table, routes: pa.Table) -> pa.Table:
        """The records as they may be stored."""
        if not raw.num_rows:
            return raw
        marks = read_mask_headers(raw["headers"].combine_chunks())
        plain = not marks and is_harmless(raw["headers"], CONTEXT)
        headers = repeat(None, raw.num_rows) if plain else raw["headers"].to_pylist()
        columns = [*(raw[n] for n in ("key", "value")), *(routes[n] for n in ("table", "ignored", "error"))]
        others = [*(column.to_pylist() for column in columns), map(marks.get, range(raw.num_rows))]
        cells = CellMasker()
        parts = [self._mask_record(one, cells) for one in map(RoutedRecord, raw["topic"].to_pylist(), headers, *others)]
        cells.mask_all()
        masked = [RecordContent(_encode_headers(part[0]), *map(_encode_record, part[1:])) for part in parts]
        if not plain:
            return replace_records(raw, masked)
        if not any(one.headers for one in masked):
            return replace_records(raw, masked, ("key", "value"))
        pairs = zip(masked, raw["headers"].to_pylist(), strict=True)
        return replace_records(
            raw, [one._replace(headers=[*(old or ()), *(one.headers or ())] or old) for one, old in pairs]
        )

    def _mask_record(self, record: RoutedRecord, cells: CellMasker) -> RecordParts:
        topic, headers, key, value, table = record[:5]
        masks = self.find_masks(table, topic)
        if not self.is_masked(table, topic):
            return headers, key, value
        if record.error is not None or (value is None and masks is None):
            # Nothing is stored of a record whose table has no known name.
            return redact_whole(key, value)
        try:
            if table is None and value is not None:
                masked_key = key if key is None or is_control_key(key) else WITHHELD
                return strip_values(headers, CONTEXT), masked_key, mask_control(value)
            return self._mask_table_record(record, masks or {}, table or name_by_topic(topic), cells)
        except (KeyError, TypeError, AttributeError, *UNREADABLE):
            return redact_whole(key, value)

    def _mask_table_record(self, record: RoutedRecord, masks: Masks, table: str, cells: CellMasker) -> RecordParts:
        notes, remaining = self._get_notes(record.topic), record.get_remaining(masks)
        schema, of_key, columns = BARE, BARE, notes.columns
        writers: Writers = {**notes.writers, **self._declared_writers(table)}
        event: Object | None = None
        if record.value is not None:
            keys = self._options.keys_of(table) or _list_key_names(record.key)
            event, schema, names = self._mask_value(record.value, remaining, writers, keys, cells, table=table)
            remaining = schema.remaining_masks(remaining)
            if names:
                notes.columns, columns = names | (notes.columns or frozenset()), names
            if schema is not BARE:
                notes.writers = writers = schema.writers
        masked_key = None
        if record.key is not None:
            # All parts of a record are masked together: the value's schema also applies to a key without a
            # schema.
            masked_key, of_key = self._mask_key(record.key, remaining, writers, columns, cells, is_told=event is not None)
        of_headers = writers if event is not None else {**writers, **of_key.writers}
        entries = self._mask_headers(record.headers, of_key.remaining_masks(remaining), of_headers, columns, cells)
        is_bare = schema is BARE and (event is not None or (record.key is not None and of_key is BARE))
        header = MaskHeader(table, tuple(sorted(masks)))
        return add_mask_header(entries, header, None, CONTEXT, *OF_KEYS) if is_bare else entries, masked_key, event

    def _make_declared_writers(self, table: str) -> Writers:
        """The writers of a table whose records have no schema."""
        masks = self.get_masks(table)
        columns = {n: kind for n, kind in (self._options.columns_of(table) or {}).items() if n in masks}
        nodes = find_readers(table, columns, decimals_are=self._options.decimals)
        modes = {name: self._options.reading_of(table, name) for name in nodes}
        return {name: self._make_writer([make_lenient(node, modes[name])], masks[name]) for name, node in nodes.items()}

    def _make_writer(self, nodes: Sequence[ValueReader], mask: Mask) -> TokenWriter:
        """The writer of values that these nodes read, the most likely one first."""
        needs_text = mask.kind in ("hmac", "truncate")
        return self._untyped if needs_text and not is_hashable(nodes[0].type) else TokenWriter(self._placeholders, nodes)

    def _mask_value(
        self, value: bytes, masks: Masks, writers: Writers, keys: Collection[str], cells: CellMasker, *, table: str
    ) -> tuple[Object, MaskedSchema, frozenset[str]]:
        """The masked event, its schema, and its columns."""
        whole = read_object(value)
        if "payload" not in whole or "op" in whole:
            event, columns = self._mask_event(whole, masks, writers, keys, cells)
            return event, BARE, columns
        schema = self._read_schema(whole.get("schema"), masks, table)
        writers = writers if schema is BARE else schema.writers
        remaining, payload = schema.remaining_masks(masks), read_object(whole["payload"])
        event, columns = self._mask_event(payload, remaining, writers, keys, cells)
        return {"schema": msgspec.Raw(schema.text), "payload": event}, schema, columns

    def _mask_event(
        self, event: Object, masks: Masks, writers: Writers, keys: Collection[str], cells: CellMasker
    ) -> tuple[Object, frozenset[str]]:
        masked: Object = {name: event[name] for name in EVENT_MEMBERS if name in event}
        columns: frozenset[str] = frozenset()
        is_delete = bytes(event.get("op", b"")) == DELETE
        for side in IMAGES:
            if side in masked and bytes(masked[side]) != NULL:
                image = read_object(masked[side])
                required = keys if is_delete and side == BEFORE else None
                cells.add(0, Image(image, self._untyped, writers, required), masks)
                masked[side] = image
                columns = columns.union(image)
        if "source" in masked:
            masked["source"] = mask_source_block(masked["source"])
        return masked, columns

    def _mask_key(
        self,
        key: bytes,
        masks: Masks,
        writers: Writers,
        columns: Collection[str] | None,
        cells: CellMasker,
        *,
        is_told: bool = True,
    ) -> tuple[bytes | Object | None, MaskedSchema]:
        """The masked key. A key that is not an object of columns may be a value: it is dropped, and records that need it
        were rejected before. `columns`: None if they are unknown. `is_told`: `writers` come from this record's value,
        and decoding reads the key with them; otherwise the key's schema, if any, comes first."""
        try:
            whole = read_object(key)
            has_schema = "payload" in whole
            schema = self._read_schema(whole["schema"], masks) if has_schema else BARE
            fields = read_object(whole["payload"]) if has_schema else whole
            if not _is_column_key(fields, columns, is_typed=schema is not BARE):
                return None, BARE
            if not masks.keys() & fields.keys():
                return key, BARE
            both = {**schema.writers, **writers} if is_told else {**writers, **schema.writers}
            cells.add(0, Image(fields, self._untyped, both), schema.remaining_masks(masks))
        except (KeyError, TypeError, AttributeError, *UNREADABLE):
            return None, BARE
        return {"schema": msgspec.Raw(schema.text), "payload": fields} if has_schema else fields, schema

    def _mask_headers(
        self, headers: Headers, masks: Masks, writers: Writers, columns: Collection[str] | None, cells: CellMasker
    ) -> Headers:
        """The headers that repeat keys, masked, and only the names of other headers."""
        entries = strip_values(headers, CONTEXT, *OF_KEYS)
        if not entries:
            return entries
        of_headers = {name: writer.for_headers for name, writer in writers.items()}
        unmasked = [h["value"] if h["name"] in OF_KEYS else None for h in entries]
        keys = [value and self._mask_key(value, masks, of_headers, columns, cells)[0] for value in unmasked]
        return [h | {"value": key} if value else h for h, value, key in zip(entries, unmasked, keys, strict=True)]

    def _read_schema(self, schema: msgspec.Raw | None, masks: Masks, table: str = "") -> MaskedSchema:
        """`table` is the table of a row. Keys are read in the same way for all tables."""
        if schema is None or bytes(schema) == NULL:
            return BARE
        return self._make_schema(bytes(schema), tuple(masks.items()), table)

    def _make_masked_schema(self, text: bytes, columns: tuple[tuple[str, Mask], ...], table: str) -> MaskedSchema:
        schema, masks = json.loads(text), dict(columns)
        images = [field for field in schema["fields"] if field.get("field") in IMAGES and field.get("type") == "struct"]
        structs = images or [schema]
        private = [field for struct in structs for field in struct["fields"] if field.get("field") in masks]
        writers = {}
        for field in private:
            name = field["field"]
            nodes = find_schema_readers(field, self._options.reading_of(table, name))
            writers[name] = self._make_writer(nodes, masks[name])
        marked = frozenset(field["field"] for field in private if field.get("name") == MASKED_SCHEMA)
        for struct in structs:
            struct["fields"] = [_mask_field(field, masks) for field in struct["fields"]]
        return MaskedSchema(json.dumps(schema, separators=(",", ":")).encode(), marked, writers)


def _is_column_key(key: Object, columns: Collection[str] | None, *, is_typed: bool) -> bool:
    """True if all fields of a key are columns, as far as is known. `is_typed`: the key has a schema."""
    if columns is not None:
        return all(name in columns for name in key)
    return is_typed or not any(bytes(value).startswith((b"{", b"[")) for value in key.values())


def _list_key_names(key: bytes | None) -> Collection[str]:
    """The column names in a key, if it is readable."""
    try:
        whole = read_object(key or b"{}")
        return read_object(whole["payload"]) if "payload" in whole else whole
    except UNREADABLE:
        return ()


def name_by_topic(topic: str) -> str:
    """The table that a topic names, if connectors named it."""
    return ".".join(topic.split(".")[-2:])


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
    block = read_object(source)
    wrong = [name for name, value in block.items() if name not in SOURCE and bytes(value).startswith(COMPOUND)]
    return msgspec.Raw(msgspec.json.encode(block | dict.fromkeys(wrong, RAW_NULL))) if wrong else source


def mask_control(value: bytes) -> bytes:
    """The value of a control record, unchanged if all its fields are allowed. Raises one of UNREADABLE."""
    whole = read_object(value)
    if "payload" not in whole or "op" in whole:
        metadata = _keep_metadata(whole)
        return value if metadata == whole else msgspec.json.encode(metadata)
    if bytes(whole["payload"]) == b"null":
        return value
    payload = read_object(whole["payload"])
    metadata = _keep_metadata(payload)
    schema = whole.get("schema", RAW_NULL)
    return value if metadata == payload else msgspec.json.encode({"schema": schema, "payload": metadata})


def _keep_metadata(fields: Object) -> Object:
    metadata = {name: value if name in CONTROL else RAW_NULL for name, value in fields.items()}
    return metadata | {"source": mask_source_block(metadata["source"])} if "source" in metadata else metadata


def is_control_key(key: bytes) -> bool:
    """True if it is the key of a control record."""
    try:
        whole = read_object(key)
        payload = read_object(whole["payload"]) if "payload" in whole else whole
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


def can_name(topic: str, table: str) -> bool:
    """True if a connector may have named the topic after the table."""
    return topic.endswith("." + _unusual.sub("_", table))


def _can_match(pattern: str, topic: str, name: str) -> bool:
    if is_regex(pattern):
        return "_" in name  # which may stand for anything
    if is_exact(pattern):
        return can_name(topic, pattern)
    return matches(_unusual_in_glob.sub("_", pattern), name)


def masked_patterns(by_table: Mapping[str, Mapping[str, object]]) -> tuple[str, ...]:
    """The patterns of tables with private columns."""
    return tuple(pattern for pattern, masks in by_table.items() if masks)


MAX_DECODERS = 1024


class DebeziumDecoder(CompositeDecoder):
    """Base class of the decoders of Debezium's events, which convert records to JSON text.

    Pickled as its options. It caches readers for schemas, the last key and table (see `router.RouteResults`), and
    records between routing and decoding (`schema_frames.CachedFrames`).
    """

    def __init__(self, options: DebeziumOptions) -> None:
        self._options, self._depth = options, options.limits.depth
        once = CachedFrames(self._depth)
        routing, decoding = DebeziumRouter(options, once), DebeziumFrameDecoder(options, once)
        super().__init__(options, routing=routing, decoding=decoding, envelopes=DebeziumEnvelopes(options, routing))
        self._learning = TableLearner(options, routing, decoding.readers)
        self._private = DebeziumMasker(options)
        self._get_masked_decoder = lru_cache(MAX_DECODERS)(self.make_masked_decoder)

    @property
    def features(self) -> DecoderFeatures:
        return DecoderFeatures(mask_records=self.mask_records, read_marks=self.marks, find_connector=self.connector)

    def route(self, raw: pa.Table) -> pa.Table:
        routes = super().route(raw)
        if self._private:
            self._private.note_tables(raw["topic"], routes["table"])
        return routes

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        learnt = self._learning.learn(sample, table, fingerprint)
        return self._private.masked_spec(learnt, sample["value"]) if self._private.get_masks(table) else learnt

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        if not self._private.get_masks(table.name) or not raw.num_rows:
            return super().decode(raw, table)
        mask_headers = read_mask_headers(raw["headers"].combine_chunks())
        if not mask_headers:
            return self._mask_events(raw, table)
        parts = []
        for is_stored, run in groupby(range(raw.num_rows), mask_headers.__contains__):
            indices = list(run)
            events = raw.slice(indices[0], len(indices))
            if is_stored:
                parts.append(self._get_masked_decoder(table.name).decode(self.mask_records(events), table))
            else:
                parts.append(self._mask_events(events, table))
        return pa.concat_tables(parts).combine_chunks()

    def make_masked_decoder(self, table: str) -> DebeziumDecoder:
        """The decoder of masked records of `table` without a schema, whose private columns are text."""
        declared, masks = dict(self._options.columns_of(table) or {}), self._private.get_masks(table)
        texts = {name: MASKED_TYPE for name, mask in masks.items() if name in declared and mask.kind != "nothing"}
        return DebeziumDecoder(self._options.with_given({"schema": {table: declared | texts}, "private": {}}))

    def _mask_events(self, events: pa.Table, table: TableSpec) -> pa.Table:
        learn = partial(self._learning.learn, events, table.name, table.fingerprint)
        return self._private.mask_changes(table, learn, partial(super().decode, events))

    def mask_records(self, raw: pa.Table) -> pa.Table:
        if not self._private or not raw.num_rows:
            return raw
        routes = self.route(raw)
        tables, errors = routes["table"].to_pylist(), routes["error"].to_pylist()
        return self._private.mask_records(self._to_maskable(raw, tables, errors), routes)

    def _to_maskable(self, raw: pa.Table, tables: Sequence[str | None], errors: Sequence[str | None]) -> pa.Table:  # noqa: ARG002
        """The records as change events in JSON, if their tables have private columns. Each has a table or an error."""
        return raw

    def marks(self, raw: pa.Table) -> Sequence[TransactionMark]:
        return read_markers(raw, self._depth)

    def connector(self, raw: pa.Table) -> Connector | None:
        return find_connector(raw, self._depth)
