"""The SQL of a plan's stages, for people."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.domain.change import TS
from replicator.domain.plan import ApplyPlan

from . import by_column
from .dialect import DUCKDB, SPARK, Dialect
from .fold import change_identity, copies_select, first_select, guard_select, last_select
from .fold_windows import first_places, guarded_select, last_windows
from .history import events_select, marks_select, versions_select
from .history_events import Known, carried, related_select
from .local_history import IMAGE
from .local_repair import places_select
from .render import merge
from .repair import repair_select
from .watermark import late_select

NEXT = ";\n\n"
"""Between the statements of one stage."""


def explain(
    plan: ApplyPlan, write: Dialect, target: str, *, repair: Dialect | None = None, fold: Dialect = DUCKDB
) -> Mapping[str, str]:
    """Per stage the SQL: the fold in the dialect of the engine, stage 3 in `repair` (by default where the write runs), the
    write. Under a watermark also what tells late changes, before the lane has seen any.

    Stage 3 runs only for batches that need it, and so does what completes values that were not sent; relations are named by
    what they hold. In DuckDB rows are related by their numbers, and values by the numbers of equal ones; stage 3 of
    sequences per column runs there, wherever the write does.
    """
    where = repair or write
    return {
        **({} if plan.watermark is None else {"late": _late(plan, fold)}),
        "fold": NEXT.join(_fold(plan, fold)),
        "repair": NEXT.join(_repair(plan, where) if plan.history is None else _versions(plan, where)),
        "write": merge(plan, write, target, "rows"),
    }


def _late(plan: ApplyPlan, dialect: Dialect) -> str:
    micros = f"unix_micros({dialect.quoted(TS)})" if dialect == SPARK else ""
    return late_select(plan, dialect, "changes", reached={}, lane="LANE", micros=micros)


def _fold(plan: ApplyPlan, dialect: Dialect) -> list[str]:
    if plan.fold == "last":
        if dialect == SPARK:
            return [guarded_select(plan, SPARK, "changes", truncates=plan.truncates), last_windows(plan, SPARK, "guarded")]
        return [guard_select(plan, dialect, "changes"), last_select(plan, dialect, "kept")]
    counted = plan.repair.counted
    if dialect == SPARK:
        return [first_places(plan, SPARK, counted=counted)("changes")]
    identity = change_identity(plan, counted=counted)
    changes = f"({copies_select(plan, dialect, identity[:-1], 'changes')})" if counted else "changes"
    return [first_select(identity, dialect, changes)]


def _repair(plan: ApplyPlan, dialect: Dialect) -> list[str]:
    if plan.by_column:
        return [select(by_column.NOTHING) for select in by_column.QUERIES]
    if dialect == DUCKDB:
        return [places_select(plan, ledger=plan.repair.ledger, floor=None)]
    ledger = "tombstones" if plan.repair.ledger else None
    return [repair_select(plan, dialect, rows="folded", related="related", ledger=ledger, floor=None)]


def _versions(plan: ApplyPlan, dialect: Dialect) -> list[str]:
    """Of a history: the versions at hand, what is known of their keys, what is to be written, and what to be remembered.
    Shown for a batch whose lowest sequence is 0, without truncates, and in which every value was sent."""
    known = _known(plan, dialect)
    related = [related_select(plan, dialect, "target", known.rows, known.lowest, moves=False)] if dialect != DUCKDB else []
    return [
        *related,
        events_select(plan, dialect, known),
        versions_select(plan, dialect, known, "events"),
        marks_select(plan, dialect, known, "events"),
    ]


def _known(plan: ApplyPlan, dialect: Dialect) -> Known:
    history, in_numbers = plan.history, dialect == DUCKDB
    return Known(
        rows="folded",
        related="related",
        marks="remembered",
        lowest=(0,) * plan.table.sequence,
        cuts=(),
        values=(IMAGE,) if in_numbers else carried(plan),
        compared=(IMAGE,) if in_numbers else (history.tracked if history else ()),
        untracked=() if in_numbers or history is None else history.untracked,
        lacking=(),
        moves=False,
    )
