"""Blocks of changes: consecutive records of one schema, decoded column by column."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op, changes_schema, key_struct
from replicator.domain.errors import Reject, RejectCode

from ...arrow.json_objects import UNSET
from ...arrow.record_errors import UNREADABLE, build_or_reject, malformed_reject
from .columns import BuiltColumn, build_column
from .headers import read_key_headers
from .options import DebeziumOptions
from .records import NO_SOURCE, ChangeReader, SourceBlock, read_event_times
from .sequence import ChangeOrder, SequenceFacts, offset_order, order_changes, to_offset_element
from .unchanged_values import Placeholders

OPS = frozenset(op.value for op in Op)
WHOLE = ("oracle", "sqlserver", "db2", "mysql", "mariadb")
"""Connectors that send the whole row of every delete. MySQL's and MariaDB's require `binlog_row_image=FULL`."""
FILLED_IN = frozenset({"{}", "AA==", "1970-01-01T00:00:00Z", "00:00:00Z", "00000000-0000-0000-0000-000000000000"})
"""Values that the connector writes for NULL in NOT NULL columns, besides 0 and empty text."""


class DebeziumChangeBlock:
    """Changes that one reader decodes. `raw` has the records, `records` the decoded payloads.

    Building columns adds to `errors`; the first error of a record is kept.
    """

    def __init__(
        self, raw: pa.RecordBatch, reader: ChangeReader, records: list[Any], payloads: list[bytes], options: DebeziumOptions
    ) -> None:
        self.raw, self.reader, self.records, self.payloads = raw, reader, records, payloads
        self.table, self.options = reader.table, options
        self.errors: dict[int, Reject] = {}
        self.unsent: dict[int, list[str]] = {}
        self.ops: list[Any] = [r.op for r in records]
        self.sources: list[SourceBlock] = [r.source or NO_SOURCE for r in records]
        self.deletes = [i for i, op in enumerate(self.ops) if op == Op.DELETE] if Op.DELETE in self.ops else []

    def build(self, placeholders: Placeholders) -> pa.Table:
        """The changes frame of these records, in their order."""
        self._refuse_unknown_operations()
        order = self._read_order()
        self._fail(order.errors)
        self._refuse_missing_keys()
        images = self._images()
        came_from, went_to = read_key_headers(self.raw.column("headers")) if self.table.keys else ({}, {})
        gone = {place for place in went_to if self.ops[place] == Op.DELETE}
        not_whole = self._find_doubtful(gone, images)
        columns = [self._column(c.name, c.type, images, placeholders) for c in self.table.columns]
        self.unsent.update(not_whole)
        self._refuse_null_keys(columns)
        moved = self._key_change_columns(came_from, gone)
        arrays = [
            pa.array(self.ops, pa.string()),
            *order.elements,
            read_event_times(self.sources),
            *self._record_ids(),
            order.tx,
        ]
        arrays += [self._error_column(), self._missing_column(), *moved, *columns]
        return pa.Table.from_arrays(arrays, schema=changes_schema(self.table))

    def _fail(self, errors: Iterable[tuple[int, Reject]] | dict[int, Reject]) -> None:
        for place, reject in errors.items() if isinstance(errors, dict) else errors:
            self.errors.setdefault(place, reject)

    def _refuse_unknown_operations(self) -> None:
        if set(self.ops) <= OPS:
            return
        for place, op in enumerate(self.ops):
            if op not in OPS:
                said = f"the operation {op[:10]!r}" if op else "no operation"
                reason = f"the record has {said}; Debezium's are {', '.join(sorted(OPS))}"
                self._fail({place: Reject(RejectCode.UNKNOWN_OPERATION, reason)})
                self.ops[place] = None

    def _read_order(self) -> ChangeOrder:
        offsets = self.raw.column("offset")
        transactions = list(map(attrgetter("transaction"), self.records))
        keyed = [bool(self.table.keys)] * len(self.records)
        facts = SequenceFacts(self.sources, transactions, self.ops, offsets, keyed)
        if self.table.unordered:
            return offset_order(facts, self.options.epoch)
        found = order_changes(facts, self.options.epoch)
        if self.table.sequence == 1:
            return ChangeOrder([to_offset_element(offsets, self.options.epoch)], found.tx, {})
        return found

    def _refuse_missing_keys(self) -> None:
        keys = self.raw.column("key")
        if not keys.null_count or not self.table.keys or self.options.keys_of(self.table.name):
            return
        reason = Reject(RejectCode.NULL_KEY, f"the record has no key, though table {self.table.name} has one")
        for place in pc.indices_nonzero(pc.is_null(keys)).to_pylist():
            if self.ops[place] != Op.TRUNCATE:
                self._fail({place: reason})

    def _images(self) -> list[Any]:
        """The image with each change's columns: before for a delete, after for others, an empty one for a truncate."""
        images = list(map(attrgetter("after"), self.records))
        for place in self.deletes:
            images[place] = self._before(place)
        if None in images or Op.TRUNCATE in self.ops:
            self._fill_keys(images)
        return images

    def _fill_keys(self, images: list[Any]) -> None:
        empty = self.reader.images.empty()
        for place, op in enumerate(self.ops):
            if op == Op.TRUNCATE:
                images[place] = empty
            elif images[place] is None:
                images[place] = empty
                self._fail({place: malformed_reject("the record carries no row: its after image is null")})

    def _before(self, place: int) -> Any:
        """The before image of a delete. Missing key columns are filled from the message key."""
        image = None
        try:
            image = self.reader.read_before(self.payloads[place])
        except UNREADABLE:
            self._fail({place: malformed_reject("its before image is not of the type that its schema says")})
        if image is None:
            image = self.reader.images.empty()
        missing = [k for k in self.reader.keys.nodes if not self._has(image, k)]
        for name, value in self._message_key(place).items() if missing else ():
            if name in missing:
                self.reader.images.put(image, name, value)
        return image

    def _has(self, image: Any, name: str) -> bool:
        return self.reader.images.values([image], name)[0] not in (None, UNSET)

    def _message_key(self, place: int) -> dict[str, Any]:
        text = self.raw.column("key")[place].as_py()
        if text is None:
            return {}
        try:
            return self.reader.read_key(text, self.options.limits.depth)
        except UNREADABLE:
            self._fail({place: malformed_reject("its key is not JSON of the key columns")})
            return {}

    def _column(self, name: str, arrow: pa.DataType, images: list[Any], placeholders: Placeholders) -> pa.Array:
        node = self.reader.images.nodes.get(name)
        if node is None:
            return pa.nulls(len(images), arrow)
        built = build_column(node, self.reader.images.values(images, name), name, placeholders)
        if built.unchanged or built.absent or built.errors:
            self._note_missing(name, built)
        return built.array

    def _note_missing(self, name: str, built: BuiltColumn) -> None:
        """A value missing in an update is unchanged; in a new row or a before image it is null. An invalid value of a
        deleted row counts as unchanged, so that the delete is not lost."""
        deleted = set(self.deletes) if name not in self.table.keys else set()
        absent = [i for i in built.absent if self.ops[i] == Op.UPDATE]
        lost = [i for i in built.errors if i in deleted]
        for place in (*built.unchanged, *absent, *lost):
            self.unsent.setdefault(place, []).append(name)
        self._fail((i, e) for i, e in built.errors.items() if i not in deleted)

    def _refuse_null_keys(self, columns: list[pa.Array]) -> None:
        for column, array in zip(self.table.columns, columns, strict=True):
            if column.name not in self.table.keys or not array.null_count:
                continue
            reason = Reject(RejectCode.NULL_KEY, f"key column {column.name!r} of table {self.table.name} is null or missing")
            for place in pc.indices_nonzero(pc.is_null(array)).to_pylist():
                if self.ops[place] != Op.TRUNCATE:
                    self._fail({place: reason})

    def _key_change_columns(self, came_from: Mapping[int, bytes], gone: set[int]) -> list[pa.Array]:
        """The columns `_moved_from` (for tables with a key) and `_moved_to`."""
        count = len(self.records)
        if not self.table.keys:
            return [pa.nulls(count, pa.bool_())]
        struct = key_struct(self.table)
        halves = {place: text for place, text in came_from.items() if self.ops[place] in (Op.CREATE, Op.READ)}
        moved_from = self._old_keys(halves, count) if halves else pa.nulls(count, struct)
        moved_to = pa.array([i in gone or None for i in range(count)], pa.bool_()) if gone else pa.nulls(count, pa.bool_())
        return [moved_from, moved_to]

    def _find_doubtful(self, gone: set[int], images: list[Any]) -> dict[int, list[str]]:
        """For deletes of key changes whose image may not show the row: the non-key columns, by index.

        PostgreSQL sends only the key unless REPLICA IDENTITY is FULL, and does not mark the difference. The connector
        fills in the rest. Deferrable keys are only possible with FULL. They cannot be a replica identity
        (`RelationGetIndexList` skips indexes that are not `indimmediate`), and PostgreSQL refuses changes of published
        rows without one. So an image with only the key needs no comparison with the row, and a full image shows the row.

        The result must not depend on other records, because a record may be read again among others. An image that was
        filled in is reduced to its key in `images`. A doubtful image stays, with all values counted as unchanged.
        """
        names = [c.name for c in self.table.values if c.name in self.reader.images.nodes]
        columns = {name: self.reader.images.values(images, name) for name in names}
        identity = self.options.replica_identity_of(self.table.name)
        found = {}
        for i in gone:
            given = {name: column[i] for name, column in columns.items() if column[i] is not None and column[i] is not UNSET}
            if not given or self._is_whole(given, identity, self.sources[i].connector):
                continue
            found[i] = names
            if identity == "default" or all(_is_filled_in(v, self.reader.defaults.get(n)) for n, v in given.items()):
                images[i] = self._read_key(images[i])
        return found

    def _is_whole(self, given: Mapping[str, Any], identity: str | None, connector: str | None) -> bool:
        """True if an image with these values is certainly the whole row."""
        if identity == "full" or connector in WHOLE:
            return True
        if identity == "default":
            return False
        told = [(value, self.reader.telling[name]) for name, value in given.items() if name in self.reader.telling]
        return any(nullable or not _is_filled_in(value, None) for value, nullable in told)

    def _read_key(self, image: Any) -> Any:
        key = self.reader.images.empty()
        for name in self.reader.keys.nodes:
            self.reader.images.put(key, name, self.reader.images.values([image], name)[0])
        return key

    def _old_keys(self, halves: dict[int, bytes], count: int) -> pa.Array:
        found: dict[int, dict[str, Any]] = {}
        for place, text in halves.items():
            try:
                found[place] = self.reader.read_old_key(text, self.options.limits.depth)
            except UNREADABLE:
                found[place] = {}
            if len(found[place]) < len(self.table.keys):
                self._fail({place: malformed_reject("its header __debezium.oldkey is not the key that the row had before")})
        columns = [self._key_column(k, [found.get(i, {}).get(k) for i in range(count)]) for k in self.table.keys]
        nulls = pa.array([i not in halves for i in range(count)])
        return pa.StructArray.from_arrays(columns, fields=list(key_struct(self.table)), mask=nulls)

    def _key_column(self, name: str, values: list[Any]) -> pa.Array:
        node = self.reader.old_keys.nodes.get(name)
        if node is None:  # The schema has no such column, so all records are rejected for a missing key.
            return pa.nulls(len(values), key_struct(self.table).field(name).type)
        built, bad = build_or_reject(node.build, values, f"the old value of key column {name!r}")
        self._fail(bad)
        return built

    def _record_ids(self) -> list[pa.Array]:
        return [self.raw.column(name) for name in ("topic", "partition", "offset")]

    def _error_column(self) -> pa.Array:
        if not self.errors:
            return pa.nulls(len(self.records), pa.string())
        return pa.array([str(e) if e else None for e in map(self.errors.get, range(len(self.records)))], pa.string())

    def _missing_column(self) -> pa.Array:
        arrow = pa.list_(pa.string())
        if not self.unsent:
            return pa.nulls(len(self.records), arrow)
        return pa.array(list(map(self.unsent.get, range(len(self.records)), repeat(None))), arrow)


def _is_filled_in(value: Any, default: Any) -> bool:
    """True if the connector may have written the value for NULL: the column's default, 0, false, empty text, such a
    decimal."""
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if isinstance(value, bytes):
        return not value.strip(b"\0") or b64encode(value).decode() == default
    if isinstance(value, str):
        return not value.strip("0.") or value in FILLED_IN or value == default
    return not value or value == default
