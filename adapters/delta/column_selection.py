"""Source columns that a table option names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.plan import ApplyPlan
from replicator.ports.frames import Lane

from .column_names import stored_name, stored_names
from .options import config_location
from .types import storage_type

Fits = Callable[[pa.Field], bool]
"""True when a column, as a table stores it, is suitable."""


def select_columns(
    lane: Lane, plan: ApplyPlan, option: str, wanted: Sequence[str], *, fits: Fits, which: str, stays: str
) -> list[str]:
    """The columns of `wanted` under their stored names.

    Raises ConfigProblem for a column that the source does not have, or that is not suitable. `which` names
    suitable columns. `stays`: the property that an existing table keeps without the option.
    """
    there = {c.name: c.type for c in plan.table.columns}
    for name in wanted:
        if name not in there:
            raise ConfigProblem(
                f"table {lane.table} has no column {name!r} for `{option}`: it has {', '.join(map(repr, there))}",
                next_step=f"Correct `{option}` in {config_location(lane)}, or remove it: a table that is there keeps its "
                f"{stays}.",
            )
        if not fits(pa.field(stored_name(name), storage_type(there[name]))):
            raise ConfigProblem(
                f"column {name!r} of table {lane.table} has type {there[name]}; {which}",
                next_step=f"Name another column in `{option}` in {config_location(lane)}.",
            )
    return find_stored_names(wanted)


def find_stored_names(names: Sequence[str], there: Sequence[str] = ()) -> list[str]:
    """The stored names of these columns. `there`: the columns of the table."""
    stored = stored_names(names, there)
    return [stored.get(name, name) for name in names]
