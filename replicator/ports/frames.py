"""The values that cross ports, generic in the frame type `F` (a `pyarrow.Table` in process)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from replicator.domain.patterns import ColumnSelection
from replicator.domain.policy.plan import ApplyPlan, Counts, DeleteHorizon, Facts
from replicator.domain.position import Position, Span
from replicator.domain.schema_evolution import EVOLVE_ALL, SchemaRules
from replicator.domain.transactions import CompletenessWatermark
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms

F = TypeVar("F")


class Stop(Protocol):
    """A request that a long-running call end at the next safe point; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """True once the end was requested."""

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep up to `timeout` seconds, or until the end is requested; returns `is_set()`."""


@dataclass(frozen=True)
class Batch(Generic[F]):
    """Some consecutive records of a source.

    `frame` has the raw schema (`domain.change.RAW`), per partition in offset order. `span` covers every record of the
    frame and nothing else, including holes in the offsets. `identity` has per topic the broker's id of the topic.
    `records` and `size` (bytes of keys and values) are known without reading the frame.
    """

    frame: F
    span: Span
    records: int
    size: int
    identity: Mapping[str, str] = field(default_factory=dict)


ConsumeBatch = Callable[[Batch[F]], None]
"""Gets each batch that a source reads. Returns when the next one may be read."""


@dataclass(frozen=True)
class RecordSlice(Generic[F]):
    """Records of one table under one schema. `frame` is a raw frame, per partition in offset order."""

    table: str
    fingerprint: str
    frame: F


@dataclass(frozen=True)
class RoutedBatch(Generic[F]):
    """A batch divided by table. Every record of the batch is in exactly one of `slices`, `ignored` and `rejects`.

    - `slices`: in arrival order. A table has several if its schema changes within the batch.
    - `ignored`: counts by kind (`tombstone`, `heartbeat`, `schema_change`, `transaction`, `message`).
    - `rejects`: a raw frame with `_error` added, and `_table`, which is null if the record names no table.
    - `topics`: per table the topics in which it was seen.
    - `drops`: per table the ignored records that report its drop (`decoder.TABLE_DROPPED`), each as a position of one
      partition, in the order of the records.
    """

    slices: tuple[RecordSlice[F], ...]
    ignored: Mapping[str, int]
    rejects: F
    reject_count: int
    topics: Mapping[str, frozenset[str]]
    drops: Mapping[str, Sequence[Position]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that cannot be used: its position, its raw bytes, and the `CODE: sentence` of `errors.Reject`.
    `timestamp` and `headers` are as in a raw frame. `table` is the table named by a record that was not decoded;
    otherwise empty."""

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
    """Changes after the row transforms of a plan: a changes frame of `ApplyPlan.table`, in order, and the `rejects`,
    with `_error` set. `counts` covers the changes that are not in the frame: filtered, and rejected."""

    frame: F
    rejects: F
    counts: Counts


@dataclass(frozen=True)
class FoldedChanges(Generic[F]):
    """A folded frame (`domain.change`), the facts that the fold found, and the changes already counted.

    `rows` is the number of folded rows. `counts` covers the input changes that are no longer rows, so `rows +
    counts.total` is the number of input changes.
    """

    frame: F
    facts: Facts
    counts: Counts
    rows: int
    size: int


@dataclass(frozen=True)
class Lane:
    """One table x one target x one policy. `id` is unique in the pipeline: `<sink>.<into>`.

    - `options`: the settings of this `to` entry that the sink interprets (for example `partition_by`).
    - `config_line`: `file:line` of the entry, for messages.
    - `watermark`, `row_transforms`: see `ApplyPlan`.
    - `tracked`: the columns whose change starts a version, if the policy stores versions; None means all.
    - `retention`: how long deletes are remembered; None means forever.
    - `schema_rules`: the reaction to schema changes of the source.
    - `stops`: the lane stops at the first record that it rejects.
    - `refused`: why the lane cannot run because of its target's name; completes a sentence, empty if it can run.
    - `pattern`: the `match` of the entry if it is not a table's name, for messages.
    - `keys`: the configured key columns; empty if they are learnt.
    - `deletes_by_null_records`: a message without a value deletes the row of its key.
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
    keys: tuple[str, ...] = ()
    deletes_by_null_records: bool = False


@dataclass(frozen=True)
class Write(Generic[F]):
    """The request to apply folded rows to one lane, with the span of the stream that they represent (its lane's topics
    only).

    A write without rows (`folded.rows == 0` and no truncate) still moves the position.

    - `identity`: as in `Batch`.
    - `at`: the pipeline's time at which the write was made. The age of remembered deletes depends on it. A repeated
      write keeps it. None: no time passes.
    - `complete`: the watermark to publish with the rows, for a source whose lanes advance by transactions.
    - `out_of_band`: the changes were rejected when the stream passed them. The span is empty, no row is trimmed and the
      position stays. Only their sequences decide if they are newer.
    - `may_wait`: if the target refuses rows because of other rows, `RowsWait` is raised. Otherwise such rows are
      rejected.
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
    """The result of one write: the lane's new position, and the counts of its folded rows. `counts` continues the
    counts of the fold: applied + superseded + duplicate + rejected = folded rows. `purged_up_to` as in `LaneState`."""

    position: Position
    counts: Counts
    purged_up_to: DeleteHorizon | None = None


ApplyOutcome = Mapping[str, LaneOutcome]
"""Per lane id."""

RejectRows = Callable[[Lane, F], None]
"""Stores rows of a folded frame with `_error` set as dead letters; returns only when they are durable."""
