"""Snapshots from which a forgotten row is taken, as it is from the targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from replicator.application import joining
from replicator.application.shelf import Shelf
from replicator.domain.state_snapshots import StateSnapshot
from replicator.ports.dead_letters import EVERY, DeadLetter, KeepsVersions, Which
from replicator.ports.frames import Lane
from replicator.ports.sink import Erased
from replicator.settings import Loaded
from replicator.settings.sinks import DeadLetterSettings

from . import adapters
from .histories import folder_of_log
from .plugins import load
from .snapshots import HOME, THEN


def shelves(loaded: Loaded, table: str, source: str) -> list[Shelf]:
    """Where snapshots of the pipeline's lanes are beside event logs of the table, of those too that the config has no
    more."""
    found = []
    for log in loaded.settings.event_logs_for(table, source):
        folder = folder_of_log(loaded, log)
        home = Path(folder or "") / HOME / quote(loaded.settings.pipeline, safe="")
        found += [Shelf(path) for path in sorted(home.glob("*"))] if folder is not None else []
    return found


class InSnapshot:
    """`ports.sink.Erases` over what a snapshot holds of the lane `of`. Nobody reads older versions of it: they end at
    once."""

    def __init__(self, path: Path, of: Lane) -> None:
        self._sink: Any = load("replicator.sinks", "delta")({"path": str(path / "lake")})
        self._then = joining.beside(of, THEN)

    def erase(self, lane: Lane, key: Mapping[str, str]) -> Erased:  # noqa: ARG002 - which is called otherwise here
        """See `ports.sink.Erases.erase`."""
        erased: Erased = self._sink.erase(self._then, key)
        return replace(erased, versions=self._sink.end_versions(self._then))

    def end_versions(self, lane: Lane) -> str:  # noqa: ARG002
        """See `ports.sink.Erases.end_versions`."""
        return str(self._sink.end_versions(self._then))

    def close(self) -> None:
        """Let go of it."""
        self._sink.close()


class Letters:
    """Several stores of dead letters as one, as far as forgetting goes."""

    def __init__(self, stores: Sequence[Any]) -> None:
        self._stores = stores

    def read(self, which: Which = EVERY, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """Those of all of them."""
        return [letter for store in self._stores for letter in store.read(which, limit=limit)]

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """From whichever has them."""
        for store in self._stores:
            store.remove(letters)

    def versions(self) -> str:
        """See `ports.dead_letters.KeepsVersions`."""
        return "; ".join(filter(None, (one.versions() for one in self._stores if isinstance(one, KeepsVersions))))

    def end_versions(self) -> str:
        """See `ports.dead_letters.KeepsVersions`."""
        return "; ".join(filter(None, (one.end_versions() for one in self._stores if isinstance(one, KeepsVersions))))


def opened(loaded: Loaded, table: str, source: str, stack: ExitStack) -> Iterator[tuple[Lane, InSnapshot, Any]]:
    """Every snapshot of the table's lanes: its lane under a name that tells the snapshot, what takes rows from it, and its
    dead letters. They are held until `stack` ends. What is half made is removed, of whatever table: it does not say of
    which it is. Fenced while another program makes one."""
    for shelf in shelves(loaded, table, source):
        stack.enter_context(shelf.alone())
        shelf.tidy()
        for one in (known for known in shelf.every() if known.table == table):
            lane, path = _lane(loaded, one, source), shelf.path(one)
            stack.enter_context(shelf.changing(one))
            sink = stack.enter_context(closing(InSnapshot(path, lane)))
            place = DeadLetterSettings.model_construct(path=str(path / "dead_letters"))
            there = replace(loaded, settings=loaded.settings.model_copy(update={"dead_letters": place}))
            letters = stack.enter_context(closing(cast(Any, adapters.dead_letters(there))))
            yield replace(lane, id=f"{lane.id}, snapshot {one.number}"), sink, letters


def _lane(loaded: Loaded, one: StateSnapshot, source: str) -> Lane:
    for lane in adapters.lanes(loaded, one.table, source):
        if lane.id == one.lane:
            return lane
    sink, _, into = one.lane.partition(".")
    return Lane(one.lane, loaded.settings.pipeline, source, one.table, sink, into, "")
