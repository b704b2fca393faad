"""Raw frames from an event log, in the form in which sources return them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

PLACE = ("topic", "partition", "offset")
FEW = 512
"""Consecutive records below which slicing does not pay: decoders copy frames of shorter chunks into one chunk
(`arrow.frame_slices`)."""


def payload_bytes(frame: pa.Table) -> int:
    """Bytes of keys and values."""
    return sum(pc.sum(pc.binary_length(frame[name])).as_py() or 0 for name in ("key", "value"))


def sort_records(frame: pa.Table) -> pa.Table:
    """Records ordered by topic, partition and offset. Copies only if necessary, because records may be large: ordered
    frames, and frames of long ordered ranges as in a compacted file, are only sliced."""
    if _is_sorted(frame):
        return frame
    firsts = [0, *(last + 1 for last in _find_breaks(frame, _is_next))]
    if len(firsts) * FEW <= frame.num_rows:
        stretches = [frame.slice(first, after - first) for first, after in pairwise([*firsts, frame.num_rows])]
        frame = pa.concat_tables(sorted(stretches, key=lambda stretch: _read_place(stretch, 0)))
    return frame if _is_sorted(frame) else frame.sort_by([(name, "ascending") for name in PLACE])


def _is_sorted(frame: pa.Table) -> bool:
    return all(_read_place(frame, last) < _read_place(frame, last + 1) for last in _find_breaks(frame, pc.less_equal))


def _read_place(frame: pa.Table, row: int) -> tuple[str | int, ...]:
    return tuple(frame[name][row].as_py() for name in PLACE)


def _find_breaks(frame: pa.Table, goes_on: Callable[[pa.Array, pa.Array], pa.Array]) -> list[int]:
    """The row numbers before which another partition begins, or an offset does not continue the order."""
    places = [frame[name].combine_chunks() for name in PLACE]
    topics, partitions, offsets = (
        compare(place[:-1], place[1:]) for place, compare in zip(places, (pc.equal, pc.equal, goes_on), strict=True)
    )
    found: list[int] = pc.indices_nonzero(pc.invert(pc.and_(pc.and_(topics, partitions), offsets))).to_pylist()
    return found


def _is_next(before: pa.Array, after: pa.Array) -> pa.Array:
    return pc.equal(pc.add(before, 1), after)


def drop_repeated(frame: pa.Table) -> pa.Table:
    """Ordered records without duplicates: a log may contain a record twice."""
    if frame.num_rows < 2:
        return frame
    same = pa.repeat(pa.scalar(True), frame.num_rows - 1)
    for name in PLACE:
        values = frame[name].combine_chunks()
        same = pc.and_(same, pc.equal(values[1:], values[:-1]))
    if not pc.any(same).as_py():
        return frame
    return frame.filter(pa.concat_arrays([pa.array([True]), pc.invert(same)]))
