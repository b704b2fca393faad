"""The SQL of every policy in every dialect equals the reviewed SQL.

Each file `sql/<policy>/<dialect>.sql` is compared with the rendered SQL. Read the difference; to accept it:

    REPLICATOR_ACCEPT=1 python -m pytest tests/golden/test_sql.py

A policy in `domain.policy.policies.POLICIES` is tested without a change here, and fails until its files exist. A variant
of a policy needs a line in `VARIANTS`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from adapters.apply.explain import NEXT, explain
from adapters.apply.reconcile_in_process import verdict_rows_select
from adapters.postgres.ddl import render_view
from adapters.sinks.delta.side_tables import old_entries_condition
from adapters.sinks.postgres.target import delete_statement, upsert_statement
from adapters.spark.catalog_names import CatalogTable
from adapters.sql.dialect import DELTA_RS, DUCKDB, POSTGRES, SPARK, Dialect
from adapters.sql.fold import sent_select, sent_windows
from adapters.sql.reconcile import purged_condition, reconcile_select, render_truncate, truncate_parts
from adapters.sql.render import find_view
from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.late_changes import LatenessLimit
from replicator.domain.policy.plan import ApplyPlan, DeleteHorizon, Truncate
from replicator.domain.policy.policies import POLICIES, plan_for, scd2
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms

FOLDER = Path(__file__).with_name("sql")
COMMAND = "REPLICATOR_ACCEPT=1 python -m pytest tests/golden/test_sql.py"
ACCEPT = bool(os.environ.get("REPLICATOR_ACCEPT"))

INT, TEXT = pa.int64(), pa.string()
TABLES = {
    "one key": TableSpec("public.t", (Column("id", INT), Column("v", TEXT)), ("id",), 1),
    "composite key": TableSpec("public.t", (Column("a", INT), Column("v", TEXT), Column("b", TEXT)), ("a", "b"), 2),
    "several sequence elements": TableSpec("public.t", (Column("id", INT), Column("v", TEXT)), ("id",), 4),
    "awkward name": TableSpec("public.t", (Column('k "1" `2`', INT), Column("v'; \\DROP {b}", TEXT)), ('k "1" `2`',), 1),
    "no key, counted": TableSpec("public.t", (Column("v", TEXT), Column("w", INT)), (), 3, counted=True),
}
VARIANTS: Mapping[str, Callable[[TableSpec], ApplyPlan]] = {
    "append-watermark": partial(plan_for, "append", watermark=timedelta(minutes=10)),
    "scd1-by-column": partial(plan_for, "scd1", row_transforms=RowTransforms(has_column_versions=True)),
    "scd1-soft": partial(plan_for, "scd1", row_transforms=RowTransforms(soft_deletes=True)),
    "scd2-untracked": lambda table: scd2(table, untracked=[c.name for c in table.values]),
}
PLANS: Mapping[str, Callable[[TableSpec], ApplyPlan]] = {**{name: partial(plan_for, name) for name in POLICIES}, **VARIANTS}
Stages = Iterator[tuple[str, str]]


def duckdb_stages(plan: ApplyPlan) -> Stages:
    """The statements that run in process, for every sink."""
    yield from ((name, text) for name, text in explain(plan, DUCKDB, '"target"').items() if name != "write")
    if plan.fold == "last":
        yield "fold, values that were not sent", sent_select(plan, DUCKDB, "kept", "folded", names_of(plan))
    if plan.history is None and not plan.has_column_versions:
        floor = make_sequence(plan)
        yield (
            "reconcile, after a truncate",
            verdict_rows_select(
                plan, tombstones=plan.reconcile.uses_tombstones, truncated_at=floor, resent=make_resent(plan)
            ),
        )
    for name, below in make_lateness_limits(plan):
        yield name, verdict_rows_select(plan, tombstones=True, truncated_at=below.truncated, lateness=below)


def delta_rs_stages(plan: ApplyPlan) -> Stages:
    """The parts of its MERGE."""
    yield "write", explain(plan, DELTA_RS, '"target"', reconcile=DUCKDB)["write"]
    yield from truncate_stages(plan, DELTA_RS)
    if plan.reconcile.uses_tombstones:
        yield "forget deletes", old_entries_condition(plan, make_sequence(plan))
    yield from purge_stages(plan, DELTA_RS)


def spark_stages(plan: ApplyPlan) -> Stages:
    yield from explain(plan, SPARK, "`target`", fold=SPARK).items()
    if shows_names(plan):
        yield from CatalogTable("shop", "it's", "/a 'lake'/it_x0027_s", "lane `a`.b").stages(find_view(plan)).items()
    if plan.fold == "last":
        yield "fold, values that were not sent", sent_windows(plan, SPARK, "windows", names_of(plan))
    yield from truncated_stages(plan, SPARK)
    yield from truncate_stages(plan, SPARK)
    yield from purge_stages(plan, SPARK)


def postgres_stages(plan: ApplyPlan) -> Stages:
    shown = explain(plan, POSTGRES, '"public"."target"')
    yield from ((name, shown[name]) for name in ("reconcile", "write"))
    yield from truncated_stages(plan, POSTGRES)
    yield from truncate_stages(plan, POSTGRES)
    if shows_names(plan) and (view := render_view(plan, "public", "it's")):
        yield "view", view
    if plan.reconcile.uses_tombstones:
        yield "remember deletes", upsert_statement('"tombstones"', plan, '"rows"')
        yield "forget deletes", delete_statement('"tombstones"', plan, make_sequence(plan))
    yield from purge_stages(plan, POSTGRES)


STAGES: Mapping[str, Callable[[ApplyPlan], Stages]] = {
    "duckdb": duckdb_stages,
    "delta_rs": delta_rs_stages,
    "spark": spark_stages,
    "postgres": postgres_stages,
}


def shows_names(plan: ApplyPlan) -> bool:
    """Once for each policy: names and views do not depend on other properties of the table."""
    return plan.table.keys == ("id",) and plan.table.sequence == 1


def names_of(plan: ApplyPlan) -> list[str]:
    return [c.name for c in plan.table.values]


def make_sequence(plan: ApplyPlan) -> tuple[int, ...]:
    return tuple(range(7, 7 + plan.table.sequence))


def make_resent(plan: ApplyPlan) -> tuple[int, ...] | None:
    return make_sequence(plan) if plan.reconcile.counted else None


def make_lateness_limits(plan: ApplyPlan) -> Iterator[tuple[str, LatenessLimit]]:
    """The limits of late changes, without truncates and with one in the batch."""
    if plan.reconcile.uses_tombstones:
        floor = make_sequence(plan)
        yield "reconcile, after deletes were forgotten", LatenessLimit(floor)
        yield "reconcile, after deletes were forgotten, with a truncate", LatenessLimit(floor, floor, floor)


def truncated_stages(plan: ApplyPlan, dialect: Dialect) -> Stages:
    if plan.history is None and not plan.has_column_versions:
        tombstones = "tombstones" if plan.reconcile.uses_tombstones else None
        select = partial(reconcile_select, plan, dialect, rows="folded", related="related", tombstones=tombstones)
        yield "reconcile, after a truncate", select(truncated_at=make_sequence(plan), resent=make_resent(plan))
        for name, below in make_lateness_limits(plan):
            yield name, select(truncated_at=below.truncated, lateness=below)


def truncate_stages(plan: ApplyPlan, dialect: Dialect) -> Stages:
    """The effect of a truncate on existing rows: a clause of the MERGE, or a statement in PostgreSQL."""
    if not plan.truncates:
        return
    example = Truncate(make_sequence(plan), 1_700_000_000_000_000)
    if dialect == POSTGRES:
        yield "truncate", render_truncate(plan, dialect, '"public"."target"', example)
        return
    condition, assignments = truncate_parts(plan, dialect, example)
    values = ", ".join(f"{name} = {value}" for name, value in assignments.items())
    then = f"UPDATE SET {values}" if assignments else "DELETE"
    yield "truncate", f"WHEN NOT MATCHED BY SOURCE AND {condition} THEN {then}"


def purge_stages(plan: ApplyPlan, dialect: Dialect) -> Stages:
    """The condition of the marked rows to remove."""
    if plan.soft_deletes:
        floor = make_sequence(plan)
        yield "deleted rows that go", purged_condition(plan, dialect, DeleteHorizon(0, floor))
        yield (
            "deleted rows that go, after a truncate",
            purged_condition(plan, dialect, DeleteHorizon(0, floor, tuple(n - 5 for n in floor))),
        )


def render_policy(policy: str, dialect: str) -> str:
    parts = [f"-- Policy {policy}, {dialect}. See tests/golden/test_sql.py.\n"]
    for name, table in TABLES.items():
        try:
            plan = PLANS[policy](table)
        except ConfigProblem as refused:
            parts.append(f"\n-- {name}: {refused.sentence}\n")
            continue
        parts += [f"\n-- {name}: {stage}\n{text};\n" for stage, text in STAGES[dialect](plan)]
    return "".join(parts)


@pytest.mark.parametrize("dialect", STAGES)
@pytest.mark.parametrize("policy", PLANS)
def test_sql_equals_the_reviewed_sql(policy: str, dialect: str) -> None:
    file, now = FOLDER / policy / f"{dialect}.sql", render_policy(policy, dialect)
    if ACCEPT:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(now, encoding="utf-8")
    assert file.exists(), f"policy {policy} has no reviewed SQL for {dialect}. To write it, then read it: {COMMAND}"
    then = file.read_text(encoding="utf-8")
    difference = "".join(difflib.unified_diff(then.splitlines(True), now.splitlines(True), "reviewed", "rendered now", n=1))
    assert now == then, f"the SQL of policy {policy} for {dialect} has changed:\n{difference}\nTo accept it: {COMMAND}"


def test_reviewed_files_belong_to_policies() -> None:
    wanted = {f"{policy}/{dialect}.sql" for policy in PLANS for dialect in STAGES}
    existing = {file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*") if file.is_file()}
    assert set(POLICIES) <= set(PLANS)
    assert existing - wanted == set(), "remove files without a policy and dialect"
    assert wanted - existing == set(), f"policies without reviewed SQL: {COMMAND}"


@pytest.mark.parametrize("policy", PLANS)
def test_duckdb_parses_its_own_sql(policy: str) -> None:
    statements = [text for text in render_policy(policy, "duckdb").split(NEXT) if text.strip()]
    assert len(duckdb.extract_statements(";\n".join(statements))) >= 2 * (len(TABLES) - 1)
