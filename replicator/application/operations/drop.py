"""Removes a target and everything stored for its lane, while the daemon does not write it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from replicator.ports.frames import Lane
from replicator.ports.register import Register
from replicator.ports.sink import Drops, LaneArtifact


def list_artifacts(sink: Drops, register: Register, sources: Iterable[str], lane: Lane) -> Sequence[LaneArtifact]:
    """Everything that the sink and the register store for the lane; empty if nothing. Changes nothing."""
    noted = [_make_register_artifact(lane, name) for name in _list_registered_sources(register, sources, lane)]
    return [*sink.list_artifacts(lane), *noted]


def drop_lane(sink: Drops, register: Register, sources: Iterable[str], lane: Lane) -> None:
    """Remove everything of the lane. Safe to repeat, also after a kill at any point.

    The register is last. Without its target, but with its start position, a lane starts there again, and nothing is
    skipped. In the other order, a lane could have a position but no start. It would begin unread partitions at
    `start_from`, and skip records that arrived meanwhile.

    The topics of the table stay in the register. A lane that is configured again is loaded from all of them, not
    from the next record on.
    """
    sink.drop(lane)
    for name in _list_registered_sources(register, sources, lane):
        seen = register.load(name)
        others = {other: begun for other, begun in seen.beginnings.items() if other != lane.id}
        register.save(name, replace(seen, beginnings=others))


def _make_register_artifact(lane: Lane, source: str) -> LaneArtifact:
    return LaneArtifact("register entry", f"where {lane.id} began in source {source}")


def _list_registered_sources(register: Register, sources: Iterable[str], lane: Lane) -> list[str]:
    """The sources whose register entry contains the lane."""
    return [name for name in sources if lane.id in register.load(name).beginnings]
