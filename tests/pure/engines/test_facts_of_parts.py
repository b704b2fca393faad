"""Facts of disjoint parts of a batch add up to the facts of the batch."""

from __future__ import annotations

from random import Random

import pytest

from adapters.engines.local import LocalEngine
from replicator.domain.change import OP, Op
from replicator.domain.policy.plan import merge_facts
from replicator.domain.policy.policies import plan_for
from replicator.testing.contract import SEED
from replicator.testing.histories import make_random_history

ENGINE = LocalEngine()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["scd1", "scd2"])
@pytest.mark.parametrize("seed", range(12))
def test_facts_of_parts_equal_those_of_the_batch(seed: int, policy: str) -> None:
    history = make_random_history(SEED + seed, 40, toast=True, keys=("int", "text", "composite"))
    table, rng = history.table(), Random(seed)
    changes = ENGINE.frames.concat([frame for _, frame in history.runs(0, len(history.events))], table)
    changes = changes.filter([op != Op.TRUNCATE.value for op in changes[OP].to_pylist()])
    whole = ENGINE.fold(changes, plan_for(policy, table))
    parts = [part for part in ENGINE.features.partitions.split(changes, table.keys, rng.randrange(1, 9)) if part.num_rows]
    folded = [ENGINE.fold(part, plan_for(policy, table)) for part in parts]
    assert merge_facts(part.facts for part in folded) == whole.facts
    assert sum(part.rows for part in folded) == whole.rows
