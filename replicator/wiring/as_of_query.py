"""Reads the rows of a target at an earlier time, from the event log."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Fatal, ReplicatorError
from replicator.domain.position import Position
from replicator.domain.read_query import ReadTimeout
from replicator.settings import LaneSettings, Loaded

from . import adapters
from .as_of import AsOf
from .catch_up_run import build_container, run_until_caught_up
from .checkpoints import AS_OF_FOLDER, configure_lake, copy_newest, refuse_truncated
from .log_completeness import refuse_incomplete

ReadTarget = Callable[[Any, str], pa.Table]
"""Reads a table of a reader."""
HISTORY_STEP = "What there is of a row tells `replicator history`; ask for a version (`--version`) where the target has some"


def read_rows_as_of(
    loaded: Loaded,
    lane: LaneSettings,
    at: AsOf,
    read: ReadTarget,
    seconds: float | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> pa.Table:
    """The result of `read` on the target of `lane` as it was at `at`.

    Applies all records up to then in this process, to a temporary lake, under the lane's policy and the current
    config. It starts from the newest checkpoint that ends by then, if there is one; `tell` gets a sentence about
    it.

    Fatal if the log has nothing that old. DataLoss if it lacks some of these records. ReadTimeout after `seconds`.
    """
    with tempfile.TemporaryDirectory(prefix="replicator-then-") as folder:
        begun = copy_newest(loaded, lane, Path(folder), at.until)
        if begun is not None:
            tell(f"going on from snapshot {begun.number}, which ends at {begun.newest}")
        else:
            refuse_truncated(loaded, lane)
        refuse_incomplete(loaded, lane, begun.begun if begun else Position(), HISTORY_STEP)
        prepared = configure_lake(loaded, lane, Path(folder), begun, at.until)
        made = build_container(prepared)
        with stop_after(seconds, made.stop(), f"applying the event log of {lane.table} up to {at}"):
            run_until_caught_up(made)
        reader: Any = adapters.build_sink(prepared, lane.sink)
        try:
            if AS_OF_FOLDER not in reader.tables():
                raise Fatal(
                    f"the event log of {lane.table} has no changes up to {at}",
                    next_step="Ask for a later time; `replicator history` tells when a row first came.",
                )
            found = read(reader, AS_OF_FOLDER)
            return found.replace_schema_metadata(None)
        finally:
            reader.close()


@contextmanager
def stop_after(seconds: float | None, stop: threading.Event, doing: str) -> Iterator[None]:
    """Set `stop` after `seconds`. If that happened, ReadTimeout at the end of the block."""
    late = threading.Event()

    def end() -> None:
        late.set()
        stop.set()

    timer = threading.Timer(seconds or 0, end)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    try:
        yield
    except ReplicatorError:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise ReadTimeout(
            f"{doing} takes longer than {seconds:g} seconds",
            next_step="Ask on the command line (`replicator query`, `replicator history`), or give it more time "
            "(`serve.query_timeout`).",
        )


def find_lane(loaded: Loaded, sink: str, into: str, tables: list[str]) -> LaneSettings:
    """The lane of one of `tables` (source names) with the target `into`. ConfigProblem if the config has none."""
    for table in tables:
        for lane in loaded.settings.resolve_lanes(table):
            if (lane.sink, lane.into) == (sink, into):
                return lane
    raise ConfigProblem(
        f"no lane of the config has the target {sink}.{into}, so its past cannot be told",
        next_step="Name a target of the config, or a version (`--version`).",
    )
