"""SQL of comparisons that targets of all kinds share."""

from __future__ import annotations

from collections.abc import Collection

from replicator.domain.policy import VERSION_POLICIES
from replicator.domain.policy.plan import CDC_DELETED, end_sequence_columns
from replicator.ports.frames import Lane

from .dialect import Dialect


def current_rows_condition(dialect: Dialect, lane: Lane, names: Collection[str]) -> str:
    """A condition for the rows of a target that its source should have too: open versions, without rows that are marked as
    deleted. `names`: the columns of the target."""
    conditions = []
    if lane.policy in VERSION_POLICIES:
        conditions.append(f"{dialect.quote_name(end_sequence_columns(1)[0])} IS NULL")
    if CDC_DELETED in names:
        conditions.append(f"NOT coalesce({dialect.quote_name(CDC_DELETED)}, false)")
    return " AND ".join(conditions) or "true"
