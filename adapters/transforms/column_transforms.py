"""Column transforms of a lane (`domain.transform.columns.ColumnTransforms`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, KEEP_EXISTING, OLD_KEY, OP, UNCHANGED, Op
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.expr import Expr
from replicator.domain.table import TableSpec
from replicator.domain.transform.columns import METADATA, AddedColumn, ColumnRule, ColumnTransforms
from replicator.domain.transform.expressions import resolve_expression

from ..arrow.masks import mask_values
from .expressions import ExpressionRows, cast_values, combine_arrays, first_reasons, lossy_cast_reasons

Columns = dict[str, pa.ChunkedArray]
NO_LISTS = pa.list_(pa.string())


def transform_columns(
    columns: Mapping[str, pa.ChunkedArray], rules: ColumnTransforms, table: TableSpec, lacking: pa.ChunkedArray | None = None
) -> Columns:
    """The columns of a changes frame after the transforms. `table` is the result of `ColumnTransforms.apply_to`.
    `lacking`: names of missing values, also of columns that are left out; by default those in `columns`."""
    lacking = columns[UNCHANGED] if lacking is None else lacking
    out, deletes = dict(columns), pc.equal(columns[OP], Op.DELETE.value)
    for name, _ in rules.rules:
        out.pop(name, None)
    unknown: dict[str, pa.ChunkedArray] = {}
    for name, rule in rules.rules:
        if rule.drop or name not in columns:
            continue
        now, column = rules.get_new_name(name), columns[name]
        out[now], lost = _change_column(column, rule)
        if lost is not None:
            past = pc.and_(lost, deletes)
            unknown |= {now: past} if now not in table.keys and pc.any(past).as_py() else {}
            lost = lost if now in table.keys else pc.and_not(lost, deletes)
            out[ERROR] = _add_error(out[ERROR], lost, too_large_reject(name, rule.cast))
    for name, added in rules.additions:
        kind = table.column(name).type
        if added.expression is None:
            out[name], lost = _add_column(columns, added)
            if lost is not None:
                out[ERROR] = _add_error(out[ERROR], pc.and_not(lost, deletes), too_large_reject(name, kind))
            continue
        keys = [rules.get_source_name(key) for key in table.keys]
        computed_column = compute_column(columns, name, added.expression, kind, keys=keys, lacking=lacking)
        out[name], out[ERROR] = computed_column.values, pc.coalesce(out[ERROR], computed_column.errors)
        unknown |= {name: computed_column.unchanged} if pc.any(computed_column.unchanged).as_py() else {}
    if OLD_KEY in columns:
        out[OLD_KEY] = _transform_old_keys(columns[OLD_KEY], rules)
    out[UNCHANGED] = _transform_name_lists(columns[UNCHANGED], rules.get_new_name, unknown)
    return out


def _add_error(errors: pa.ChunkedArray, where: pa.ChunkedArray, why: Reject) -> pa.ChunkedArray:
    """The errors, with this one added where `where` is true and there is none yet."""
    return pc.coalesce(errors, pc.if_else(where, pa.scalar(str(why)), pa.scalar(None, pa.string())))


def too_large_reject(name: str, kind: pa.DataType | None) -> Reject:
    """The reject of a change with a value that its type in the target cannot hold."""
    return Reject(
        RejectCode.OUT_OF_RANGE,
        f"the value of column {name!r} cannot become {kind} without loss, which 'columns' of its table asks for; choose a "
        "type that holds it",
    )


def _change_column(values: pa.ChunkedArray, rule: ColumnRule) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    if rule.mask is not None:
        values = mask_values(values, rule.mask)
    if rule.cast is None or values.type == rule.cast:
        return values, None
    cast, lost = cast_values(values, rule.cast)
    return cast, lost if pc.any(lost).as_py() else None


def _add_column(
    columns: Mapping[str, pa.ChunkedArray], added: AddedColumn
) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    """See `_change_column`. A truncate has no values."""
    has_values = pc.not_equal(columns[OP], Op.TRUNCATE.value)
    if added.metadata:
        name, kind = METADATA[added.metadata]
        values = columns[name]
    else:
        values = pa.chunked_array([pa.repeat(pa.scalar(added.constant), len(has_values))])
        kind = values.type
    return _change_column(pc.if_else(has_values, values, pa.scalar(None, kind)), ColumnRule(cast=added.cast))


def _transform_old_keys(old: pa.ChunkedArray, rules: ColumnTransforms) -> pa.ChunkedArray:
    whole = old.combine_chunks() if old.num_chunks else pa.array([], old.type)
    names = [rules.get_new_name(field.name) for field in old.type]
    parts = [_change_column(pa.chunked_array([pc.struct_field(whole, f.name)]), rules.get_rule(f.name))[0] for f in old.type]
    arrays = [part.combine_chunks() for part in parts]
    return pa.chunked_array([pa.StructArray.from_arrays(arrays, names, mask=pc.is_null(whole))])


def _transform_name_lists(
    lists: pa.ChunkedArray, now: Callable[[str], str], unknown: Mapping[str, pa.ChunkedArray]
) -> pa.ChunkedArray:
    """The names of missing values after renaming, and of values that a delete lost; null if there are none."""
    if lists.null_count == len(lists) and not unknown:
        return lists
    missing = [_rename_names(names, now) for names in lists.to_pylist()]
    for name, mask in unknown.items():
        for index in pc.indices_nonzero(mask).to_pylist():
            # `KEEP_EXISTING` is only correct for changes that sent all their values.
            missing[index] = sorted([*(other for other in missing[index] or () if other != KEEP_EXISTING), name])
    return pa.chunked_array([pa.array(missing, NO_LISTS)])


def _rename_names(names: Sequence[str] | None, now: Callable[[str], str]) -> list[str] | None:
    """The empty name (`change.KEEP_EXISTING`) stays, and so does an empty list."""
    if not names:
        return None if names is None else []
    return sorted(now(name) if name else name for name in names if not name or now(name)) or None


# Computed columns.


def find_upserts(operations: pa.ChunkedArray) -> pa.ChunkedArray:
    """A mask of the changes that write a row. Conditions and expressions apply to these: a delete contains old values."""
    return pc.is_in(operations, value_set=pa.array([Op.CREATE.value, Op.UPDATE.value, Op.READ.value]))


@dataclass(frozen=True)
class ComputedColumn:
    """One column, NULL for deletes and truncates. `errors`: the reject of each change, or null. `unchanged`: upserts that
    sent no input of the column."""

    values: pa.Array
    errors: pa.Array
    unchanged: pa.Array


def compute_column(
    columns: Mapping[str, pa.ChunkedArray],
    name: str,
    expression: Expr,
    kind: pa.DataType,
    *,
    keys: Collection[str],
    lacking: pa.ChunkedArray,
) -> ComputedColumn:
    """The column `name` of type `kind`, from changes with these columns and the key `keys`. `lacking`: missing values."""
    node = resolve_expression(expression, {column_name: column.type for column_name, column in columns.items()})
    values, failed = ExpressionRows(columns, len(lacking)).evaluate(node)
    if values.type != kind:
        cast, lost = cast_values(pa.chunked_array([values]), kind)
        values = combine_arrays(cast, kind)
        failed = first_reasons(failed, lossy_cast_reasons(combine_arrays(lost, pa.bool_()), kind))
    upsert = find_upserts(columns[OP]).combine_chunks()
    partly, wholly = _find_missing(columns, node.columns, keys, lacking)
    errors = pc.if_else(pc.and_(upsert, pc.and_not(partly, wholly)), str(missing_input_reject(name)), None)
    computed = pc.and_not(upsert, partly)
    if failed is not None:
        reasons = failed.dictionary_encode()
        texts = [why and str(expression_failure_reject(name, why)) for why in reasons.dictionary.to_pylist()]
        failures = pa.array(texts, pa.string()).take(reasons.indices)
        errors = pc.coalesce(errors, pc.if_else(computed, failures, None))
    return ComputedColumn(pc.if_else(computed, values, pa.scalar(None, kind)), errors, pc.and_(upsert, wholly))


def _find_missing(
    columns: Mapping[str, pa.ChunkedArray], inputs: Collection[str], keys: Collection[str], lacking: pa.ChunkedArray
) -> tuple[pa.Array, pa.Array]:
    """The changes without some of the inputs, and the changes among them without any new input."""
    if lacking.null_count == len(lacking) or not inputs:
        return _no_values(len(lacking)), _no_values(len(lacking))
    lists = lacking.to_pylist()
    of_values = {name for name in inputs if name not in keys}
    partly = pa.array([names is not None and not of_values.isdisjoint(names) for names in lists], pa.bool_())
    wholly = pa.array([names is not None and of_values.issubset(names) for names in lists], pa.bool_())
    if OLD_KEY in columns and len(of_values) < len(inputs):
        wholly = pc.and_(wholly, pc.is_null(columns[OLD_KEY]).combine_chunks())
    return partly, pc.and_(wholly, partly)


def _no_values(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(False), count)


def missing_input_reject(name: str) -> Reject:
    """The reject of an upsert with only a part of the inputs."""
    return Reject(
        RejectCode.INCOMPLETE,
        f"an input of column {name!r} is computed of was not sent; have the source send whole rows for updates",
    )


def expression_failure_reject(name: str, why: str) -> Reject:
    """The reject of an upsert for which the expression fails."""
    return Reject(
        RejectCode.OUT_OF_RANGE,
        f"column {name!r} cannot be computed: {why}; correct the row, or the expression in 'columns'",
    )
