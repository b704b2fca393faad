"""Views of what holds now, beside tables that keep more than that: what is the same wherever they are made."""

from __future__ import annotations

from replicator.domain.policy.plan import CDC_DELETED, ApplyPlan, end_sequence_columns
from replicator.ports.frames import Lane

from .dialect import Dialect

OURS = "replicator: the rows of {table} that hold now"
"""What such a view says of itself: one without it is somebody else's."""
CURRENT, LIVING, NONE = "_current", "_living", ""
"""What is added to the name of a table: of a history, and of one whose deleted rows stay. Others have no view."""
VIEWS = (CURRENT, LIVING)
HISTORY = "scd2"
COLUMNS = {CURRENT: end_sequence_columns(1)[0], LIVING: CDC_DELETED}
"""The column that tells the rows that hold now."""
HOLDS = {CURRENT: "IS NULL", LIVING: "IS NOT TRUE"}


def find_view(plan: ApplyPlan) -> str:
    """Which view belongs to a target."""
    return _view_suffix(history=plan.history is not None, soft_deletes=plan.soft_deletes)


def find_lane_view(lane: Lane) -> str:
    """The same before the lane has a plan."""
    return _view_suffix(history=lane.policy == HISTORY, soft_deletes=lane.row_transforms.soft_deletes)


def _view_suffix(*, history: bool, soft_deletes: bool) -> str:
    return CURRENT if history else LIVING if soft_deletes else NONE


def current_rows_query(view: str, dialect: Dialect, relation: str) -> str:
    """The query of such a view over `relation`."""
    return f"SELECT * FROM {relation} WHERE {dialect.quote_name(COLUMNS[view])} {HOLDS[view]}"
