"""The position of a record in files of rows, encoded in its offset."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

ROW_BITS = 30
"""Bits of an offset that hold the line number in a numbered file. The bits above hold the file number."""


def describe_line(offset: int) -> str:
    """Line and file number of an offset, as text for error messages."""
    number, line = offset >> ROW_BITS, offset & (1 << ROW_BITS) - 1
    return f"line {line} of file {number}" if number else f"line {line} of the file"


def add_line(frame: pa.Table, error: str, offsets: pa.ChunkedArray, where: Callable[[int], str]) -> pa.Table:
    """`frame` with the position of each record appended to its text in the column `error`, once. Texts stay as they are
    if `where` returns an empty text."""
    said = frame[error]
    if said.null_count == len(said):
        return frame
    pairs = zip(said.to_pylist(), offsets.to_pylist(), strict=True)
    whole = [text if text is None else _append_place(text, where(at)) for text, at in pairs]
    return frame.set_column(frame.schema.get_field_index(error), frame.schema.field(error), pa.array(whole, pa.string()))


def _append_place(text: str, place: str) -> str:
    return text if not place or text.endswith(f" ({place})") else f"{text} ({place})"
