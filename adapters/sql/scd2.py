"""Stage 3 of an scd2 plan, as SQL: the versions of a key are a function of all its changes, by sequence.

All information about a key becomes *events*: changes of the batch, versions in the target, truncates, and absorbed
changes. (A version is an upsert at its start and a delete at its end.) Window functions over each key's events,
ordered by sequence, then find new events, the events that start a version, and the ends of versions.
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
from .scd2_events import (
    ABSORBED,
    CHANGE,
    KIND,
    LAST_UPSERT,
    ROW_NUMBER,
    THERE,
    TRUNCATE,
    EventBranches,
    Scd2Input,
    Scd2Terms,
)

OPENS, MANY, SILENT = "_cdc__opens", "_cdc__many", "_cdc__silent"
"""OPENS: an upsert that starts a version. MANY: its version has more upserts. SILENT: a delete that ends no
version."""
STORED_PREFIX = "_cdc__k"
"""Prefix of copies of `found_columns`: the target's version at an event's sequence, in each event of that sequence."""


def events_select(plan: ApplyPlan, dialect: Dialect, inputs: Scd2Input) -> str:
    """Every event with the results about it. Names of results start with `_cdc__`, as no source column's name
    does.

    - The event: its kind, `_place`, `_op`, the keys, `_cdc_seq_*`, `__START_AT`, the carried values
      (completed).
    - `_verdict`, for changes: apply, duplicate or incomplete.
    - OPENS, SILENT, and MANY (only where some columns are not tracked).
    - Does the target have a version that starts here? If so, its end and its last sequence.
    - The sequence, `_place` and untracked columns of the event before it, and of the key's last event.
    """
    steps = _Scd2Steps(plan, dialect, inputs)
    # Each window is one more pass over all rows. If every change sent all columns, some steps are skipped.
    lives = [("lives", steps.number_lives)] if inputs.missing else []
    filling = (
        [("grouped", steps.group_values), ("filled", steps.fill_values), ("compared", steps.compare_values)]
        if inputs.missing
        else []
    )
    judging = [("judged", steps.judge_events), ("placed", steps.place_events)]
    last, ctes = "events", [f"events AS (\n{EventBranches(plan, dialect, inputs).select()})"]
    for name, step in [("ranked", steps.rank_events), *lives, *judging, *filling]:
        ctes.append(f"{name} AS (\n{step(last)})")
        last = name
    return "WITH " + ",\n".join(ctes) + f"\n{steps.finish_versions(last)}"


def versions_select(plan: ApplyPlan, dialect: Dialect, inputs: Scd2Input, events: str) -> str:
    """The rows of stage 4, from the relation of `events_select`: new and changed versions, and removed versions
    with `_op` d.

    Columns: `_op`, `_place`, `_cdc__last_place` (the event that gave the untracked columns) and the carried
    columns of the target.
    """
    return _Scd2Steps(plan, dialect, inputs).select_versions(events)


def absorbed_select(plan: ApplyPlan, dialect: Dialect, inputs: Scd2Input, events: str) -> str:
    """The changes to store as absorbed, from the relation of `events_select`.

    - Upserts that became part of an earlier version. If the version does not keep all values, also its first
      upsert.
    - Deletes that end no version.

    Columns: `_op`, `_place`, and the carried columns of the target.
    """
    return _Scd2Steps(plan, dialect, inputs).select_absorbed(events)


class _Scd2Steps(Scd2Terms):
    """The steps of the statements above, in their order."""

    def __init__(self, plan: ApplyPlan, dialect: Dialect, inputs: Scd2Input) -> None:
        super().__init__(plan, dialect, inputs)
        self.order_clause = f"ORDER BY {self.names(self.starts)}"
        self.frame_so_far = f"{self.order_clause} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        self.frame_throughout = f"{self.order_clause} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
        # A version does not keep all values of the upserts that it absorbed.
        self.has_losses = plan.history is not None and bool(plan.history.untracked)
        # The only events are the changes of the batch, each once. A fold guarantees this, except under a watermark.
        has_others = inputs.related is not None or inputs.absorbed or inputs.truncates
        self.is_batch_only = not has_others and plan.watermark is None
        # A version has the values of its last upsert in these columns.
        self.ending_columns = (*self.starts, ROW_NUMBER, *self.inputs.untracked)

    def window_over(self, *by: str, order: str = "") -> str:
        """A window over the events of one key with the same verdict and the same values of `by`."""
        partition = ", ".join([*map(self.q, self.keys), self.q(VERDICT), *map(self.q, by)])
        return f"OVER (PARTITION BY {partition}{' ' + (order or self.order_clause)})"

    # Verdicts and completed values.

    def rank_events(self, relation: str) -> str:
        """The first of several events with equal key and sequence counts. It also gets the target's version at this
        sequence.

        Only an absorbed change sorts before the version that starts there.
        """
        same = f"PARTITION BY {self.names((*self.keys, *self.starts))}"
        found_template = "max({}) OVER (" + same + ")" if self.inputs.absorbed else "{}"
        columns = [f"{found_template.format(self.q(n))} AS {self.q(STORED_PREFIX + n)}" for n in self.found_columns]
        number = f"row_number() OVER ({same} ORDER BY {self.q(KIND)}, {self.q(ROW_NUMBER)})"
        nth = f"{1 if self.is_batch_only else number} AS {self.q('_cdc__nth')}"
        touched = f"max({self.q(KIND)}) OVER (PARTITION BY {self.names(self.keys)}) AS {self.q('_cdc__touched')}"
        parts = [nth, *([touched] if self.inputs.missing else []), *columns]
        return f"SELECT *, {', '.join(parts)} FROM {relation}"

    def number_lives(self, relation: str) -> str:
        """A life of a key lasts from one delete to the next."""
        deletes = f"CASE WHEN {self.is_delete} AND {self.q('_cdc__nth')} = 1 THEN 1 ELSE 0 END"
        partition = f"PARTITION BY {self.names(self.keys)} {self.frame_so_far}"
        return f"SELECT *, sum({deletes}) OVER ({partition}) AS {self.q('_cdc__life')} FROM {relation}"

    def judge_events(self, relation: str) -> str:
        """An incomplete change needs an earlier upsert in its life that arrived before it."""
        q = self.q
        again = f"CASE WHEN {q('_cdc__nth')} > 1 THEN {text_literal(DUPLICATE)}"
        if not self.inputs.missing:
            return f"SELECT *, {again} ELSE {text_literal(APPLY)} END AS {q(VERDICT)} FROM {relation}"
        whole = f"{q('_cdc__nth')} = 1 AND NOT ({self.is_delete}) AND ({q(KIND)} < {CHANGE} OR {q(CDC_UNSENT)} IS NULL)"
        window = f"PARTITION BY {self.names(self.keys)}, {q('_cdc__life')} {self.frame_so_far}"
        based = f"min(CASE WHEN {whole} THEN {q(ROW_NUMBER)} END) OVER ({window})"
        inner = f"SELECT *, {based} AS {q('_cdc__based')} FROM {relation}"
        partial = f"{q(KIND)} = {CHANGE} AND NOT ({self.is_delete}) AND {q(CDC_UNSENT)} IS NOT NULL"
        nothing = f"({q('_cdc__lost')} OR {q('_cdc__based')} IS NULL OR {q('_cdc__based')} > {q(ROW_NUMBER)})"
        case = f"{again} WHEN {partial} AND {nothing} THEN {text_literal(INCOMPLETE)} ELSE {text_literal(APPLY)} END"
        return f"SELECT *, {case} AS {q(VERDICT)} FROM (\n{inner}) AS j"

    def place_events(self, relation: str) -> str:
        """Marks the first upsert of each life, and deletes that end no version. If all values were sent, the
        same window also finds the upserts that start a version."""
        q = self.q
        before = f"lag({q(OP)}) {self.window_over()}"
        nothing = f"COALESCE({before}, {text_literal(Op.DELETE)}) = {text_literal(Op.DELETE)}"
        first = [f"NOT ({self.is_delete}) AND {nothing} AS {q('_cdc__first')}"]
        columns = first if self.inputs.missing else [self.opens_condition(nothing), *self.neighbour_columns()]
        return f"SELECT *, {', '.join(columns)}, {self.is_delete} AND {nothing} AS {q(SILENT)} FROM {relation}"

    def group_values(self, relation: str) -> str:
        """Per column with missing values: groups events by the upsert that sent the column last."""
        q = self.q
        parts = []
        for i, name in enumerate(self.inputs.missing):
            gives = f"{q('_cdc__first')} OR {was_sent_condition(self.dialect, q(CDC_UNSENT), name)}"
            over = self.window_over("_cdc__life", order=self.frame_so_far)
            parts.append(f"sum(CASE WHEN {gives} THEN 1 ELSE 0 END) {over} AS {q(f'_cdc__g{i}')}")
        return f"SELECT {', '.join(['*', *parts])} FROM {relation}"

    def fill_values(self, relation: str) -> str:
        """Fills in the values that were not sent."""
        names = [n for n in self.list_filled_columns() if n not in self.inputs.missing]
        filled_columns = [
            f"first_value({self.q(name)}) {self.window_over('_cdc__life', f'_cdc__g{i}')} AS {self.q(name)}"
            for i, name in enumerate(self.inputs.missing)
        ]
        return f"SELECT {', '.join([*map(self.q, names), *filled_columns])} FROM {relation}"

    def list_filled_columns(self) -> list[str]:
        """The columns that `fill_values` passes on."""
        columns = [STORED_PREFIX + n for n in self.found_columns]
        columns += ["_cdc__touched"] if self.inputs.missing else []
        event_columns = [KIND, ROW_NUMBER, OP, VERDICT, SILENT, "_cdc__first", "_cdc__life", *columns]
        return [*event_columns, *self.keys, *self.starts, START_AT, CDC_UNSENT, *self.inputs.values]

    def compare_values(self, relation: str) -> str:
        """Compares the filled values."""
        return (
            f"SELECT *, "
            f"{', '.join([self.opens_condition(self.q('_cdc__first')), *self.neighbour_columns()])} FROM {relation}"
        )

    def opens_condition(self, first: str) -> str:
        """An upsert that is not the first of its life follows another upsert directly, so no window over a life
        is needed."""
        pairs = [
            (self.value_expression(n), f"lag({self.value_expression(n)}) {self.window_over()}") for n in self.inputs.compared
        ]
        differs = [f"{value} IS DISTINCT FROM {other}" for value, other in pairs] or ["FALSE"]
        return f"NOT ({self.is_delete}) AND ({first} OR {' OR '.join(differs)}) AS {self.q(OPENS)}"

    def value_expression(self, name: str) -> str:
        return f'CAST({self.q(name)} AS TEXT) COLLATE "C"' if name in self.inputs.as_text else self.q(name)

    def neighbour_columns(self) -> list[str]:
        """The values of the event before, and of the key's last event; see `last_value`."""
        out = []
        for i, n in enumerate(map(self.q, self.ending_columns)):
            out.append(f"lag({n}) {self.window_over()} AS {self.q(f'_cdc__before_{i}')}")
            out.append(f"last_value({n}) {self.window_over(order=self.frame_throughout)} AS {self.q(f'_cdc__final_{i}')}")
        return out

    def finish_versions(self, relation: str) -> str:
        """Marks an event whose next upsert starts no version of its own and is absorbed."""
        if not self.has_losses:
            return f"SELECT * FROM {relation}"
        absorbs = f"CASE WHEN {self.is_delete} OR {self.q(OPENS)} THEN 0 ELSE 1 END"
        return f"SELECT *, COALESCE(lead({absorbs}) {self.window_over()}, 0) = 1 AS {self.q(MANY)} FROM {relation}"

    # Results.

    def select_versions(self, events: str) -> str:
        q = self.q
        boundary = f"{q(VERDICT)} = {text_literal(APPLY)} AND ({q(OPENS)} OR {self.is_delete})"
        window = f"OVER (PARTITION BY {self.names(self.keys)} {self.order_clause})"
        leads = {f"_cdc__next_{i}": n for i, n in zip(self.numbers, self.starts, strict=True)} | {"_cdc__next_at": START_AT}
        leads |= {f"_cdc__then_{i}": f"_cdc__before_{i}" for i in range(len(self.ending_columns))}
        inner = f"SELECT *, {', '.join(f'lead({q(n)}) {window} AS {q(name)}' for name, n in leads.items())}"
        inner += f" FROM {events} WHERE {boundary}"
        new = f"SELECT {self.version_row(text_literal(Op.UPDATE), removed=False)} FROM ({inner}) AS b WHERE {q(OPENS)}"
        if self.inputs.related is None:
            return new
        changed = [f"{q(STORED_PREFIX + THERE)} = 0"]
        for i, start in zip(self.numbers, self.starts, strict=True):
            changed.append(f"{q(f'_cdc__next_{i}')} IS DISTINCT FROM {q(f'{STORED_PREFIX}_cdc__was_end_{i}')}")
            changed.append(f"{self.last_value(start)} IS DISTINCT FROM {q(f'{STORED_PREFIX}_cdc__was_last_{i}')}")
        changed += [f"{q(CDC_UNSENT)} IS NOT NULL AND {q('_cdc__touched')} = {CHANGE}"] if self.inputs.missing else []
        is_removed = f"{q(VERDICT)} = {text_literal(APPLY)} AND {q(STORED_PREFIX + THERE)} = 1 AND NOT {q(OPENS)}"
        removals = f"SELECT {self.version_row(text_literal(Op.DELETE), removed=True)} FROM {events} WHERE {is_removed}"
        return f"{new} AND ({' OR '.join(changed)})\nUNION ALL\n{removals}"

    def last_value(self, name: str) -> str:
        """The value of a version's last upsert: the event before the next version or delete, or the key's last
        event."""
        i = self.ending_columns.index(name)
        none, final, then = map(self.q, ("_cdc__next_1", f"_cdc__final_{i}", f"_cdc__then_{i}"))
        return f"CASE WHEN {none} IS NULL THEN {final} ELSE {then} END"

    def version_row(self, op: str, *, removed: bool) -> str:
        """A version as stored in the target. Only the key and the sequence matter in a `removed` one."""
        q = self.q
        last = q if removed else self.last_value
        expressions = {lasting: last(start) for lasting, start in zip(self.lasts, self.starts, strict=True)}
        expressions |= {n: last(n) for n in self.inputs.untracked}
        ends = {END_AT: "_cdc__next_at"} | {n: f"_cdc__next_{i}" for n, i in zip(self.ends, self.numbers, strict=True)}
        expressions |= {n: "NULL" if removed else q(name) for n, name in ends.items()}
        if self.inputs.applied_at:
            expressions[CDC_APPLIED_AT] = self.inputs.applied_at
        out = [f"{op} AS {q(OP)}", q(ROW_NUMBER), f"{last(ROW_NUMBER)} AS {q('_cdc__last_place')}"]
        return ", ".join([*out, *(f"{expressions.get(name, q(name))} AS {q(name)}" for name in self.list_version_columns())])

    def list_version_columns(self) -> list[str]:
        """The columns of a version: keys, sequences, start, end and carried values, in the order of the target. Then
        carried columns that the target does not have."""
        names = {*self.keys, *self.starts, START_AT, END_AT, *self.ends, *self.lasts, CDC_UNSENT, *self.inputs.values}
        target = [c.name for c in self.plan.target if c.name in names]
        return [*target, *(n for n in self.inputs.values if n not in target)]

    def select_absorbed(self, events: str) -> str:
        q = self.q
        first = " AND ".join(
            f"{q(f'{STORED_PREFIX}_cdc__was_last_{i}')} = {q(n)}" for i, n in zip(self.numbers, self.starts, strict=True)
        )
        unseen = f"{q(KIND)} = {CHANGE}" if self.inputs.related is None else f"({q(KIND)} = {CHANGE} OR ({first}))"
        absorbed = [f"NOT ({self.is_delete}) AND NOT {q(OPENS)}", f"{q(SILENT)} AND {q(KIND)} <> {TRUNCATE}"]
        absorbed += [f"{q(OPENS)} AND {q(MANY)} AND {unseen}"] if self.has_losses else []
        names = [OP, ROW_NUMBER, *self.keys, *self.starts, START_AT, CDC_UNSENT, *self.inputs.values]
        new = f"{q(VERDICT)} = {text_literal(APPLY)} AND {q(KIND)} NOT IN ({ABSORBED}, {LAST_UPSERT})"
        return f"SELECT {self.names(names)} FROM {events} WHERE {new} AND ({' OR '.join(f'({k})' for k in absorbed)})"
