"""What `replicator run --until-caught-up` takes, and what a signal ends."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

STOPPED_AT_THE_END = """
import signal, sys
from replicator.application.keeping import Keeper
from replicator.application.snapshotting import Snapshotting
from replicator.application.supervisor import Supervisor
from replicator.cli import main

run = Supervisor.run

def run_until_signal(self, **options):
    code = run(self, **options)
    signal.raise_signal(signal.SIGTERM)
    return code

def begin(*_):
    sys.exit("begun after the signal")

Supervisor.run, Keeper.refresh_all, Snapshotting.take_due = run_until_signal, begin, begin
main(["run", "--until-caught-up", "--json", "-q"])
"""


@pytest.mark.parametrize(
    "options",
    [("--timeout", "5"), ("--until-caught-up", "--timeout", "0"), ("--until-caught-up", "--timeout", "nan")],
    ids=" ".join,
)
def test_a_timeout_that_makes_no_sense_is_a_usage_error(ask, options):
    refused = ask("run", *options, "-c", "nowhere.yaml")
    assert refused.exit_code == 2 and "--timeout" in refused.stderr


def test_a_signal_ends_the_run_before_projections_and_snapshots(project):
    program = [sys.executable, "-c", STOPPED_AT_THE_END]
    done = subprocess.run(program, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]
