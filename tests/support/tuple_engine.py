"""An engine and a decoder over tuples of records. They make no decision of the application."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from replicator.domain.policy.plan import Counts, Facts
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.decoder import DecoderFeatures
from replicator.ports.engine import EngineFeatures
from replicator.ports.frames import FoldedChanges, RecordSlice, RejectedRecord, RoutedBatch, TransformedChanges


@dataclass(frozen=True)
class TupleRecord:
    """Record, change and folded row in one. `kind`: change, tombstone, heartbeat, bad_route, bad_decode."""

    topic: str
    partition: int
    offset: int
    table: str = "public.items"
    op: str = "c"
    key: Any = None
    seq: int = 0
    values: tuple[tuple[str, Any], ...] = ()
    unsent: frozenset[str] = frozenset()
    moved_from: Any = None
    moved_to: bool = False
    version: int = 0
    kind: str = "change"
    error: str = ""
    reset: bool = False

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


Rows = tuple[TupleRecord, ...]
VERSIONS = [("id", "name"), ("id", "name", "mail"), ("id", "name", "mail", "age")]


class TupleFrames:
    def sample(self, raw: Rows) -> Any:
        return raw

    def count(self, frame: Rows) -> int:
        return len(frame)

    def ends(self, changes: Rows) -> Position:
        out = Position()
        for rec in changes:
            out = out.advanced_to({rec.at: rec.offset + 1})
        return out

    def concat(self, frames: Sequence[Rows], table: TableSpec | None = None) -> Rows:
        return tuple(r for frame in frames for r in frame)

    def split(self, frame: Rows, span: Span) -> tuple[Rows, Rows]:
        inside = tuple(r for r in frame if r.at in span.end and span.start[r.at] <= r.offset < span.end[r.at])
        return inside, tuple(r for r in frame if r not in inside)

    def segments(self, changes: Rows, table: TableSpec) -> Sequence[Rows]:
        out: list[list[TupleRecord]] = [[]]
        for rec in changes:
            if rec.moved_from is not None and rec.unsent:
                touches = [i for i, r in enumerate(out[-1]) if r.key == rec.moved_from]
                departs = [i for i in touches if out[-1][i].moved_to]
                at = departs[-1] if departs else len(out[-1])
                if touches and touches[0] < at:
                    out[-1:] = [out[-1][:at], out[-1][at:]]
            out[-1].append(rec)
        return [tuple(part) for part in out if part] or [()]

    def find_open_key_changes(self, changes: Rows) -> Position:
        waiting: dict[Any, TupleRecord] = {}
        for rec in changes:
            if rec.moved_to:
                waiting[rec.key] = rec
            waiting.pop(rec.moved_from, None)
        return Position.lowest(Position({r.at: r.offset}) for r in waiting.values())

    def rejected(self, rows: Rows, raw: Sequence[Rows]) -> Sequence[RejectedRecord]:
        known = {(r.at, r.offset): r for frame in raw for r in frame}
        return [
            RejectedRecord(r.topic, r.partition, r.offset, *_bytes(known.get((r.at, r.offset))), r.error)
            for r in {(r.at, r.offset): r for r in rows}.values()
        ]


class TupleEngine:
    frames = TupleFrames()
    features = EngineFeatures()

    def route(self, raw: Rows, decoder: Any) -> RoutedBatch[Rows]:
        runs: list[RecordSlice[Rows]] = []
        for table in dict.fromkeys(r.table for r in raw if r.kind in ("change", "bad_decode")):
            for rec in (r for r in raw if r.table == table and r.kind in ("change", "bad_decode")):
                if runs and runs[-1].table == table and runs[-1].fingerprint == str(rec.version):
                    runs[-1] = replace(runs[-1], frame=(*runs[-1].frame, rec))
                else:
                    runs.append(RecordSlice(table, str(rec.version), (rec,)))
        ignored = Counter(r.kind for r in raw if r.kind in ("tombstone", "heartbeat"))
        rejects = tuple(replace(r, error="MALFORMED: no") for r in raw if r.kind == "bad_route")
        topics = {run.table: frozenset(r.topic for r in raw if r.table == run.table) for run in runs}
        return RoutedBatch(tuple(runs), dict(ignored), rejects, len(rejects), topics)

    def decode(self, slice_: RecordSlice[Rows], decoder: Any, table: TableSpec) -> tuple[Rows, Rows]:
        good = tuple(r for r in slice_.frame if r.kind == "change")
        return good, tuple(replace(r, error="OUT_OF_RANGE: no") for r in slice_.frame if r.kind == "bad_decode")

    def transform_rows(self, changes: Rows, plan: Any) -> TransformedChanges[Rows]:
        """Supports one row transform, `without_deletes`. Rejects the key 13 for its missing sequence."""
        bad = tuple(replace(r, error="SEQUENCE: no") for r in changes if r.key == 13)
        rows = tuple(
            r
            for r in changes
            if r.key != 13 and not (plan.row_transforms.without_deletes and r.op == "d" and not r.moved_to)
        )
        left = len(changes) - len(rows) - len(bad)
        return TransformedChanges(rows, bad, Counts(filtered=left, rejected=len(bad)))

    def fold(self, changes: Rows, plan: Any) -> FoldedChanges[Rows]:
        rows: dict[Any, TupleRecord] = {}
        duplicate = superseded = 0
        for rec in changes:
            key = (rec.key, rec.seq) if plan.fold == "none" else "truncate" if rec.op == "t" else rec.key
            known = rows.get(key)
            if known is not None and rec.seq <= known.seq:
                duplicate, superseded = duplicate + (rec.seq == known.seq), superseded + (rec.seq < known.seq)
                continue
            if rec.op == "t" and plan.fold == "last":
                rows = {}
            rows.pop(key, None)
            rows[key] = _merge_over(known, rec, "truncate" in rows) if plan.fold == "last" else rec
        counts = Counts(duplicate=duplicate, superseded=superseded)
        counts += Counts(folded=len(changes) - len(rows) - counts.total)
        return FoldedChanges(tuple(rows.values()), _facts(changes, tuple(rows.values())), counts, len(rows), len(rows) * 10)

    def log(self, raw: Rows, decoder: Any) -> Rows:
        return raw


def _bytes(rec: TupleRecord | None) -> tuple[bytes | None, bytes | None]:
    return (None, None) if rec is None else (repr(rec.key).encode(), repr(rec).encode())


def _merge_over(known: TupleRecord | None, rec: TupleRecord, truncated: bool) -> TupleRecord:
    reset = truncated or (known is not None and (known.op == "d" or known.reset))
    if known is None or known.op == "d" or not rec.unsent:
        return replace(rec, reset=rec.reset or reset)
    values = {n: v for n, v in known.values if n in rec.unsent} | dict(rec.values)
    left = frozenset(n for n in rec.unsent if n not in values)
    moved = rec.moved_from or known.moved_from
    return replace(rec, values=tuple(values.items()), unsent=left, moved_from=moved, reset=reset)


def _facts(changes: Rows, rows: Rows) -> Facts:
    seqs = [(r.seq,) for r in changes]
    clear = max(((r.seq,) for r in rows if r.op == "t"), default=None)
    return Facts(
        lowest=min(seqs, default=None),
        highest=max(seqs, default=None),
        has_unchanged=any(r.unsent for r in rows),
        has_key_changes=any(r.moved_from is not None for r in rows),
        has_deletes=any(r.op == "d" for r in rows),
        truncated_at=clear,
        newest=max((r.seq * 1_000_000 for r in changes), default=None),
    )


class TupleDecoder:
    """`types` overrides a column's type by schema version. Tables in `keyless` have no key."""

    def __init__(self, keyless: Sequence[str] = (), types: Mapping[tuple[int, str], pa.DataType] | None = None) -> None:
        self.keyless, self.types = keyless, types or {}
        self.learnt: list[tuple[str, str]] = []
        self.features = DecoderFeatures()

    def envelope(self, raw: pa.Table) -> pa.Table:
        return pa.table({"table": pa.nulls(raw.num_rows, pa.string())})

    def learn(self, sample: Any, table: str, fingerprint: str) -> TableSpec:
        self.learnt.append((table, fingerprint))
        version = int(fingerprint)
        columns = tuple(Column(n, self.types.get((version, n), pa.string())) for n in VERSIONS[version])
        return TableSpec(table, columns, () if table in self.keyless else ("id",), 1, fingerprint)
