"""Separates rows that fit the columns of a PostgreSQL table from rows that do not, before the server reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR
from replicator.domain.errors import Reject, RejectCode

from ...arrow.conform import conform_rows
from ...postgres.types import ColumnConversion

Inside = Callable[[pa.ChunkedArray], pa.ChunkedArray]


def conform_to_columns(
    rows: pa.Table, fits: Mapping[str, ColumnConversion], *, careful: bool
) -> tuple[pa.Table, list[pa.Table]]:
    """`rows` with the types of `fits`, and the rows that do not fit, with `_error`.

    `careful`: the server refused a row, so faults that it does not name are searched, too.
    """
    good, bad = conform_rows(rows, pa.schema([pa.field(name, fit.arrow) for name, fit in fits.items()]))
    rejects = [bad]
    for name, inside, fault in _find_faults(good, fits, careful):
        kept = inside(good[name])
        sentence = f"the value of column {name!r} {fault}"
        rejects.append(to_rejects(good.filter(pc.invert(kept)), str(Reject(RejectCode.OUT_OF_RANGE, sentence))))
        good = good.filter(kept)
    return good, [rows for rows in rejects if rows.num_rows]


def to_rejects(rows: pa.Table, sentence: str) -> pa.Table:
    """`rows` as rejects with one reason."""
    return rows.append_column(ERROR, pa.repeat(pa.scalar(sentence), rows.num_rows))


def _find_faults(rows: pa.Table, fits: Mapping[str, ColumnConversion], careful: bool) -> Iterator[tuple[str, Inside, str]]:
    """Faults that the server would hide by truncating a value. With `careful`, also the faults that it does not
    name."""
    for name, fit in fits.items():
        if fit.length is not None:
            fault = f"is longer than the {fit.length} characters the target takes"
            yield name, partial(_is_within_length, fit.length), fault
        if careful and pa.types.is_string(rows[name].type):
            yield name, _has_no_nul, "holds a NUL character, which PostgreSQL does not keep"


def _is_within_length(length: int, column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = column if pa.types.is_string(column.type) else column.cast(pa.string())
    return pc.fill_null(pc.less_equal(pc.utf8_length(text), length), True)


def _has_no_nul(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.invert(pc.match_substring(column, "\0")), True)
