"""Rows of AWS DMS files: record headers and offsets, shared by source and decoder."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS, KIND = "dms.columns", "dms.kind"
"""Headers of a record: the header row of its file, if any, and the kind of the file (`load` or `cdc`)."""
LOAD, CDC = "load", "cdc"
ROW_BITS = 21
"""Bits of a change's offset that hold the row number in its file. The bits above hold the file's time in milliseconds."""
LOAD_BITS = 32
"""Bits of a full-load row's offset that hold the row number. The bits above hold the file number."""
TRANSACTIONS = "CDC_TXN-"
"""File name prefix of files with the changes of several tables, one transaction after the other."""
FIRST_CHANGE = int(datetime(2005, 1, 1, tzinfo=UTC).timestamp() * 1000) << ROW_BITS
"""The lowest offset of a change: no file of changes is older. All of full loads (2**28 files of 2**32 rows) are below."""
PARQUET_SEQUENCE = ("_file", "_row")
"""Names of the two sequence elements in records of Parquet files."""
OF_LOAD = "(full load)"
"""The operation, in such records, of full-load rows that have none."""


def to_sequence(offset: int) -> tuple[int, int]:
    """The two sequence elements of the record with this offset."""
    return offset >> ROW_BITS, offset & (1 << ROW_BITS) - 1


def is_first_row(offsets: pa.Array) -> pa.Array:
    """True for records that are the first row of their file."""
    of_load, of_changes = (pc.bit_wise_and(offsets, (1 << bits) - 1) for bits in (LOAD_BITS, ROW_BITS))
    return pc.equal(pc.if_else(pc.less(offsets, FIRST_CHANGE), of_load, of_changes), 1)


def describe_place(offset: int) -> str:
    """File and row of the record with this offset. Empty for a stand-in of an invalid line: its text already names the
    line, and its offset is below those of DMS."""
    if not offset >> LOAD_BITS:
        return ""
    if offset < FIRST_CHANGE:
        return f"row {offset & (1 << LOAD_BITS) - 1} of LOAD{offset >> LOAD_BITS:08X}"
    time = offset >> ROW_BITS
    moment = datetime.fromtimestamp(time // 1000, UTC)
    return f"row {offset & (1 << ROW_BITS) - 1} of {moment:%Y%m%d-%H%M%S}{time % 1000:03}"
