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
from ..sql.scd2_events import Scd2Input, carried_columns, select_candidates
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
    stage_3 = _explain_reconcile if plan.history is None else _explain_scd2
    return {
        **({} if plan.watermark is None else {"late": _explain_late(plan, fold)}),
        "fold": NEXT.join(_explain_fold(plan, fold)),
        "reconcile": NEXT.join(stage_3(plan, reconcile or write)),
        "write": render_merge(plan, write, target, "rows"),
    }


def _explain_late(plan: ApplyPlan, dialect: Dialect) -> str:
    micros = f"unix_micros({dialect.quote_name(TS)})" if dialect == SPARK else ""
    return late_select(plan, dialect, "changes", reached={}, lane="LANE", micros=micros)


def _explain_fold(plan: ApplyPlan, dialect: Dialect) -> list[str]:
    if plan.fold == "last":
        if dialect == SPARK:
            return [guard_windows(plan, SPARK, "changes", truncates=plan.truncates), last_windows(plan, SPARK, "guarded")]
        return [guard_select(plan, dialect, "changes"), last_select(plan, dialect, "kept")]
    find_first = first_windows if dialect == SPARK else first_select
    return [find_first(plan, dialect, "changes", counted=plan.reconcile.counted)]


def _explain_reconcile(plan: ApplyPlan, dialect: Dialect) -> list[str]:
    if plan.has_column_versions:
        return [select(per_column.NOTHING) for select in per_column.QUERIES]
    if dialect == DUCKDB:
        return [verdict_rows_select(plan, tombstones=plan.reconcile.uses_tombstones, floor=None)]
    tombstones = "tombstones" if plan.reconcile.uses_tombstones else None
    return [reconcile_select(plan, dialect, rows="folded", related="related", tombstones=tombstones, floor=None)]


def _explain_scd2(plan: ApplyPlan, dialect: Dialect) -> list[str]:
    """For scd2: the candidate versions, the events, the rows to write, and the changes to store as absorbed.

    The example batch has 0 as its lowest sequence, no truncates, and no missing values.
    """
    scd2 = _scd2_input(plan, dialect)
    related = [select_candidates(plan, dialect, "target", scd2.rows, scd2.lowest, moves=False)] if dialect != DUCKDB else []
    return [
        *related,
        events_select(plan, dialect, scd2),
        versions_select(plan, dialect, scd2, "events"),
        absorbed_select(plan, dialect, scd2, "events"),
    ]


def _scd2_input(plan: ApplyPlan, dialect: Dialect) -> Scd2Input:
    history, in_numbers = plan.history, dialect == DUCKDB
    return Scd2Input(
        rows="folded",
        related="related",
        absorbed="absorbed",
        lowest=(0,) * plan.table.sequence,
        truncates=(),
        values=(IMAGE,) if in_numbers else carried_columns(plan),
        compared=(IMAGE,) if in_numbers else (history.tracked if history else ()),
        untracked=() if in_numbers or history is None else history.untracked,
        missing=(),
        moves=False,
    )
