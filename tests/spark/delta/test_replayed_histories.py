"""Random histories, replayed from the event log by each engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable
from support.snapshotted_shop import ENTRIES, ON_SPARK, CheckpointedShop, read_canonical_rows

from replicator.application.operations import checkpoint, checkpoint_schedule, drop, table_swap
from replicator.application.operations.rebuild import make_rebuild_lane
from replicator.domain.policy.plan import CDC_APPLIED_AT
from replicator.domain.policy.policies import plan_for
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms
from replicator.ports.components import Components, RebuildRequest
from replicator.testing.delivery import to_canonical_rows
from replicator.testing.histories import make_random_history
from replicator.testing.model import fold_changes
from replicator.testing.model_transforms import ModelRowTransforms
from replicator.wiring import adapters
from replicator.wiring.container import Container, run_until_caught_up

WANTED = {"soft": ModelRowTransforms(soft_deletes=True), "by_column": ModelRowTransforms(has_column_versions=True)}
SHAPES = {"soft": RowTransforms(soft_deletes=True), "by_column": RowTransforms(has_column_versions=True)}
POLICIES = {"versions": "scd2", "changes": "append"}
ON_BOTH = {**ENTRIES, "clustered": "{sink: lake, into: clustered, cluster_by: [k1]}"}
LOCALLY = [pytest.param("", entry, 1, marks=[] if entry == "plain" else pytest.mark.long) for entry in ENTRIES]
BY_SPARK = [
    pytest.param(ON_SPARK, entry, seed, marks=[pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1800)])
    for entry in ON_BOTH
    for seed in (1, 2)
]


@pytest.mark.parametrize(
    ("engine", "entry", "seed"), [*LOCALLY, *BY_SPARK], ids=lambda it: "spark" if it == ON_SPARK else None
)
def test_replay_equals_the_live_table_and_the_model(tmp_path: Path, engine: str, entry: str, seed: int) -> None:
    """Whole, begun with a snapshot, and in the place of the live one, behind which the lane goes on; when the log has lost
    its beginning, too."""
    chance = random.Random(seed)
    history = make_random_history(seed, 12 if engine else 30, toast=True, keys=("int",))
    history = replace(history, shape=replace(history.shape, partitions=1, shuffle=None))
    shop = CheckpointedShop(tmp_path / "shop", history, ON_BOTH[entry], ", retention: 1 milliseconds", engine)
    lake, count = tmp_path / "shop" / "lake", len(history.events)
    half = count - count // 4
    for end in (chance.randrange(1, half), half):
        shop.reach(end)
    as_the_model(shop, lake / entry, entry, half)
    live = read_canonical_rows(lake / entry)
    checkpoint.prepare_restored_rebuild(shop.parts, RebuildRequest(shop.lane, "whole")).catch_up()
    assert read_canonical_rows(lake / "whole") == live
    said = list[str]()
    checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(count)
    as_the_model(shop, lake / entry, entry, count)
    live = read_canonical_rows(lake / entry)
    checkpoint.prepare_restored_rebuild(shop.parts, RebuildRequest(shop.lane, "begun"), said.append).catch_up()
    assert read_canonical_rows(lake / "begun") == live and "starting from checkpoint 1" in said[0]
    drop.drop_lane(shop.parts, make_rebuild_lane(shop.lane, "whole"))
    assert checkpoint_schedule.truncate_logs(shop.parts, partial(query_log, shop))["raw"]
    table_swap.swap_target(shop.parts, shop.lane, run_pipeline, said.append)
    assert read_canonical_rows(lake / entry) == live and len(said) == 2
    after = Container(loaded=shop.load_config)
    run_until_caught_up(after)
    assert {lane.counts["applied"] for lane in after.status().report().lanes} == {0}


def query_log(shop: CheckpointedShop, log: str, question: Callable[[Any], Any]) -> Any:
    """Of the log as the engine writes it."""
    with closing(cast(Any, adapters.build_engine_sink(shop.load_config, log))) as sink:
        return question(sink)


def run_pipeline(rebuild: Components) -> dict[str, int]:
    rebuild.catch_up()
    return {"records": 0, "applied": 0, "rejected": 0}


def as_the_model(shop: CheckpointedShop, table: Path, entry: str, end: int) -> None:
    history, policy = shop.history, POLICIES.get(entry, "scd1")
    spec = history.table(end)
    due, _ = fold_changes(policy, spec.column_names, spec.keys, history.changes(0, end), wanted=WANTED.get(entry))
    found = DeltaTable(str(table)).to_pyarrow_table()
    names = {c.name for c in plan_for(policy, spec, row_transforms=SHAPES.get(entry, NO_ROW_TRANSFORMS)).target} - {
        CDC_APPLIED_AT
    }
    columns = sorted(names & set(found.column_names))
    assert len(columns) > 4 and to_canonical_rows(found.to_pylist(), columns) == to_canonical_rows(due, columns)
