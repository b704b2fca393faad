"""CSV rows to columns of text and back. All rows of one width are parsed at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from replicator.domain.errors import Reject
from replicator.domain.plain_values import format_count

from ...arrow.frame_slices import list_true_indices, read_bytes
from ...arrow.record_errors import malformed_reject
from ..common.row_files import CsvDialect, escape_sign

LARGEST = 256 * 1024 * 1024
"""Bytes that are parsed at once: offsets in a text column have 31 bits."""
BOM = b"\xef\xbb\xbf"
EMPTY = malformed_reject("its value is empty")
NOT_UTF8 = malformed_reject("the record holds bytes that are not UTF-8")
NOT_A_ROW = malformed_reject("the record is not one row: its quotes do not close, or a line ends outside of them")


@dataclass(frozen=True)
class CsvCells:
    """Rows of one width, by column. `places`: the indices of their values."""

    places: Sequence[int]
    columns: list[pa.Array]


@dataclass
class SplitRows:
    """Parsed values: rows by width, and rejects by index."""

    parts: list[CsvCells] = field(default_factory=list)
    errors: dict[int, Reject] = field(default_factory=dict)


def split_rows(values: pa.Array, widths: tuple[int, ...], dialect: CsvDialect) -> SplitRows:
    """Parse every value as a row of one of `widths`, or reject it. Values do not affect each other."""
    rows = SplitRows(errors=_find_broken(values, dialect))
    indices: Sequence[int] = [i for i in range(len(values)) if i not in rows.errors] if rows.errors else range(len(values))
    rest = _select_values(values, indices)
    order = widths
    if len(widths) > 1 and len(rest) and _read_rows(rest.slice(0, 1), widths[0], dialect)[1]:
        order = widths[::-1]  # The first row has the second width. A file has rows of one width.
    wrong: dict[int, int] = {}
    for width in order:
        if not len(rest):
            break
        columns, wrong = _read_rows(rest, width, dialect)
        if len(wrong) < len(rest):
            rows.parts.append(CsvCells([p for i, p in enumerate(indices) if i not in wrong] if wrong else indices, columns))
        rest, indices = _select_values(rest, list(wrong)), [indices[i] for i in wrong]
    expected = " or ".join(map(str, widths))
    for index, width in zip(indices, wrong.values(), strict=True):
        rows.errors[index] = (
            malformed_reject(f"the row has {format_count(width, 'column')}, expected: {expected}") if width else NOT_A_ROW
        )
    return rows


def read_names(header: bytes, dialect: CsvDialect) -> list[str | None] | Reject:
    """The fields of one row of any width; null is a missing name."""
    value = pa.array([header.removeprefix(BOM)], pa.binary())
    for reject in _find_broken(value, dialect).values():
        return reject
    columns, wrong = _read_rows(value, 1, dialect)
    if wrong:
        columns, wrong = _read_rows(value, wrong[0], dialect) if wrong[0] else (columns, wrong)
    return NOT_A_ROW if wrong else [column[0].as_py() for column in columns]


def _select_values(values: pa.Array, indices: Sequence[int]) -> pa.Array:
    return values if len(indices) == len(values) else values.take(pa.array(indices, pa.int64()))


def _find_broken(values: pa.Array, dialect: CsvDialect) -> dict[int, Reject]:
    """The rejects of values that are not one row of text."""
    errors = dict.fromkeys(list_true_indices(pc.less(pc.fill_null(pc.binary_length(values), 0), 1)), EMPTY)
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        errors |= {i: NOT_UTF8 for i, value in enumerate(values.to_pylist()) if value and not _is_text(value)}
    text = read_bytes(values)  # All bytes are searched at once: few files have any of these signs.
    signs = [sign for sign in dialect.signs if sign.encode() in text]
    if signs:
        if len(signs) == 1:
            has_sign = pc.match_substring(values, signs[0])
        else:
            has_sign = pc.match_substring_regex(values, f"[{''.join(map(escape_sign, signs))}]")
        indices = pc.indices_nonzero(has_sign)
        rows = pc.match_substring_regex(values.take(indices), dialect.row_pattern)
        for index in indices.filter(pc.invert(rows)).to_pylist():
            errors.setdefault(index, NOT_A_ROW)
    return errors


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_rows(values: pa.Array, width: int, dialect: CsvDialect) -> tuple[list[pa.Array], dict[int, int]]:
    """The columns of rows with `width`, and the width of all other rows by index; 0 for unreadable rows."""
    if values.nbytes <= LARGEST or len(values) == 1:
        try:
            return _read_block(values, width, dialect)
        except pa.ArrowException:
            if len(values) == 1:
                return [pa.nulls(0, pa.string())] * width, {0: 0}
    half = len(values) // 2
    first, wrong = _read_rows(values.slice(0, half), width, dialect)
    second, more = _read_rows(values.slice(half), width, dialect)
    columns = [pa.concat_arrays(pair) for pair in zip(first, second, strict=True)]
    return columns, wrong | {half + index: width for index, width in more.items()}


def _read_block(values: pa.Array, width: int, dialect: CsvDialect) -> tuple[list[pa.Array], dict[int, int]]:
    wrong: dict[int, int] = {}

    def skip(row: Any) -> str:
        wrong[row.number - 1] = row.actual_columns
        return "skip"

    # One row per line. The reader removes a byte order mark at the start of the text, so one that belongs to the first
    # value is doubled. The last line is ended, because the reader treats an empty last field as quoted otherwise.
    if values[0].as_py().startswith(BOM):
        values = pa.concat_arrays([pa.array([BOM + values[0].as_py()], values.type), values.slice(1)])
    lines = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values.cast(pa.large_binary()))
    text: bytes = pc.binary_join(lines, pa.scalar(b"\n", pa.large_binary()))[0].as_buffer().to_pybytes() + b"\n"
    names = [f"c{i}" for i in range(width)]
    table = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
        parse_options=csv.ParseOptions(
            **dialect.parse_options, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=skip
        ),
        convert_options=dialect.convert_options(names, pa.string()),
    )
    if table.num_rows + len(wrong) != len(values):
        raise pa.ArrowInvalid("the block has another number of rows than values")
    return [c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in table.columns], wrong


# Texts to CSV rows.


LINE_ENDS = frozenset("\r\n")


def to_row(texts: Iterable[str | None], dialect: CsvDialect) -> bytes:
    """One row that reads back as these texts. If the dialect has no quotes, all texts must be writable."""
    return dialect.delimiter.join(_to_field(text, dialect) for text in texts).encode()


def is_writable(text: str, dialect: CsvDialect) -> bool:
    """True if a text can be a field."""
    if dialect.quote:
        return True
    return not LINE_ENDS & set(text) and (dialect.escape is not None or dialect.delimiter not in text)


def _to_field(text: str | None, dialect: CsvDialect) -> str:
    """The field of a text. Null is not quoted."""
    if text is None:
        return _escape(dialect.null_value, dialect)
    if not dialect.quote:
        return _escape(text, dialect)
    inside = text.replace(dialect.escape, dialect.escape * 2) if dialect.escape else text
    return f"{dialect.quote}{inside.replace(dialect.quote, dialect.quote * 2)}{dialect.quote}"


def _escape(text: str, dialect: CsvDialect) -> str:
    if dialect.escape is None:
        return text
    whole = text.replace(dialect.escape, dialect.escape * 2)
    return whole.replace(dialect.delimiter, dialect.escape + dialect.delimiter)
