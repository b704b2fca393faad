"""The event log: every record of a source, raw and complete, with its decoded envelope. Cuts through it, and checkpoints."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from replicator.domain.change import TIMESTAMP
from replicator.domain.expr import AllOf, source
from replicator.domain.policy.plan import ApplyPlan, Clause, ReconcileRule

from .errors import AlreadyWritten
from .policy import EVENT_LOG_POLICY
from .position import Position, TopicPartition
from .table import Column, TableSpec

EVENT_LOG: tuple[Column, ...] = (
    Column("event_id", pa.string(), nullable=False),
    Column("topic", pa.string(), nullable=False),
    Column("partition", pa.int32(), nullable=False),
    Column("offset", pa.int64(), nullable=False),
    Column("timestamp", TIMESTAMP),
    Column("headers", pa.string()),
    Column("key", pa.binary()),
    Column("value", pa.binary()),
    *(Column(name, pa.string()) for name in ("source", "connector", "db", "table", "op", "before", "after")),
    *(Column(f"seq_{i}", pa.int64()) for i in range(1, 5)),
    Column("tx", pa.string()),
    Column("ts", TIMESTAMP),
    Column("schema_id", pa.string()),
    Column("error", pa.string()),
    Column("ingested_at", TIMESTAMP),
)
"""`event_id` is `<topic>-<partition>-<offset>`. `headers` is JSON text: a list of [name, value] pairs, with `{"base64":
...}` for a value that is not UTF-8. `ingested_at` has one value per batch. The rest is as in `ports.decoder.ENVELOPE`."""


RETAINED_COLUMNS = frozenset({"event_id", "topic", "partition", "offset", "timestamp", "error", "ingested_at"})
ERASED_COLUMNS = tuple(column.name for column in EVENT_LOG if column.name not in RETAINED_COLUMNS)
"""The columns that are NULL in an erased record. Its position stays, since a log is read by positions, and so do its
times."""


def make_duplicate_error(lane: str, partition: TopicPartition, ends: Position) -> AlreadyWritten:
    """The error of a lane that may not begin a partition of which it has written nothing: its records would be in the
    log twice. `ends`: per partition the offset after the last record in the log."""
    return AlreadyWritten(
        f"the event log contains records of topic {partition.topic} that lane {lane} did not write, so the lane would write "
        "them again",
        lane=lane,
        step="Give this log another location, or continue the lane after the records that are already there",
        ends=ends,
    )


def make_event_log_plan() -> ApplyPlan:
    """Insert every row. Its frame is the event-log frame itself; only the position detects redelivery.

    Therefore a lane may not begin a partition if another lane has written its records to the same log: see
    `make_duplicate_error`.
    """
    return ApplyPlan(
        policy=EVENT_LOG_POLICY,
        table=TableSpec("events", EVENT_LOG, ("event_id",), 0),
        fold="none",
        target=EVENT_LOG,
        reconcile=ReconcileRule(identity=("event_id",), guard="absent", complete=False, uses_tombstones=False),
        merge_keys=(),
        clauses=(Clause(False, AllOf(()), "insert", tuple((c.name, source(c.name)) for c in EVENT_LOG)),),
        truncates=False,
    )


# JSON form of record bytes in the archive transport.


def encode_bytes(data: bytes | None) -> Any:
    """Text if the bytes are UTF-8, so that people can read it; otherwise `{"base64": ...}`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def decode_bytes(value: Any) -> bytes | None:
    """The bytes that `encode_bytes` encoded."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])


# Log cuts: a point in time, or a position, as offsets in an event log.

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class LogCut:
    """A cut through an event log: before some records of each partition, behind all others.

    For partitions with records:

    - `firsts`: the first offset.
    - `below`: one past the last record before the cut, if there is one.
    - `end`: the first offset behind the cut, or the offset up to which the log has read the partition.

    There is no record between `below` and `end`. `at`: the source time of the cut, if it is one of a time.
    """

    firsts: Position = field(default_factory=Position)
    below: Position = field(default_factory=Position)
    end: Position = field(default_factory=Position)
    at: datetime | None = None

    def is_at(self, position: Position, begun: Position) -> bool:
        """True if a lane that began at `begun` and is at `position` has applied exactly the records before the cut. For
        a partition whose first records may be missing in the log, this is only known if the lane has applied nothing of
        it."""
        if any(begun.get(partition, 0) > first for partition, first in self.firsts.items()):
            return False
        if any(offset > begun.get(partition, 0) for partition, offset in position.items() if partition not in self.end):
            return False
        return all(
            self.below[partition] <= position.get(partition, 0) <= end
            if partition in self.below
            else position.get(partition, 0) <= begun.get(partition, 0)
            for partition, end in self.end.items()
        )

    def has_before(self, position: Position) -> bool:
        """True if `position`, the start of something, has a record before the cut."""
        return any(offset < self.below.get(partition, 0) for partition, offset in position.items())

    def is_beyond(self, position: Position, newest: datetime | None) -> bool:
        """True if a state built from the records below `position` may contain records behind the cut. `newest` is the
        latest source time of these records."""
        later = self.at is not None and newest is not None and newest > self.at
        return later or any(position.get(partition, 0) > end for partition, end in self.end.items())


def is_time_ordered(early: Offsets, late: Offsets) -> bool:
    """True if the records are in the order of their times around one point in time. `early`: per partition the last
    offset of that time or earlier. `late`: the first offset of a later time."""
    return all(partition not in late or last < late[partition] for partition, last in early.items())


@dataclass(frozen=True, slots=True)
class CutSides:
    """Offsets around a cut, for partitions with records.

    - `firsts`: the first offset.
    - `early`: the last offset before the cut, if it exists.
    - `late`: the first offset behind the cut, if it exists.
    """

    firsts: Offsets
    lasts: Offsets
    nexts: Offsets

    def to_cut(self, splits: Offsets, covered: Offsets) -> LogCut:
        """The cut before the records at or above `splits`, and behind all records of other partitions. `covered`: the
        offsets up to which the log's lane has read."""
        firsts, nexts = self.firsts, self.nexts
        below = {partition: last + 1 for partition, last in self.lasts.items()}
        # Records before the first one are unknown: there the cut is at the requested offset.
        end = {partition: nexts.get(partition, max(stop, covered.get(partition, 0))) for partition, stop in below.items()}
        end |= {partition: min(first, splits[partition]) for partition, first in firsts.items() if partition not in below}
        return LogCut(Position(firsts), Position(below), Position(end))


# Checkpoints: stored states of a lane at a position of its event log, from which a rebuild can continue.

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The stored state of a lane, its target and its side tables after exactly the event-log records below `position`.

    - `number`: counts the checkpoints of a lane.
    - `rules`: a digest of all settings that affect the state. Under other rules the checkpoint cannot be used.
    - `begun`: the offsets at which the partitions began; the state contains everything from there on.
    - `newest`: the latest source time of its records, None if no record has one.
    - `rows`: of the target. `bytes`: of all files.
    - `identity`: the broker's ids of the topics, as far as the log has them. A topic that was created again has other
      offsets.
    """

    number: int
    lane: str
    table: str
    rules: str
    position: Position
    begun: Position
    newest: datetime | None
    taken_at: datetime
    rows: int
    bytes: int
    identity: tuple[tuple[str, str], ...] = ()

    def has_same_topics(self, identity: Mapping[str, str]) -> bool:
        """True if its offsets belong to the topics with these ids."""
        return all(identity.get(topic, topic_id) == topic_id for topic, topic_id in self.identity)

    def is_usable(self, rules: str, until: datetime | LogCut | None) -> bool:
        """True if a rebuild under these rules can start from it. `until` is the time or log cut at which the rebuild
        ends; None for all records."""
        if isinstance(until, LogCut):
            return self.rules == rules and not until.is_beyond(self.position, self.newest)
        return self.rules == rules and (until is None or self.newest is None or self.newest <= until)

    def to_json(self) -> dict[str, Any]:
        """The JSON form, for `from_json` and for people."""
        return {
            "format": FORMAT,
            "number": self.number,
            "lane": self.lane,
            "table": self.table,
            "rules": self.rules,
            "position": self.position.to_json(),
            "begun": self.begun.to_json(),
            "newest": None if self.newest is None else self.newest.isoformat(),
            "taken_at": self.taken_at.isoformat(),
            "rows": self.rows,
            "bytes": self.bytes,
            "identity": dict(self.identity),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint that `to_json` wrote. KeyError, TypeError, ValueError or AttributeError for anything else, and
        for a format of a newer program."""
        if data["format"] != FORMAT:
            raise ValueError("a checkpoint of another format")
        newest = data["newest"]
        return cls(
            number=int(data["number"]),
            lane=str(data["lane"]),
            table=str(data["table"]),
            rules=str(data["rules"]),
            position=Position.from_json(data["position"]),
            begun=Position.from_json(data["begun"]),
            newest=None if newest is None else datetime.fromisoformat(newest),
            taken_at=datetime.fromisoformat(data["taken_at"]),
            rows=int(data["rows"]),
            bytes=int(data["bytes"]),
            identity=tuple(sorted(data["identity"].items())),
        )


@dataclass(frozen=True, slots=True)
class CheckpointSchedule:
    """When checkpoints are written: after `every` seconds or `after_records` new records, whichever is first.
    The newest `keep` checkpoints stay."""

    every: float | None
    after_records: int | None
    keep: int

    def is_due(self, last: Checkpoint | None, position: Position, now: datetime) -> bool:
        """True if a lane at `position` needs a new checkpoint; never if it has applied nothing since the last one."""
        behind = sum(max(0, o - (last.position.get(p, 0) if last else 0)) for p, o in position.items())
        if not behind:
            return False
        if last is None:
            return True
        late = self.every is not None and (now - last.taken_at).total_seconds() >= self.every
        return late or (self.after_records is not None and behind >= self.after_records)


def find_newest_usable(
    checkpoints: Iterable[Checkpoint], rules: str, until: datetime | LogCut | None = None
) -> Checkpoint | None:
    """The newest checkpoint from which a rebuild can start."""
    return max((one for one in checkpoints if one.is_usable(rules, until)), key=lambda one: one.number, default=None)
