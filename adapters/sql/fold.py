"""Stage 1 of a plan (the fold) as SQL, in two forms with the same rules.

- `guard_select`, `first_select`, `last_select` and `sent_select` read a narrow relation, and return numbers of changes.
  So an engine in this process moves no values.
- `guard_windows`, `first_windows`, `last_windows` and `sent_windows` read whole changes, and add columns to them. They
  are for engines that shuffle rows by key.

Columns per change: `_i` (its number in arrival order, from 0), the key columns, `_seq_1..n`, `_op`, `_unsent`
and `_reset`. Folded rows are also allowed (their `_reset` may be true), so folds can be combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicator.domain.change import KEEP_EXISTING, OLD_KEY, OP, PARTITION, RESET, TOPIC, TS, UNCHANGED, Op, sequence_columns
from replicator.domain.policy.late_changes import get_grace, make_watermark_reject
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.position import TopicPartition

from .dialect import Dialect

ARRIVAL = "_i"
"""The number of a change in the order of arrival."""
LAST = "_last"
VOID = "_void"
OUTCOME = "_outcome"
COPY = "_copy"
KEPT, EQUAL, BELOW = "kept", "duplicate", "superseded"
LIVE = "_live"
"""For windows: true for changes that can become rows: kept, not a truncate, and above the last truncate."""


# Each change, compared with the running maximum of its key and of all truncates.


def guard_select(plan: ApplyPlan, dialect: Dialect, changes: str) -> str:
    """`_i` and `_outcome` of each change, in arrival order.

    The outcome compares the change with the running maximum of its key and of all truncates:

    - `kept`: above the maximum.
    - `duplicate`: equal to it.
    - `superseded`: below it.
    """
    q = dialect.quote_name
    value, of_key, of_truncates = _running_maxima(plan, dialect)
    inner = f"SELECT {q(ARRIVAL)}, {value} AS v,\n  {of_key} AS k,\n  {of_truncates} AS f\nFROM {changes}"
    case = f"CASE WHEN v = k OR v = f THEN '{EQUAL}' WHEN v < k OR v < f THEN '{BELOW}' ELSE '{KEPT}' END"
    return f"SELECT {q(ARRIVAL)}, {case} AS {OUTCOME} FROM (\n{inner})\nORDER BY {q(ARRIVAL)}"


def guard_windows(plan: ApplyPlan, dialect: Dialect, changes: str, *, truncates: bool) -> str:
    """Adds `_outcome`, see `guard_select`. `truncates`: there may be truncates, to compare with changes of all keys."""
    value, of_key, of_truncates = _running_maxima(plan, dialect)
    inner = f"SELECT *, {of_key} AS `_k`, {of_truncates if truncates else 'NULL'} AS `_f` FROM {changes}"
    equal, below = f"{value} = `_k`", f"{value} < `_k`"
    if truncates:
        equal, below = f"{equal} OR {value} = `_f`", f"{below} OR {value} < `_f`"
    case = f"CASE WHEN {equal} THEN '{EQUAL}' WHEN {below} THEN '{BELOW}' ELSE '{KEPT}' END"
    return f"SELECT * EXCEPT (`_k`, `_f`), {case} AS {OUTCOME} FROM ({inner})"


def _running_maxima(plan: ApplyPlan, dialect: Dialect) -> tuple[str, str, str]:
    """The sequence of a change, and its maximum over the changes before it: of the same key, and of truncates."""
    q, value = dialect.quote_name, sequence_text(plan, dialect)
    before = f"ORDER BY {q(ARRIVAL)} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    of_key = f"max({value}) OVER (PARTITION BY {keys_text(plan, dialect)} {before})"
    truncate = f"CASE WHEN {q(OP)} = {dialect.text(Op.TRUNCATE)} THEN {value} END"
    return value, of_key, f"max({truncate}) OVER ({before})"


# The last change of each key.


def last_select(plan: ApplyPlan, dialect: Dialect, changes: str) -> str:
    """One row per key over kept changes above the last truncate: `_last` and `_void`.

    `_last` is the number of the key's last change. `_void` is the number of the last change whose values a
    delete made void, or null. A soft delete keeps its row, so it also uses values from before earlier deletes.
    """
    q = dialect.quote_name
    arrival = q(ARRIVAL)
    void = f"max({_cut_arrival(dialect)})"
    if plan.soft_deletes:
        void = f"CASE WHEN max_by({q(OP)}, {arrival}) <> {dialect.text(Op.DELETE)} THEN {void} END"
    return (
        f"SELECT max({arrival}) AS {LAST}, {void} AS {VOID}\n"
        f"FROM {changes}\nGROUP BY {keys_text(plan, dialect)}\nORDER BY {LAST}"
    )


def last_windows(plan: ApplyPlan, dialect: Dialect, changes: str) -> str:
    """Adds `_last` and `_void` of each key, computed from its live changes; see `last_select`."""
    q = dialect.quote_name
    arrival, over = q(ARRIVAL), f"OVER (PARTITION BY {keys_text(plan, dialect)})"
    void = f"max(CASE WHEN {LIVE} THEN {_cut_arrival(dialect)} END) {over}"
    if plan.soft_deletes:
        last = f"max_by({q(OP)}, CASE WHEN {LIVE} THEN {arrival} END) {over}"
        void = f"CASE WHEN {last} <> {dialect.text(Op.DELETE)} THEN {void} END"
    return f"SELECT *, max(CASE WHEN {LIVE} THEN {arrival} END) {over} AS {LAST},\n  {void} AS {VOID} FROM {changes}"


def _cut_arrival(dialect: Dialect) -> str:
    """The number of the last change whose values this change makes void; null when it makes none void."""
    q = dialect.quote_name
    arrival = q(ARRIVAL)
    return f"CASE WHEN {q(OP)} = {dialect.text(Op.DELETE)} THEN {arrival} WHEN {q(RESET)} THEN {arrival} - 1 END"


# The last change of each key that sent a value.


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
    unchanged = c("c", UNCHANGED)
    alive = _counts_condition(plan, dialect, f"c.{q(ARRIVAL)}", f"f.{VOID}", unchanged)
    parts = [
        f"max(c.{q(ARRIVAL)}) FILTER (WHERE {alive} AND {was_sent_condition(dialect, unchanged, name)}) AS c{i}"
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


def sent_windows(plan: ApplyPlan, dialect: Dialect, changes: str, names: Sequence[str]) -> str:
    """Adds the values that were sent last after `_void`, per key; see `sent_select`.

    - `_v0`, `_v1` ...: the last sent value of each column of `names`; `_p0` ...: the number of the change that
      sent it.
    - `_m`: the old key of the last key change.
    - `_w`, `_a`: as `w` and `a`.
    """
    q = dialect.quote_name
    over = f"OVER (PARTITION BY {keys_text(plan, dialect)})"
    alive = f"{LIVE} AND {_counts_condition(plan, dialect, q(ARRIVAL), VOID, q(UNCHANGED))}"

    def find_last(condition: str) -> str:
        return f"CASE WHEN {alive} AND {condition} THEN {q(ARRIVAL)} END"

    parts = []
    for i, name in enumerate(names):
        at = find_last(was_sent_condition(dialect, q(UNCHANGED), name))
        parts += [f"max_by({q(name)}, {at}) {over} AS `_v{i}`", f"max({at}) {over} AS `_p{i}`"]
    moves = find_last(f"{q(OLD_KEY)} IS NOT NULL")
    parts += [f"max_by({q(OLD_KEY)}, {moves}) {over} AS `_m`", f"max({find_last(f'{q(UNCHANGED)} IS NULL')}) {over} AS `_w`"]
    parts += [f"max({find_last('TRUE')}) {over} AS `_a`"] if plan.soft_deletes else []
    return f"SELECT *, {', '.join(parts)} FROM {changes}"


def _counts_condition(plan: ApplyPlan, dialect: Dialect, arrival: str, void: str, unchanged: str) -> str:
    """True when the values of a change are not void. For soft deletes: false when it is a delete without values."""
    after = f"{arrival} > COALESCE({void}, -1)"
    if not plan.soft_deletes:
        return after
    return f"{after} AND {was_sent_condition(dialect, unchanged, KEEP_EXISTING)}"


def was_sent_condition(dialect: Dialect, unchanged: str, name: str) -> str:
    """True when a change sent the column; `unchanged` is the change's list of columns that were not sent."""
    return f"({unchanged} IS NULL OR NOT {dialect.contains.format(list=unchanged, item=dialect.text(name))})"


# The first of equal changes, for plans that keep every change.


def first_select(plan: ApplyPlan, dialect: Dialect, changes: str, *, counted: bool) -> str:
    """`_last`: the number of the first of the changes that agree in `change_identity`, in arrival order."""
    names, relation = _distinct_changes(plan, dialect, changes, counted=counted)
    return f"SELECT min({dialect.quote_name(ARRIVAL)}) AS {LAST}\nFROM {relation}\nGROUP BY {names}\nORDER BY {LAST}"


def first_windows(plan: ApplyPlan, dialect: Dialect, changes: str, *, counted: bool) -> str:
    """Adds `_last`, see `first_select`."""
    names, relation = _distinct_changes(plan, dialect, changes, counted=counted)
    return f"SELECT *, min({dialect.quote_name(ARRIVAL)}) OVER (PARTITION BY {names}) AS {LAST} FROM {relation}"


def change_identity(plan: ApplyPlan, *, counted: bool) -> tuple[str, ...]:
    """The columns in which two equal changes agree. With `counted` the last column is `_copy`: the running number of a
    change among changes of equal identity, in one reading of the source's log.

    Only plans that count copies use `counted`, and only when all changes are from one partition: a second
    partition may simply be behind the first.
    """
    sequence = sequence_columns(plan.table.sequence)
    if counted:
        return (*plan.table.column_names, *sequence[:-1], OP, COPY)
    return (*(plan.table.keys or plan.table.column_names), *sequence, OP)


def _distinct_changes(plan: ApplyPlan, dialect: Dialect, changes: str, *, counted: bool) -> tuple[str, str]:
    """The columns of `change_identity`, separated by commas, and the relation that has them.

    With `counted` the relation also needs `_topic` and `_partition`: a new reading starts in a partition where the
    sequence does not rise.
    """
    q, identity = dialect.quote_name, change_identity(plan, counted=counted)
    names = ", ".join(map(q, identity))
    if not counted:
        return names, changes
    value, log = sequence_text(plan, dialect), f"PARTITION BY {q(TOPIC)}, {q(PARTITION)}"
    before = f"lag({value}) OVER ({log} ORDER BY {q(ARRIVAL)})"
    falls = f"SELECT *, CASE WHEN {value} <= {before} THEN 1 ELSE 0 END AS {q('_falls')} FROM {changes}"
    readings = f"SELECT *, sum({q('_falls')}) OVER ({log} ORDER BY {q(ARRIVAL)}) AS {q('_reading')} FROM ({falls})"
    copied = ", ".join(q(n) for n in ("_reading", TOPIC, PARTITION, *identity[:-1]))
    copies = f"SELECT *, row_number() OVER (PARTITION BY {copied} ORDER BY {q(ARRIVAL)}) AS {q(COPY)} FROM ({readings})"
    return names, f"({copies})"


# Names of columns as SQL.


def sequence_text(plan: ApplyPlan, dialect: Dialect) -> str:
    """The sequence of a change as one comparable value."""
    names = ", ".join(dialect.quote_name(n) for n in sequence_columns(plan.table.sequence))
    return f"{dialect.row}({names})"


def keys_text(plan: ApplyPlan, dialect: Dialect) -> str:
    """The key columns, separated by commas."""
    return ", ".join(dialect.quote_name(k) for k in plan.table.keys)


# Before the fold: changes that are too late for a watermark, as SQL over changes in arrival order.

LATE = "_late"
"""The reason why a change is late; null when it is not."""

MARK = "_mark"
EVENT, WATERMARK = "{event}", "{watermark}"


def late_select(
    plan: ApplyPlan, dialect: Dialect, changes: str, *, reached: Mapping[TopicPartition, int], lane: str, micros: str = ""
) -> str:
    """Adds `_mark`, the watermark when each change arrived, and `_late`.

    The relation holds `_i`, `_op`, `_ts`, `_topic` and `_partition`. Times are microseconds since 1970.
    `micros` converts `_ts` where it is not a number. `reached`: `LaneState.max_event_time`, for changes before
    the relation.
    """
    q = dialect.quote_name
    time = micros or q(TS)
    newest = f"CASE WHEN {_watermark_applies_condition(dialect)} THEN {time} END"
    before = f"ORDER BY {q(ARRIVAL)} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    mark = f"max({newest}) OVER (PARTITION BY {q(TOPIC)}, {q(PARTITION)} {before})"
    if reached:
        whens = [
            f"WHEN {q(TOPIC)} = {dialect.text(at.topic)} AND {q(PARTITION)} = {at.partition} THEN CAST({stored} AS BIGINT)"
            for at, stored in sorted(reached.items())
        ]
        mark = f"GREATEST({mark}, CASE {' '.join(whens)} END)"
    marked = f"SELECT *, {mark} - {get_grace(plan)} AS {q(MARK)} FROM {changes}"
    is_late = f"{_watermark_applies_condition(dialect)} AND {time} < {q(MARK)}"
    # The reject's text as an expression, with the times in place of their placeholders.
    parts, rest = [], str(make_watermark_reject(EVENT, WATERMARK, lane))
    for placeholder, value in ((EVENT, time), (WATERMARK, q(MARK))):
        text, rest = rest.split(placeholder, 1)
        parts += [dialect.text(text), dialect.time_template.format(micros=value)]
    why = " || ".join([*parts, dialect.text(rest)])
    return f"SELECT *, CASE WHEN {is_late} THEN {why} END AS {q(LATE)}\nFROM ({marked})"


def _watermark_applies_condition(dialect: Dialect) -> str:
    """The watermark applies to the change. A snapshot row has the time of reading, not of a change, so it is
    exempt."""
    return f"{dialect.quote_name(OP)} <> {dialect.text(Op.READ)}"
