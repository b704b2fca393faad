"""What a lane makes of its table's changes before its policy sees them (`domain.shape`)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import (
    ERROR,
    IF_THERE,
    MOVED_FROM,
    MOVED_TO,
    OP,
    UNSENT,
    Op,
    changes_schema,
    sequence_columns,
)
from replicator.domain.chosen import Chosen
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.shape import Shape
from replicator.domain.table import TableSpec

from .conditions import holds, unsent
from .elements import elements

WRITTEN = pa.array([Op.CREATE.value, Op.UPDATE.value, Op.READ.value])
"""The operations of which a condition is asked: what a delete brings is of the past."""

NO_ERROR = pa.scalar(None, pa.string())


def shaped(changes: pa.Table, shape: Shape, table: TableSpec) -> pa.Table:
    """The changes frame of `table`, which is what `shape.of` made of the table of `changes`: in their order, without those
    that are filtered; `_error` is set on rejects."""
    sequence = {name: _element(changes, name) for name in shape.sequence_by}
    errors = _errors(changes, sequence)
    changes = _operations(changes, shape)
    own = [changes[name] for name in sequence_columns(table.sequence - len(sequence))]
    columns = dict(zip(changes.column_names, changes.columns, strict=True))
    columns |= dict(zip(sequence_columns(table.sequence), [*sequence.values(), *own], strict=True))
    lacking = _still_unsent(changes[UNSENT], shape.columns)
    columns |= {ERROR: errors, UNSENT: _with_kept(changes, lacking, table.keeping) if table.keeping else lacking}
    if table.soft_deletes:
        columns[UNSENT] = _without_values(columns[OP], columns[UNSENT])
    schema = changes_schema(table)
    frame = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    return frame.filter(_kept(changes)) if shape.without_deletes else frame


def _element(changes: pa.Table, name: str) -> pa.ChunkedArray:
    """The elements of one column, null where it was not sent."""
    lacking, found = unsent(changes, name), elements(changes[name])
    return found if lacking is None else pc.if_else(lacking, pa.scalar(None, found.type), found)


def _errors(changes: pa.Table, sequence: dict[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    """Why a change has no place in the order; null where it has one."""
    errors = pa.chunked_array([pa.nulls(changes.num_rows, pa.string())])
    for name, found in sequence.items():
        if found.null_count:
            errors = pc.coalesce(errors, pc.if_else(pc.is_valid(found), NO_ERROR, _reasons(changes, name)))
    return errors


def _reasons(changes: pa.Table, name: str) -> pa.ChunkedArray:
    """What is to be said of a change without an element of this column."""
    truncate, lacking = pc.equal(changes[OP], Op.TRUNCATE.value), unsent(changes, name)
    beyond = pc.is_valid(changes[name])
    if lacking is not None:
        beyond = pc.and_(beyond, pc.invert(lacking))
    why = pc.if_else(truncate, str(no_place_of_truncate(name)), str(no_place(name)))
    return pc.if_else(beyond, str(beyond_range(name)), why)


def no_place(name: str) -> Reject:
    """The reason of a change that does not hold a value of a column of `sequence_by`."""
    return Reject(
        RejectCode.SEQUENCE,
        f"column {name!r}, which 'sequence_by' orders changes by, is NULL or was not sent; have the source fill it, and "
        "send whole rows for updates and deletes, or order by another column",
    )


def no_place_of_truncate(name: str) -> Reject:
    """The reason of a truncate of the source's own, which holds no row."""
    return Reject(
        RejectCode.SEQUENCE,
        f"a truncate holds no value of column {name!r}, which 'sequence_by' orders changes by; remove the target's rows by "
        "hand, or load it anew",
    )


def beyond_range(name: str) -> Reject:
    """The reason of a time that has no element."""
    return Reject(
        RejectCode.OUT_OF_RANGE, f"the time in column {name!r}, which 'sequence_by' orders changes by, is beyond 64 bits"
    )


def _operations(changes: pa.Table, shape: Shape) -> pa.Table:
    """The changes as the conditions tell what they are; both are asked of the change as it came."""
    asked = pc.is_in(changes[OP], value_set=WRITTEN)
    gone = [pc.and_(asked, holds(changes, c)) if c is not None else None for c in (shape.deletes, shape.truncates)]
    for op, mask in zip((Op.DELETE, Op.TRUNCATE), gone, strict=True):
        if mask is not None and pc.any(mask).as_py():
            changes = _become(changes, op, mask)
    return changes


def _become(changes: pa.Table, op: Op, mask: pa.ChunkedArray) -> pa.Table:
    """A delete has no old key; a truncate has no values at all."""
    voids = [MOVED_FROM] if op == Op.DELETE else [MOVED_FROM, UNSENT, *_values(changes)]
    changes = _put(changes, OP, pc.if_else(mask, pa.scalar(op.value), changes[OP]))
    for name in voids:
        if name in changes.column_names:
            changes = _put(changes, name, _where(pc.invert(mask), changes[name]))
    return changes


def _values(changes: pa.Table) -> list[str]:
    """The columns of the table itself."""
    names: list[str] = changes.column_names
    return names[names.index(MOVED_TO) + 1 :]


def _where(mask: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """`column`, null where `mask` is not true; for every type that there is."""
    places = pc.if_else(mask, pa.array(range(len(column)), pa.int64()), pa.scalar(None, pa.int64()))
    return column.take(places)


def _with_kept(changes: pa.Table, lacking: pa.ChunkedArray, names: Sequence[str]) -> pa.ChunkedArray:
    """The names of the columns that an upsert left NULL, beside those that it did not send."""
    patterns: list[tuple[str, ...]] = [()]
    codes = pa.repeat(pa.scalar(0, pa.int64()), changes.num_rows)
    written = pc.is_in(changes[OP], value_set=WRITTEN)
    for name in names:
        null = pc.and_(written, pc.is_null(changes[name])).combine_chunks().cast(pa.int64())
        both = pc.add(pc.multiply(codes, 2), null).dictionary_encode()
        patterns = [patterns[v // 2] + ((name,) if v % 2 else ()) for v in both.dictionary.to_pylist()]
        codes = both.indices.cast(pa.int64())
    if not any(patterns):
        return lacking
    of_nulls = pa.array([[IF_THERE, *found] if found else None for found in patterns], pa.list_(pa.string())).take(codes)
    if lacking.null_count == len(lacking):
        return pa.chunked_array([of_nulls])
    pairs = zip(lacking.to_pylist(), of_nulls.to_pylist(), strict=True)
    both_kinds = [nulls if unsent is None else [*unsent, *_others(nulls, unsent)] for unsent, nulls in pairs]
    return pa.chunked_array([pa.array(both_kinds, pa.list_(pa.string()))])


def _others(names: list[str] | None, known: list[str]) -> list[str]:
    return [name for name in names or () if name != IF_THERE and name not in known]


def _without_values(ops: pa.ChunkedArray, lists: pa.ChunkedArray) -> pa.ChunkedArray:
    """A delete that leaves its row sends no values: what it brings need not be what the row held."""
    ours = pa.scalar([IF_THERE], pa.list_(pa.string()))
    return pc.if_else(pc.equal(ops, Op.DELETE.value), ours, lists)


def _put(changes: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return changes.set_column(changes.column_names.index(name), name, column)


def _kept(changes: pa.Table) -> pa.ChunkedArray:
    """True but for deletes and truncates; the delete half of a key change stays."""
    gone = pc.and_(pc.equal(changes[OP], Op.DELETE.value), pc.invert(pc.fill_null(changes[MOVED_TO], False)))
    return pc.invert(pc.or_(gone, pc.equal(changes[OP], Op.TRUNCATE.value)))


def _still_unsent(lists: pa.ChunkedArray, columns: Chosen | None) -> pa.ChunkedArray:
    """The names of the columns that there still are; null where no other was lacking."""
    if columns is None or lists.null_count == len(lists):
        return lists
    left = [names and ([name for name in names if name in columns] or None) for names in lists.to_pylist()]
    return pa.chunked_array([pa.array(left, pa.list_(pa.string()))])
