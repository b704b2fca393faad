"""Stage 1 of a plan as SQL over a narrow relation of changes.

The relation holds, per change: `_i` (its place in arrival order, from 0), the key columns, `_seq_1..n`, `_op`, `_unsent`,
`_reset`. It may hold folded rows (then `_reset` may be true), which makes the fold composable.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicator.domain.change import KEEP_EXISTING, OP, PARTITION, RESET, TOPIC, UNCHANGED, Op, sequence_columns
from replicator.domain.policy.plan import ApplyPlan

from .dialect import Dialect

PLACE = "_i"
LAST = "_last"
VOID = "_void"
OUTCOME = "_outcome"
COPY = "_copy"
KEPT, EQUAL, BELOW = "kept", "duplicate", "superseded"


def guard_select(plan: ApplyPlan, dialect: Dialect, changes: str) -> str:
    """Per change, in arrival order, `_outcome`: `kept` when it is above the running maximum of its key (and of truncates),
    `duplicate` when it is equal to it, otherwise `superseded`."""
    q = dialect.quote_name
    value = sequence_text(plan, dialect)
    before = f"ORDER BY {q(PLACE)} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    truncate = f"CASE WHEN {q(OP)} = {dialect.text(Op.TRUNCATE)} THEN {value} END"
    inner = (
        f"SELECT {q(PLACE)}, {value} AS v,\n"
        f"  max({value}) OVER (PARTITION BY {keys_text(plan, dialect)} {before}) AS k,\n"
        f"  max({truncate}) OVER ({before}) AS f\nFROM {changes}"
    )
    case = f"CASE WHEN v = k OR v = f THEN '{EQUAL}' WHEN v < k OR v < f THEN '{BELOW}' ELSE '{KEPT}' END"
    return f"SELECT {q(PLACE)}, {case} AS {OUTCOME} FROM (\n{inner})\nORDER BY {q(PLACE)}"


def last_select(plan: ApplyPlan, dialect: Dialect, changes: str) -> str:
    """One row per key: `_last`, the place of its last change, and `_void_writes`, the last place up to which a delete made
    all values void (null when none did; a delete that leaves its row takes values from before other deletes too). Input:
    kept changes above the last truncate."""
    q = dialect.quote_name
    place = q(PLACE)
    void = f"max({cut_place(dialect)})"
    if plan.soft_deletes:
        void = f"CASE WHEN max_by({q(OP)}, {place}) <> {dialect.text(Op.DELETE)} THEN {void} END"
    return (
        f"SELECT max({place}) AS {LAST}, {void} AS {VOID}\n"
        f"FROM {changes}\nGROUP BY {keys_text(plan, dialect)}\nORDER BY {LAST}"
    )


def cut_place(dialect: Dialect) -> str:
    """Up to which place a change makes all values void; null when it does not."""
    q = dialect.quote_name
    place = q(PLACE)
    return f"CASE WHEN {q(OP)} = {dialect.text(Op.DELETE)} THEN {place} WHEN {q(RESET)} THEN {place} - 1 END"


def first_select(identity: Sequence[str], dialect: Dialect, changes: str) -> str:
    """`_last`: the place of the first change of each identity, in arrival order."""
    names = ", ".join(dialect.quote_name(n) for n in identity)
    return f"SELECT min({dialect.quote_name(PLACE)}) AS {LAST}\nFROM {changes}\nGROUP BY {names}\nORDER BY {LAST}"


def copies_select(plan: ApplyPlan, dialect: Dialect, identity: Sequence[str], changes: str) -> str:
    """Adds `_copy`: how many changes of one identity there have been, counted anew in each reading of the source's log. A
    new reading begins in a partition where the sequence does not rise. The relation also holds `_topic` and `_partition`."""
    q = dialect.quote_name
    value, log = sequence_text(plan, dialect), f"PARTITION BY {q(TOPIC)}, {q(PARTITION)}"
    before = f"lag({value}) OVER ({log} ORDER BY {q(PLACE)})"
    falls = f"SELECT *, CASE WHEN {value} <= {before} THEN 1 ELSE 0 END AS {q('_falls')} FROM {changes}"
    readings = f"SELECT *, sum({q('_falls')}) OVER ({log} ORDER BY {q(PLACE)}) AS {q('_reading')} FROM ({falls})"
    names = ", ".join(q(n) for n in ("_reading", TOPIC, PARTITION, *identity))
    return f"SELECT *, row_number() OVER (PARTITION BY {names} ORDER BY {q(PLACE)}) AS {q(COPY)} FROM ({readings})"


def change_identity(plan: ApplyPlan, *, counted: bool) -> tuple[str, ...]:
    """The columns by which two changes are the same; with `counted` the last is that of `copies_select`. Only a plan that is
    counted has it, and only where all changes come from one partition: of several, one may simply be behind another."""
    sequence = sequence_columns(plan.table.sequence)
    if counted:
        return (*plan.table.column_names, *sequence[:-1], OP, COPY)
    return (*(plan.table.keys or plan.table.column_names), *sequence, OP)


def sent_select(plan: ApplyPlan, dialect: Dialect, changes: str, folded: str, names: Sequence[str]) -> str:
    """For keys in `folded` (`_last`, `_void_writes`, key columns): per column of `names` the place of the last change that
    sent it after `_void_writes`, as `c0`, `c1` ..., null when none did; `m`, the place of the key change its row began
    with; `w`, the place of the last change that sent all columns; where deletes leave rows, `a`, that of the last one that
    sent any."""
    q, c = dialect.quote_name, dialect.column
    alive, unsent = f"c.{q(PLACE)} > COALESCE(f.{VOID}, -1)", c("c", UNCHANGED)
    if plan.soft_deletes:
        alive = f"{alive} AND {has_values_condition(dialect, unsent)}"
    parts = [
        f"max(c.{q(PLACE)}) FILTER (WHERE {alive} AND {was_sent_condition(dialect, unsent, name)}) AS c{i}"
        for i, name in enumerate(names)
    ]
    parts.append(f"max(c.{q(PLACE)}) FILTER (WHERE {alive} AND c.{q('_moved')}) AS m")
    parts.append(f"max(c.{q(PLACE)}) FILTER (WHERE {alive} AND c.{q(UNCHANGED)} IS NULL) AS w")
    parts += [f"max(c.{q(PLACE)}) FILTER (WHERE {alive}) AS a"] if plan.soft_deletes else []
    on = " AND ".join(f"{c('c', k)} = {c('f', k)}" for k in plan.table.keys)
    return (
        f"SELECT f.{LAST}, {', '.join(parts)}\nFROM {folded} AS f JOIN {changes} AS c ON {on}\n"
        f"GROUP BY f.{LAST}\nORDER BY f.{LAST}"
    )


def has_values_condition(dialect: Dialect, unsent: str) -> str:
    """Where deletes leave rows: false for a delete without values, of the batch or its own."""
    return f"({unsent} IS NULL OR NOT {dialect.contains.format(list=unsent, item=dialect.text(KEEP_EXISTING))})"


def was_sent_condition(dialect: Dialect, unsent: str, name: str) -> str:
    """True when a change sent the column; `unsent` is its list of those it did not."""
    return f"({unsent} IS NULL OR NOT {dialect.contains.format(list=unsent, item=dialect.text(name))})"


def sequence_text(plan: ApplyPlan, dialect: Dialect) -> str:
    """The sequence of a change as one comparable value."""
    names = ", ".join(dialect.quote_name(n) for n in sequence_columns(plan.table.sequence))
    return f"{dialect.row}({names})"


def keys_text(plan: ApplyPlan, dialect: Dialect) -> str:
    """The key columns, with commas between."""
    return ", ".join(dialect.quote_name(k) for k in plan.table.keys)
