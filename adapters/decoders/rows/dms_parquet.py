"""Rows of AWS DMS's Parquet files on S3: the records that `transport: files` makes of them.

`{"schema":{"Op":"string","id":"int64"},"payload":{"_file":1634499804349,"_row":1,"Op":"U","id":1}}`

Types are those of the file. Operations are as in CSV: column `Op` (`operation_column`) contains `I`, `U` or `D`
(`operations`); full-load rows without it are reads. Files and the rows in them define the order.
"""

from __future__ import annotations

import pyarrow as pa

from replicator.domain.change import ERROR, OFFSET
from replicator.domain.table import TableSpec

from ..common.row_files import add_line, describe_location
from ..options import DmsParquetOptions
from .decoder import RowsDecoder


class DmsParquetDecoder(RowsDecoder):
    """`ports.decoder.Decoder` of rows of DMS's Parquet files. `options` as in `DmsParquetOptions`; raises ConfigProblem that
    names every wrong one."""

    OPTIONS = DmsParquetOptions

    def route(self, raw: pa.Table) -> pa.Table:
        return add_line(super().route(raw), "error", raw["offset"], describe_location)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        whole = super().decode(raw, table)
        return add_line(whole, ERROR, whole[OFFSET], describe_location)
