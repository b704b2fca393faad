"""The events of the keys in a batch: see `scd2`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replicator.domain.change import OP, Op
from replicator.domain.policy.plan import (
    CDC_UNSENT,
    END_AT,
    START_AT,
    ApplyPlan,
    Truncate,
    cdc_sequence_columns,
    end_sequence_columns,
    last_sequence_columns,
)
from replicator.domain.sequence import Sequence as SequenceKey

from .dialect import Dialect, text_literal
from .fold import was_sent_condition
from .reconcile import (
    greater_condition,
    old_key_columns,
    render_constant,
    truncate_condition,  # noqa: F401 - published here
    version_bounds,
)

KIND = "_cdc__kind"
ROW_NUMBER = "_place"
"""The number of a row of the batch; negative for what is stored."""
ABSORBED, VERSION, LAST_UPSERT, TRUNCATE, ENDING, CHANGE = range(6)
"""The origins of an event, lowest first. The lowest of several events with equal key and sequence counts.

- ABSORBED: an absorbed change.
- VERSION: the start of a version.
- LAST_UPSERT: the last upsert that a version absorbed.
- TRUNCATE: a truncate.
- ENDING: the end of a version.
- CHANGE: a change of the batch.
"""

THERE = "_cdc__there"


@dataclass(frozen=True, slots=True)
class Scd2Input:
    """The relations that events are read from, as SQL text, and the columns that matter in them.

    - `rows`: a rows frame with `_place`, the numbers of its rows from 0.
    - `related`: see `select_candidates`. None if the target has no such version; comparisons with it are then
      left out.
    - `absorbed`: absorbed changes of these keys, with `_op` and the columns of the target. None if none can
      matter.
    - `_place` of `related` and `absorbed` is negative.
    - `truncates`: those at or above `lowest`, each with its event time as SQL text.
    - `lowest`: the lowest sequence of the batch.
    - `values`: the columns to carry besides keys, sequences and operation. `compared`, `untracked`: those of them that
      start a version, and those that do not. Empty: all of the target, as the plan has them.
    - `missing`: the columns that some event did not send.
    - `moves`: some row has an old key.
    - `as_text`: columns that are compared as text.
    - `applied_at`: the value of `_cdc_applied_at`, as SQL.
    """

    rows: str
    related: str | None
    absorbed: str | None
    lowest: SequenceKey
    truncates: Sequence[tuple[SequenceKey, str]]
    missing: tuple[str, ...]
    moves: bool
    values: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    as_text: frozenset[str] = frozenset()
    applied_at: str = ""


def select_candidates(
    plan: ApplyPlan,
    dialect: Dialect,
    target: str,
    rows: str,
    lowest: SequenceKey,
    *,
    moves: bool,
    truncates: Sequence[SequenceKey] = (),
) -> str:
    """The versions of the keys and old keys in `rows` that are open or end at or above `lowest`. Changes from
    `lowest` on cannot affect other versions.

    With `truncates` (late ones): also the versions of keys with a version that a truncate splits. Only the next
    version shows whether the split one ended with it or with a delete. `_place` is -1.
    """
    c, q, keys = dialect.column, dialect.quote_name, plan.table.keys
    keys_query = f"SELECT {', '.join(map(q, keys))} FROM {rows}"
    if moves:
        old = old_key_columns(plan)
        pairs = ", ".join(f"{q(o)} AS {q(k)}" for o, k in zip(old, keys, strict=True))
        keys_query += f" UNION SELECT {pairs} FROM {rows} WHERE {q(old[-1])} IS NOT NULL"
    else:
        keys_query = keys_query.replace("SELECT", "SELECT DISTINCT", 1)
    if truncates:
        key_columns = ", ".join(c("t", k) for k in keys)
        keys_query += f" UNION SELECT {key_columns} FROM {target} AS t WHERE {split_condition(plan, dialect, truncates)}"
    same = " AND ".join(f"{c('t', k)} = {c('w', k)}" for k in keys)
    columns = ", ".join(c("t", column.name) for column in plan.target)
    head = f"SELECT {columns}, -1 AS {q(ROW_NUMBER)}\nFROM {target} AS t JOIN ({keys_query}) AS w ON {same}"
    return f"{head}\nWHERE {overlap_condition(plan, dialect, lowest)}"


def split_condition(plan: ApplyPlan, dialect: Dialect, truncates: Sequence[SequenceKey]) -> str:
    """A truncate lies within the version `t`, below an upsert that it absorbed or below its end."""
    starts, ends, lasts = version_bounds(plan, dialect)
    within = []
    for truncate in truncates:
        at = [render_constant(v, dialect) for v in truncate]
        ended = f"{ends[0]} IS NOT NULL AND {greater_condition(ends, at)}"
        within.append(f"({greater_condition(at, starts)} AND ({greater_condition(lasts, at)} OR {ended}))")
    return f"({' OR '.join(within)})"


def overlap_condition(plan: ApplyPlan, dialect: Dialect, lowest: SequenceKey) -> str:
    """The version `t` is open, or ended at or above `lowest`."""
    ends = [dialect.column("t", n) for n in end_sequence_columns(plan.table.sequence)]
    return f"({ends[0]} IS NULL OR NOT {greater_condition([render_constant(v, dialect) for v in lowest], ends)})"


def render_truncates(truncates: Sequence[Truncate], dialect: Dialect, lowest: SequenceKey) -> list[tuple[SequenceKey, str]]:
    """The truncates at or above `lowest`, with their event times as SQL."""
    return [(truncate.sequence, dialect.instant(truncate.at)) for truncate in truncates if truncate.sequence >= lowest]


def carried_columns(plan: ApplyPlan) -> tuple[str, ...]:
    """The columns of the target without keys, sequences, start and end."""
    count = plan.table.sequence
    names = {*plan.table.keys, *cdc_sequence_columns(count), *end_sequence_columns(count), *last_sequence_columns(count)}
    return tuple(c.name for c in plan.target if c.name not in {*names, START_AT, END_AT, CDC_UNSENT})


class Scd2Terms:
    """Names that the statements share."""

    def __init__(self, plan: ApplyPlan, dialect: Dialect, inputs: Scd2Input) -> None:
        if plan.history is not None and not inputs.values:
            columns, history = carried_columns(plan), plan.history
            inputs = replace(inputs, values=columns, compared=history.tracked, untracked=history.untracked)
        self.plan, self.dialect, self.inputs = plan, dialect, inputs
        self.q = dialect.quote_name
        self.keys = plan.table.keys
        count = plan.table.sequence
        self.starts, self.ends, self.lasts = (
            cdc_sequence_columns(count),
            end_sequence_columns(count),
            last_sequence_columns(count),
        )
        self.numbers = range(1, count + 1)
        self.is_delete = f"{self.q(OP)} = {text_literal(Op.DELETE)}"
        # About the target's version that starts at an event: its existence, its end, and its last sequence. Empty when
        # the target has no versions.
        versions = [THERE, *(f"_cdc__was_end_{i}" for i in self.numbers), *(f"_cdc__was_last_{i}" for i in self.numbers)]
        self.found_columns = [] if inputs.related is None else versions

    def names(self, names: Sequence[str]) -> str:
        """Columns separated by commas."""
        return ", ".join(map(self.q, names))


class EventBranches(Scd2Terms):
    """The branches of the relation of events."""

    def select(self) -> str:
        """Every event, once per origin."""
        related = self.inputs.related
        parts = [self.from_rows()]
        if related is not None:
            parts += [self.from_versions(related), self.from_last_upserts(related), self.from_endings(related)]
        parts += [self.from_absorbed_changes(self.inputs.absorbed)] if self.inputs.absorbed else []
        parts += [self.from_truncates()] if self.inputs.truncates else []
        return "\nUNION ALL\n".join(parts)

    def render_branch(
        self, kind: int, place: str, op: str, columns: Sequence[str], *, lost: str = "FALSE", bounds: Sequence[str] = ()
    ) -> str:
        """One branch. `columns`: the keys, the sequence, START_AT, the names that were not sent, and the
        values.

        `bounds`: for a version in the target, its end and its last sequence.
        """
        q = self.q
        named = zip((*self.keys, *self.starts, START_AT, CDC_UNSENT, *self.inputs.values), columns, strict=True)
        texts = ["1", *bounds] if bounds else ["0", *["NULL"] * (2 * len(self.starts))]
        tail = [f"{value} AS {q(name)}" for name, value in zip(self.found_columns, texts, strict=bool(self.found_columns))]
        head = [f"{kind} AS {q(KIND)}", f"{place} AS {q(ROW_NUMBER)}", f"{op} AS {q(OP)}", f"{lost} AS {q('_cdc__lost')}"]
        return f"SELECT {', '.join([*head, *(f'{value} AS {q(name)}' for name, value in named), *tail])}"

    def from_rows(self) -> str:
        """The changes of the batch, with missing values filled in from the old key's row."""
        c = self.dialect.column
        moves = f"{c('r', old_key_columns(self.plan)[-1])} IS NOT NULL AND {c('r', CDC_UNSENT)} IS NOT NULL"
        plain = [c("r", n) for n in (*self.keys, *self.starts, START_AT)]
        unchanged, values = c("r", CDC_UNSENT), [c("r", n) for n in self.inputs.values]
        lost, join = "FALSE", ""
        if self.inputs.moves and self.inputs.related is None:
            lost = f"({moves})"
        elif self.inputs.moves:
            values = [self.row_value(moves, name) for name in self.inputs.values]
            unchanged = f"CASE WHEN {moves} AND {c('o', self.keys[-1])} IS NOT NULL THEN NULL ELSE {unchanged} END"
            lost = f"({moves} AND {c('o', self.keys[-1])} IS NULL)"
            join = f"\nLEFT JOIN {self.inputs.related} AS o ON {self.from_old_key()}"
        head = self.render_branch(CHANGE, c("r", ROW_NUMBER), c("r", OP), [*plain, unchanged, *values], lost=lost)
        return f"{head}\nFROM {self.inputs.rows} AS r{join}"

    def row_value(self, moves: str, name: str) -> str:
        """A value of a row after a key change; if it was not sent, the value of the old key's version."""
        c = self.dialect.column
        if name not in self.inputs.missing:
            return c("r", name)
        was_given = was_sent_condition(self.dialect, c("r", CDC_UNSENT), name)
        return f"CASE WHEN {moves} AND NOT {was_given} THEN {c('o', name)} ELSE {c('r', name)} END"

    def from_old_key(self) -> str:
        """`o` is the old key's version that ends at `r` or is open there."""
        c = self.dialect.column
        same = [f"{c('o', k)} = {c('r', f)}" for k, f in zip(self.keys, old_key_columns(self.plan), strict=True)]
        mine = [c("r", n) for n in self.starts]
        starts, ends = ([c("o", n) for n in names] for names in (self.starts, self.ends))
        return " AND ".join(
            [*same, greater_condition(mine, starts), f"({ends[0]} IS NULL OR NOT {greater_condition(mine, ends)})"]
        )

    def from_versions(self, related: str) -> str:
        """An upsert at the start of each version."""
        c = self.dialect.column
        columns = [c("t", n) for n in (*self.keys, *self.starts, START_AT, CDC_UNSENT, *self.inputs.values)]
        bounds = [c("t", n) for n in (*self.ends, *self.lasts)]
        head = self.render_branch(VERSION, c("t", ROW_NUMBER), text_literal(Op.UPDATE), columns, bounds=bounds)
        return f"{head}\nFROM {related} AS t"

    def from_last_upserts(self, related: str) -> str:
        """An upsert with the values of each version at its last absorbed upsert."""
        c = self.dialect.column
        columns = [c("t", n) for n in (*self.keys, *self.lasts, START_AT)]
        columns += ["NULL", *(c("t", n) for n in self.inputs.values)]
        later = greater_condition([c("t", n) for n in self.lasts], [c("t", n) for n in self.starts])
        head = self.render_branch(LAST_UPSERT, c("t", ROW_NUMBER), text_literal(Op.UPDATE), columns)
        return f"{head}\nFROM {related} AS t WHERE {later}"

    def from_endings(self, related: str) -> str:
        """A delete at the end of each version. If another version starts there, that start counts."""
        c = self.dialect.column
        nothing = ["NULL"] * (1 + len(self.inputs.values))
        columns = [*(c("t", n) for n in (*self.keys, *self.ends, END_AT)), *nothing]
        head = self.render_branch(ENDING, c("t", ROW_NUMBER), text_literal(Op.DELETE), columns)
        return f"{head}\nFROM {related} AS t WHERE {c('t', self.ends[0])} IS NOT NULL"

    def from_absorbed_changes(self, absorbed: str) -> str:
        """Absorbed changes within the candidate versions or above them. One event may occur several times."""
        c = self.dialect.column
        mine, starts = [c("m", n) for n in self.starts], [c("t", n) for n in self.starts]
        same = " AND ".join(f"{c('t', k)} = {c('m', k)}" for k in self.keys)
        within = f"EXISTS (SELECT 1 FROM {self.inputs.related} AS t WHERE {same} AND NOT {greater_condition(starts, mine)})"
        above = f"NOT {greater_condition([render_constant(v, self.dialect) for v in self.inputs.lowest], mine)}"
        condition = above if self.inputs.related is None else f"{above} OR {within}"
        columns = [c("m", n) for n in (*self.keys, *self.starts, START_AT, CDC_UNSENT, *self.inputs.values)]
        branch = self.render_branch(ABSORBED, c("m", ROW_NUMBER), c("m", OP), columns)
        return f"{branch}\nFROM {absorbed} AS m\nWHERE {condition}"

    def from_truncates(self) -> str:
        """A delete of every candidate key at each truncate."""
        c = self.dialect.column
        truncates = " UNION ALL ".join(self.truncate_row(*truncate) for truncate in self.inputs.truncates)
        nothing = ["NULL"] * (1 + len(self.inputs.values))
        columns = [*(c("k", n) for n in self.keys), *(c("x", n) for n in (*self.starts, START_AT)), *nothing]
        head = self.render_branch(TRUNCATE, "-1", text_literal(Op.DELETE), columns)
        names = self.names(self.keys)
        relations = [self.inputs.rows, *([] if self.inputs.related is None else [self.inputs.related])]
        keys = " UNION ".join(f"SELECT DISTINCT {names} FROM {relation} AS r" for relation in relations)
        return f"{head}\nFROM ({keys}) AS k CROSS JOIN ({truncates}) AS x"

    def truncate_row(self, sequence: SequenceKey, at: str) -> str:
        """A truncate as a row."""
        elements = [f"{render_constant(v, self.dialect)} AS {self.q(n)}" for n, v in zip(self.starts, sequence, strict=True)]
        return f"SELECT {', '.join(elements)}, {at} AS {self.q(START_AT)}"
