"""The port to change streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from replicator.domain.position import Position, TopicPartition

from .frames import Batch, F, Stop


class Source(Protocol[F]):
    """A transport: where the records come from. Knows nothing of what the bytes mean.

    Who calls: one thread of the pipeline. Errors: `Retryable` when the other side is away (the caller backs off and
    calls again from its position), `DataLoss` when records between the position and the stream's beginning are gone or
    the stream's end lies before the position, `EnvironmentProblem` when it cannot be reached as configured.

    A source has a true attribute `has_sparse_offsets` where the difference of two offsets is no number of records.
    """

    def run(self, start: Position, apply_batch: Callable[[Batch[F]], None], stop: Stop, *, once: bool) -> None:
        """Read from `start` until `stop`, or, with `once`, up to where the stream ended when the call began.

        Partitions and topics that appear while running are picked up from their beginning. So are those absent from `start`,
        which has every partition that was there when the caller looked: they appeared since, perhaps in an outage. Batches
        MUST touch: per partition the first span starts at `start` and each next one where the last ended (test_spans_touch).
        Per partition records MUST come in offset order (test_order). A record MUST be delivered exactly once per call
        (test_exactly_once_per_run). A record's time outside the years 1 to 9999 MUST come as null (test_odd_times_are_null).
        `apply_batch` returns when the next batch may be read; an exception of it ends the call and is passed on
        (test_error_passes_through). A batch is handed over as soon as records are there; it never waits to be full. While no
        records come, `apply_batch` MUST be called with an empty batch about every second, so that the caller can do its own
        work.
        """

    def read(self, start: Position, until: Position, apply_batch: Callable[[Batch[F]], None], stop: Stop) -> None:
        """Read exactly [start, until) of the partitions in `until`, in bounded batches, as `run` does (test_bounded_read).

        Safe to call from within `apply_batch` of `run`.
        """

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """Partitions that cannot be continued from `position`, each with a sentence that says why.

        Records below the stream's first offset, offsets above its end, a topic that is gone, or whose id is not the one in
        `identity` (test_losses_are_named).
        """

    def start(self) -> Position:
        """Where the source's `start_from` says that lanes without a position begin, for every partition there is now."""

    def beginning(self) -> Position:
        """The first offset that is still there, for every partition there is now (test_end)."""

    def end(self) -> Position:
        """Where the stream ends now, for lag (test_end)."""

    def committed(self, position: Position) -> None:
        """Told from time to time how far every lane has got; may publish it (a Kafka group offset). A hint, never read
        back to decide where to start. Retryable while some partition cannot be read, though the others are: the source
        counts as away until a call succeeds."""

    def close(self) -> None:
        """Let go of everything; may be called twice."""


@runtime_checkable
class LogTruncated(Protocol):
    """A source that removes its oldest records on purpose, and knows that it did. Who begins with what is left, and has
    applied nothing before, would have a wrong table."""

    def removed(self) -> Position:
        """Of every partition that lacks its first records the first offset that is there."""


@runtime_checkable
class NamesTopics(Protocol):
    """A source whose configuration names topics, some of which may not be there."""

    def unmatched(self) -> Mapping[str, Sequence[str]]:
        """Patterns that no topic matches, each with the topics that look like it."""


@runtime_checkable
class NamesFiles(Protocol):
    """A source whose records are in files, which may not be there, or be damaged."""

    def absent(self) -> str:
        """Why there is no file at all, a sentence; empty where there is one."""

    def damaged(self) -> Sequence[str]:
        """The files that were passed over because they cannot be read, although nobody writes to them any more."""

    def oldest(self) -> Position:
        """Per partition the first offset in the files. Older files may come: where a partition began above it, the records
        between were read by nobody."""


@runtime_checkable
class WaitsForServer(Protocol):
    """A source that waits for a server beside its stream."""

    def waited_for(self) -> tuple[str, float] | None:
        """What for, in words, and for how many seconds; None while it does not. From any thread."""


@runtime_checkable
class HasSnapshots(Protocol):
    """A source in whose stream rows as they were at some time have offsets of their own, for lanes that begin with them. Who
    follows the changes passes them over."""

    def after_snapshots(self, position: Position) -> Position:
        """`position`; where it lies in such rows, where the changes after them begin."""
