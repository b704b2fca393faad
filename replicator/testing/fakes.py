"""In-memory ports for tests. They pass the contract suites of real adapters."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa

from replicator.domain.change import ERROR, OFFSET, PARTITION, RAW, TOPIC, changes_schema
from replicator.domain.errors import DataLoss, Fatal, Fenced, Reject, RejectCode, ReplicatorError, Retryable
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.policy.late_changes import (
    advance_event_times,
    advance_purge,
    find_lateness_limit,
    make_late_reject,
    update_delete_horizons,
)
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, find_highest, get_resent_limit
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.decoder import ENVELOPE, ROUTE, TABLE_DROPPED, DecoderFeatures
from replicator.ports.frames import ApplyOutcome, Batch, ConsumeBatch, Lane, LaneOutcome, RejectRows, Stop, Write
from replicator.ports.sink import LaneArtifact, LaneRemoval, SinkFeatures
from replicator.ports.source import SourceFeatures
from replicator.ports.stores import ALL_DEAD_LETTERS, OPEN, DeadLetter, DeadLetterFeatures, DeadLetterFilter, DeadLetterGroup

from .plain_plan import PlainTarget, PlainWatermark, apply_row


@dataclass
class FakeLane:
    """One lane in a target: its rows and state, and the epoch of the instance that may write it."""

    target: PlainTarget = field(default_factory=PlainTarget)
    state: LaneState | None = None
    plan: ApplyPlan | None = None
    epoch: int = 0


class FakeStore:
    """The target system of `FakeSink`; outlives its sinks. `commits` counts their commits."""

    def __init__(self) -> None:
        self.lanes: dict[str, FakeLane] = {}
        self.complete: dict[str, CompletenessWatermark] = {}
        self.commits = 0
        self.lock = threading.RLock()

    def rows(self, lane_id: str) -> list[dict[str, Any]]:
        """The rows of a lane's target."""
        return self.lanes[lane_id].target.rows if lane_id in self.lanes else []


class FakeSink:
    """A sink for `pyarrow.Table` with its target in a `FakeStore`. One `apply` is one commit for all lanes."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.held: dict[str, int] = {}

    @property
    def features(self) -> SinkFeatures:
        policies = frozenset({"scd1", "append"})
        return SinkFeatures(
            policies=policies,
            atomic_across_lanes=True,
            watermarks=True,
            retention=True,
            removal=LaneRemoval(self.list_artifacts, self.drop),
        )

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """The last instance that prepares a lane may write it."""
        with self.store.lock:
            fake_lane = self.store.lanes.setdefault(lane.id, FakeLane())
            fake_lane.plan = plan
            if lane.id not in self.held:
                fake_lane.epoch += 1
                self.held[lane.id] = fake_lane.epoch
            for row in fake_lane.target.rows:
                row.update({c.name: row.get(c.name) for c in plan.target})

    def state(self, lane: Lane) -> LaneState | None:
        return self.store.lanes[lane.id].state if lane.id in self.store.lanes else None

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        with self.store.lock:
            drafts: dict[str, tuple[FakeLane, LaneOutcome]] = {}
            for write in writes:
                draft, before = drafts.get(write.lane.id, (None, None))
                draft, applied = self._make_draft(write, draft, reject)
                drafts[write.lane.id] = (
                    draft,
                    replace(applied, counts=applied.counts + (before.counts if before else Counts())),
                )
            for lane_id in drafts:
                self._refuse_fenced(lane_id)
            for lane_id, (lane, _) in drafts.items():
                self.store.lanes[lane_id] = lane
            self.store.complete.update({w.complete.source: w.complete for w in writes if w.complete})
            self.store.commits += 1
        return {lane_id: applied for lane_id, (_, applied) in drafts.items()}

    def _refuse_fenced(self, lane_id: str) -> None:
        lane = self.store.lanes.get(lane_id)
        if lane is None or self.held.get(lane_id) != lane.epoch:
            raise Fenced(f"another instance writes lane {lane_id}")

    def _make_draft(
        self, write: Write[pa.Table], draft: FakeLane | None, reject: RejectRows[pa.Table]
    ) -> tuple[FakeLane, LaneOutcome]:
        """The lane after the write. `draft`: the lane after an earlier write of the same call."""
        self._refuse_fenced(write.lane.id)
        draft = draft or self.store.lanes[write.lane.id]
        if draft.plan != write.plan:
            raise Fatal(f"lane {write.lane.id} was given rows of a plan that it was not prepared for")
        state = draft.state or LaneState()
        refuse_gap(write, state.position)
        target, counts = draft.target.copy(), Counter[str]()
        # A write without new records does not advance the time.
        at = write.at if write.span.after(state.position).end else None
        before, state = state, advance_purge(write.plan, state, at)
        if state.purged_up_to and state != before:
            target.purge_tombstones(state.purged_up_to.max_sequence)
            if write.plan.soft_deletes:
                target.purge_rows(write.plan, state.purged_up_to)
        related = replace(target.copy(), resent_limit=get_resent_limit(write.plan, state, write.span))
        late_below = find_lateness_limit(write.plan, write.folded.facts, state)
        related.late = None if late_below is None else (late_below, make_late_reject(write.lane.id))
        rejects: list[dict[str, Any]] = []
        watermark = PlainWatermark.from_state(write.plan, write.lane.id, state, write.span)
        for row in write.folded.frame.to_pylist():
            if not write.out_of_band and row[OFFSET] < state.position.get(TopicPartition(row[TOPIC], row[PARTITION]), -1):
                counts["duplicate"] += 1
                continue
            verdict = watermark.verdict(row) or apply_row(write.plan, target, row, related)
            counts[verdict.outcome] += 1
            if verdict.reject:
                rejects.append(row | {ERROR: str(verdict.reject)})
        if rejects:
            reject(write.lane, pa.Table.from_pylist(rejects, write.folded.frame.schema))
        moved = advance_state(state, write, target)
        return replace(draft, target=target, state=moved), LaneOutcome(moved.position, Counts(**counts), moved.purged_up_to)

    def skip(self, lane: Lane, state: LaneState) -> None:
        self.store.lanes.setdefault(lane.id, FakeLane()).state = state

    def reset(self, lane: Lane) -> None:
        fake_lane = self.store.lanes.get(lane.id, FakeLane())
        self.store.lanes[lane.id] = FakeLane(plan=fake_lane.plan, epoch=fake_lane.epoch)

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        return [LaneArtifact("table", lane.id)] if lane.id in self.store.lanes else []

    def drop(self, lane: Lane) -> None:
        """Another instance that prepared the lane is fenced at its commit."""
        self.held.pop(lane.id, None)
        self.store.lanes.pop(lane.id, None)

    def close(self) -> None:
        self.held.clear()


def refuse_gap(write: Write[Any], position: Position) -> None:
    """Raise DataLoss if applying `write` at `position` would skip records."""
    for partition in write.span.gaps(position):
        raise DataLoss(f"records of {partition} between {position[partition]} and {write.span.start[partition]} are missing")


def advance_state(state: LaneState, write: Write[Any], target: PlainTarget) -> LaneState:
    """The state of a lane after `write`."""
    return LaneState(
        position=state.position.advanced_to(write.span.end),
        max_sequence=find_highest(state.max_sequence, write.folded.facts.highest),
        truncated_at=target.truncated_at,
        max_side_table_sequence=max(target.deletes.values(), default=None),
        identity=tuple(sorted((dict(state.identity) | dict(write.identity)).items())),
        rule=write.plan.rule,
        max_event_time=advance_event_times(write.plan, write.folded.facts, state),
        purged_up_to=state.purged_up_to,
        delete_horizons=update_delete_horizons(write.plan, write.folded.facts, state, write.at),
    )


class FakeTarget:
    """A `FakeStore` for the contract suite (`delivery.SinkTarget`)."""

    def __init__(self) -> None:
        self.store = FakeStore()

    def open(self) -> FakeSink:
        """Another sink for the same store."""
        return FakeSink(self.store)

    def rows(self, lane: Lane) -> list[dict[str, Any]]:
        return self.store.rows(lane.id)

    def close(self) -> None:
        """Nothing to remove."""


class FakeDeadLetters:
    """Dead letters in a list. With `failing`, every write raises, like with a full disk."""

    def __init__(self) -> None:
        self.letters: dict[tuple[str, str], DeadLetter] = {}
        self.failing = False
        self.features = DeadLetterFeatures()

    def write(self, letters: Sequence[DeadLetter]) -> None:
        if self.failing:
            raise Fatal("the dead letters cannot be written")
        for letter in letters:
            stored = self.letters.get((letter.event_id, letter.lane))
            if stored:
                last, attempts = max(stored.last_seen, letter.last_seen), stored.attempts + letter.attempts
                letter = replace(letter, first_seen=stored.first_seen, last_seen=last, attempts=attempts)  # noqa: PLW2901
            self.letters[letter.event_id, letter.lane] = letter

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[DeadLetter]:
        def seen(letter: DeadLetter) -> datetime:
            return letter.last_seen

        by_name = sorted(self.letters.values(), key=lambda letter: (letter.event_id, letter.lane))
        return [letter for letter in sorted(by_name, key=seen, reverse=True) if which.is_match(letter)][:limit]

    def count_open(self) -> Mapping[DeadLetterGroup, int]:
        return Counter(
            DeadLetterGroup(each.source, each.table, each.lane) for each in self.read(DeadLetterFilter(state=OPEN))
        )

    def mark(self, letters: Sequence[DeadLetter], state: str) -> None:
        for letter in self._select_unchanged(letters):
            self.letters[letter.event_id, letter.lane] = replace(letter, state=state)

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        for letter in self._select_unchanged(letters):
            del self.letters[letter.event_id, letter.lane]

    def _select_unchanged(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        pairs = [(letter, self.letters.get((letter.event_id, letter.lane))) for letter in letters]
        return [old for letter, old in pairs if old is not None and old.attempts == letter.attempts]

    def close(self) -> None:
        """See `ports.stores.DeadLetters.close`."""


class FakeSource:
    """A log in memory, delivered in the slices in which it was written. `add_records` may be called while it runs."""

    def __init__(self, pieces: Sequence[pa.Table] = (), identity: Mapping[str, str] | None = None) -> None:
        self.pieces = list(pieces)
        self.identity = dict(identity or {})
        self.committed_positions: list[Position] = []
        self.fed = threading.Condition()
        self.features = SourceFeatures()

    def add_records(self, piece: pa.Table) -> None:
        """Add records (a raw frame) at the end of the log."""
        at = RAW.get_field_index("timestamp")
        piece = piece.set_column(at, RAW.field(at), null_out_of_range(piece["timestamp"].combine_chunks()))
        with self.fed:
            self.pieces.append(piece)
            self.fed.notify_all()

    def run(self, start: Position, consume_batch: ConsumeBatch[pa.Table], stop: Stop, *, once: bool) -> None:
        until = len(self.pieces)
        number, position = 0, start
        while not stop.is_set() and not (once and number >= until):
            if number < len(self.pieces):
                position = self._hand_over(self.pieces[number], position, consume_batch)
                number += 1
                continue
            if not self._wait_for_more(number, stop):
                self._hand_over(RAW.empty_table(), position, consume_batch)

    def _wait_for_more(self, number: int, stop: Stop) -> bool:
        """Wait a short time for another slice."""
        with self.fed:
            return self.fed.wait_for(lambda: len(self.pieces) > number or stop.is_set(), 0.2)

    def _hand_over(self, piece: pa.Table, position: Position, consume_batch: ConsumeBatch[pa.Table]) -> Position:
        start = Position({**find_bounds([piece], first=True), **position})
        keep = [offset >= start[partition] for partition, offset in list_positions(piece)]
        frame = piece.filter(pa.array(keep, pa.bool_()))
        end = start.advanced_to(find_bounds([frame]))
        touched = find_bounds([frame])
        consume_batch(make_batch(frame, Span(start.only(touched), end.only(touched)), self.identity))
        return end

    def read(self, start: Position, until: Position, consume_batch: ConsumeBatch[pa.Table], stop: Stop) -> None:
        position = start.only(until)
        for piece in list(self.pieces):
            if stop.is_set():
                return
            keep = [partition in until and offset < until[partition] for partition, offset in list_positions(piece)]
            position = self._hand_over(piece.filter(pa.array(keep, pa.bool_())), position, consume_batch)
        left = {p: offset for p, offset in until.items() if position.get(p, offset) < offset}
        if left:
            consume_batch(make_batch(RAW.empty_table(), Span(position.only(left), Position(left)), self.identity))

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        first, end = self.start(), self.end()
        losses = {}
        for partition, offset in position.items():
            if partition not in end:
                losses[partition] = f"{partition} is gone"
            elif offset < first[partition]:
                losses[partition] = f"{partition} begins at {first[partition]}, after {offset}"
            elif offset > end[partition]:
                losses[partition] = f"{partition} ends at {end[partition]}, before {offset}"
            elif identity.get(partition.topic, self.identity.get(partition.topic)) != self.identity.get(partition.topic):
                losses[partition] = f"topic {partition.topic} was created again"
        return losses

    def start(self) -> Position:
        """The earliest record."""
        return find_bounds(self.pieces, first=True)

    def beginning(self) -> Position:
        return find_bounds(self.pieces, first=True)

    def end(self) -> Position:
        return find_bounds(self.pieces)

    def committed(self, position: Position) -> None:
        """Recorded in `committed_positions`."""
        self.committed_positions.append(position)

    def close(self) -> None:
        """See `ports.source.Source.close`."""


def list_positions(raw: pa.Table) -> list[tuple[TopicPartition, int]]:
    """Partition and offset of each record of a raw frame."""
    columns = (raw[name].to_pylist() for name in ("topic", "partition", "offset"))
    return [(TopicPartition(topic, partition), offset) for topic, partition, offset in zip(*columns, strict=True)]


def find_bounds(pieces: Sequence[pa.Table], *, first: bool = False) -> Position:
    """By partition, the first offset in `pieces`, or the offset after the last."""
    out: dict[TopicPartition, int] = {}
    for piece in pieces:
        for partition, offset in list_positions(piece):
            bound = out.get(partition)
            ends = offset if first else offset + 1
            out[partition] = ends if bound is None else min(bound, ends) if first else max(bound, ends)
    return Position(out)


def make_batch(raw: pa.Table, span: Span, identity: Mapping[str, str] | None = None) -> Batch[pa.Table]:
    """A batch of the records of `raw`."""
    size = sum(len(value or b"") for name in ("key", "value") for value in raw[name].to_pylist())
    return Batch(raw, span, raw.num_rows, size, identity or {})


# A record format for tests: the value is one row of a changes frame, as an Arrow stream with the name of its table.

UNREADABLE = str(Reject(RejectCode.MALFORMED, "the value is no Arrow stream that names a table"))
KEYS = b"keys"
DROP = b"drop "
"""The value of a DROP TABLE record starts with this; the table name follows."""


def encode_change(changes: pa.Table, table: TableSpec) -> bytes:
    """One row of a changes frame of `table` as a record value."""
    about = {b"table": table.name.encode(), b"fingerprint": table.fingerprint.encode(), KEYS: "\n".join(table.keys).encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.schema.with_metadata(about)) as writer:
        writer.write_table(changes.replace_schema_metadata(about))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decode_value(value: bytes | None) -> pa.Table | None:
    """The frame from `encode_change`; None for any other bytes."""
    if value is None:
        return None
    try:
        frame = pa.ipc.open_stream(value).read_all()
        # Altered bytes may still be a stream, with invalid texts or times.
        frame.validate(full=True)
        frame.to_pylist()
        about = {name: text.decode() for name, text in (frame.schema.metadata or {}).items()}
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError):
        return None
    return frame if frame.num_rows == 1 and {KEYS, b"table", b"fingerprint"} <= about.keys() else None


def _read_dropped_table(value: bytes | None) -> str:
    """The table of a DROP TABLE record; empty for any other record."""
    named = value.removeprefix(DROP) if value is not None and value.startswith(DROP) else b""
    return named.decode(errors="ignore")


class FakeDecoder:
    """`ports.decoder.Decoder` for this format."""

    @property
    def features(self) -> DecoderFeatures:
        return DecoderFeatures()

    def route(self, raw: pa.Table) -> pa.Table:
        rows: list[dict[str, Any]] = []
        for value in raw["value"].to_pylist():
            frame = decode_value(value)
            if value is None:
                rows.append({"ignored": "tombstone"})
            elif _read_dropped_table(value):
                rows.append({"ignored": TABLE_DROPPED})
            elif frame is None:
                rows.append({"error": UNREADABLE})
            else:
                about = frame.schema.metadata
                rows.append({"table": about[b"table"].decode(), "fingerprint": about[b"fingerprint"].decode()})
        return pa.Table.from_pylist(rows, ROUTE)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        for value in sample["value"].to_pylist():
            frame = decode_value(value)
            if frame is not None:
                sequence = sum(name.startswith("_seq_") for name in frame.column_names)
                frame_names = changes_schema(TableSpec("", (), (), sequence)).names
                columns = [f for f in frame.schema if f.name not in (*frame_names, "_moved_from")]
                keys = tuple(frame.schema.metadata[KEYS].decode().split()) or ()
                described = tuple(Column(f.name, f.type) for f in columns)
                return TableSpec(table, described, keys, sequence, fingerprint, counted=not keys)
        raise Fatal(f"no record of table {table} can be read")

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        schema, rows = changes_schema(table), []
        for record in raw.to_pylist():
            frame = decode_value(record["value"])
            readable = frame is not None and set(schema) <= set(frame.schema)
            row = frame.select(schema.names).to_pylist()[0] if frame is not None and readable else {ERROR: UNREADABLE}
            position = {TOPIC: record["topic"], PARTITION: record["partition"], OFFSET: record["offset"]}
            rows.append(row | position)
        return pa.Table.from_pylist(rows, schema)

    def envelope(self, raw: pa.Table) -> pa.Table:
        rows: list[dict[str, Any]] = []
        for value in raw["value"].to_pylist():
            frame = decode_value(value)
            if frame is not None:
                rows.append({"table": frame.schema.metadata[b"table"].decode(), "op": frame["_op"][0].as_py()})
            elif dropped := _read_dropped_table(value):
                rows.append({"table": dropped})
            else:
                rows.append({"error": None if value is None else UNREADABLE})
        return pa.Table.from_pylist(rows, ENVELOPE)


# Scripted faults of a port: a call is refused, fails, or loses its answer.


@dataclass(frozen=True)
class RefuseCall:
    """The call fails permanently, and does nothing."""

    error: ReplicatorError = field(default_factory=lambda: Fatal("refused by a scripted fault"))


@dataclass(frozen=True)
class FailBefore:
    """The call fails before it does anything."""

    error: Exception = field(default_factory=lambda: Retryable("failed before, by a scripted fault"))


@dataclass(frozen=True)
class FailAfterApply:
    """The call does everything, but its answer is lost."""

    error: Exception = field(default_factory=lambda: Retryable("failed after, by a scripted fault"))


@dataclass(frozen=True)
class PassCall:
    """The call is not changed."""


Action: TypeAlias = RefuseCall | FailBefore | FailAfterApply | PassCall


class Faulty:
    """Any port with faults. `calls` lists the names of the called methods, those of a sink's features included.

    `Faulty(sink, {"apply": [PassCall(), FailAfterApply()]})` passes the first `apply`, loses the answer of the
    second, and passes all later calls.
    """

    def __init__(self, port: Any, script: Mapping[str, Iterable[Action]] | None = None) -> None:
        self._port = port
        self._script = defaultdict[str, deque[Action]](deque)
        self.calls: list[str] = []
        for name, actions in (script or {}).items():
            self.schedule(name, *actions)

    def schedule(self, name: str, *actions: Action) -> None:
        """Add faults for the next calls of a method. Fails if the port has no such method."""
        features = getattr(self._port, "features", None)
        parts = {} if features is None else {f.name: value for f in fields(features) if (value := getattr(features, f.name))}
        methods = {*dir(self._port), *parts, *(name for value in parts.values() for name in dir(value))}
        assert name in methods, f"the port has no method {name}"
        self._script[name].extend(actions)

    def __getattr__(self, name: str) -> Any:
        return self.wrap(name, getattr(self._port, name))

    def wrap(self, name: str, value: Any) -> Any:
        """A method with the faults of its name. Features with such methods; any other value as it is."""
        if name == "features":
            return replace(value, **{f.name: self._wrap_feature(f.name, getattr(value, f.name)) for f in fields(value)})
        return self._wrap_method(name, value) if callable(value) else value

    def _wrap_feature(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | str | frozenset):
            return value
        return self._wrap_method(name, value) if callable(value) else _FaultyPart(self, value)

    def _wrap_method(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            waiting = self._script[name]
            action = waiting.popleft() if waiting else PassCall()
            if isinstance(action, RefuseCall | FailBefore):
                raise action.error
            result = method(*args, **kwargs)
            if isinstance(action, FailAfterApply):
                raise action.error
            return result

        return call


class _FaultyPart:
    """An object of a sink's features, with the faults of the sink."""

    def __init__(self, faulty: Faulty, part: Any) -> None:
        self._faulty = faulty
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return self._faulty.wrap(name, getattr(self._part, name))
