"""Stage 1 of a plan (the fold) as SQL over a narrow relation of changes.

Columns per change: `_i` (its number in arrival order, from 0), the key columns, `_seq_1..n`, `_op`, `_unsent`
and `_reset`. Folded rows are also allowed (their `_reset` may be true), so folds can be combined.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicator.domain.change import KEEP_EXISTING, OP, PARTITION, RESET, TOPIC, UNCHANGED, Op, sequence_columns
from replicator.domain.policy.plan import ApplyPlan

from .dialect import Dialect

ARRIVAL = "_i"
"""The number of a change in the order of arrival."""
LAST = "_last"
VOID = "_void"
OUTCOME = "_outcome"
COPY = "_copy"
KEPT, EQUAL, BELOW = "kept", "duplicate", "superseded"


def guard_select(plan: ApplyPlan, dialect: Dialect, changes: str) -> str:
    """`_i` and `_outcome` of each change, in arrival order.

    The outcome compares the change with the running maximum of its key and of all truncates:

    - `kept`: above the maximum.
    - `duplicate`: equal to it.
    - `superseded`: below it.
    """
    q = dialect.quote_name
    value = sequence_text(plan, dialect)
    before = f"ORDER BY {q(ARRIVAL)} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    truncate = f"CASE WHEN {q(OP)} = {dialect.text(Op.TRUNCATE)} THEN {value} END"
    inner = (
        f"SELECT {q(ARRIVAL)}, {value} AS v,\n"
        f"  max({value}) OVER (PARTITION BY {keys_text(plan, dialect)} {before}) AS k,\n"
        f"  max({truncate}) OVER ({before}) AS f\nFROM {changes}"
    )
    case = f"CASE WHEN v = k OR v = f THEN '{EQUAL}' WHEN v < k OR v < f THEN '{BELOW}' ELSE '{KEPT}' END"
    return f"SELECT {q(ARRIVAL)}, {case} AS {OUTCOME} FROM (\n{inner})\nORDER BY {q(ARRIVAL)}"


def last_select(plan: ApplyPlan, dialect: Dialect, changes: str) -> str:
    """One row per key over kept changes above the last truncate: `_last` and `_void`.

    `_last` is the number of the key's last change. `_void` is the number of the last change whose values a
    delete made void, or null. A soft delete keeps its row, so it also uses values from before earlier deletes.
    """
    q = dialect.quote_name
    place = q(ARRIVAL)
    void = f"max({cut_arrival(dialect)})"
    if plan.soft_deletes:
        void = f"CASE WHEN max_by({q(OP)}, {place}) <> {dialect.text(Op.DELETE)} THEN {void} END"
    return (
        f"SELECT max({place}) AS {LAST}, {void} AS {VOID}\n"
        f"FROM {changes}\nGROUP BY {keys_text(plan, dialect)}\nORDER BY {LAST}"
    )


def cut_arrival(dialect: Dialect) -> str:
    """The number of the last change whose values this change makes void; null when it makes none void."""
    q = dialect.quote_name
    place = q(ARRIVAL)
    return f"CASE WHEN {q(OP)} = {dialect.text(Op.DELETE)} THEN {place} WHEN {q(RESET)} THEN {place} - 1 END"


def first_select(identity: Sequence[str], dialect: Dialect, changes: str) -> str:
    """`_last`: the number of the first change of each identity, in arrival order."""
    names = ", ".join(dialect.quote_name(n) for n in identity)
    return f"SELECT min({dialect.quote_name(ARRIVAL)}) AS {LAST}\nFROM {changes}\nGROUP BY {names}\nORDER BY {LAST}"


def copies_select(plan: ApplyPlan, dialect: Dialect, identity: Sequence[str], changes: str) -> str:
    """Adds `_copy`: the running number of a change among changes of equal identity, in one reading of the
    source's log.

    A new reading starts in a partition where the sequence does not rise. The relation also needs `_topic` and
    `_partition`.
    """
    q = dialect.quote_name
    value, log = sequence_text(plan, dialect), f"PARTITION BY {q(TOPIC)}, {q(PARTITION)}"
    before = f"lag({value}) OVER ({log} ORDER BY {q(ARRIVAL)})"
    falls = f"SELECT *, CASE WHEN {value} <= {before} THEN 1 ELSE 0 END AS {q('_falls')} FROM {changes}"
    readings = f"SELECT *, sum({q('_falls')}) OVER ({log} ORDER BY {q(ARRIVAL)}) AS {q('_reading')} FROM ({falls})"
    names = ", ".join(q(n) for n in ("_reading", TOPIC, PARTITION, *identity))
    return f"SELECT *, row_number() OVER (PARTITION BY {names} ORDER BY {q(ARRIVAL)}) AS {q(COPY)} FROM ({readings})"


def change_identity(plan: ApplyPlan, *, counted: bool) -> tuple[str, ...]:
    """The columns in which two equal changes agree. With `counted` the last column is `_copy` of
    `copies_select`.

    Only plans that count copies use `counted`, and only when all changes are from one partition: a second
    partition may simply be behind the first.
    """
    sequence = sequence_columns(plan.table.sequence)
    if counted:
        return (*plan.table.column_names, *sequence[:-1], OP, COPY)
    return (*(plan.table.keys or plan.table.column_names), *sequence, OP)


def sent_select(plan: ApplyPlan, dialect: Dialect, changes: str, folded: str, names: Sequence[str]) -> str:
    """For each key in `folded` (columns `_last`, `_void`, keys), the numbers of the changes that sent its
    values.

    Only changes after `_void` count. Numbers are null when there is no such change.

    - `c0`, `c1` ...: the last change that sent the column, in the order of `names`.
    - `m`: the last key change.
    - `w`: the last change that sent all columns.
    - `a`, with soft deletes only: the last change that sent any value.
    """
    q, c = dialect.quote_name, dialect.column
    alive, unsent = f"c.{q(ARRIVAL)} > COALESCE(f.{VOID}, -1)", c("c", UNCHANGED)
    if plan.soft_deletes:
        alive = f"{alive} AND {has_values_condition(dialect, unsent)}"
    parts = [
        f"max(c.{q(ARRIVAL)}) FILTER (WHERE {alive} AND {was_sent_condition(dialect, unsent, name)}) AS c{i}"
        for i, name in enumerate(names)
    ]
    parts.append(f"max(c.{q(ARRIVAL)}) FILTER (WHERE {alive} AND c.{q('_moved')}) AS m")
    parts.append(f"max(c.{q(ARRIVAL)}) FILTER (WHERE {alive} AND c.{q(UNCHANGED)} IS NULL) AS w")
    parts += [f"max(c.{q(ARRIVAL)}) FILTER (WHERE {alive}) AS a"] if plan.soft_deletes else []
    on = " AND ".join(f"{c('c', k)} = {c('f', k)}" for k in plan.table.keys)
    return (
        f"SELECT f.{LAST}, {', '.join(parts)}\nFROM {folded} AS f JOIN {changes} AS c ON {on}\n"
        f"GROUP BY f.{LAST}\nORDER BY f.{LAST}"
    )


def has_values_condition(dialect: Dialect, unsent: str) -> str:
    """For soft deletes: false when the change is a delete without values."""
    return f"({unsent} IS NULL OR NOT {dialect.contains.format(list=unsent, item=dialect.text(KEEP_EXISTING))})"


def was_sent_condition(dialect: Dialect, unsent: str, name: str) -> str:
    """True when a change sent the column; `unsent` is the change's list of columns that were not sent."""
    return f"({unsent} IS NULL OR NOT {dialect.contains.format(list=unsent, item=dialect.text(name))})"


def sequence_text(plan: ApplyPlan, dialect: Dialect) -> str:
    """The sequence of a change as one comparable value."""
    names = ", ".join(dialect.quote_name(n) for n in sequence_columns(plan.table.sequence))
    return f"{dialect.row}({names})"


def keys_text(plan: ApplyPlan, dialect: Dialect) -> str:
    """The key columns, separated by commas."""
    return ", ".join(dialect.quote_name(k) for k in plan.table.keys)
