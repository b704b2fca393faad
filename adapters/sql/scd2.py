"""Stage 3 of a plan that keeps versions, as SQL: the versions of a key are a function of all its changes, by sequence.

What is known of a key is spread out as *events*: the changes of the batch, the versions that the target shows (an upsert
where each begins, a delete where one ended), truncates, and what is remembered beside the target. Window functions over
each key's events in the order of their sequence then say what is new, which event begins a version, and where it ends.
"""

from __future__ import annotations

from replicator.domain.change import OP, Op
from replicator.domain.policy.plan import (
    CDC_APPLIED_AT,
    CDC_UNSENT,
    END_AT,
    START_AT,
    ApplyPlan,
)

from .dialect import Dialect, text_literal
from .fold import was_sent_condition
from .reconcile import APPLY, DUPLICATE, INCOMPLETE, VERDICT
from .scd2_events import CHANGE, CUT, KIND, MARK, PLACE, TAKEN, THERE, EventBranches, Scd2Input, Scd2Terms

OPENS, MANY, SILENT = "_cdc__opens", "_cdc__many", "_cdc__silent"
"""An upsert that begins a version; one whose version has more upserts; a delete that ends no version."""


def events_select(plan: ApplyPlan, dialect: Dialect, known: Scd2Input) -> str:
    """Every event with what is found out about it: its kind, `_place`, `_op`, the keys, `_cdc_seq_*`, `__START_AT`, the
    carried values (completed), `_verdict` (of changes: apply, duplicate, incomplete), whether it OPENS a version, of
    MANY (said where columns are not tracked), and is SILENT; whether the target has a version that begins here, and what
    that was; of sequence, `_place` and untracked columns what the event before says, and the last of the key. Names of what
    is found out begin with `_cdc__`: no source column's does."""
    text = _Scd2Steps(plan, dialect, known)
    # Each window is one more pass over all rows: where every change sent everything, some steps are not needed.
    lives = [("lives", text.number_lives)] if known.missing else []
    filling = (
        [("grouped", text.group_values), ("filled", text.fill_values), ("compared", text.compare_values)]
        if known.missing
        else []
    )
    steps = [("ranked", text.rank_events), *lives, ("judged", text.judge_events), ("placed", text.place_events), *filling]
    last, ctes = "events", [f"events AS (\n{EventBranches(plan, dialect, known).select()})"]
    for name, step in steps:
        ctes.append(f"{name} AS (\n{step(last)})")
        last = name
    return "WITH " + ",\n".join(ctes) + f"\n{text.finish_versions(last)}"


def versions_select(plan: ApplyPlan, dialect: Dialect, known: Scd2Input, events: str) -> str:
    """The rows of stage 4, of the relation that `events_select` made: versions that are new or changed, and with `_op` d
    those that are no more. Columns: `_op`, `_place`, `_cdc__last_place` (where the values of untracked columns are from) and
    those of the target that are carried."""
    text = _Scd2Steps(plan, dialect, known)
    return text.select_versions(events)


def absorbed_select(plan: ApplyPlan, dialect: Dialect, known: Scd2Input, events: str) -> str:
    """What is to be remembered beside the target, of the relation that `events_select` made: upserts that were taken into a
    version and, where that loses values, the one it began with; deletes that end no version. Columns: `_op`, `_place`, those
    of the target that are carried."""
    text = _Scd2Steps(plan, dialect, known)
    return text.select_absorbed(events)


class _Scd2Steps(Scd2Terms):
    """The parts of the statements above, in their order."""

    def window_over(self, *by: str, order: str = "") -> str:
        """A window over the events of one key that share a verdict, and `by`."""
        partition = ", ".join([*map(self.q, self.keys), self.q(VERDICT), *map(self.q, by)])
        return f"OVER (PARTITION BY {partition}{' ' + (order or self.order_clause)})"

    @property
    def order_clause(self) -> str:
        return f"ORDER BY {self.names(self.starts)}"

    @property
    def frame_so_far(self) -> str:
        return f"{self.order_clause} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"

    @property
    def has_losses(self) -> bool:
        """A version does not keep all values of the upserts that were taken into it."""
        return self.plan.history is not None and bool(self.plan.history.untracked)

    @property
    def frame_throughout(self) -> str:
        return f"{self.order_clause} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"

    @property
    def is_batch_only(self) -> bool:
        """There are the changes of the batch and nothing else, each once, as folds leave them but under a watermark."""
        known = self.known
        return known.related is None and not known.absorbed and not known.cuts and self.plan.watermark is None

    # What becomes of them.

    def rank_events(self, relation: str) -> str:
        """Of one key and sequence the first counts; what the target has there is known of it. Only what is remembered comes
        before the version that begins there."""
        same = f"PARTITION BY {self.names((*self.keys, *self.starts))}"
        there = "max({}) OVER (" + same + ")" if self.known.absorbed else "{}"
        known = [f"{there.format(self.q(n))} AS {self.q('_cdc__k' + n)}" for n in self.found_columns]
        number = f"row_number() OVER ({same} ORDER BY {self.q(KIND)}, {self.q(PLACE)})"
        nth = f"{1 if self.is_batch_only else number} AS {self.q('_cdc__nth')}"
        touched = f"max({self.q(KIND)}) OVER (PARTITION BY {self.names(self.keys)}) AS {self.q('_cdc__touched')}"
        parts = [nth, *([touched] if self.known.missing else []), *known]
        return f"SELECT *, {', '.join(parts)} FROM {relation}"

    def number_lives(self, relation: str) -> str:
        """A life goes from one delete to the next."""
        deletes = f"CASE WHEN {self.is_delete} AND {self.q('_cdc__nth')} = 1 THEN 1 ELSE 0 END"
        partition = f"PARTITION BY {self.names(self.keys)} {self.frame_so_far}"
        return f"SELECT *, sum({deletes}) OVER ({partition}) AS {self.q('_cdc__life')} FROM {relation}"

    def judge_events(self, relation: str) -> str:
        """A change that did not send everything needs an upsert before it in its life that was there when it came."""
        q = self.q
        again = f"CASE WHEN {q('_cdc__nth')} > 1 THEN {text_literal(DUPLICATE)}"
        if not self.known.missing:
            return f"SELECT *, {again} ELSE {text_literal(APPLY)} END AS {q(VERDICT)} FROM {relation}"
        whole = f"{q('_cdc__nth')} = 1 AND NOT ({self.is_delete}) AND ({q(KIND)} < {CHANGE} OR {q(CDC_UNSENT)} IS NULL)"
        window = f"PARTITION BY {self.names(self.keys)}, {q('_cdc__life')} {self.frame_so_far}"
        based = f"min(CASE WHEN {whole} THEN {q(PLACE)} END) OVER ({window})"
        inner = f"SELECT *, {based} AS {q('_cdc__based')} FROM {relation}"
        partial = f"{q(KIND)} = {CHANGE} AND NOT ({self.is_delete}) AND {q(CDC_UNSENT)} IS NOT NULL"
        nothing = f"({q('_cdc__lost')} OR {q('_cdc__based')} IS NULL OR {q('_cdc__based')} > {q(PLACE)})"
        case = f"{again} WHEN {partial} AND {nothing} THEN {text_literal(INCOMPLETE)} ELSE {text_literal(APPLY)} END"
        return f"SELECT *, {case} AS {q(VERDICT)} FROM (\n{inner}) AS j"

    def place_events(self, relation: str) -> str:
        """Whether an upsert is the first of its life, and a delete ends no version. Where all was sent the same window tells
        whether the upsert begins a version."""
        q = self.q
        before = f"lag({q(OP)}) {self.window_over()}"
        nothing = f"COALESCE({before}, {text_literal(Op.DELETE)}) = {text_literal(Op.DELETE)}"
        first = [f"NOT ({self.is_delete}) AND {nothing} AS {q('_cdc__first')}"]
        told = first if self.known.missing else [self.opens_condition(nothing), *self.neighbour_columns()]
        return f"SELECT *, {', '.join(told)}, {self.is_delete} AND {nothing} AS {q(SILENT)} FROM {relation}"

    def group_values(self, relation: str) -> str:
        """Each column that somebody did not send, by the upsert that sent it last."""
        q = self.q
        parts = []
        for i, name in enumerate(self.known.missing):
            gives = f"{q('_cdc__first')} OR {was_sent_condition(self.dialect, q(CDC_UNSENT), name)}"
            over = self.window_over("_cdc__life", order=self.frame_so_far)
            parts.append(f"sum(CASE WHEN {gives} THEN 1 ELSE 0 END) {over} AS {q(f'_cdc__g{i}')}")
        return f"SELECT {', '.join(['*', *parts])} FROM {relation}"

    def fill_values(self, relation: str) -> str:
        """With the values that were not sent."""
        kept = [n for n in self.list_filled_columns() if n not in self.known.missing]
        given = [
            f"first_value({self.q(name)}) {self.window_over('_cdc__life', f'_cdc__g{i}')} AS {self.q(name)}"
            for i, name in enumerate(self.known.missing)
        ]
        return f"SELECT {', '.join([*map(self.q, kept), *given])} FROM {relation}"

    def list_filled_columns(self) -> list[str]:
        """What goes on from `fill_values`."""
        known = ["_cdc__k" + n for n in self.found_columns]
        known += ["_cdc__touched"] if self.known.missing else []
        made = [KIND, PLACE, OP, VERDICT, SILENT, "_cdc__first", "_cdc__life", *known]
        return [*made, *self.keys, *self.starts, START_AT, CDC_UNSENT, *self.known.values]

    def compare_values(self, relation: str) -> str:
        """With the values that were filled in."""
        return (
            f"SELECT *, "
            f"{', '.join([self.opens_condition(self.q('_cdc__first')), *self.neighbour_columns()])} FROM {relation}"
        )

    def opens_condition(self, first: str) -> str:
        """An upsert that is not the first of its life comes right after another one: no window over a life is needed."""
        pairs = [
            (self.value_expression(n), f"lag({self.value_expression(n)}) {self.window_over()}") for n in self.known.compared
        ]
        differs = [f"{mine} IS DISTINCT FROM {other}" for mine, other in pairs] or ["FALSE"]
        return f"NOT ({self.is_delete}) AND ({first} OR {' OR '.join(differs)}) AS {self.q(OPENS)}"

    def value_expression(self, name: str) -> str:
        return f'CAST({self.q(name)} AS TEXT) COLLATE "C"' if name in self.known.as_text else self.q(name)

    def neighbour_columns(self) -> list[str]:
        """What the event before says, and what the last of the key says: see `last_value`."""
        out = []
        for i, n in enumerate(map(self.q, self.ending_columns)):
            out.append(f"lag({n}) {self.window_over()} AS {self.q(f'_cdc__before_{i}')}")
            out.append(f"last_value({n}) {self.window_over(order=self.frame_throughout)} AS {self.q(f'_cdc__final_{i}')}")
        return out

    @property
    def ending_columns(self) -> tuple[str, ...]:
        """Of these a version has what its last upsert said."""
        return (*self.starts, PLACE, *self.known.untracked)

    def finish_versions(self, relation: str) -> str:
        """The upsert after one that begins a version is taken into it, unless it begins one."""
        if not self.has_losses:
            return f"SELECT * FROM {relation}"
        taken = f"CASE WHEN {self.is_delete} OR {self.q(OPENS)} THEN 0 ELSE 1 END"
        return f"SELECT *, COALESCE(lead({taken}) {self.window_over()}, 0) = 1 AS {self.q(MANY)} FROM {relation}"

    # What they come to.

    def select_versions(self, events: str) -> str:
        q = self.q
        boundary = f"{q(VERDICT)} = {text_literal(APPLY)} AND ({q(OPENS)} OR {self.is_delete})"
        window = f"OVER (PARTITION BY {self.names(self.keys)} {self.order_clause})"
        leads = {f"_cdc__next_{i}": n for i, n in zip(self.numbers, self.starts, strict=True)} | {"_cdc__next_at": START_AT}
        leads |= {f"_cdc__then_{i}": f"_cdc__before_{i}" for i in range(len(self.ending_columns))}
        inner = f"SELECT *, {', '.join(f'lead({q(n)}) {window} AS {q(name)}' for name, n in leads.items())}"
        inner += f" FROM {events} WHERE {boundary}"
        new = f"SELECT {self.version_row(text_literal(Op.UPDATE), ended=True)} FROM ({inner}) AS b WHERE {q(OPENS)}"
        if self.known.related is None:
            return new
        changed = [f"{q('_cdc__k' + THERE)} = 0"]
        for i, start in zip(self.numbers, self.starts, strict=True):
            changed.append(f"{q(f'_cdc__next_{i}')} IS DISTINCT FROM {q(f'_cdc__k_cdc__was_end_{i}')}")
            changed.append(f"{self.last_value(start)} IS DISTINCT FROM {q(f'_cdc__k_cdc__was_last_{i}')}")
        changed += [f"{q(CDC_UNSENT)} IS NOT NULL AND {q('_cdc__touched')} = {CHANGE}"] if self.known.missing else []
        gone = f"{q(VERDICT)} = {text_literal(APPLY)} AND {q('_cdc__k' + THERE)} = 1 AND NOT {q(OPENS)}"
        of_gone = f"SELECT {self.version_row(text_literal(Op.DELETE), ended=False)} FROM {events} WHERE {gone}"
        return f"{new} AND ({' OR '.join(changed)})\nUNION ALL\n{of_gone}"

    def last_value(self, name: str) -> str:
        """What the last upsert of a version said: the event before the next version or delete, or the last of the key."""
        i = self.ending_columns.index(name)
        none, final, then = map(self.q, ("_cdc__next_1", f"_cdc__final_{i}", f"_cdc__then_{i}"))
        return f"CASE WHEN {none} IS NULL THEN {final} ELSE {then} END"

    def version_row(self, op: str, *, ended: bool) -> str:
        """A version as the target keeps it; of one that is no more only the key and the sequence count."""
        q = self.q
        last = self.last_value if ended else q
        made = {lasting: last(start) for lasting, start in zip(self.lasts, self.starts, strict=True)}
        made |= {n: last(n) for n in self.known.untracked}
        ends = {END_AT: "_cdc__next_at"} | {n: f"_cdc__next_{i}" for n, i in zip(self.ends, self.numbers, strict=True)}
        made |= {n: q(name) if ended else "NULL" for n, name in ends.items()}
        if self.known.applied_at:
            made[CDC_APPLIED_AT] = self.known.applied_at
        out = [f"{op} AS {q(OP)}", q(PLACE), f"{last(PLACE)} AS {q('_cdc__last_place')}"]
        return ", ".join([*out, *(f"{made.get(name, q(name))} AS {q(name)}" for name in self.carried_columns())])

    def carried_columns(self) -> list[str]:
        """The columns of the target in its order as far as they are carried, then those that are carried besides."""
        mine = {*self.keys, *self.starts, START_AT, END_AT, *self.ends, *self.lasts, CDC_UNSENT, *self.known.values}
        target = [c.name for c in self.plan.target if c.name in mine]
        return [*target, *(n for n in self.known.values if n not in target)]

    def select_absorbed(self, events: str) -> str:
        q = self.q
        first = " AND ".join(
            f"{q(f'_cdc__k_cdc__was_last_{i}')} = {q(n)}" for i, n in zip(self.numbers, self.starts, strict=True)
        )
        unseen = f"{q(KIND)} = {CHANGE}" if self.known.related is None else f"({q(KIND)} = {CHANGE} OR ({first}))"
        kept = [f"NOT ({self.is_delete}) AND NOT {q(OPENS)}", f"{q(SILENT)} AND {q(KIND)} <> {CUT}"]
        kept += [f"{q(OPENS)} AND {q(MANY)} AND {unseen}"] if self.has_losses else []
        names = [OP, PLACE, *self.keys, *self.starts, START_AT, CDC_UNSENT, *self.known.values]
        new = f"{q(VERDICT)} = {text_literal(APPLY)} AND {q(KIND)} NOT IN ({MARK}, {TAKEN})"
        return f"SELECT {self.names(names)} FROM {events} WHERE {new} AND ({' OR '.join(f'({k})' for k in kept)})"
