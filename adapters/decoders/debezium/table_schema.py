"""Table specifications from records."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import refuse_frame_names
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import Column, TableSpec

from ...arrow.record_errors import UNREADABLE, ValueMisfit
from ..json.schema_frames import extract_schema, find_prefix, split_record
from ..options import DebeziumOptions
from .documents import ID, has_documents, refuse_undeclared
from .records import PayloadReaders, schema_readers
from .router import DebeziumRouter
from .schema import ConnectSchema
from .sequence import ELEMENTS, check_positions


class TableLearner:
    """Builds table specifications from the schemas in records, or from declared columns."""

    def __init__(self, options: DebeziumOptions, routing: DebeziumRouter, readers: PayloadReaders) -> None:
        self._options, self._routing, self._readers = options, routing, readers

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        key = _first_value(sample["key"])
        sequence = 1 if self._options.deletes_by_tombstone(table) else ELEMENTS
        documents = has_documents(sample["value"], self._options.limits.depth)
        if documents:
            refuse_undeclared(table, self._options.columns_of(table) or {})
        columns = self._declared_columns(table) if documents else self._find_columns(sample["value"], key, table)
        has_place, by_commit = check_positions(sample["value"], self._options.limits.depth)
        unordered = sequence > 1 and not has_place
        counted = sequence > 1 and not unordered
        by_commit = counted and by_commit
        spec = TableSpec(
            table, columns, (), sequence, fingerprint, counted=counted, unordered=unordered, by_commit=by_commit
        )
        refuse_frame_names(spec)
        declared = self._options.keys_of(table) or ((ID,) if documents else None)
        return self._options.to_read_types(spec.with_keys(tuple(declared)) if declared else self._add_key(spec, key))

    def _find_columns(self, values: pa.ChunkedArray, key: bytes | None, table: str) -> tuple[Column, ...]:
        row = self._find_row_schema(values) if values.null_count < len(values) else self._find_key_schema(key)
        try:
            return self._declared_columns(table) if row is None else describe_columns(row)
        except ValueMisfit as error:
            raise Fatal(
                f"table {table} cannot be represented: {error}",
                next_step="Leave the column out with the connector's column.exclude.list, or change its type there.",
            ) from None

    def _find_row_schema(self, values: pa.ChunkedArray) -> ConnectSchema | None:
        """The row schema of the first readable record; None for records without a schema. Partly readable records are
        rejected when they are decoded, and must not block others."""
        for text in (value.as_py() for value in values if value.is_valid):
            prefix = find_prefix(text, self._options.limits.depth)
            try:
                schema = extract_schema(prefix) if prefix else split_record(text, self._options.limits.depth)[0]
            except UNREADABLE:
                continue
            return self._routing.read_schema(schema).row if schema is not None else None
        return None

    def _find_key_schema(self, key: bytes | None) -> ConnectSchema | None:
        """The key's schema, if all records are tombstones."""
        return self._routing.read_key(key).struct if key is not None else None

    def _declared_columns(self, table: str) -> tuple[Column, ...]:
        nodes = self._readers.declared_readers(table)
        if not nodes:
            raise ConfigProblem(
                f"the events of table {table} carry no schema, and none is declared for it",
                next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns with their "
                "Arrow types; or set `value.converter.schemas.enable=true` in the connector.",
            )
        return tuple(Column(name, node.type) for name, node in nodes.items())

    def _add_key(self, spec: TableSpec, key: bytes | None) -> TableSpec:
        """`spec` with the key columns of the message key, in their order. With truncates only, of the last routed key."""
        key_schema = self._routing.last_key(spec.name, spec.fingerprint) if key is None else self._routing.read_key(key)
        names = key_schema.names
        missing = [name for name in names if name not in spec.column_names]
        if missing:
            raise ConfigProblem(
                f"the key of table {spec.name} names {missing[0]!r}, which is no column of its rows",
                next_step="Name the columns of its key with `keys: [...]` in this table's entry under `tables`.",
            )
        return spec.with_keys(names)


def describe_columns(row: ConnectSchema) -> tuple[Column, ...]:
    """The columns of a row's schema. Raises ValueMisfit for an unknown type."""
    nodes = schema_readers(row)
    return tuple(Column(f.field or "", nodes[f.field or ""].type, f.optional, f.name or "") for f in row.fields or ())


def _first_value(values: pa.ChunkedArray) -> bytes | None:
    index = pc.index(pc.is_valid(values), True).as_py()
    first: bytes | None = values[index].as_py() if index >= 0 else None
    return first
