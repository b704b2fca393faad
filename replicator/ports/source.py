"""The port of change streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from replicator.domain.position import Position, TopicPartition

from .frames import Batch, F, Stop
from .telemetry import Pace


class Source(Protocol[F]):
    """A transport: it reads records, and never interprets their bytes.

    One thread of the pipeline calls it. Errors:

    - `Retryable` when the other side is away: the caller backs off and calls again from its position.
    - `DataLoss` when records between the position and the stream's beginning are gone, or the stream ends before the
      position.
    - `EnvironmentProblem` when the source cannot be reached as configured.
    """

    @property
    def features(self) -> SourceFeatures:
        """Everything that the source can do besides these methods. The same for all its life; needs no connection."""

    def run(self, start: Position, apply_batch: Callable[[Batch[F]], None], stop: Stop, *, once: bool) -> None:
        """Read from `start` until `stop`, or, with `once`, up to the end of the stream at the time of the call.

        Partitions and topics that appear while running are read from their beginning. The same holds for partitions
        that are not in `start`: it has every partition that existed when the caller looked, so they appeared later.

        - Batches MUST touch: per partition the first span starts at `start`, each next span where the last one ended
          (test_spans_touch).
        - Per partition records MUST be in offset order (test_order).
        - A record MUST be delivered exactly once per call (test_exactly_once_per_run).
        - A record's time outside the years 1 to 9999 MUST become null (test_odd_times_are_null).
        - A batch is delivered as soon as there are records; it never waits to be full. While there are no records,
          `apply_batch` MUST be called with an empty batch about every second, so that the caller can do its own work.

        `apply_batch` returns when the next batch may be read. Its exception ends the call and is passed on
        (test_error_passes_through).
        """

    def read(self, start: Position, until: Position, apply_batch: Callable[[Batch[F]], None], stop: Stop) -> None:
        """Read exactly [start, until) of the partitions in `until`, in bounded batches, as `run` does
        (test_bounded_read).

        Safe to call from within `apply_batch` of `run`.
        """

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """Partitions that cannot be continued from `position`, each with the reason as a sentence.

        Reasons are records below the stream's first offset, offsets above its end, a deleted topic, or a topic with
        another id than in `identity` (test_losses_are_named).
        """

    def start(self) -> Position:
        """The position of lanes without one, by the source's `start_from`, for every current partition."""

    def beginning(self) -> Position:
        """The first available offset of every current partition (test_end)."""

    def end(self) -> Position:
        """The current end of the stream, for lag (test_end)."""

    def committed(self, position: Position) -> None:
        """Called from time to time with the position that every lane has reached; may publish it (a Kafka group
        offset). It is only a hint, and never read back to decide where to start. Retryable while some partition cannot
        be read, though the others are: the source counts as away until a call succeeds."""

    def close(self) -> None:
        """Release everything; may be called twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFeatures:
    """Everything that a source can do besides the methods of `Source`. A field that is None is not supported. A field is
    usually a method of the source:

        SourceFeatures(sparse_offsets=True, unmatched=self.unmatched)

    A source that wraps another one changes the features of that one with `dataclasses.replace`.
    """

    sparse_offsets: bool = False
    """The difference of two offsets is not a number of records."""

    removed: Callable[[], Position] | None = None
    """The first available offset of every partition whose first records were removed. For a source that removes its oldest
    records on purpose, and stores that it did. A lane that has applied nothing before, and starts from the remaining
    records, would build a wrong table."""

    unmatched: Callable[[], Mapping[str, Sequence[str]]] | None = None
    """Patterns that no topic matches, each with the topics that look like it. For a source whose configuration names topics
    that may not exist."""

    files: SourceFiles | None = None
    """For a source whose records are in files that may be missing or damaged."""

    waited_for: Callable[[], tuple[str, float] | None] | None = None
    """The server it waits for, in words, and the seconds so far; None while it does not wait. From any thread. For a source
    that also depends on another server."""

    after_snapshots: Callable[[Position], Position] | None = None
    """`after_snapshots(position)`: the same position, or, if it is within snapshot rows, the start of the changes after
    them. For a source whose stream also contains snapshot rows with offsets of their own, for lanes that start with them.
    Readers of changes skip these rows."""

    get_concurrent_time: Callable[[], datetime | None] | None = None
    """A time on the source's clock, for a source that also returns rows outside its transactions, in topics of their own
    (`ports.backfill.TOPICS`). These rows show no transaction that ended later. None if there are no such rows."""

    engine: str = ""
    """The name of the engine, as in the config, whose stream reads the source by itself."""

    pace: Callable[[], Pace | None] | None = None
    """The progress of the engine's stream; None before the end of its first batch. From any thread."""


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source.

    - `absent()`: why there is no file at all, as a sentence; empty if there is one.
    - `damaged()`: the skipped files. They cannot be read, although nothing writes to them any more.
    - `oldest()`: per partition the first offset in the files. Older files may appear: if a partition began above this
      offset, the records between are unread.
    """

    absent: Callable[[], str]
    damaged: Callable[[], Sequence[str]]
    oldest: Callable[[], Position]
