"""`plan` shows what runs: the rendered stages of a policy in the dialect of the sink."""

from __future__ import annotations

from datetime import timedelta

import duckdb
import pyarrow as pa
import pytest

from adapters.apply.explain import explain
from adapters.sql.dialect import DELTA_RS, DUCKDB, POSTGRES, SPARK
from replicator.domain.policy import CHANGE_POLICIES, CURRENT_ROW_POLICIES, POLICY_NAMES, VERSION_POLICIES
from replicator.domain.policy.policies import POLICIES, plan_for
from replicator.domain.table import Column, TableSpec

TABLE = TableSpec("public.t", (Column("a", pa.int64()), Column('b"; DROP', pa.string())), ("a",), 2)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dialect", [DELTA_RS, POSTGRES, DUCKDB, SPARK], ids=lambda d: d.name)
def test_every_stage_is_shown(policy, dialect):
    stages = explain(plan_for(policy, TABLE), dialect, '"t"', fold=SPARK if dialect == SPARK else DUCKDB)
    assert list(stages) == ["fold", "reconcile", "write"]
    assert dialect.quote_name('b"; DROP') in stages["write"]
    assert all(text.strip() for text in stages.values())


def test_policy_names_match_their_plans():
    plans = {policy: plan_for(policy, TABLE) for policy in POLICIES}
    assert plans.keys() == set(POLICY_NAMES)
    assert {name for name, plan in plans.items() if plan.history is not None} == VERSION_POLICIES
    assert {name for name, plan in plans.items() if not plan.merge_keys} == CHANGE_POLICIES
    assert plans.keys() - VERSION_POLICIES - CHANGE_POLICIES == CURRENT_ROW_POLICIES


def test_plan_of_a_history_shows_the_search_of_versions():
    for dialect in (POSTGRES, SPARK, DUCKDB):
        reconcile = explain(plan_for("scd2", TABLE), dialect, '"t"')["reconcile"]
        assert "WITH events AS" in reconcile and dialect.quote_name("_cdc__opens") in reconcile


def test_plan_shows_a_watermark():
    stages = explain(plan_for("append", TABLE, timedelta(minutes=10)), DUCKDB, '"t"')
    assert list(stages) == ["late", "fold", "reconcile", "write"]
    assert "- 600000000 AS" in stages["late"]


def test_shown_merge_is_valid_sql():
    stages = explain(plan_for("scd1", TABLE), DUCKDB, '"t"')
    columns = '"a" BIGINT PRIMARY KEY, "b""; DROP" VARCHAR, "_cdc_op" VARCHAR, "_cdc_ts" TIMESTAMPTZ, "_event_id" VARCHAR, '
    columns += '"_cdc_applied_at" TIMESTAMPTZ, "_cdc_seq_1" BIGINT, "_cdc_seq_2" BIGINT'
    with duckdb.connect() as connection:
        connection.execute(f'CREATE TABLE "t" ({columns})')
        connection.execute(f'CREATE TABLE "rows" ("_op" VARCHAR, {columns})')
        for operation, sequence, expected in (("c", 2, 1), ("d", 1, 1), ("d", 3, 0)):
            connection.execute('DELETE FROM "rows"')
            connection.execute(f"INSERT INTO \"rows\" VALUES ('{operation}', 1, 'x', 'c', NULL, 'e', NULL, {sequence}, 0)")
            connection.execute(stages["write"])
            assert connection.execute('SELECT count(*) FROM "t"').fetchone() == (expected,)
