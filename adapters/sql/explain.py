"""The SQL of a plan's stages, for people."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.domain.plan import ApplyPlan

from .dialect import DUCKDB, Dialect
from .fold import change_identity, copies_select, first_select, last_select
from .render import merge
from .repair import repair_select
from .watermark import late_select


def explain(plan: ApplyPlan, write: Dialect, target: str, repair: Dialect | None = None) -> Mapping[str, str]:
    """Per stage the SQL: the fold on the local engine, stage 3 in `repair` (by default where the write runs), the write.
    Under a watermark also what tells late changes, before the lane has seen any.

    Stage 3 runs only for batches that need it; relations are named by what they hold.
    """
    where = repair or write
    if plan.fold == "last":
        fold = last_select(plan, DUCKDB, "changes")
    else:
        counted = plan.repair.counted
        identity = change_identity(plan, counted=counted)
        changes = f"({copies_select(plan, DUCKDB, identity[:-1], 'changes')})" if counted else "changes"
        fold = first_select(identity, DUCKDB, changes)
    ledger = "tombstones" if plan.repair.ledger else None
    late = {} if plan.watermark is None else {"late": late_select(plan, DUCKDB, "changes", reached={}, lane="LANE")}
    return {
        **late,
        "fold": fold,
        "repair": repair_select(plan, where, rows="folded", related="related", ledger=ledger, floor=None),
        "write": merge(plan, write, target, "rows"),
    }
