"""Rows in files, for sources and decoders: the dialect of CSV, the position of a record in its file, and the rows of DMS."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pydantic import BeforeValidator

from replicator.ports.options import Character, CsvSettings

NONE = "none"


Quote = Annotated[Character | None, BeforeValidator(lambda sign: None if sign == NONE else sign)]


class CsvDialect(CsvSettings):
    """The dialect of CSV files, as its readers need it. `quote`: None or `none` if nothing is quoted."""

    quote: Quote = '"'  # type: ignore[assignment]

    @classmethod
    def from_settings(cls, settings: CsvSettings | None) -> CsvDialect:
        """The dialect of a section of the config."""
        return cls() if settings is None else cls.model_validate(settings.model_dump())

    @property
    def signs(self) -> tuple[str, ...]:
        """The characters that can make a text more than one row. A text without them is one row."""
        return ("\n", "\r", *(sign for sign in (self.quote, self.escape) if sign))

    @cached_property
    def row_pattern(self) -> str:
        """The regular expression (RE2) of one complete row: an RFC 4180 record, in which unquoted fields may contain
        quotes, as readers allow. Rows that match can be concatenated, because none continues in the next."""
        delimiter, quote = escape_sign(self.delimiter), escape_sign(self.quote) if self.quote else ""
        escape = escape_sign(self.escape) if self.escape else ""
        escaped = rf"|{escape}[^\r\n]" if escape else ""
        plain = rf"(?:(?:[^{quote}{delimiter}{escape}\r\n]{escaped})(?:[^{delimiter}{escape}\r\n]{escaped})*)?"
        within = rf"|{escape}(?s:.)" if escape else ""
        quoted = rf"{quote}(?:[^{quote}{escape}]|{quote}{quote}{within})*{quote}"
        field = f"(?:{quoted}|{plain})" if quote else plain
        return rf"\A{field}(?:{delimiter}{field})*\z"

    @property
    def parse_options(self) -> dict[str, object]:
        """The same as options of `pyarrow.csv.ParseOptions`."""
        return {"delimiter": self.delimiter, "quote_char": self.quote or False, "escape_char": self.escape or False}

    def convert_options(self, names: list[str], types: object) -> csv.ConvertOptions:
        """Options that read every column as text. Only an unquoted null value is NULL."""
        return csv.ConvertOptions(
            column_types=dict.fromkeys(names, types),
            null_values=[self.null_value],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,
        )


def escape_sign(sign: str) -> str:
    """A regular expression that matches the character literally."""
    return rf"\x{ord(sign):02x}"


# The position of a record in files of rows, encoded in its offset.


ROW_BITS = 30
"""Bits of an offset that hold the line number in a numbered file. The bits above hold the file number."""


def describe_line(offset: int) -> str:
    """Line and file number of an offset, as text for error messages."""
    number, line = offset >> ROW_BITS, offset & (1 << ROW_BITS) - 1
    return f"line {line} of file {number}" if number else f"line {line} of the file"


def add_line(frame: pa.Table, error: str, offsets: pa.ChunkedArray, where: Callable[[int], str]) -> pa.Table:
    """`frame` with the position of each record appended to its text in the column `error`, once. Texts stay as they are
    if `where` returns an empty text."""
    errors = frame[error]
    if errors.null_count == len(errors):
        return frame
    whole = []
    for text, offset in zip(errors.to_pylist(), offsets.to_pylist(), strict=True):
        location = "" if text is None else where(offset)
        is_missing = location and not text.endswith(f" ({location})")
        whole.append(f"{text} ({location})" if is_missing else text)
    return frame.set_column(frame.schema.get_field_index(error), frame.schema.field(error), pa.array(whole, pa.string()))


# Rows of AWS DMS files: record headers and offsets, shared by source and decoder.


COLUMNS, KIND = "dms.columns", "dms.kind"
"""Headers of a record: the header row of its file, if any, and the kind of the file (`load` or `cdc`)."""
LOAD, CDC = "load", "cdc"
DMS_ROW_BITS = 21
"""Bits of a change's offset that hold the row number in its file. The bits above hold the file's time in milliseconds."""
LOAD_BITS = 32
"""Bits of a full-load row's offset that hold the row number. The bits above hold the file number."""
TRANSACTIONS = "CDC_TXN-"
"""File name prefix of files with the changes of several tables, one transaction after the other."""
FIRST_CHANGE = int(datetime(2005, 1, 1, tzinfo=UTC).timestamp() * 1000) << DMS_ROW_BITS
"""The lowest offset of a change: no file of changes is older. All of full loads (2**28 files of 2**32 rows) are below."""
PARQUET_SEQUENCE = ("_file", "_row")
"""Names of the two sequence elements in records of Parquet files."""
OF_LOAD = "(full load)"
"""The operation, in such records, of full-load rows that have none."""


def split_offsets(offsets: pa.Array, bits: int) -> list[pa.Array]:
    """Two sequence elements from offsets: the bits above the lowest `bits`, and these."""
    return [pc.shift_right(offsets, bits), pc.bit_wise_and(offsets, (1 << bits) - 1)]


def to_sequence(offset: int) -> tuple[int, int]:
    """The two sequence elements of the record with this offset."""
    return offset >> DMS_ROW_BITS, offset & (1 << DMS_ROW_BITS) - 1


def is_first_row(offsets: pa.Array) -> pa.Array:
    """True for records that are the first row of their file."""
    of_load, of_changes = (pc.bit_wise_and(offsets, (1 << bits) - 1) for bits in (LOAD_BITS, DMS_ROW_BITS))
    return pc.equal(pc.if_else(pc.less(offsets, FIRST_CHANGE), of_load, of_changes), 1)


def describe_location(offset: int) -> str:
    """File and row of the record with this offset. Empty for a stand-in of an invalid line: its text already names the
    line, and its offset is below those of DMS."""
    if not offset >> LOAD_BITS:
        return ""
    if offset < FIRST_CHANGE:
        return f"row {offset & (1 << LOAD_BITS) - 1} of LOAD{offset >> LOAD_BITS:08X}"
    time = offset >> DMS_ROW_BITS
    at = datetime.fromtimestamp(time // 1000, UTC)
    return f"row {offset & (1 << DMS_ROW_BITS) - 1} of {at:%Y%m%d-%H%M%S}{time % 1000:03}"
