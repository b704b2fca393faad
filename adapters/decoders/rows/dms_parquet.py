"""Rows of AWS DMS's Parquet files on S3: the records that `transport: files` makes of them.

`{"schema":{"Op":"string","id":"int64"},"payload":{"_file":1634499804349,"_row":1,"Op":"U","id":1}}`

Types are those of the file. Operations are as in CSV: column `Op` (`operation_column`) contains `I`, `U` or `D`
(`operations`); full-load rows without it are reads. Files and the rows in them define the order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

import pyarrow as pa
from pydantic import Field

from replicator.domain.change import ERROR, OFFSET
from replicator.domain.table import TableSpec

from ..common import row_options as common
from ..common.dms_rows import OF_LOAD, PARQUET_SEQUENCE, describe_place
from ..common.line_offsets import add_line
from .decoder import RowsDecoder
from .options import RowsDecoderOptions


class DmsOptions(RowsDecoderOptions):
    """`RowsDecoderOptions` with the defaults of DMS."""

    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {"create": ("I",), "update": ("U",), "delete": ("D",)}

    UNSAID: ClassVar[Collection[str]] = (OF_LOAD,)

    operation_column: str = Field("Op", min_length=1)
    sequence_columns: tuple[str, ...] = PARQUET_SEQUENCE

    def list_meanings(self) -> Mapping[str, tuple[str, ...]]:
        """See `RowOptions.list_meanings`. Adds the value that the transport writes into full-load rows."""
        said = super().list_meanings()
        return {**said, "read": (*said.get("read", ()), OF_LOAD)}


class DmsParquetDecoder(RowsDecoder):
    """`ports.decoder.Decoder` of rows of DMS's Parquet files. `options` as in `DmsOptions`; raises ConfigProblem that
    names every wrong one."""

    @staticmethod
    def read_options(options: Mapping[str, object]) -> RowsDecoderOptions:
        return common.read_options(DmsOptions, options, "dms_parquet")

    def route(self, raw: pa.Table) -> pa.Table:
        return add_line(super().route(raw), "error", raw["offset"], describe_place)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        whole = super().decode(raw, table)
        return add_line(whole, ERROR, whole[OFFSET], describe_place)
