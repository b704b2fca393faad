"""Where in files of rows a record stands, which its offset tells."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

ROW_BITS = 30
"""Of the offset of a row in a numbered file: the number of its line."""


def describe_line(offset: int) -> str:
    """As which line of which file, by the number in its name."""
    number, line = offset >> ROW_BITS, offset & (1 << ROW_BITS) - 1
    return f"line {line} of file {number}" if number else f"line {line} of the file"


def add_line(frame: pa.Table, error: str, offsets: pa.ChunkedArray, where: Callable[[int], str]) -> pa.Table:
    """`frame` with where its record stands said behind every text in the column `error`, once; nothing where `where` has
    nothing to say."""
    said = frame[error]
    if said.null_count == len(said):
        return frame
    pairs = zip(said.to_pylist(), offsets.to_pylist(), strict=True)
    whole = [text if text is None else _append_place(text, where(at)) for text, at in pairs]
    return frame.set_column(frame.schema.get_field_index(error), frame.schema.field(error), pa.array(whole, pa.string()))


def _append_place(text: str, place: str) -> str:
    return text if not place or text.endswith(f" ({place})") else f"{text} ({place})"
