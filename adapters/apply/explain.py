"""The SQL of a plan's stages, for people to read."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.domain.change import TS
from replicator.domain.policy.plan import ApplyPlan

from ..sql import per_column
from ..sql.dialect import DUCKDB, SPARK, Dialect
from ..sql.fold import first_select, first_windows, guard_select, guard_windows, last_select, last_windows, late_select
from ..sql.reconcile import reconcile_select
from ..sql.render import render_merge
from ..sql.scd2 import absorbed_select, events_select, versions_select
from ..sql.scd2_events import Scd2Input, select_candidates
from .reconcile_in_process import verdict_rows_select
from .scd2_in_process import IMAGE

NEXT = ";\n\n"
"""Separates the statements of one stage."""


def explain(
    plan: ApplyPlan, write: Dialect, target: str, *, reconcile: Dialect | None = None, fold: Dialect = DUCKDB
) -> Mapping[str, str]:
    """The SQL of each stage. Relations have the names of their contents.

    - `late`, only under a watermark: finds late changes, before the lane has read any.
    - `fold`: in the dialect of the engine.
    - `reconcile`: stage 3, in the dialect `reconcile` (by default that of the write).
    - `write`: stage 4.

    Stage 3 and the completion of missing values run only for batches that need them. In DuckDB, rows are
    identified by their numbers, and equal values share a number. Stage 3 of sequences per column always runs in
    DuckDB. So does stage 3 of most writes of a history to PostgreSQL, which then copies the new versions.
    """
    stages = {}
    if plan.watermark is not None:
        micros = f"unix_micros({fold.quote_name(TS)})" if fold == SPARK else ""
        stages["late"] = late_select(plan, fold, "changes", reached={}, lane="LANE", micros=micros)
    if plan.fold != "last":
        find_first = first_windows if fold == SPARK else first_select
        selects = [find_first(plan, fold, "changes", counted=plan.reconcile.counted)]
    elif fold == SPARK:
        selects = [guard_windows(plan, SPARK, "changes", truncates=plan.truncates), last_windows(plan, SPARK, "guarded")]
    else:
        selects = [guard_select(plan, fold, "changes"), last_select(plan, fold, "kept")]
    stages["fold"] = NEXT.join(selects)
    dialect, tombstones = reconcile or write, plan.reconcile.uses_tombstones
    if plan.history is not None:
        selects = _explain_scd2(plan, dialect)
    elif plan.has_column_versions:
        selects = [select(per_column.NOTHING) for select in per_column.QUERIES]
    elif dialect == DUCKDB:
        selects = [verdict_rows_select(plan, tombstones=tombstones, truncated_at=None)]
    else:
        relation = "tombstones" if tombstones else None
        selects = [reconcile_select(plan, dialect, rows="folded", related="related", tombstones=relation, truncated_at=None)]
    stages["reconcile"] = NEXT.join(selects)
    stages["write"] = render_merge(plan, write, target, "rows")
    return stages


def _explain_scd2(plan: ApplyPlan, dialect: Dialect) -> list[str]:
    """The candidate versions, the events, the rows to write, and the changes to store as absorbed.

    The example batch has 0 as its lowest sequence, no truncates, and no missing values.
    """
    in_numbers = dialect == DUCKDB
    scd2 = Scd2Input(
        rows="folded",
        related="related",
        absorbed="absorbed",
        lowest=(0,) * plan.table.sequence,
        truncates=(),
        values=(IMAGE,) if in_numbers else (),
        compared=(IMAGE,) if in_numbers else (),
        missing=(),
        moves=False,
    )
    candidates = [] if in_numbers else [select_candidates(plan, dialect, "target", scd2.rows, scd2.lowest, moves=False)]
    return [
        *candidates,
        events_select(plan, dialect, scd2),
        versions_select(plan, dialect, scd2, "events"),
        absorbed_select(plan, dialect, scd2, "events"),
    ]
