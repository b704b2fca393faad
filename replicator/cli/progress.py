"""Progress of a command that reads a stream: lines in the log, or a bar on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import structlog

from replicator.domain.plain_values import format_count
from replicator.domain.position import Position

if TYPE_CHECKING:
    from rich.console import Console

    from replicator.application.operations.status import StatusReporter
    from replicator.ports.runtime import ShowProgress

    from .session import CommandSession

# Progress of the daemon, in the log: a line per source while there are records to read.

log = structlog.get_logger(__name__)
EVERY_SECONDS = 10.0


@contextmanager
def log_progress(status: StatusReporter[Any], every: float = EVERY_SECONDS) -> Iterator[None]:
    """While the block runs, log after each `every` seconds what each source has read since the last line. Logs nothing for
    a source without new or unread records."""
    ended = threading.Event()

    def log_sources() -> None:
        before: dict[str, int] = {}
        at = time.monotonic()
        while not ended.wait(every):
            report, now = status.report(), time.monotonic()
            behind = {lane.id: lane.status for lane in report.lanes if lane.status != "running"}
            for source in report.sources:
                new = source.records - before.get(source.name, 0)
                before[source.name] = source.records
                if not new and not source.unread:
                    continue
                log.info(
                    "progress",
                    source=source.name,
                    records=source.records,
                    records_per_second=round(new / (now - at)),
                    lag_records=source.lag_records,
                    **({"behind": behind} if behind else {}),
                )
            at = now

    thread = threading.Thread(target=log_sources, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# Progress of a command that reads a stream from its first record to its end: a bar on a terminal.

BAR_SECONDS = 0.5


def make_bar(session: CommandSession, title: str) -> ShowProgress:
    """A bar for a pipeline with one source on a terminal. With `--json`, with `-q`, and without a terminal: log lines.

    The block begins before the pipeline runs, because it reads the bounds of the source.
    """

    if session.as_json or session.verbosity < 0 or not sys.stderr.isatty():
        return log_progress
    from rich.console import Console

    def of_pipeline(status: StatusReporter[Any]) -> AbstractContextManager[None]:
        (pipeline,) = status.pipelines
        source = pipeline.context.source
        return show_bar(status, title, source.beginning(), source.end(), Console(stderr=True))

    return of_pipeline


@contextmanager
def show_bar(
    status: StatusReporter[Any], title: str, first: Position, end: Position, console: Console, every: float = BAR_SECONDS
) -> Iterator[None]:
    """While the block runs, show the progress from `first` to `end`: records done, records per second, and the time left.

    A record is done when all lanes have applied or passed it. Offsets without a record count as one.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]:,.0f}/s")
    records = TextColumn("{task.completed:,.0f} of {task.fields[records]}")
    columns = (TextColumn("{task.description}"), BarColumn(), records, rate, TimeRemainingColumn(elapsed_when_finished=True))
    total = sum(max(0, offset - first.get(partition, 0)) for partition, offset in end.items())
    ended = threading.Event()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total, rate=0.0, records=format_count(total, "record"))

        def show() -> None:
            start_count = None
            while not ended.wait(every):
                record_count = _count_done(status, first, end)
                start_count = record_count if start_count is None else start_count
                elapsed = bar.tasks[0].elapsed or 0
                bar.update(task, completed=record_count, rate=(record_count - start_count) / elapsed if elapsed else 0.0)

        thread = threading.Thread(target=show, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            bar.update(task, completed=_count_done(status, first, end))


def _count_done(status: StatusReporter[Any], first: Mapping[Any, int], end: Mapping[Any, int]) -> int:
    """Offsets behind the slowest lane. In a partition without a lane, the offsets that the source has read."""
    report = status.report()
    read = Position.from_json(report.sources[0].position)
    lanes = [Position.from_json(lane.position) for lane in report.lanes] or [Position()]
    done = []
    for lane in lanes:
        total = 0
        for partition, last in end.items():
            begin = first.get(partition, 0)
            offset = lane.get(partition, read.get(partition, 0))
            total += min(max(0, offset - begin), max(0, last - begin))
        done.append(total)
    return min(done)
