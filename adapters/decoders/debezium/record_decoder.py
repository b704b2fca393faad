"""Decoding of raw records to the changes frame: split by schema, decoded in blocks, merged in their order."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op, changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

from ...arrow.frame_slices import Part, build_rejected, merge_parts, select_records, split_frame
from ...arrow.record_errors import Read, malformed_reject
from ..json.schema_frames import CachedFrames, SchemaGroup, find_frames, split_all
from .changes import DebeziumChangeBlock
from .documents import DocumentConverter
from .options import DebeziumOptions
from .payload_readers import PayloadReaders
from .records import ChangeReader
from .unchanged_values import Placeholders

NO_PAYLOAD = b"{}"


class DebeziumFrameDecoder:
    """Decodes frames of records of one table. Caches generated readers, never records. The router shares `once`."""

    def __init__(self, options: DebeziumOptions, once: CachedFrames | None = None) -> None:
        self.options = options
        self._once = once or CachedFrames(options.limits.depth)
        self.placeholders = Placeholders(options.unavailable_value)
        self.readers = PayloadReaders(options)
        self._documents = DocumentConverter(options)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        done = [self._decode_slice(piece, table) for piece in split_frame(raw)]
        return pa.concat_tables([changes_schema(table).empty_table(), *done]).combine_chunks()

    def _decode_slice(self, raw: pa.RecordBatch, table: TableSpec) -> pa.Table:
        raw, refused = self._documents.to_rows(raw, table)
        values = raw.column("value")
        found = self._once.find_again(values)
        errors = found.errors | refused
        parts = [part for group in found.groups for part in self._decode_group(raw, group, table, errors)]
        if values.null_count:
            parts += self._decode_tombstones(raw, table, errors)
        if errors:
            bad = sorted(errors)
            parts.append((bad, build_rejected(select_records(raw, bad), table, [errors[i] for i in bad])))
        return merge_parts(parts, changes_schema(table))

    def _decode_group(
        self, raw: pa.RecordBatch, group: SchemaGroup, table: TableSpec, errors: dict[int, Reject]
    ) -> Iterator[Part]:
        rows = list(range(raw.num_rows)) if group.rows is None else group.rows
        reader = self.readers.get_reader(group.schema, table)
        if isinstance(reader, Reject):
            errors |= dict.fromkeys(rows, reader)
            return
        payloads = group.payloads()
        read = reader.read_changes(payloads)
        if reader.holds_decimals:
            read[1].update(reader.find_unreadable_deletes(read, payloads))
        if not read[1]:
            yield group.rows, self._decode_block(select_records(raw, group.rows), reader, read, payloads)
            return
        yield from self._decode_readable(raw, rows, reader, read, payloads)
        yield from self._decode_again(raw, group, table, {rows[i]: reject for i, reject in read[1].items()}, errors)

    def _decode_block(self, raw: pa.RecordBatch, reader: ChangeReader, read: Read, payloads: list[bytes]) -> pa.Table:
        return DebeziumChangeBlock(raw, reader, read[0], payloads, self.options).build(self.placeholders)

    def _decode_readable(
        self, raw: pa.RecordBatch, rows: list[int], reader: ChangeReader, read: Read, payloads: list[bytes]
    ) -> Iterator[Part]:
        """The block of the readable records, if any."""
        good = [i for i in range(len(rows)) if i not in read[1]]
        if good:
            places = [rows[i] for i in good]
            records: Read = ([read[0][i] for i in good], {})
            yield places, self._decode_block(select_records(raw, places), reader, records, [payloads[i] for i in good])

    def _decode_again(
        self, raw: pa.RecordBatch, group: SchemaGroup, table: TableSpec, bad: dict[int, Reject], errors: dict[int, Reject]
    ) -> Iterator[Part]:
        """Decode records again that failed: parsed as a whole instead of by their prefix, and with decimals as numbers.
        Records that fail again keep their first error."""
        reader = self.readers.get_reader(group.schema, table, numeric=True)
        if isinstance(reader, Reject):
            errors |= bad
            return
        places, payloads, broken = split_all(raw.column("value"), list(bad), self.options.limits.depth)
        read = reader.read_changes(payloads)
        errors |= broken | {places[i]: bad[places[i]] for i in read[1]}
        yield from self._decode_readable(raw, places, reader, read, payloads)

    def _decode_tombstones(self, raw: pa.RecordBatch, table: TableSpec, errors: dict[int, Reject]) -> Iterator[Part]:
        """Decode null values: deletes of the record's key, if the table has `tombstones: delete`."""
        places: list[int] = pc.indices_nonzero(pc.is_null(raw.column("value"))).to_pylist()
        if not self.options.deletes_by_tombstone(table.name):
            errors |= dict.fromkeys(places, malformed_reject("its value is empty"))
            return
        keys = raw.column("key").take(pa.array(places, pa.int64()))
        found = find_frames(keys, self.options.limits.depth)
        nowhere = pc.indices_nonzero(pc.is_null(keys)).to_pylist()
        errors |= {places[i]: e for i, e in found.errors.items()}
        errors |= {places[i]: malformed_reject("it has neither a key nor a value") for i in nowhere}
        for group in found.groups:
            rows = places if group.rows is None else [places[i] for i in group.rows]
            reader = self.readers.get_key_reader(group.schema, table)
            if isinstance(reader, Reject):
                errors |= dict.fromkeys(rows, reader)
                continue
            delete: Any = copy(reader.blank)
            delete.op = Op.DELETE.value
            yield (
                rows,
                self._decode_block(select_records(raw, rows), reader, ([delete] * len(rows), {}), [NO_PAYLOAD] * len(rows)),
            )
