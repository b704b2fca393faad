"""What a target made by this program says of itself, where tables have room for a remark: a table without it was there
before, and is somebody else's."""

from __future__ import annotations

from replicator.ports.frames import Lane

MADE = "made by replicator for lane "


def ownership_remark(lane: Lane) -> str:
    """The remark of a table that is made for the lane."""
    return f"{MADE}{lane.id} of pipeline {lane.pipeline}"


def is_owned(remark: str | None) -> bool:
    """True when a table with that remark was made by this program, for whichever lane."""
    return (remark or "").startswith(MADE)
