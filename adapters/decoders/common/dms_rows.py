"""Rows of AWS DMS files: record headers, offsets and the CSV dialect, shared by source and decoder."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

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
NONE = "none"


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


def _check_sign(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text in "\r\n\0":
        raise ValueError("must be one ASCII character, and no line end")
    return text


Sign = Annotated[str, AfterValidator(_check_sign)]
Quote = Annotated[Sign | None, BeforeValidator(lambda said: None if said == NONE else said)]


class CsvDialect(BaseModel):
    """The DMS endpoint settings for CSV.

    - `quote`: None or `none` if nothing is quoted (`Rfc4180=false`).
    - `null_value`: the unquoted text that means NULL (`CsvNullValue`).
    - `unsent_value`: the text for a value that was not sent (`CsvNoSupValue`), if any.
    - `header`: files begin with a header row (`AddColumnName`).
    - `inserts_only`: files of changes may lack operations; all rows are inserts then (`CdcInsertsOnly`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    delimiter: Sign = ","
    quote: Quote = '"'
    escape: Sign | None = None
    null_value: str = ""
    unsent_value: str | None = None
    header: bool = False
    inserts_only: bool = False

    @model_validator(mode="after")
    def _check_signs(self) -> CsvDialect:
        said = [sign for sign in (self.delimiter, self.quote, self.escape) if sign is not None]
        if len(set(said)) < len(said):
            raise ValueError("delimiter, quote and escape must differ")
        if self.null_value == self.unsent_value:
            raise ValueError("null_value and unsent_value must differ")
        return self

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
