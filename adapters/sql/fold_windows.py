"""Stage 1 of a plan as window functions, for engines that shuffle rows by key.

The rules are the same as in `fold`. Every relation holds whole changes with `_i` (number in arrival order) and
`_reset`. Each SELECT adds columns to its input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replicator.domain.change import OLD_KEY, OP, UNCHANGED, Op
from replicator.domain.policy.plan import ApplyPlan

from .dialect import Dialect
from .fold import (
    ARRIVAL,
    BELOW,
    EQUAL,
    KEPT,
    LAST,
    OUTCOME,
    VOID,
    change_identity,
    copies_select,
    cut_arrival,
    has_values_condition,
    keys_text,
    sequence_text,
    was_sent_condition,
)

LIVE = "_live"
"""True for changes that can become rows: kept, not a truncate, and above the last truncate."""


def guarded_select(plan: ApplyPlan, dialect: Dialect, changes: str, *, truncates: bool) -> str:
    """Adds `_outcome`, see `fold.guard_select`. `truncates`: there may be truncates, to compare with changes of
    all keys."""
    q = dialect.quote_name
    value = sequence_text(plan, dialect)
    before = f"ORDER BY {q(ARRIVAL)} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    own = f"max({value}) OVER (PARTITION BY {keys_text(plan, dialect)} {before})"
    cleared = f"max(CASE WHEN {q(OP)} = {dialect.text(Op.TRUNCATE)} THEN {value} END) OVER ({before})"
    inner = f"SELECT *, {own} AS `_k`, {cleared if truncates else 'NULL'} AS `_f` FROM {changes}"
    equal, below = f"{value} = `_k`", f"{value} < `_k`"
    if truncates:
        equal, below = f"{equal} OR {value} = `_f`", f"{below} OR {value} < `_f`"
    case = f"CASE WHEN {equal} THEN '{EQUAL}' WHEN {below} THEN '{BELOW}' ELSE '{KEPT}' END"
    return f"SELECT * EXCEPT (`_k`, `_f`), {case} AS {OUTCOME} FROM ({inner})"


def last_windows(plan: ApplyPlan, dialect: Dialect, changes: str) -> str:
    """Adds `_last` and `_void` of each key, computed from its live changes; see `fold.last_select`."""
    q = dialect.quote_name
    place, over = q(ARRIVAL), f"OVER (PARTITION BY {keys_text(plan, dialect)})"
    void = f"max(CASE WHEN {LIVE} THEN {cut_arrival(dialect)} END) {over}"
    if plan.soft_deletes:
        last = f"max_by({q(OP)}, CASE WHEN {LIVE} THEN {place} END) {over}"
        void = f"CASE WHEN {last} <> {dialect.text(Op.DELETE)} THEN {void} END"
    return f"SELECT *, max(CASE WHEN {LIVE} THEN {place} END) {over} AS {LAST},\n  {void} AS {VOID} FROM {changes}"


def sent_windows(plan: ApplyPlan, dialect: Dialect, changes: str, names: Sequence[str]) -> str:
    """Adds the values that were sent last after `_void`, per key.

    - `_v0`, `_v1` ...: the last sent value of each column of `names`; `_p0` ...: the number of the change that
      sent it.
    - `_m`: the old key of the last key change.
    - `_w`: the number of the last change that sent all columns.
    - `_a`, with soft deletes only: the number of the last change that sent any value.
    """
    q = dialect.quote_name
    over = f"OVER (PARTITION BY {keys_text(plan, dialect)})"
    alive = f"{LIVE} AND {q(ARRIVAL)} > COALESCE({VOID}, -1)"
    if plan.soft_deletes:
        alive = f"{alive} AND {has_values_condition(dialect, q(UNCHANGED))}"

    def place(condition: str) -> str:
        return f"CASE WHEN {alive} AND {condition} THEN {q(ARRIVAL)} END"

    parts = []
    for i, name in enumerate(names):
        at = place(was_sent_condition(dialect, q(UNCHANGED), name))
        parts += [f"max_by({q(name)}, {at}) {over} AS `_v{i}`", f"max({at}) {over} AS `_p{i}`"]
    moved = place(f"{q(OLD_KEY)} IS NOT NULL")
    parts += [f"max_by({q(OLD_KEY)}, {moved}) {over} AS `_m`", f"max({place(f'{q(UNCHANGED)} IS NULL')}) {over} AS `_w`"]
    parts += [f"max({place('TRUE')}) {over} AS `_a`"] if plan.soft_deletes else []
    return f"SELECT *, {', '.join(parts)} FROM {changes}"


def first_places(plan: ApplyPlan, dialect: Dialect, *, counted: bool) -> Callable[[str], str]:
    """Returns a function from a relation's name to the SELECT that adds `_last`: the number of the first equal
    change.

    `counted`: see `fold.change_identity`.
    """
    identity = change_identity(plan, counted=counted)

    def select(changes: str) -> str:
        copies = f"({copies_select(plan, dialect, identity[:-1], changes)})" if counted else changes
        names = ", ".join(dialect.quote_name(n) for n in identity)
        return f"SELECT *, min({dialect.quote_name(ARRIVAL)}) OVER (PARTITION BY {names}) AS {LAST} FROM {copies}"

    return select
