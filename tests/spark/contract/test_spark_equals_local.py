"""A random history through both engines, each into a lake of its own: the same tables, value for value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.delta_targets import DeltaTarget
from support.spark_case import OnSpark, SparkTarget, get_spark_engine

from adapters.engines.local import LocalEngine
from replicator.domain.policy.plan import CDC_APPLIED_AT
from replicator.domain.policy.policies import plan_for
from replicator.testing.contract import EXAMPLES, SEED
from replicator.testing.delivery import DeliveryRun, make_watermark_plans, to_canonical_rows
from replicator.testing.histories import History, make_random_history
from replicator.testing.sink_contract import KEYED_TYPES
from replicator.testing.sink_retention import DISORDER, GRACE
from replicator.testing.sink_row_transforms import plan_column_versions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""A JVM starts, and every job takes a moment."""

KEYS = {"scd1": KEYED_TYPES, "append": (*KEYED_TYPES, "none"), "scd2": KEYED_TYPES, "by_column": KEYED_TYPES}
"""By every policy that is supported, and scd1 with a sequence for each column."""
CASES = [("scd1", None), ("append", None), ("append", GRACE), ("scd2", None), ("by_column", None)]
"""Policy and watermark; with one, event times are out of order."""
LENGTH = 14
EACH = max(1, EXAMPLES // OnSpark.one_in)
"""Histories per policy: one on every commit."""


def deliver_batches(engine: Any, target: Any, history: History, policy: str, **frames: Any) -> DeliveryRun:
    delivering = DeliveryRun(engine, target, history, policy, **frames)
    for delivery in history.deliveries:
        delivering.deliver(delivery)
    delivering.sink.close()
    return delivering


def table(delivering: DeliveryRun, target: Any) -> tuple[pa.Schema, Any, list[str]]:
    """Schema, rows and rejects; all read by one reader, so that a difference is in the files."""
    found = DeltaTable(str(target.folder / delivering.lane.into))
    rows = pa.RecordBatchReader.from_stream(found.scan()).read_all()
    columns = sorted(set(rows.column_names) - {CDC_APPLIED_AT})
    rejects = sorted(f"{row['_offset']} {row['_error']}" for row in delivering.rejects)
    return pa.schema(found.schema().to_arrow()), to_canonical_rows(rows.to_pylist(), columns), rejects


FIRST = {"scd1": 7741, "append": 49, "scd2": 2711, "by_column": 1527}
"""Histories with deletes, updates and partial updates of rows of earlier batches, and new columns; that of scd2 with a
truncate, which under scd1 `test_engines_agree` has."""


def make_history(policy: str, seed: int, disorder: int) -> History:
    """The history of every commit comes in two batches, of which the second begins before the end of the first. What fails
    in between the contracts try."""
    history = make_random_history(seed + FIRST[policy], LENGTH, toast=seed % 2 == 0, keys=KEYS[policy], disorder=disorder)
    count = len(history.events)
    cut = 2 * count // 3
    return replace(history, cuts=((cut, 0, ""), (count - cut, 4, ""))) if seed == SEED else history


@pytest.mark.parametrize(("policy", "watermark"), CASES)
@pytest.mark.parametrize("seed", range(SEED, SEED + EACH))
def test_local_and_spark_write_the_same_rows(tmp_path, policy, watermark, seed):
    disorder, plans = (0, plan_for) if watermark is None else (DISORDER, make_watermark_plans(watermark))
    history = make_history(policy, seed, disorder)
    if policy == "by_column":
        parts = replace(history.shape, parts=True, scramble=seed, shuffle=None)
        history, policy, plans = replace(history, shape=parts), "scd1", plan_column_versions
    case, lakes = OnSpark(), (DeltaTarget(tmp_path / "local"), SparkTarget(tmp_path / "spark"))
    local = deliver_batches(LocalEngine(), lakes[0], history, policy, plans=plans)
    spark = deliver_batches(
        get_spark_engine(), lakes[1], history, policy, plans=plans, to_frame=case.to_frame, to_arrow=case.to_arrow
    )
    wanted, found = table(local, lakes[0]), table(spark, lakes[1])
    assert local.counts.total
    assert watermark is None or local.rejects or seed != SEED
    assert found == wanted
    assert spark.counts == local.counts
