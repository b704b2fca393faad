"""The comment on targets that Replicator created, where tables can have comments.

A table without this comment existed before, and belongs to another program.
"""

from __future__ import annotations

from replicator.ports.frames import Lane

MADE = "made by replicator for lane "


def ownership_remark(lane: Lane) -> str:
    """The comment for a table that is created for the lane."""
    return f"{MADE}{lane.id} of pipeline {lane.pipeline}"


def is_owned(remark: str | None) -> bool:
    """True when the comment shows that replicator created the table, for any lane."""
    return (remark or "").startswith(MADE)
