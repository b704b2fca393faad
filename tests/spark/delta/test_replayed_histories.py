"""Random histories, replayed out of the event log by each engine: the live table, and what the model says."""

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
from support.snapshotted import ENTRIES, ON_SPARK, Snapshotted, rows

from replicator.application import joining
from replicator.domain.plan import CDC_APPLIED_AT
from replicator.domain.policies import plan_for
from replicator.domain.shape import UNSHAPED, Shape
from replicator.testing.delivery import canonical_rows
from replicator.testing.histories import random_history
from replicator.testing.model import fold
from replicator.testing.model_shapes import Wanted
from replicator.wiring import adapters, dropping, exchanging, seeding, shortening, snapshots
from replicator.wiring.container import Container
from replicator.wiring.rebuilding import Replay
from replicator.wiring.running import run_once

WANTED = {"soft": Wanted(soft_deletes=True), "by_column": Wanted(by_column=True)}
SHAPES = {"soft": Shape(soft_deletes=True), "by_column": Shape(by_column=True)}
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
def test_a_replay_is_the_live_table_and_the_model(tmp_path: Path, engine: str, entry: str, seed: int) -> None:
    """Whole, begun with a snapshot, and in the place of the live one, behind which the lane goes on; when the log has lost
    its beginning, too."""
    chance = random.Random(seed)
    history = random_history(seed, 12 if engine else 30, toast=True, keys=("int",))
    history = replace(history, shape=replace(history.shape, partitions=1, shuffle=None))
    shop = Snapshotted(tmp_path / "shop", history, ON_BOTH[entry], ", retention: 1 milliseconds", engine)
    lake, count = tmp_path / "shop" / "lake", len(history.events)
    half = count - count // 4
    for end in (chance.randrange(1, half), half):
        shop.reach(end)
    as_the_model(shop, lake / entry, entry, half)
    live = rows(lake / entry)
    run_once(Container(loaded=seeding.prepared(shop.loaded, Replay(shop.lane, "whole"))))
    assert rows(lake / "whole") == live
    said = list[str]()
    snapshots.take(shop.loaded, shop.lane)
    shop.reach(count)
    as_the_model(shop, lake / entry, entry, count)
    live = rows(lake / entry)
    run_once(Container(loaded=seeding.prepared(shop.loaded, Replay(shop.lane, "begun"), said.append)))
    assert rows(lake / "begun") == live and "going on from snapshot 1" in said[0]
    dropping.drop(shop.loaded, joining.beside(adapters.lane(shop.loaded, shop.lane), "whole"))
    assert shortening.shorten(shop.loaded, partial(asked, shop))["raw"]
    exchanging.exchange(shop.loaded, shop.lane, made, said.append)
    assert rows(lake / entry) == live and len(said) == 2
    after = Container(loaded=shop.loaded)
    run_once(after)
    assert {lane.counts["applied"] for lane in after.status().report().lanes} == {0}


def asked(shop: Snapshotted, log: str, question: Callable[[Any], Any]) -> Any:
    """Of the log as the engine writes it."""
    with closing(cast(Any, adapters.sink_of_engine(shop.loaded, log))) as sink:
        return question(sink)


def made(config: object) -> dict[str, int]:
    run_once(Container(loaded=config))
    return {"records": 0, "applied": 0, "rejected": 0}


def as_the_model(shop: Snapshotted, table: Path, entry: str, end: int) -> None:
    history, policy = shop.history, POLICIES.get(entry, "scd1")
    spec = history.table(end)
    due, _ = fold(policy, spec.column_names, spec.keys, history.changes(0, end), wanted=WANTED.get(entry))
    found = DeltaTable(str(table)).to_pyarrow_table()
    names = {c.name for c in plan_for(policy, spec, shape=SHAPES.get(entry, UNSHAPED)).target} - {CDC_APPLIED_AT}
    columns = sorted(names & set(found.column_names))
    assert len(columns) > 4 and canonical_rows(found.to_pylist(), columns) == canonical_rows(due, columns)
