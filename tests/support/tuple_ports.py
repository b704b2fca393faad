"""Small in-memory ports, and a machine that can lose power at any of their calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from replicator.domain.errors import DataLoss
from replicator.domain.policy.plan import Counts, LaneState
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, Lane, LaneOutcome
from replicator.ports.runtime import (
    LaneCommitted,
    LaneUp,
    Measurement,
    OpenDeadLetters,
    RecordsRead,
    RecordsRejected,
    SourceLag,
    StreamPace,
)
from replicator.ports.sink import LaneArtifact, LaneRemoval, SinkFeatures
from replicator.ports.source import Pace, SourceFeatures
from replicator.ports.stores import ALL_DEAD_LETTERS, DeadLetterFeatures, DeadLetterFilter, DeadLetterGroup, RegisterEntry
from support.tuple_engine import Rows, TupleEngine, TupleRecord


class Crash(BaseException):
    """The machine lost its power."""


class Machine:
    """Counts port calls; loses power at the n-th, before or after its effect. Nothing works after that."""

    def __init__(self, crash_at: int | None = None, *, after: bool = False) -> None:
        self.crash_at, self.after = crash_at, after
        self.calls: list[str] = []
        self.dead = False
        self.lock = threading.Lock()

    def call(self, name: str, effect: Callable[[], Any]) -> Any:
        with self.lock:
            if self.dead:
                raise Crash
            self.calls.append(name)
            mine = self.crash_at == len(self.calls)
            if mine:
                self.dead = True
                if not self.after:
                    raise Crash
            result = effect()
            if mine:
                raise Crash
            return result


@dataclass
class Target:
    """The content of a lane's target, which survives the machine."""

    rows: dict[Any, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    log: list[TupleRecord] = field(default_factory=list)
    gone: dict[Any, int] = field(default_factory=dict)
    floor: int = -1
    state: LaneState | None = None
    columns: tuple[str, ...] = ()


class TupleSink:
    def __init__(self, name: str, targets: dict[str, Target], machine: Machine) -> None:
        self.name, self.targets, self.machine = name, targets, machine
        self.before_apply: Callable[[Sequence[Any]], None] = lambda writes: None
        self.after_apply: Callable[[Sequence[Any]], None] = lambda writes: None
        self.applies: list[list[str]] = []
        self.spans: list[Span] = []
        self.prepared: list[tuple[str, tuple[str, ...]]] = []
        self.hurry: Callable[[], None] | None = None
        self.closed = False

    @property
    def features(self) -> SinkFeatures:
        removal = LaneRemoval(self.list_artifacts, self.drop)
        return SinkFeatures(policies=frozenset({"scd1", "append"}), removal=removal, hurry=self.hurry)

    def prepare(self, lane: Lane, plan: Any) -> None:
        def effect() -> None:
            self.targets.setdefault(lane.id, Target()).columns = plan.table.column_names

        self.prepared.append((lane.id, plan.table.column_names))
        self.machine.call(f"{self.name}.prepare", effect)

    def state(self, lane: Lane) -> LaneState | None:
        return self.machine.call(f"{self.name}.state", lambda: self.targets.get(lane.id, Target()).state)

    def apply(self, writes: Sequence[Any], reject: Any) -> dict[str, LaneOutcome]:
        self.before_apply(writes)
        self.applies.append([w.lane.id for w in writes])
        out = {}
        for write in writes:
            out[write.lane.id] = self._one(write, reject)
        self.after_apply(writes)
        return out

    def _one(self, write: Any, reject: Any) -> LaneOutcome:
        target = self.targets.setdefault(write.lane.id, Target())
        state = target.state or LaneState()
        if write.span.gaps(state.position):
            raise DataLoss(f"gap in {write.lane.id}: {write.span.gaps(state.position)}")
        assert write.span, "the span has no records"
        span = write.span
        assert all(r.at in span.end and span.start[r.at] <= r.offset < span.end[r.at] for r in write.folded.frame), "outside"
        assert write.plan.policy == "event_log" or set(write.plan.table.column_names) == set(target.columns)
        draft = Target(dict(target.rows), list(target.log), dict(target.gone), target.floor, state, target.columns)
        rejects: list[TupleRecord] = []
        counts = self._rows(write, state, draft, rejects)
        if rejects:
            reject(write.lane, tuple(rejects))
        identity = tuple(sorted((dict(state.identity) | dict(write.identity)).items()))
        position = state.position.advanced_to(write.span.end)
        draft.state = replace(state, position=position, identity=identity, rule=write.plan.rule)
        self.spans.append(write.span)

        def effect() -> None:
            self.targets[write.lane.id] = draft

        self.machine.call(f"{self.name}.commit", effect)
        return LaneOutcome(draft.state.position, Counts(**counts))

    def _rows(self, write: Any, state: LaneState, draft: Target, rejects: list[TupleRecord]) -> Counter[str]:
        counts: Counter[str] = Counter()
        before = dict(draft.rows)
        for rec in write.folded.frame:
            if rec.offset < state.position.get(rec.at, 0):
                counts["duplicate"] += 1
            elif write.plan.fold == "none":
                draft.log.append(rec)
                counts["applied"] += 1
            else:
                counts[self._upsert(rec, before, draft, rejects)] += 1
        return counts

    def _upsert(self, rec: TupleRecord, before: dict[Any, Any], draft: Target, rejects: list[TupleRecord]) -> str:
        if rec.op == "t":
            draft.floor = rec.seq
            draft.rows = {k: r for k, r in draft.rows.items() if r[0] >= rec.seq}
            return "applied"
        known = draft.rows.get(rec.key, (-1, {}))[0]
        if rec.seq <= max(known, draft.gone.get(rec.key, -1), draft.floor):
            return "superseded"
        if rec.op == "d":
            draft.rows.pop(rec.key, None)
            draft.gone[rec.key] = rec.seq
            return "applied"
        base: dict[str, Any] | None = {}
        if rec.unsent:
            source = before.get(rec.key if rec.moved_from is None else rec.moved_from)
            void = rec.reset and rec.moved_from is None
            base = None if source is None or void else source[1]
        if base is None:
            rejects.append(replace(rec, error="INCOMPLETE: no row"))
            return "rejected"
        draft.rows[rec.key] = (rec.seq, {n: v for n, v in base.items() if n in rec.unsent} | dict(rec.values))
        return "applied"

    def skip(self, lane: Lane, state: LaneState) -> None:
        def effect() -> None:
            self.targets.setdefault(lane.id, Target()).state = state

        self.machine.call(f"{self.name}.skip", effect)

    def reset(self, lane: Lane) -> None:
        self.machine.call(f"{self.name}.reset", lambda: self.targets.pop(lane.id, None))

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        return self.machine.call(f"{self.name}.belongings", lambda: [LaneArtifact("table", "")] * (lane.id in self.targets))

    def drop(self, lane: Lane) -> None:
        self.machine.call(f"{self.name}.drop", lambda: self.targets.pop(lane.id, None))

    def close(self) -> None:
        self.closed = True


class TupleSource:
    """A log, read in batches of the sizes in `cuts` (the last one repeats). A lane that is behind reads `piece` records
    at a time. `losses` returns `lost`."""

    def __init__(self, log: list[TupleRecord], cuts: Sequence[int], machine: Machine) -> None:
        self.log, self.cuts, self.machine = log, list(cuts) or [1000], machine
        self.lost: Callable[[Position], Mapping[TopicPartition, str]] = lambda position: {}
        self.first: dict[TopicPartition, int] | None = None
        self.identity: dict[str, str] = {"t": "id-1"}
        self.committed_positions: list[Position] = []
        self.reads: list[tuple[Position, Position]] = []
        self.on_batch: Callable[[int], None] = lambda number: None
        self.fed = threading.Condition()
        self.closed = False
        self.idle_wait = 0.01
        self.piece = 2
        self.features = SourceFeatures()

    def feed(self, *records: TupleRecord) -> None:
        with self.fed:
            self.log.extend(records)
            self.fed.notify_all()

    def run(self, start: Position, consume_batch: Any, stop: Any, *, once: bool) -> None:
        position, number, size = Position({**(self.first or {}), **start}), 0, len(self.log)
        index = 0
        while not stop.is_set():
            self.machine.call("source.poll", lambda: None)
            cut = self.cuts[min(number, len(self.cuts) - 1)]
            with self.fed:
                end = size if once else len(self.log)
                piece = tuple(r for r in self.log[index : min(end, index + cut)] if r.offset >= position.get(r.at, 0))
                index = min(end, index + cut)
            number += 1
            self.on_batch(number)
            if piece:
                position = self._give(piece, position, consume_batch)
            elif index >= end:
                if once:
                    return
                consume_batch(Batch((), Span(Position(), Position()), 0, 0))
                with self.fed:
                    self.fed.wait_for(lambda seen=index: len(self.log) > seen or stop.is_set(), self.idle_wait)

    def _give(self, piece: Rows, position: Position, consume_batch: Any) -> Position:
        ends = TupleEngine().frames.ends(piece)
        first: dict[TopicPartition, int] = {}
        for rec in piece:
            first.setdefault(rec.at, rec.offset)
        start = Position({p: position.get(p, first[p]) for p in ends})
        consume_batch(Batch(piece, Span(start, ends), len(piece), 100 * len(piece), dict(self.identity)))
        return position.advanced_to(ends)

    def read(self, start: Position, until: Position, consume_batch: Any, stop: Any) -> None:
        self.machine.call("source.read", lambda: None)
        self.reads.append((start, until))
        position = start.only(until)
        wanted = [r for r in list(self.log) if r.at in until and start.get(r.at, 0) <= r.offset < until[r.at]]
        for i in range(0, len(wanted), self.piece):
            position = self._give(tuple(wanted[i : i + self.piece]), position, consume_batch)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        return self.machine.call("source.losses", lambda: self.lost(position))

    def start(self) -> Position:
        return self.machine.call("source.start", lambda: self.beginning() if self.first is None else Position(self.first))

    def beginning(self) -> Position:
        first: dict[TopicPartition, int] = {}
        for rec in self.log:
            first.setdefault(rec.at, rec.offset)
        return Position(first)

    def end(self) -> Position:
        return TupleEngine().frames.ends(tuple(self.log))

    def committed(self, position: Position) -> None:
        self.committed_positions.append(position)

    def close(self) -> None:
        self.closed = True


class DeadLetterList:
    """A dead-letter store; `fail` raises what it returns."""

    def __init__(self, kept: dict[tuple[str, str], Any], machine: Machine) -> None:
        self.kept, self.machine = kept, machine
        self.fail: Callable[[], Exception | None] = lambda: None
        self.features = DeadLetterFeatures()

    def write(self, letters: Sequence[Any]) -> None:
        error = self.fail()
        if error:
            raise error
        self.machine.call("letters.write", lambda: self.kept.update({(x.event_id, x.lane): x for x in letters}))

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[Any]:
        return [letter for letter in self.kept.values() if which.is_match(letter)][:limit]

    def count_open(self) -> Counter[DeadLetterGroup]:
        return Counter(DeadLetterGroup(x.source, x.table, x.lane) for x in self.kept.values() if x.is_open)

    def close(self) -> None: ...


class MemoryRegister:
    def __init__(self, kept: dict[str, RegisterEntry], machine: Machine) -> None:
        self.kept, self.machine = kept, machine

    def load(self, source: str) -> RegisterEntry:
        return self.machine.call("register.load", lambda: self.kept.get(source, RegisterEntry()))

    def save(self, source: str, seen: RegisterEntry) -> None:
        seen = RegisterEntry(dict(seen.topics), dict(seen.beginnings), dict(seen.keys), seen.began)
        self.machine.call("register.save", lambda: self.kept.__setitem__(source, seen))


class RecordedTelemetry:
    """Telemetry that stores its measurements."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.rejects: Counter[tuple[str, str, str, str]] = Counter()
        self.open: dict[DeadLetterGroup, int] = {}
        self.of_lane: dict[str, Counts] = {}
        self.up: dict[str, bool] = {}
        self.lags: list[int] = []
        self.paces: list[tuple[str, str, Pace]] = []

    def record(self, measured: Measurement) -> None:
        match measured:
            case RecordsRead(_, records, ignored):
                self.totals["consumed"] += records
                self.totals.update({f"ignored.{kind}": number for kind, number in ignored.items()})
            case RecordsRejected(source, table, stage, code, records):
                self.rejects[source, table, stage, code] += records
            case OpenDeadLetters(counts):
                self.open = dict(counts)
            case LaneCommitted(lane, counts):
                self.of_lane[lane] = self.of_lane.get(lane, Counts()) + counts
            case LaneUp(lane, up):
                self.up[lane] = up
            case SourceLag(_, records):
                self.lags.append(records)
            case StreamPace(source, engine, pace):
                self.paces.append((source, engine, pace))
