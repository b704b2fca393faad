"""Removing a target with everything that is kept of its lane, while the program does not write it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from replicator.ports.frames import Lane
from replicator.ports.register import Register
from replicator.ports.sink import Drops, LaneArtifact


def list_artifacts(sink: Drops, register: Register, sources: Iterable[str], lane: Lane) -> Sequence[LaneArtifact]:
    """What its sink and the register keep of the lane; empty when there is nothing. Changes nothing."""
    noted = [_make_register_artifact(lane, name) for name in _list_registered_sources(register, sources, lane)]
    return [*sink.list_artifacts(lane), *noted]


def drop_lane(sink: Drops, register: Register, sources: Iterable[str], lane: Lane) -> None:
    """Remove it all. May be repeated, after it was killed anywhere too.

    The register comes last. A lane whose target is gone, but not where it began, begins there again: nothing is passed over.
    The other way round a lane that still has its position would begin, in a partition of which it has applied nothing yet,
    where the source's `start_from` says, and that may be past what came meanwhile. Which topics hold the table stays in the
    register: a lane that is configured anew is loaded from all of them, not from the next record on.
    """
    sink.drop(lane)
    for name in _list_registered_sources(register, sources, lane):
        seen = register.load(name)
        others = {other: begun for other, begun in seen.beginnings.items() if other != lane.id}
        register.save(name, replace(seen, beginnings=others))


def _make_register_artifact(lane: Lane, source: str) -> LaneArtifact:
    return LaneArtifact("register entry", f"where {lane.id} began in source {source}")


def _list_registered_sources(register: Register, sources: Iterable[str], lane: Lane) -> list[str]:
    """The sources in whose entry the lane is."""
    return [name for name in sources if lane.id in register.load(name).beginnings]
