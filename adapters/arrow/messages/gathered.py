"""What many messages say, gathered from a few at a time: what few of them become stays near to the processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from replicator.domain.change import Op

from .message import Said
from .typed import TypedRows, Values


class Gathered(NamedTuple):
    """Messages one after the other. `of`: which message a row is of, None where each has one. `moved`: rows whose key was
    another one before. The others as in `Said`."""

    ops: Sequence[Op]
    rows: int
    of: Sequence[int] | None
    moved: Sequence[int]
    columns: Mapping[str, Values]
    at: pa.Array
    tx: pa.Array
    orders: Sequence[pa.Array]


def of_few(said: Said, reader: TypedRows) -> Gathered:
    """What these messages say."""
    columns, moved = reader.values(said.rows), reader.moved(said.rows, said.olds)
    return Gathered(said.ops, len(said.rows), said.of, moved, columns, said.at, said.tx, said.orders)


def together(parts: Sequence[Gathered]) -> Gathered:
    """All of them, of which there is one at least."""
    if len(parts) == 1:
        return parts[0]
    rows = list(accumulate((part.rows for part in parts), initial=0))
    messages = accumulate((len(part.ops) for part in parts), initial=0)
    of = None
    if any(part.of is not None for part in parts):
        of = [first + one for part, first in zip(parts, messages, strict=False) for one in part.of or range(part.rows)]
    return Gathered(
        ops=[op for part in parts for op in part.ops],
        rows=rows[-1],
        of=of,
        moved=_shifted([part.moved for part in parts], rows),
        columns={name: _column([part.columns[name] for part in parts], rows) for name in parts[0].columns},
        at=pa.concat_arrays([part.at for part in parts]),
        tx=pa.concat_arrays([part.tx for part in parts]),
        orders=[pa.concat_arrays(orders) for orders in zip(*(part.orders for part in parts), strict=True)],
    )


def _column(parts: Sequence[Values], rows: Sequence[int]) -> Values:
    return Values(
        pa.concat_arrays([part.array for part in parts]),
        _shifted([part.unset for part in parts], rows),
        _shifted([part.bad for part in parts], rows),
    )


def _shifted(places: Sequence[Sequence[int]], rows: Sequence[int]) -> Sequence[int]:
    """Places in parts as places in the whole; `rows` is where each part begins."""
    return [first + one for some, first in zip(places, rows, strict=False) for one in some] if any(places) else ()
