"""The columns of liquid clustering, and the statistics that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltalake import DeltaTable

from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.plan import ApplyPlan
from replicator.ports.frames import Lane

from ...delta.options import config_location, select_columns
from ...delta.tables import STATISTICS, can_have_statistics, columns_with_statistics, read_schema

WHICH = (
    "rows can only be clustered by text, whole numbers, dates, timestamps and decimals of up to 15 digits. "
    "Names of the columns must consist of letters, digits and underscores"
)


def check_clusters(lane: Lane, plan: ApplyPlan, wanted: Sequence[str]) -> list[str]:
    """The columns of `cluster_by` under the names of the table.

    Raises ConfigProblem for a column that the source does not have, or that cannot be clustered.
    """
    return select_columns(lane, plan, "cluster_by", wanted, fits=can_have_statistics, which=WHICH, stays="clusters")


def refuse_partitioned(table: DeltaTable, lane: Lane) -> None:
    """Raises ConfigProblem when the table has partitions, because Delta does not cluster partitioned tables."""
    if table.metadata().partition_columns:
        raise ConfigProblem(
            f"table {lane.into} is partitioned by {', '.join(table.metadata().partition_columns)}: it cannot be clustered",
            next_step=f"Remove `cluster_by` in {config_location(lane)}, or give the table another name with `into`.",
        )


def find_missing_statistics(table: DeltaTable, clusters: Sequence[str]) -> Mapping[str, str]:
    """The property that a table needs to be clustered by these columns: Delta requires statistics of them."""
    covered = columns_with_statistics(table)
    if set(clusters) <= set(covered):
        return {}
    known = [f.name for f in read_schema(table) if f.name in covered and can_have_statistics(f)]
    return {STATISTICS: ",".join(dict.fromkeys([*clusters, *known]))}
