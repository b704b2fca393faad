"""kill -9 at defined points: nothing is lost, nothing is doubled, and the next instance starts at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.crash_runs import PROGRAM, Options, assert_equals_model, list_batches_with_deletes, run_until_killed
from support.delta_crash import POINTS, apply_batch, list_batches, make_history

from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import Fenced
from replicator.domain.policy.policies import plan_for
from replicator.testing.delivery import make_lane

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("point", POINTS)
def test_killed_instance_loses_and_doubles_nothing(point: str, tmp_path: Path) -> None:
    for count in list_batches_with_deletes()[:2]:
        lake = tmp_path / f"lake {count}"
        assert run_until_killed(point, make_options(lake), count) == -signal.SIGKILL
        again = DeltaRsSink(make_options(lake))
        before = again.state(make_lane("scd1"))
        reached = (
            list_batches()[count - 1][1]
            if point in ("after the commit", "before old positions go")
            else list_batches()[count - 1][0]
        )
        assert (before.position if before else None) == (make_history().position(reached) if reached else None)
        for start, end in list_batches():
            apply_batch(again, start, end)
        again.close()
        assert_equals_model(make_options(lake))


def test_two_kills_at_one_batch_lose_and_double_nothing(tmp_path: Path) -> None:
    count = list_batches_with_deletes()[0]
    for point in ("after the position file", "after the ledger", "after the commit"):
        assert run_until_killed(point, make_options(tmp_path), count) == -signal.SIGKILL
    again = DeltaRsSink({"path": str(tmp_path)})
    for start, end in list_batches():
        apply_batch(again, start, end)
    again.close()
    assert_equals_model(make_options(tmp_path))


def test_second_instance_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    """The error names the holder of the lane. When the holder is killed, the second instance takes over without
    waiting."""
    holding = (
        "import sys; from delta_crash import *; s = DeltaRsSink({'path': sys.argv[1]});"
        "apply_batch(s, *list_batches()[0]); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", holding, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROGRAM.parent,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        second = DeltaRsSink({"path": str(tmp_path)})
        with pytest.raises(Fenced, match=f"process {child.pid}") as fenced:
            second.prepare(make_lane("scd1"), plan_for("scd1", make_history().table()))
        assert fenced.value.exit_code == 5
    finally:
        child.kill()
        child.communicate()
    for start, end in list_batches():
        apply_batch(second, start, end)
    second.close()
    assert_equals_model(make_options(tmp_path))


def make_options(lake: Path) -> Options:
    """The options of a sink on local disk."""
    return {"path": str(lake)}
