"""The current rows of tables that also store old versions or deleted rows. Sinks share these rules."""

from __future__ import annotations

from collections.abc import Collection

from replicator.domain.policy import VERSION_POLICIES
from replicator.domain.policy.plan import CDC_DELETED, ApplyPlan, end_sequence_columns
from replicator.ports.frames import Lane

from .dialect import Dialect

# As a view.

OURS = "replicator: the rows of {table} that hold now"
"""The comment of such a view. A view without it belongs to another program."""
CURRENT, LIVING, NONE = "_current", "_living", ""
"""Suffixes of the table's name: for an scd2 target, and for a target with soft deletes. Other targets have no
view."""
VIEWS = (CURRENT, LIVING)
COLUMNS = {CURRENT: end_sequence_columns(1)[0], LIVING: CDC_DELETED}
"""The column that identifies current rows."""
HOLDS = {CURRENT: "IS NULL", LIVING: "IS NOT TRUE"}


def find_view(plan: ApplyPlan) -> str:
    """The suffix of the target's view."""
    return _view_suffix(history=plan.history is not None, soft_deletes=plan.soft_deletes)


def find_lane_view(lane: Lane) -> str:
    """`find_view` for a lane that has no plan yet."""
    return _view_suffix(history=lane.policy in VERSION_POLICIES, soft_deletes=lane.row_transforms.soft_deletes)


def _view_suffix(*, history: bool, soft_deletes: bool) -> str:
    return CURRENT if history else LIVING if soft_deletes else NONE


def current_rows_query(view: str, dialect: Dialect, relation: str) -> str:
    """The query of such a view over `relation`."""
    return f"SELECT * FROM {relation} WHERE {dialect.quote_name(COLUMNS[view])} {HOLDS[view]}"


# As a condition of comparisons.


def current_rows_condition(dialect: Dialect, lane: Lane, names: Collection[str]) -> str:
    """A condition for the rows of a target that its source should have too: open versions, without rows that are marked as
    deleted. `names`: the columns of the target."""
    conditions = []
    if lane.policy in VERSION_POLICIES:
        conditions.append(f"{dialect.quote_name(end_sequence_columns(1)[0])} IS NULL")
    if CDC_DELETED in names:
        conditions.append(f"NOT coalesce({dialect.quote_name(CDC_DELETED)}, false)")
    return " AND ".join(conditions) or "true"
