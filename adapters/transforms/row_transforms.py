"""Row transforms of a lane, before the policy (`domain.transform.rows`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import (
    ERROR,
    KEEP_EXISTING,
    KEY_CHANGE_DELETE,
    OLD_KEY,
    OP,
    UNCHANGED,
    Op,
    changes_schema,
    sequence_columns,
)
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.expr import Expr
from replicator.domain.patterns import ColumnSelection
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.expressions import list_columns
from replicator.domain.transform.rows import RowTransforms

from ..apply.conform import cast_column
from ..arrow.sequence_elements import to_elements
from .column_transforms import find_upserts, transform_columns
from .expressions import Texts, evaluate_condition, mask_missing, unknown_condition_reject


def transform_rows(changes: pa.Table, shape: RowTransforms, table: TableSpec) -> pa.Table:
    """The changes frame of `table`, the result of `RowTransforms.apply_to`: the changes in their order, without filtered
    ones, and with `_error` for rejects."""
    changes = _add_lane_columns(changes, shape)
    sequence = {name: _to_element(changes, name) for name in shape.sequence_by}
    errors = _find_order_errors(changes, sequence)
    changes, errors = _apply_conditions(changes, shape, errors)
    mask = _mask_rows(changes) if shape.without_deletes else None
    if shape.where is not None:
        out, errors = _mask_filtered(changes, shape.where, errors)
        if shape.rows_leave:
            changes = _replace_operations(changes, Op.DELETE, out) if pc.any(out).as_py() else changes
        else:
            stays = pc.or_(pc.invert(out), pc.is_valid(errors))
            mask = stays if mask is None else pc.and_(mask, stays)
    own = [changes[name] for name in sequence_columns(table.sequence - len(sequence))]
    columns = dict(zip(changes.column_names, changes.columns, strict=True))
    columns |= dict(zip(sequence_columns(table.sequence), [*sequence.values(), *own], strict=True))
    lacking = _list_still_missing(changes[UNCHANGED], shape.columns)
    names = {now: shape.column_transforms.get_source_name(now) for now in (*table.keys, *table.ignore_null)}
    if shape.target_columns is not None:
        kept_columns = {c.name: c for c in shape.target_columns if shape.columns is None or c.name in shape.columns}
        lacking = _list_still_missing(lacking, {*kept_columns, KEEP_EXISTING})
        errors = _conform_columns(columns, kept_columns, [names[key] for key in table.keys], errors)
    keeping = [names[name] for name in table.ignore_null]
    columns |= {ERROR: errors, UNCHANGED: _add_ignored_nulls(changes, lacking, keeping) if keeping else lacking}
    if shape.column_transforms:
        columns = transform_columns(columns, shape.column_transforms, table, changes[UNCHANGED])
    if table.soft_deletes:
        columns[UNCHANGED] = _clear_delete_values(columns[OP], columns[KEY_CHANGE_DELETE], columns[UNCHANGED])
    schema = changes_schema(table)
    frame = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    return frame if mask is None else frame.filter(mask)


def _add_lane_columns(changes: pa.Table, shape: RowTransforms) -> pa.Table:
    """Add missing columns of the lane. Values with an old column name are moved to the new name."""
    for column in shape.target_columns or ():
        if column.name not in changes.column_names:
            changes = changes.append_column(column.name, pa.nulls(changes.num_rows, column.type))
    for old, new in shape.renamed:
        if old in changes.column_names:
            changes = _put_column(changes, new, pc.coalesce(changes[new], cast_exactly(changes[old], changes[new].type)[0]))
            renamed = [
                names and [new if name == old else name for name in names] for names in changes[UNCHANGED].to_pylist()
            ]
            changes = _put_column(changes, UNCHANGED, pa.chunked_array([pa.array(renamed, pa.list_(pa.string()))]))
    return changes


def _conform_columns(
    columns: dict[str, pa.ChunkedArray], by_name: Mapping[str, Column], keys: Sequence[str], errors: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Cast the columns to the lane's types, and add errors for values that do not fit. In deletes only of the key."""
    is_delete = pc.equal(columns[OP], Op.DELETE.value)
    for column in by_name.values():
        values = columns[column.name]
        if values.type == column.type:
            continue
        columns[column.name], failing = cast_exactly(values, column.type)
        if failing is not None:
            bad = failing if column.name in keys else pc.and_(failing, pc.invert(is_delete))
            errors = pc.coalesce(errors, pc.if_else(bad, str(misfit_reject(column)), None))
    if OLD_KEY not in columns or not keys:
        return errors
    # The old keys have the types of the key columns.
    old_keys = columns[OLD_KEY]
    kind = pa.struct([field.with_type(by_name[field.name].type) for field in old_keys.type])
    if old_keys.type == kind:
        return errors
    parts = []
    for i, field in enumerate(kind):
        part, failing = cast_exactly(pc.struct_field(old_keys, i), field.type)
        parts.append(part.combine_chunks())
        if failing is not None:
            errors = pc.coalesce(errors, pc.if_else(failing, str(misfit_reject(by_name[field.name])), None))
    none = pc.is_null(old_keys).combine_chunks()
    columns[OLD_KEY] = pa.chunked_array([pa.StructArray.from_arrays(parts, fields=list(kind), mask=none)])
    return errors


def misfit_reject(column: Column) -> Reject:
    """The reject of a change with a value that does not fit the lane's column."""
    return Reject(
        RejectCode.OUT_OF_RANGE,
        f"the value of column {column.name!r} does not fit the type {column.type}, which the target keeps although the "
        "source has changed it",
    )


def _to_element(changes: pa.Table, name: str) -> pa.ChunkedArray:
    """The sequence elements of one column, null for missing values."""
    lacking, element = mask_missing(changes, name), to_elements(changes[name])
    return element if lacking is None else pc.if_else(lacking, pa.scalar(None, element.type), element)


def _find_order_errors(changes: pa.Table, sequence: dict[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    """Errors of changes without a sequence; null for changes with one."""
    errors = pa.chunked_array([pa.nulls(changes.num_rows, pa.string())])
    for name, element in sequence.items():
        if not element.null_count:
            continue
        is_truncate, lacking = pc.equal(changes[OP], Op.TRUNCATE.value), mask_missing(changes, name)
        beyond = pc.is_valid(changes[name])
        if lacking is not None:
            beyond = pc.and_(beyond, pc.invert(lacking))
        why = pc.if_else(is_truncate, str(missing_truncate_order_reject(name)), str(missing_order_reject(name)))
        why = pc.if_else(beyond, str(out_of_range_reject(name)), why)
        errors = pc.coalesce(errors, pc.if_else(pc.is_valid(element), None, why))
    return errors


def missing_order_reject(name: str) -> Reject:
    """The reject of a change without a value in a column of `sequence_by`."""
    return Reject(
        RejectCode.SEQUENCE,
        f"column {name!r} of 'sequence_by' is NULL or was not sent. Make the source fill it, and send whole rows for "
        "updates and deletes, or order by another column",
    )


def missing_truncate_order_reject(name: str) -> Reject:
    """The reject of a truncate from the source, which has no row."""
    return Reject(
        RejectCode.SEQUENCE,
        f"a truncate has no value of column {name!r} of 'sequence_by'. Remove the target's rows by hand, or load it again",
    )


def out_of_range_reject(name: str) -> Reject:
    """The reject of a time without an element."""
    return Reject(
        RejectCode.OUT_OF_RANGE, f"the time in column {name!r}, which 'sequence_by' orders changes by, is beyond 64 bits"
    )


def _apply_conditions(changes: pa.Table, shape: RowTransforms, errors: pa.ChunkedArray) -> tuple[pa.Table, pa.ChunkedArray]:
    """The changes with operations replaced by the conditions. Both conditions apply to the original change."""
    is_write, original_changes = find_upserts(changes[OP]), changes
    conditions = (("apply_as_deletes", shape.deletes, Op.DELETE), ("apply_as_truncates", shape.truncates, Op.TRUNCATE))
    for key, condition, op in conditions:
        if condition is None:
            continue
        mask, failures = evaluate_condition(original_changes, condition)
        errors, mask = _add_condition_errors(errors, key, failures, is_write), pc.and_(is_write, mask)
        if pc.any(mask).as_py():
            changes = _replace_operations(changes, op, mask)
    return changes, errors


def _mask_filtered(changes: pa.Table, where: Expr, errors: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The upserts for which the condition does not hold, and the errors with those that cannot be checked."""
    is_write = find_upserts(changes[OP])
    errors = pc.coalesce(errors, _missing_input_errors(changes, where))
    mask, failures = evaluate_condition(changes, where)
    return pc.and_(is_write, pc.invert(mask)), _add_condition_errors(errors, "where", failures, is_write)


def _add_condition_errors(errors: pa.ChunkedArray, key: str, failures: Texts, is_write: pa.ChunkedArray) -> pa.ChunkedArray:
    """The errors, with those of changes for which a condition failed."""
    if failures is None:
        return errors
    reasons = failures.dictionary_encode()
    codes = reasons.dictionary.to_pylist()
    texts = pa.array([why and str(unknown_condition_reject(key, why)) for why in codes], pa.string())
    return pc.coalesce(errors, pc.if_else(is_write, texts.take(reasons.indices), None))


def _missing_input_errors(changes: pa.Table, where: Expr) -> pa.ChunkedArray:
    """Errors of upserts with missing inputs of the condition; otherwise null."""
    errors = pa.chunked_array([pa.nulls(changes.num_rows, pa.string())])
    is_write = find_upserts(changes[OP])
    for name in sorted(list_columns(where)):
        lacking = mask_missing(changes, name)
        if lacking is not None:
            errors = pc.coalesce(
                errors, pc.if_else(pc.and_(is_write, lacking), str(missing_where_column_reject(name)), None)
            )
    return errors


def missing_where_column_reject(name: str) -> Reject:
    """The reject of an upsert with a missing value of a column in `where`."""
    return Reject(
        RejectCode.INCOMPLETE,
        f"column {name!r}, which 'where' asks for, was not sent; have the source send whole rows for updates, or name other "
        "columns in 'where'",
    )


def _replace_operations(changes: pa.Table, op: Op, mask: pa.ChunkedArray) -> pa.Table:
    """Replace the operation. A delete has no old key; a truncate has no values."""
    voids = [OLD_KEY] if op == Op.DELETE else [OLD_KEY, UNCHANGED, *_list_value_columns(changes)]
    changes = _put_column(changes, OP, pc.if_else(mask, pa.scalar(op.value), changes[OP]))
    # `take` makes a null for a null index, in columns of every type.
    indices = pc.if_else(mask, pa.scalar(None, pa.int64()), pa.array(range(changes.num_rows), pa.int64()))
    for name in voids:
        if name in changes.column_names:
            changes = _put_column(changes, name, changes[name].take(indices))
    return changes


def _list_value_columns(changes: pa.Table) -> list[str]:
    """The columns of the table, without bookkeeping columns."""
    names: list[str] = changes.column_names
    return names[names.index(KEY_CHANGE_DELETE) + 1 :]


def _add_ignored_nulls(changes: pa.Table, lacking: pa.ChunkedArray, names: Sequence[str]) -> pa.ChunkedArray:
    """The names of NULL columns of upserts, added to the names of missing values."""
    patterns: list[tuple[str, ...]] = [()]
    codes = pa.repeat(pa.scalar(0, pa.int64()), changes.num_rows)
    is_write = find_upserts(changes[OP])
    for name in names:
        null = pc.and_(is_write, pc.is_null(changes[name])).combine_chunks().cast(pa.int64())
        both = pc.add(pc.multiply(codes, 2), null).dictionary_encode()
        patterns = [patterns[v // 2] + ((name,) if v % 2 else ()) for v in both.dictionary.to_pylist()]
        codes = both.indices.cast(pa.int64())
    if not any(patterns):
        return lacking
    of_nulls = pa.array(
        [[KEEP_EXISTING, *pattern] if pattern else None for pattern in patterns], pa.list_(pa.string())
    ).take(codes)
    if lacking.null_count == len(lacking):
        return pa.chunked_array([of_nulls])
    pairs = zip(lacking.to_pylist(), of_nulls.to_pylist(), strict=True)
    both_kinds = []
    for missing, nulls in pairs:
        others = [name for name in nulls or () if name != KEEP_EXISTING and name not in (missing or ())]
        both_kinds.append(nulls if missing is None else [*missing, *others])
    return pa.chunked_array([pa.array(both_kinds, pa.list_(pa.string()))])


def _clear_delete_values(ops: pa.ChunkedArray, leaves: pa.ChunkedArray, lists: pa.ChunkedArray) -> pa.ChunkedArray:
    """A soft delete sends no values, because its image may differ from the row. The missing and doubtful values of the
    delete half of a key change stay listed."""
    is_delete = pc.equal(ops, Op.DELETE.value)
    has_list = pc.and_(pc.and_(is_delete, pc.fill_null(leaves, False)), pc.is_valid(lists))
    marked = pc.if_else(is_delete, pa.scalar([KEEP_EXISTING], pa.list_(pa.string())), lists)
    if not pc.any(has_list).as_py():
        return marked
    name_lists = marked.to_pylist()
    for i in pc.indices_nonzero(has_list).to_pylist():
        name_lists[i] = [KEEP_EXISTING, *lists[i].as_py()]
    return pa.chunked_array([pa.array(name_lists, pa.list_(pa.string()))])


def _put_column(changes: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return changes.set_column(changes.column_names.index(name), name, column)


def _mask_rows(changes: pa.Table) -> pa.ChunkedArray:
    """True for all changes but deletes and truncates. The delete halves of key changes are kept."""
    is_delete = pc.and_(pc.equal(changes[OP], Op.DELETE.value), pc.invert(pc.fill_null(changes[KEY_CHANGE_DELETE], False)))
    return pc.invert(pc.or_(is_delete, pc.equal(changes[OP], Op.TRUNCATE.value)))


def _list_still_missing(lists: pa.ChunkedArray, columns: ColumnSelection | set[str] | None) -> pa.ChunkedArray:
    """The names of missing values in the selected columns; null if only other columns have some."""
    if columns is None or lists.null_count == len(lists):
        return lists
    missing = [names and ([name for name in names if name in columns] or None) for names in lists.to_pylist()]
    return pa.chunked_array([pa.array(missing, pa.list_(pa.string()))])


def cast_exactly(column: pa.ChunkedArray, to: pa.DataType) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    """`column` cast to `to`, with NULL for values that do not fit, and a mask of these; None if all values fit."""
    if pa.types.is_integer(column.type) and pa.types.is_decimal(to):
        # Arrow compares the precision with the integer type's widest value, not with the values in the array.
        column = pc.cast(column, pa.decimal128(20, 0))
    cast, failing = cast_column(column, to)
    if not failing:
        return cast, None
    indices = set(failing)
    bad = pa.chunked_array([pa.array([i in indices for i in range(len(column))], pa.bool_())])
    return cast, pc.and_(bad, pc.is_valid(column))
