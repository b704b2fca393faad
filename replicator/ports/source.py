"""The port of change streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from replicator.domain.position import Position, TopicPartition

from .frames import Batch, F, Stop


class Source(Protocol[F]):
    """A transport: it reads records, and never interprets their bytes.

    One thread of the pipeline calls it. Errors:

    - `Retryable` when the other side is away: the caller backs off and calls again from its position.
    - `DataLoss` when records between the position and the stream's beginning are gone, or the stream ends before the
      position.
    - `EnvironmentProblem` when the source cannot be reached as configured.

    A source has a true attribute `has_sparse_offsets` if the difference of two offsets is not a number of records.
    """

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


@runtime_checkable
class LogTruncated(Protocol):
    """A source that removes its oldest records on purpose, and stores that it did. A lane that has applied nothing
    before, and starts from the remaining records, would build a wrong table."""

    def removed(self) -> Position:
        """The first available offset of every partition whose first records were removed."""


@runtime_checkable
class NamesTopics(Protocol):
    """A source whose configuration names topics that may not exist."""

    def unmatched(self) -> Mapping[str, Sequence[str]]:
        """Patterns that no topic matches, each with the topics that look like it."""


@runtime_checkable
class NamesFiles(Protocol):
    """A source whose records are in files that may be missing or damaged."""

    def absent(self) -> str:
        """Why there is no file at all, as a sentence; empty if there is one."""

    def damaged(self) -> Sequence[str]:
        """The skipped files: they cannot be read, although nothing writes to them any more."""

    def oldest(self) -> Position:
        """Per partition the first offset in the files. Older files may appear: if a partition began above this offset,
        the records between are unread."""


@runtime_checkable
class WaitsForServer(Protocol):
    """A source that also depends on another server."""

    def waited_for(self) -> tuple[str, float] | None:
        """The server it waits for, in words, and the seconds so far; None while it does not wait. From any thread."""


@runtime_checkable
class HasSnapshots(Protocol):
    """A source whose stream also contains snapshot rows with offsets of their own, for lanes that start with them.
    Readers of changes skip these rows."""

    def after_snapshots(self, position: Position) -> Position:
        """`position`, or, if it is within snapshot rows, the start of the changes after them."""
