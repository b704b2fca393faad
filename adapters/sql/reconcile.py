"""Stage 3 of a plan (reconcile) as SQL: which folded rows apply, which are stale, and which cannot be
completed.

Relations by alias:

- `r`: the rows frame.
- `t`: the target's row of the same identity.
- `o`: the target's row of the old key.
- `l`: the tombstone of the key.

Verdicts: `apply`, `duplicate`, `superseded`, `incomplete`, `late`.
"""

from __future__ import annotations

from collections.abc import Collection

from replicator.domain.change import KEEP_EXISTING, OFFSET, OP, RESET, UNCHANGED, Op
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.policy.late_changes import LatenessLimit
from replicator.domain.policy.plan import (
    CDC_DELETED,
    CDC_DELETED_AT,
    CDC_OP,
    END_AT,
    ApplyPlan,
    DeleteHorizon,
    Truncate,
    cdc_sequence_columns,
    end_sequence_columns,
    last_sequence_columns,
)
from replicator.domain.sequence import Sequence

from ..arrow.key_change import null_counts
from .dialect import Dialect, text_literal
from .fold import was_sent_condition
from .render import render_literal

VERDICT = "_verdict"
APPLY, DUPLICATE, SUPERSEDED, INCOMPLETE, LATE = "apply", "duplicate", "superseded", "incomplete", "late"


def old_key_columns(plan: ApplyPlan) -> tuple[str, ...]:
    """The old key's columns in the rows frame, in the order of the keys: `_from_1` to `_from_<n>`."""
    return tuple(f"_from_{i}" for i in range(1, len(plan.table.keys) + 1))


def reconcile_select(
    plan: ApplyPlan,
    dialect: Dialect,
    *,
    rows: str,
    related: str,
    tombstones: str | None,
    truncated_at: Sequence | None,
    resent: Sequence | None = None,
    lateness: LatenessLimit | None = None,
    keep: tuple[str, ...] = (),
) -> str:
    """Stage 3 as one SELECT: the columns `keep`, the rows frame with completed values, and `_verdict`.

    - `rows`, `related`, `tombstones`: relations as SQL text.
    - `related`: the target's columns, at least for the keys and old keys in `rows`.
    - `tombstones`: key columns and `_cdc_seq_*`, the highest per key.
    - `resent`: see `get_resent_limit`. `lateness`: see `find_lateness_limit`.
    """
    q = dialect.quote_name
    names = [
        "_op",
        *(c.name for c in plan.target),
        UNCHANGED,
        RESET,
        *old_key_columns(plan),
        "_topic",
        "_partition",
        "_offset",
    ]
    columns = [dialect.column("r", name) for name in keep]
    columns += [f"{_value_expression(plan, dialect, name)} AS {q(name)}" for name in names]
    verdict_sql = verdict_expression(
        plan,
        dialect,
        tombstones=tombstones is not None,
        truncated_at=truncated_at,
        related=related,
        resent=resent,
        lateness=lateness,
    )
    return (
        f"SELECT {', '.join(columns)},\n{verdict_sql} AS {q(VERDICT)}\n"
        f"FROM {rows} AS r{join_clauses(plan, dialect, related, tombstones)}"
    )


def join_clauses(plan: ApplyPlan, dialect: Dialect, related: str, tombstones: str | None) -> str:
    """The LEFT JOINs of stage 3. The guard `absent` has none, because it uses EXISTS."""
    c, out, keys = dialect.column, "", plan.table.keys
    if plan.reconcile.guard == "newer":
        same = [f"{c('t', n)} = {c('r', n)}" for n in plan.reconcile.identity]
        out += f"\nLEFT JOIN {related} AS t ON " + " AND ".join(same)
    if plan.reconcile.complete:
        pairs = zip(keys, old_key_columns(plan), strict=True)
        same = [f"{c('o', k)} = {c('r', f)}" for k, f in pairs]
        # The row of the old key is older than the change. A newer row is another row that uses the key now.
        names = cdc_sequence_columns(plan.table.sequence)
        mine, theirs = ([c(relation, n) for n in names] for relation in ("r", "o"))
        is_lower = f"({theirs[0]} IS NULL OR {greater_condition(mine, theirs)})"
        out += f"\nLEFT JOIN {related} AS o ON " + " AND ".join([*same, is_lower])
    if tombstones is not None:
        out += f"\nLEFT JOIN {tombstones} AS l ON " + " AND ".join(f"{c('l', k)} = {c('r', k)}" for k in keys)
    return out


def verdict_expression(
    plan: ApplyPlan,
    dialect: Dialect,
    *,
    tombstones: bool,
    truncated_at: Sequence | None,
    related: str,
    resent: Sequence | None = None,
    lateness: LatenessLimit | None = None,
) -> str:
    """The verdict on a row of `r` as one CASE expression."""
    branches = [*_guard_verdicts(plan, dialect, related, resent)]
    if tombstones:
        branches += _ordering_verdicts(plan, dialect, "l")
    if truncated_at is not None and plan.reconcile.guard == "newer":
        branches.append((_at_or_below_sequence(plan, dialect, truncated_at), SUPERSEDED))
    if lateness is not None:
        branches.append((_late_condition(plan, dialect, lateness, tombstones=tombstones), LATE))
    if plan.reconcile.complete:
        # Values were not sent, and no living row of the old key or of this key can provide them.
        reset = f"COALESCE({dialect.column('r', RESET)}, FALSE)"
        no_old, no_row = (_gone_condition(plan, dialect, relation) for relation in ("o", "t"))
        lacks = f"CASE WHEN {_key_changed_condition(plan, dialect)} THEN {no_old} ELSE ({no_row} OR {reset}) END"
        is_partial = f"{dialect.column('r', OP)} <> 'd' AND {dialect.column('r', UNCHANGED)} IS NOT NULL"
        branches.append((f"{is_partial} AND {lacks}", INCOMPLETE))
    whens = "\n".join(f"  WHEN {when} THEN {text_literal(then)}" for when, then in branches)
    return f"CASE\n{whens}\n  ELSE {text_literal(APPLY)} END"


def _guard_verdicts(plan: ApplyPlan, dialect: Dialect, related: str, resent: Sequence | None) -> list[tuple[str, str]]:
    if plan.reconcile.guard == "newer":
        return _ordering_verdicts(plan, dialect, "t")
    if resent is None:
        return [
            (
                f"EXISTS (SELECT 1 FROM {related} AS t WHERE {_equal_condition(plan, dialect, plan.reconcile.identity)})",
                DUPLICATE,
            )
        ]
    *_, count = sequence = cdc_sequence_columns(plan.table.sequence)
    identity = [n for n in plan.reconcile.identity if n != count]
    mine, c = [dialect.column("r", n) for n in sequence], dialect.column
    alike, order = ", ".join(c("r", n) for n in identity), f"{c('r', count)}, {c('r', OFFSET)}"
    rank = f"row_number() OVER (PARTITION BY {alike} ORDER BY {order})"
    total = f"(SELECT count(*) FROM {related} AS t WHERE {_equal_condition(plan, dialect, identity)})"
    return [
        (f"NOT {greater_condition(mine, [render_constant(v, dialect) for v in resent])} AND {total} >= {rank}", DUPLICATE)
    ]


def _equal_condition(plan: ApplyPlan, dialect: Dialect, names: Collection[str]) -> str:
    """`t` and `r` agree in these columns.

    Plain equality can use an index. Sequences are never null, but values may be, and a truncate has no key.
    """
    never_null = set(cdc_sequence_columns(plan.table.sequence))
    equals = {n: "=" if n in never_null else "IS NOT DISTINCT FROM" for n in names}
    return " AND ".join(f"{dialect.column('t', n)} {sign} {dialect.column('r', n)}" for n, sign in equals.items())


def _ordering_verdicts(plan: ApplyPlan, dialect: Dialect, other: str) -> list[tuple[str, str]]:
    names = cdc_sequence_columns(plan.table.sequence)
    mine, theirs = [dialect.column("r", n) for n in names], [dialect.column(other, n) for n in names]
    equal = " AND ".join(f"{a} = {b}" for a, b in zip(mine, theirs, strict=True))
    return [(equal, DUPLICATE), (greater_condition(theirs, mine), SUPERSEDED)]


def greater_condition(left: list[str], right: list[str]) -> str:
    """`left` > `right`: two tuples of SQL texts, compared from the left."""
    terms = []
    for i in range(len(left)):
        equal = [f"{a} = {b}" for a, b in zip(left[:i], right[:i], strict=True)]
        terms.append(" AND ".join([*equal, f"{left[i]} > {right[i]}"]))
    return "(" + " OR ".join(f"({t})" for t in terms) + ")"


def below_condition(dialect: Dialect, relation: str, names: tuple[str, ...], sequence: Sequence) -> str:
    """The tuple of columns is lower than `sequence`: a truncate at `sequence` clears it."""
    return greater_condition([render_constant(v, dialect) for v in sequence], [dialect.column(relation, n) for n in names])


def not_above_condition(dialect: Dialect, relation: str, names: tuple[str, ...], sequence: Sequence) -> str:
    """The tuple of columns is at or below `sequence`."""
    return (
        f"NOT "
        f"{greater_condition([dialect.column(relation, n) for n in names], [render_constant(v, dialect) for v in sequence])}"
    )


def cleared_condition(plan: ApplyPlan, dialect: Dialect, sequence: Sequence) -> str:
    """A truncate at `sequence` clears the row `t`: it is older, or from before replication started. With soft
    deletes it must also be alive."""
    names = cdc_sequence_columns(plan.table.sequence)
    alive = f"NOT {_marked_condition('t', dialect)} AND " if plan.soft_deletes else ""
    return f"{alive}({dialect.column('t', names[0])} IS NULL OR {below_condition(dialect, 't', names, sequence)})"


def truncate_condition(plan: ApplyPlan, dialect: Dialect, truncate: Sequence) -> str:
    """A truncate lies within the open version `t`, and no upsert of the version lies above it."""
    starts, ends, lasts = version_bounds(plan, dialect)
    at = [render_constant(v, dialect) for v in truncate]
    return f"({ends[0]} IS NULL AND {greater_condition(at, starts)} AND NOT {greater_condition(lasts, at)})"


def version_bounds(plan: ApplyPlan, dialect: Dialect) -> tuple[list[str], list[str], list[str]]:
    """The sequences of the version `t`: its start, its end, and its last upsert."""
    several = (cdc_sequence_columns, end_sequence_columns, last_sequence_columns)
    starts, ends, lasts = ([dialect.column("t", n) for n in names(plan.table.sequence)] for names in several)
    return starts, ends, lasts


def truncate_assignments(plan: ApplyPlan, dialect: Dialect, truncate: Truncate) -> dict[str, str]:
    """The values that a truncate writes into each row that it finds, by quoted column. For scd2 it is the end of the
    version, under soft deletes the mark. Empty: it deletes the rows."""
    at = dialect.instant(truncate.at)
    if plan.history is not None:
        names = [dialect.quote_name(n) for n in end_sequence_columns(plan.table.sequence)]
        ends = [render_constant(value, dialect) for value in truncate.sequence]
        return dict(zip(names, ends, strict=True)) | {dialect.quote_name(END_AT): at}
    if plan.soft_deletes:
        return {dialect.quote_name(CDC_DELETED): "TRUE", dialect.quote_name(CDC_DELETED_AT): at}
    return {}


def truncate_parts(plan: ApplyPlan, dialect: Dialect, truncate: Truncate) -> tuple[str, dict[str, str]]:
    """The condition of the rows `t` that a truncate finds, and `truncate_assignments`."""
    condition = cleared_condition if plan.history is None else truncate_condition
    return condition(plan, dialect, truncate.sequence), truncate_assignments(plan, dialect, truncate)


def render_truncate(plan: ApplyPlan, dialect: Dialect, relation: str, truncate: Truncate) -> str:
    """Deletes the rows of `relation` that a truncate clears: older rows, and rows from before replication started. With
    soft deletes it marks them. For scd2 it ends their open versions."""
    where, assignments = truncate_parts(plan, dialect, truncate)
    if not assignments:
        return f"DELETE FROM {relation} AS t WHERE {where}"
    values = ", ".join(f"{name} = {value}" for name, value in assignments.items())
    return f"UPDATE {relation} AS t SET {values} WHERE {where}"


def purged_condition(plan: ApplyPlan, dialect: Dialect, horizon: DeleteHorizon) -> str:
    """With soft deletes: the row is purged together with the tombstones up to `horizon`.

    A delete marked the row, or a truncate did (the row then keeps its own sequence).
    """
    names = cdc_sequence_columns(plan.table.sequence)
    columns, op = [dialect.quote_name(name) for name in names], dialect.quote_name(CDC_OP)
    highest = [render_constant(v, dialect) for v in horizon.max_sequence]
    by_delete = f"{op} = 'd' AND NOT {greater_condition(columns, highest)}"
    if horizon.truncated is None:
        return f"{dialect.quote_name(CDC_DELETED)} AND {by_delete}"
    older = greater_condition([render_constant(v, dialect) for v in horizon.truncated], columns)
    by_truncate = f"COALESCE({op}, '') <> 'd' AND ({columns[0]} IS NULL OR {older})"
    return f"{dialect.quote_name(CDC_DELETED)} AND ({by_delete} OR {by_truncate})"


def _marked_condition(relation: str, dialect: Dialect) -> str:
    """The row exists and is deleted. A row from before replication started has no mark."""
    return f"COALESCE({dialect.column(relation, CDC_DELETED)}, FALSE)"


def missing_values_reject(names: Collection[str]) -> Reject:
    """The reject of a row without values for `names`. Without names: its changes never sent all columns at once."""
    lacking = ", ".join(names) or "all columns at once"
    return Reject(RejectCode.INCOMPLETE, f"no value was sent for {lacking}, and there is no row to take it from")


def _at_or_below_sequence(plan: ApplyPlan, dialect: Dialect, sequence: Sequence) -> str:
    return not_above_condition(dialect, "r", cdc_sequence_columns(plan.table.sequence), sequence)


def _late_condition(plan: ApplyPlan, dialect: Dialect, lateness: LatenessLimit, *, tombstones: bool) -> str:
    """The change is as old as purged tombstones, and its key has neither a row nor a tombstone."""
    key, old = plan.table.keys[0], _at_or_below_sequence(plan, dialect, lateness.max_purged)
    absent = [f"{dialect.column('t', key)} IS NULL"]
    absent += [cleared_condition(plan, dialect, lateness.clears)] if lateness.clears is not None else []
    unknown = [f"{dialect.column('l', key)} IS NULL"]
    if lateness.truncated is not None:
        unknown.append(not_above_condition(dialect, "l", cdc_sequence_columns(plan.table.sequence), lateness.truncated))
    conditions = [absent, unknown] if tombstones else [absent]
    return " AND ".join([old, *(f"({' OR '.join(terms)})" for terms in conditions)])


def render_constant(value: object, dialect: Dialect) -> str:
    """An element of a sequence as SQL. Text is a value of a row, so it is quoted for the dialect."""
    if isinstance(value, str):
        return dialect.text(value)
    if isinstance(value, int):
        return render_literal(value)
    raise TypeError(f"a sequence element of type {type(value).__name__} has no literal")


def _key_changed_condition(plan: ApplyPlan, dialect: Dialect) -> str:
    return f"{dialect.column('r', old_key_columns(plan)[-1])} IS NOT NULL"


def _gone_condition(plan: ApplyPlan, dialect: Dialect, relation: str) -> str:
    """There is no living row that can provide values."""
    absent = f"{dialect.column(relation, plan.table.keys[-1])} IS NULL"
    return f"({absent} OR {_marked_condition(relation, dialect)})" if plan.soft_deletes else absent


def _value_expression(plan: ApplyPlan, dialect: Dialect, name: str) -> str:
    c = dialect.column
    table = plan.table
    if name == CDC_DELETED and plan.soft_deletes:
        # True also for a delete whose values are completed. Without a living row, the changes that sent the other values
        # were rejected; the delete then has no values.
        brings_none = dialect.contains.format(list=c("r", UNCHANGED), item=dialect.text(KEEP_EXISTING))
        no_old, no_row = (_gone_condition(plan, dialect, relation) for relation in ("o", "t"))
        no_giver = f"CASE WHEN {_key_changed_condition(plan, dialect)} THEN {no_old} ELSE {no_row} END"
        completed = f"{c('r', OP)} = 'd' AND NOT {brings_none} AND NOT {no_giver}"
        return f"CASE WHEN {completed} THEN TRUE ELSE {c('r', CDC_DELETED)} END"
    if not plan.reconcile.complete or name in table.keys or name not in table.column_names:
        return c("r", name)
    unchanged = dialect.contains.format(list=c("r", UNCHANGED), item=dialect.text(name))
    moves = _key_changed_condition(plan, dialect)
    return (
        f"CASE WHEN {unchanged} THEN CASE WHEN {moves} THEN {c('o', name)} ELSE {c('t', name)} END ELSE {c('r', name)} END"
    )


# Deletes that belong to another row than the target's row of the same key (see `apply.reconcile_in_process`).


def other_row_condition(plan: ApplyPlan, dialect: Dialect, *, as_text: bool = False, doubtful: bool = False) -> str:
    """True when the delete `r` belongs to another row than `t`, the target's row of its key (or its version at
    that time).

    A change of the same transaction wrote `t`, and the values of `t` differ from the image of the delete.

    - `as_text`: compares values as text, for types without equality.
    - `doubtful`: true when this is possible but not certain: the image may be incomplete, or the transaction of
      `t` is not known.
    """
    if plan.table.by_tx and not doubtful:
        return "FALSE"
    c, count, keys = dialect.column, plan.table.sequence, plan.table.keys
    of_image = doubtful and plan.table.by_commit
    mine, starts = ([c(relation, n) for n in cdc_sequence_columns(count)] for relation in ("r", "t"))
    commits = [starts[0], *([c("t", last_sequence_columns(count)[0])] if plan.history else [])]
    of_both = 'CAST({} AS TEXT) COLLATE "C"' if as_text else "{}"
    counts = {
        n: f"{'NOT ' if of_image else ''}{was_sent_condition(dialect, c('r', UNCHANGED), n)}"
        for n in plan.delete_evidence_columns
    }
    counts |= {n: f"{when} AND {c('r', n)} IS NOT NULL" for n, when in counts.items() if not null_counts(plan, n)}
    differs = [
        f"({counts[n]} AND {of_both.format(c('t', n))} IS DISTINCT FROM {of_both.format(c('r', n))})"
        for n in plan.delete_evidence_columns
    ]
    terms = [
        *(f"{c('t', k)} = {c('r', k)}" for k in keys),
        f"{c('r', OP)} = {text_literal(Op.DELETE)}",
        f"{c('r', old_key_columns(plan)[-1])} IS NOT NULL",
        *([f"({' OR '.join(f'{commit} = {mine[0]}' for commit in commits)})"] if plan.table.by_commit else []),
        greater_condition(mine, starts),
        f"({' OR '.join(differs) or 'FALSE'})",
    ]
    if of_image:
        value_conditions = [f"({when} AND {c('r', n)} IS NOT NULL)" for n, when in counts.items()]
        terms.append(f"({' OR '.join(value_conditions) or 'FALSE'})")
    if plan.history:
        ends = [c("t", n) for n in end_sequence_columns(count)]
        terms.append(f"({ends[0]} IS NULL OR {greater_condition(ends, mine)})")
    if plan.soft_deletes:
        terms.append(f"NOT COALESCE({c('t', CDC_DELETED)}, FALSE)")
    return " AND ".join(terms)
