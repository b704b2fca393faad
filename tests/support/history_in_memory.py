"""A target with versions in two in-memory tables: all histories, batches and orders are cheap to try."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from adapters.apply import scd2_in_process
from adapters.apply.rows_frame import to_rows
from adapters.engines.local import LocalEngine
from replicator.domain.change import OP
from replicator.domain.policy.plan import CDC_APPLIED_AT, EVENT_ID, ApplyPlan, Truncate, find_highest, merge_truncates
from replicator.domain.policy.policies import scd2
from replicator.domain.sequence import Sequence
from replicator.domain.table import Column, TableSpec
from replicator.testing.delivery import to_canonical_rows
from replicator.testing.histories import changes_frame, make_random_history
from replicator.testing.model import Change, Outcome, Row, Scd2
from replicator.testing.source import SourceEvent

TABLE = TableSpec("public.items", (Column("k", pa.int64()), Column("a", pa.string()), Column("b", pa.float64())), ("k",), 1)


@dataclass
class InMemoryTarget:
    """A target of versions in memory."""

    plan: ApplyPlan
    rows: dict[str, Row] = field(default_factory=dict)
    absorbed: list[Row] = field(default_factory=list)
    truncates: tuple[Truncate, ...] = ()
    high: Sequence | None = None
    seen: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=lambda: {"applied": 0, "duplicate": 0, "rejected": 0})

    def apply(self, changes: pa.Table, plan: ApplyPlan | None = None) -> None:
        self.plan = plan or self.plan
        plan = self.plan
        folded = LocalEngine({}).fold(changes, plan)
        facts = folded.facts
        if facts.lowest is None:
            return
        assert plan.history is not None
        new = [truncate for truncate in facts.truncates if truncate.sequence not in {c.sequence for c in self.truncates}]
        self.truncates = merge_truncates(self.truncates, facts.truncates)
        rows = to_rows(folded.frame, plan, datetime.now(UTC))
        late = self.high is not None and facts.lowest <= self.high
        ids = set(rows[EVENT_ID].to_pylist()) - self.seen
        self.seen |= ids
        absorbed = [m for m in self.absorbed if m[EVENT_ID] not in ids] if late else None
        schema = pa.schema([rows.schema.field(c.name) for c in plan.target])
        related = pa.Table.from_pylist(list(self.rows.values()), schema)
        related = related.filter(pc.or_(pc.is_null(related["_cdc_end_seq_1"]), self._at_or_above(related, facts.lowest)))
        known = None if absorbed is None else pa.Table.from_pylist(absorbed, schema.append(pa.field(OP, pa.string())))
        done = scd2_in_process.compute_versions(
            plan, plan.history, rows, related, known, lowest=facts.lowest, truncates=self.truncates
        )
        self.absorbed += done.absorbed.to_pylist()
        self.high = find_highest(self.high, facts.highest)
        for name in self.counts:
            self.counts[name] += getattr(done.counts, name) + getattr(folded.counts, name)
        self._write(done.write.to_pylist(), new)

    def _at_or_above(self, related: pa.Table, lowest: Sequence) -> pa.Array:
        ends = zip(*(related[f"_cdc_end_seq_{i}"].to_pylist() for i in range(1, len(lowest) + 1)), strict=True)
        return pa.array([end[0] is not None and end >= lowest for end in ends], pa.bool_())

    def _write(self, rows: list[Row], truncates: list[Truncate]) -> None:
        touched = {self._key(row) for row in rows}
        assert len(touched) == len(rows), ("two rows have one merge key", rows)
        for row in rows:
            if row.pop(OP) == "d":
                del self.rows[self._key(row)]
            else:
                self.rows[self._key(row)] = row
        numbers = range(1, self.plan.table.sequence + 1)
        for key, row in self.rows.items():
            for truncate in () if key in touched else truncates:
                start, end = (tuple(row[f"_cdc{part}_seq_{i}"] for i in numbers) for part in ("", "_end"))
                if start < truncate.sequence and (end[0] is None or end > truncate.sequence):
                    row |= {f"_cdc_end_seq_{i}": v for i, v in zip(numbers, truncate.sequence, strict=True)}
                    row["__END_AT"] = (
                        None if truncate.at is None else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=truncate.at)
                    )

    def _key(self, row: Row) -> str:
        return repr([row[k] for k in self.plan.merge_keys])


def assert_same(memory: InMemoryTarget, model: Scd2, note: object = "") -> None:
    columns = [c.name for c in memory.plan.target if c.name != CDC_APPLIED_AT]
    wanted, found = to_canonical_rows(model.table(), columns), to_canonical_rows(list(memory.rows.values()), columns)
    assert wanted == found, f"{note}\n{columns}\nmissing {wanted - found}\nsurplus {found - wanted}"
    assert_invariants(memory)


def assert_invariants(memory: InMemoryTarget) -> None:
    """Each key has at most one open version, and versions do not overlap."""
    numbers = range(1, memory.plan.table.sequence + 1)
    by_key: dict[str, list[tuple[Sequence, Sequence | None]]] = {}
    for row in memory.rows.values():
        start, end = (tuple(row[f"_cdc{part}_seq_{i}"] for i in numbers) for part in ("", "_end"))
        by_key.setdefault(repr([row[k] for k in memory.plan.table.keys]), []).append(
            (start, None if end[0] is None else end)
        )
    for spans in by_key.values():
        spans.sort()
        for (start, end), (following, _) in itertools.pairwise(spans):
            assert end is not None and start < end <= following, spans


def shuffle_changes(seed: int) -> tuple[list[Change], list[int]]:
    """Whole changes of a few keys in any order, some twice, and the batch limits."""
    random = Random(seed)
    changes = []
    for sequence in range(1, random.randint(3, 14)):
        op = random.choice("cuuuudt" if random.random() < 0.3 else "cuuuud")
        image = {"k": random.randint(1, 2), "a": random.choice("xxy"), "b": random.choice((0.0, 1.0, None, float("nan")))}
        ts = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=sequence)
        changes.append(Change(op, (sequence,), {} if op == "t" else image, ts=ts))
    changes += random.choices(changes, k=random.randint(0, 3))
    random.shuffle(changes)
    changes = [replace(c, event_id=f"t-0-{i}") for i, c in enumerate(changes)]
    return changes, sorted(random.sample(range(len(changes) + 1), random.randint(0, 3)))


def assert_random_histories(seeds: range, untracked: tuple[str, ...]) -> None:
    """Applies histories in source order, in any batches, with redelivered changes."""
    engine = LocalEngine({})
    for seed in seeds:
        history = make_random_history(seed, 40, keys=("int", "text", "composite"))
        if history.shape.shuffle is not None and history.shape.unseen:
            continue
        table = history.source.versions[0]
        memory, done = InMemoryTarget(scd2(table, untracked)), 0
        for batch in history.deliveries:
            runs = history.runs(batch.start, batch.end)
            for version, _ in runs:
                table = table.union(version)
            changes = engine.frames.concat([f for _, f in runs] or [history.frame((), table)], table)
            for segment in engine.frames.segments(changes, table):
                memory.apply(segment, scd2(table, untracked))
            done = max(done, batch.end)
            model = Scd2(table.column_names, table.keys, frozenset(untracked))
            for change in history.changes(0, done):
                model.apply_change(change)
            assert_same(memory, model, (seed, batch))


def assert_any_order(seeds: range, untracked: tuple[str, ...]) -> None:
    """Applies whole changes in any order and any batches."""
    for seed in seeds:
        changes, cuts = shuffle_changes(seed)
        memory, model = InMemoryTarget(scd2(TABLE, untracked)), Scd2(TABLE.column_names, TABLE.keys, frozenset(untracked))
        outcomes = []
        for start, end in itertools.pairwise([0, *cuts, len(changes)]):
            outcomes += [model.apply_change(c) for c in changes[start:end]]
            memory.apply(make_frame(changes, start, end))
            assert_same(memory, model, (seed, changes, cuts))
        truncates = sum(c.op == "t" for c in changes)
        assert memory.counts["applied"] + truncates >= outcomes.count(Outcome.APPLIED)


def make_frame(changes: list[Change], start: int, end: int) -> pa.Table:
    events = [(SourceEvent(0, start + i, 0, None, c), c) for i, c in enumerate(changes[start:end])]
    return changes_frame(events, TABLE, "t")
