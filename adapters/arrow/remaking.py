"""What a lane makes of single columns (`domain.columns.Remade`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, IF_THERE, MOVED_FROM, OP, UNSENT, Op
from replicator.domain.columns import METADATA, Added, Changed, Remade
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import TableSpec

from .casts import cast
from .computing import computed
from .masks import masked

Columns = dict[str, pa.ChunkedArray]
NO_LISTS = pa.list_(pa.string())


def remade(
    columns: Mapping[str, pa.ChunkedArray], rules: Remade, table: TableSpec, lacking: pa.ChunkedArray | None = None
) -> Columns:
    """The columns of a changes frame of `table`, which is what `rules.of` made of the table that they are of. `lacking`:
    the names of what was not sent, of columns that are left out too; by default those that `columns` say."""
    lacking = columns[UNSENT] if lacking is None else lacking
    out, deletes = dict(columns), pc.equal(columns[OP], Op.DELETE.value)
    for name, _ in rules.changed:
        out.pop(name, None)
    unknown: dict[str, pa.ChunkedArray] = {}
    for name, rule in rules.changed:
        if rule.drop or name not in columns:
            continue
        now, known = rules.now(name), columns[name]
        out[now], lost = _changed(known, rule)
        if lost is not None:
            past = pc.and_(lost, deletes)
            unknown |= {now: past} if now not in table.keys and pc.any(past).as_py() else {}
            lost = lost if now in table.keys else pc.and_not(lost, deletes)
            out[ERROR] = _blamed(out[ERROR], lost, beyond(name, rule.cast))
    for name, added in rules.added:
        kind = table.column(name).type
        if added.expression is None:
            out[name], lost = _added(columns, added)
            if lost is not None:
                why = pa.scalar(str(beyond(name, kind)))
                out[ERROR] = pc.coalesce(
                    out[ERROR], pc.if_else(pc.and_not(lost, deletes), why, pa.scalar(None, pa.string()))
                )
            continue
        keys = [rules.before(key) for key in table.keys]
        made = computed(columns, name, added.expression, kind, keys=keys, lacking=lacking)
        out[name], out[ERROR] = made.values, pc.coalesce(out[ERROR], made.errors)
        unknown |= {name: made.unsent} if pc.any(made.unsent).as_py() else {}
    if MOVED_FROM in columns:
        out[MOVED_FROM] = _old_keys(columns[MOVED_FROM], rules)
    out[UNSENT] = _lists(columns[UNSENT], rules.now, unknown)
    return out


def _blamed(errors: pa.ChunkedArray, where: pa.ChunkedArray, why: Reject) -> pa.ChunkedArray:
    """The errors, with this one where it is so and there is none yet."""
    return pc.coalesce(errors, pc.if_else(where, pa.scalar(str(why)), pa.scalar(None, pa.string())))


def beyond(name: str, kind: pa.DataType | None) -> Reject:
    """The reason of a change with a value that its type in the target cannot hold."""
    return Reject(
        RejectCode.OUT_OF_RANGE,
        f"the value of column {name!r} cannot become {kind} without loss, which 'columns' of its table asks for; choose a "
        "type that holds it",
    )


def _changed(values: pa.ChunkedArray, rule: Changed) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    if rule.mask is not None:
        values = masked(values, rule.mask)
    if rule.cast is None or values.type == rule.cast:
        return values, None
    done, lost = cast(values, rule.cast)
    return done, lost if pc.any(lost).as_py() else None


def _added(columns: Mapping[str, pa.ChunkedArray], added: Added) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    """As `_changed`. A truncate has no values."""
    written = pc.not_equal(columns[OP], Op.TRUNCATE.value)
    if added.metadata:
        place, known = METADATA[added.metadata]
        values = columns[place]
    else:
        values = pa.chunked_array([pa.repeat(pa.scalar(added.constant), len(written))])
        known = values.type
    return _changed(pc.if_else(written, values, pa.scalar(None, known)), Changed(cast=added.cast))


def _old_keys(old: pa.ChunkedArray, rules: Remade) -> pa.ChunkedArray:
    """The keys that rows had before, as theirs are made."""
    whole = old.combine_chunks() if old.num_chunks else pa.array([], old.type)
    names = [rules.now(field.name) for field in old.type]
    parts = [_changed(pa.chunked_array([pc.struct_field(whole, f.name)]), rules.rule_of(f.name))[0] for f in old.type]
    arrays = [part.combine_chunks() for part in parts]
    made = pa.StructArray.from_arrays(arrays, names, mask=pc.is_null(whole))
    return pa.chunked_array([made])


def _lists(lists: pa.ChunkedArray, now: Callable[[str], str], unknown: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    """The names of what was not sent, as they are from then on, and of what a delete lost; null where there is none."""
    if lists.null_count == len(lists) and not unknown:
        return lists
    found = [_renamed(names, now) for names in lists.to_pylist()]
    for name, places in unknown.items():
        for place in pc.indices_nonzero(places).to_pylist():
            # That a NULL changes nothing can be said of changes that sent all their values.
            found[place] = sorted([*(other for other in found[place] or () if other != IF_THERE), name])
    return pa.chunked_array([pa.array(found, NO_LISTS)])


def _renamed(names: Sequence[str] | None, now: Callable[[str], str]) -> list[str] | None:
    """An empty name stands for itself (`change.IF_THERE`), and an empty list stays one."""
    if not names:
        return None if names is None else []
    return sorted(now(name) if name else name for name in names if not name or now(name)) or None
