"""Runs of `delta_crash.py`, and checks after them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.policy.policies import plan_for
from replicator.testing.delivery import to_canonical_rows
from replicator.testing.model import fold_changes
from support import delta_crash
from support.cli_program import run_script
from support.delta_crash import list_batches, make_history

PROGRAM = Path(delta_crash.__file__)

Options = Mapping[str, object]

BOOKKEEPING = ("_cdc_applied_at",)


def list_batches_with_deletes() -> list[int]:
    """Numbers of the batches, from 1, that contain a delete. These batches write tombstones."""
    changes = [(number, make_history().changes(start, end)) for number, (start, end) in enumerate(list_batches(), start=1)]
    return [number for number, found in changes if any(c.op == "d" for c in found)]


def run_until_killed(point: str, lake: Options, count: int) -> int:
    """Runs the program of `delta_crash.py` until it is killed."""
    return run_script(PROGRAM, json.dumps(lake), point, str(count)).returncode


def assert_equals_model(lake: Options) -> None:
    plan = plan_for("scd1", make_history().table())
    expected, _ = fold_changes("scd1", plan.table.column_names, plan.table.keys, make_history().changes())
    found = DeltaRsSink(lake).read("items").to_pylist()
    columns = [c.name for c in plan.target if c.name not in BOOKKEEPING]
    assert to_canonical_rows(found, columns) == to_canonical_rows(expected, columns)
