"""Parquet files as records: each row is a JSON object with the types of its columns, for decoder `dms_parquet`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem

from ....decoders.common.dms_rows import KIND, LOAD, OF_LOAD, PARQUET_SEQUENCE, to_sequence
from ..archive_records import ArchiveRecord
from ..file_format import LONGEST, Number
from ..file_list import ArchiveFile, Place
from ..immutable.typed_rows import refuse_columns, slice_to_json
from .csv_format import refuse_full
from .file_list import list_files
from .file_names import find_table, parse_name


class DmsParquetFormat:
    """`FileFormat` of Parquet files with the operation in `operation_column`."""

    suffixes: tuple[str, ...] = (".parquet",)
    growing = divisible = False
    deep = True
    longest = LONGEST

    def __init__(self, operation_column: str) -> None:
        self._operation = operation_column

    def files(self, path: Place) -> list[ArchiveFile]:
        """See `FileFormat.files` and `file_list.list_files`."""
        return list_files(path, self.suffixes)

    def lines(self, _: Iterable[bytes]) -> Iterator[bytes]:
        """See `FileFormat.lines`: not used for Parquet."""
        return iter(())

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
        """See `FileFormat.record`: not used for Parquet."""

    def frame(self, file: ArchiveFile, chunk: pa.RecordBatch, first: int) -> pa.RecordBatch:
        name, count = parse_name(file.path), chunk.num_rows
        refuse_full(file, name, first + count - 1)
        offsets = [name.first + first + row for row in range(count)]
        columns = {
            "topic": pa.repeat(pa.scalar(find_table(file.path)), count),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([name.time] * count, pa.int64()).cast(RAW.field("timestamp").type),
            "headers": pa.array([[{"name": KIND, "value": name.kind.encode()}]] * count, RAW.field("headers").type),
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(self._encode_rows(chunk, offsets, name.kind), pa.binary()),
        }
        return pa.record_batch([columns[n] for n in RAW.names], schema=RAW)

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `FileFormat.refuse`: refuses unsupported column types, duplicate names and reserved names."""
        refuse_columns(file, schema, "Leave the column out in the mappings of the DMS task, or convert it there.")
        if set(PARQUET_SEQUENCE) & set(schema.names):
            raise ConfigProblem(f"{file.path} has a column {' or '.join(PARQUET_SEQUENCE)}, which are not free")

    def _encode_rows(self, chunk: pa.RecordBatch, offsets: list[int], kind: str) -> list[bytes]:
        prefix, columns = slice_to_json(chunk)
        if kind == LOAD:
            said = columns.get(self._operation, [None] * len(offsets))
            columns[self._operation] = [OF_LOAD if one in (None, "") else one for one in said]
        encode, names = msgspec.json.Encoder().encode, list(columns)
        own = [dict(zip(PARQUET_SEQUENCE, to_sequence(offset), strict=True)) for offset in offsets]
        for told, cells in zip(own, zip(*columns.values(), strict=True), strict=True):
            told.update(zip(names, cells, strict=True))
        return [prefix + encode(told) + b"}" for told in own]
