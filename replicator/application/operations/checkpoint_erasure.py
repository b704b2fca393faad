"""Erases rows from checkpoints, as from targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from replicator.application.sink_features import require_feature
from replicator.domain.checkpoints import Checkpoint
from replicator.ports.components import Components
from replicator.ports.dead_letters import ALL_DEAD_LETTERS, DeadLetter, DeadLetterFilter, KeepsVersions
from replicator.ports.frames import Lane
from replicator.ports.sink import ErasureResult, Sink

from . import cutover
from .checkpoint import AS_OF_FOLDER, CHECKPOINTS_FOLDER, STORES_NONE
from .checkpoint_store import CheckpointStore


def list_stores(parts: Components, table: str, source: str) -> list[CheckpointStore]:
    """The checkpoint folders of the pipeline's lanes at the event logs of the table, including lanes no longer
    configured."""
    found: list[CheckpointStore] = []
    rules = parts.sources[source].rules_for(table)
    for log in sorted(rules.event_logs if rules else ()):
        folder = parts.sinks[log].log_folder
        home = Path(folder or "") / CHECKPOINTS_FOLDER / quote(parts.pipeline, safe="")
        found += [CheckpointStore(path) for path in sorted(home.glob("*"))] if folder is not None else []
    return found


class CheckpointTarget:
    """`ports.sink.KeyErasure` for the copy of the lane `of` in a checkpoint. Its older versions are deleted at once,
    because nothing reads them."""

    def __init__(self, lake: Sink[Any], of: Lane) -> None:
        self._sink = lake
        self._erasure = require_feature(lake.features.erasure, STORES_NONE)
        self._then = cutover.make_rebuild_lane(of, AS_OF_FOLDER)

    def erase(self, lane: Lane, key: Mapping[str, str]) -> ErasureResult:  # noqa: ARG002 - it has another name here
        return replace(self._erasure.erase(self._then, key), versions=self._erasure.end_versions(self._then))

    def end_versions(self, lane: Lane) -> str:  # noqa: ARG002
        return self._erasure.end_versions(self._then)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


class CombinedDeadLetters:
    """Several dead-letter stores as one, with the methods that an erasure needs."""

    def __init__(self, stores: Sequence[Any]) -> None:
        self._stores = stores

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """The dead letters of all stores."""
        return [letter for store in self._stores for letter in store.read(which, limit=limit)]

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Remove the dead letters from every store that has them."""
        for store in self._stores:
            store.remove(letters)

    def versions(self) -> str:
        return "; ".join(filter(None, (one.versions() for one in self._stores if isinstance(one, KeepsVersions))))

    def end_versions(self) -> str:
        return "; ".join(filter(None, (one.end_versions() for one in self._stores if isinstance(one, KeepsVersions))))


def open_checkpoints(
    parts: Components, table: str, source: str, stack: ExitStack
) -> Iterator[tuple[Lane, CheckpointTarget, Any]]:
    """Every checkpoint of the table's lanes: its lane with the checkpoint number in its name, its target, and its
    dead letters.

    They stay locked until `stack` ends. Half-made checkpoints of any table are removed, because they do not name
    their table. Fenced while another process makes one.
    """
    for shelf in list_stores(parts, table, source):
        stack.enter_context(shelf.lock())
        shelf.remove_leftovers()
        for one in (known for known in shelf.list_all() if known.table == table):
            lane, path = _make_lane(parts, one, source), shelf.get_folder(one)
            stack.enter_context(shelf.mark_changing(one))
            lake = parts.use_lake(lane.sink, path)
            sink = stack.enter_context(closing(CheckpointTarget(lake.open_sink(lane.sink), lane)))
            letters = stack.enter_context(closing(lake.open_dead_letters()))
            yield replace(lane, id=f"{lane.id}, snapshot {one.number}"), sink, letters


def _make_lane(parts: Components, one: Checkpoint, source: str) -> Lane:
    rules = parts.sources[source].rules_for(one.table)
    for lane in rules.lanes if rules else ():
        if lane.id == one.lane:
            return lane
    sink, _, into = one.lane.partition(".")
    return Lane(one.lane, parts.pipeline, source, one.table, sink, into, "")
