"""Records without a value as deletes of their key, for tables with `tombstones: delete`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from ...arrow.record_errors import UNREADABLE
from ...arrow.record_limits import find_table_entry
from ..json.schema_frames import split_record
from ..json.type_names import find_type_reader
from .options import RowsDecoderOptions

Scalar = str | int | float | bool


class TombstoneRows:
    """Converts tombstones to rows with the delete operation, so that later steps handle one kind of delete."""

    def __init__(self, options: RowsDecoderOptions) -> None:
        self._options = options
        meanings = options.list_meanings().get("delete") if options.inserts_only and not options.sequence_columns else None
        self._delete = meanings[0] if meanings else None

    def to_rows(self, raw: pa.Table) -> pa.Table:
        """The records. A record with a key but no value becomes a delete if its table has `tombstones: delete`."""
        if self._delete is None or not raw["value"].null_count:
            return raw
        names = ("topic", "key", "value")
        values = [
            self._to_row(topic, key) if value is None and key is not None else value
            for topic, key, value in zip(*(raw[name].to_pylist() for name in names), strict=True)
        ]
        place = raw.schema.get_field_index("value")
        return raw.set_column(place, raw.schema.field(place), pa.array(values, pa.binary()))

    def _to_row(self, topic: str, key: bytes) -> bytes | None:
        """The deleted row; None if the table does not use tombstones. An invalid key is returned, and rejected as a
        row."""
        keys, columns = self._options.keys_of(topic), self._options.columns_of(topic)
        if not keys or not columns or find_table_entry(self._list_modes(), topic) != "delete":
            return None
        try:
            fields = self._read_key_fields(key, keys, columns)
            return msgspec.json.encode({self._options.operation_column: self._delete, **fields})
        except UNREADABLE:
            return key

    def _read_key_fields(self, key: bytes, keys: tuple[str, ...], columns: Mapping[str, str]) -> Mapping[str, object]:
        """The fields of a key that is an object, or the value of a single key column. Text does not have to be JSON."""
        try:
            payload = split_record(key, self._options.limits.depth)[1]
        except UNREADABLE:
            payload = key
        if payload.lstrip().startswith(b"{") or len(keys) > 1:
            return msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        is_text = keys[0] in columns and find_type_reader(columns[keys[0]]).type == pa.string()
        if is_text and not payload.startswith(b'"'):
            return {keys[0]: payload.decode()}
        return {keys[0]: msgspec.json.decode(payload, type=Scalar)}

    def _list_modes(self) -> Mapping[str, str]:
        modes = self._options.tombstones
        return {"*": modes} if isinstance(modes, str) else modes
