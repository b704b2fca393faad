"""The records that cross ports, generic in the frame type `F` (a `pyarrow.Table` in process)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from replicator.domain.column_selection import ColumnSelection
from replicator.domain.policy.plan import ApplyPlan, Counts, DeleteHorizon, Facts
from replicator.domain.position import Position, Span
from replicator.domain.schema_evolution import EVOLVE_ALL, SchemaRules
from replicator.domain.transactions import CompletenessWatermark
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms

F = TypeVar("F")


class Stop(Protocol):
    """Asks a long-running call to end at the next safe point; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """True once the end was asked for."""

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep up to `timeout` seconds, or until the end is asked for; returns `is_set()`."""


@dataclass(frozen=True)
class Batch(Generic[F]):
    """Some consecutive records of a source.

    `frame` has the raw schema (`domain.change.RAW`), per partition in offset order. `span` covers every record of the
    frame and nothing else, holes in the offsets included. `identity` holds per topic the broker's own id of it.
    `records` and `size` (bytes of keys and values) are known without looking into the frame.
    """

    frame: F
    span: Span
    records: int
    size: int
    identity: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordSlice(Generic[F]):
    """Records of one table under one schema. `frame` is a raw frame, per partition in offset order."""

    table: str
    fingerprint: str
    frame: F


@dataclass(frozen=True)
class RoutedBatch(Generic[F]):
    """A batch by table. Every record of the batch is in exactly one place.

    `runs` in arrival order; several runs of one table when its schema changes within the batch. `ignored` counts by kind
    (`tombstone`, `heartbeat`, `schema_change`, `transaction`, `message`). `rejects` is a raw frame with `_error` added, and
    `_table`, which is null where a record names no table.
    `topics` names the topics in which each table was seen. `drops`: per table where an ignored record says that it was
    dropped (`decoder.TABLE_DROPPED`), each a position of one partition, in the order of its records.
    """

    runs: tuple[RecordSlice[F], ...]
    ignored: Mapping[str, int]
    rejects: F
    reject_count: int
    topics: Mapping[str, frozenset[str]]
    drops: Mapping[str, Sequence[Position]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that cannot be used: where it is, its bytes as they came, and the `CODE: sentence` of `errors.Reject`.
    `timestamp` and `headers` as in a raw frame. `table`: the one that a record names which was not decoded; else empty."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    error: str
    timestamp: datetime | None = None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    table: str = ""


@dataclass(frozen=True)
class TransformedChanges(Generic[F]):
    """What a plan's shape made of changes: a changes frame of `ApplyPlan.table`, in order, and the `rejects`, with
    `_error` set.
    `counts` covers the changes that are not in the frame: filtered, and rejected."""

    frame: F
    rejects: F
    counts: Counts


@dataclass(frozen=True)
class FoldedChanges(Generic[F]):
    """A folded frame (`domain.change`), what the fold saw, and what it already accounts for.

    `rows` is the number of folded rows; `counts` covers the changes that went in and are not rows any more, so that
    `rows + counts.total` is the number of changes that went in.
    """

    frame: F
    facts: Facts
    counts: Counts
    rows: int
    size: int


@dataclass(frozen=True)
class Lane:
    """One table x one target x one policy. `id` is unique in the pipeline: `<sink>.<into>`.

    `options` are the settings of this `to` entry that the sink interprets (for example `partition_by`).
    `config_line` is `file:line` of the entry, for messages. `watermark`, `row_transforms`: see `ApplyPlan`. `tracked`: the
    columns whose change begins a version, where the policy keeps versions; None: all. `retention`: how long deletes are
    remembered; None: for ever. `schema_rules`: what it does about changes of its source's schema. `stops`: at the first
    record that it rejects. `refused`: why it cannot run, for its target's name; completes a sentence, empty where it can.
    `pattern`: the `match` of the entry where that is no table's name, for messages.
    """

    id: str
    pipeline: str
    source: str
    table: str
    sink: str
    into: str
    policy: str
    options: Mapping[str, object] = field(default_factory=dict)
    config_line: str = ""
    watermark: timedelta | None = None
    row_transforms: RowTransforms = NO_ROW_TRANSFORMS
    tracked: ColumnSelection | None = None
    retention: timedelta | None = None
    schema_rules: SchemaRules = EVOLVE_ALL
    stops: bool = False
    refused: str = ""
    pattern: str = ""


@dataclass(frozen=True)
class Write(Generic[F]):
    """What one lane is asked to apply: folded rows and the span of the stream they stand for (its lane's topics only).

    A write without rows (`folded.rows == 0` and no truncate) still moves the position. `identity` as in `Batch`. `at`: when
    it was made, by the clock of the pipeline, by which remembered deletes grow old; tried again it is the same write. None:
    as if no time had passed. `complete`: what to publish with the rows, for a source whose lanes are held together at
    transactions. `out_of_band`: changes that the stream has left behind (they were rejected when it passed): the span is
    empty, no row is trimmed and the position stays; whether they are news is for their sequences alone to say. `may_wait`:
    where the target refuses rows for what other rows hold, `RowsWait` is raised; otherwise such rows are rejected.
    """

    lane: Lane
    plan: ApplyPlan
    folded: FoldedChanges[F]
    span: Span
    identity: Mapping[str, str] = field(default_factory=dict)
    at: datetime | None = None
    complete: CompletenessWatermark | None = None
    out_of_band: bool = False
    may_wait: bool = False


@dataclass(frozen=True, slots=True)
class LaneOutcome:
    """The outcome of one write: where the lane stands now, and what became of its folded rows (`counts` continues the
    counts of the fold: applied + superseded + duplicate + rejected = folded rows). `purged_up_to` as in `LaneState`."""

    position: Position
    counts: Counts
    purged_up_to: DeleteHorizon | None = None


ApplyOutcome = Mapping[str, LaneOutcome]
"""Per lane id."""

RejectRows = Callable[[Lane, F], None]
"""Takes rows of a folded frame with `_error` set, and returns only when they are durable in the dead-letter store."""
