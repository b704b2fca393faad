"""Options of `replicator run --until-caught-up`, and its end by a signal."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.cli_program import parse_answer, run_program

STOPPED_AT_THE_END = """
import signal, sys
from replicator.application.operations.refresh import ProjectionScheduler
from replicator.application.operations.checkpoint_schedule import CheckpointScheduler
from replicator.application.supervisor import Supervisor
from replicator.cli import main

run = Supervisor.run

def run_until_signal(self, **options):
    code = run(self, **options)
    signal.raise_signal(signal.SIGTERM)
    return code

def begin(*_):
    sys.exit("begun after the signal")

Supervisor.run, ProjectionScheduler.refresh_all, CheckpointScheduler.take_due = run_until_signal, begin, begin
main(["run", "--until-caught-up", "--json", "-q"])
"""

TELLS_TIMEOUT = """
import sys
from replicator.application.supervisor import Supervisor
from replicator.cli import main

run = Supervisor.run

def run_and_tell(self, **options):
    print("timeout", options["timeout"], file=sys.stderr)
    return run(self, **options)

Supervisor.run = run_and_tell
main(["run", "--until-caught-up", *sys.argv[1:]])
"""


@pytest.mark.parametrize(("options", "seconds"), [((), 60.0), (("--timeout", "0.5"), 0.5)])
def test_default_timeout_is_a_minute_without_records(project, options, seconds):
    program = [sys.executable, "-c", TELLS_TIMEOUT, *options]
    done = subprocess.run(program, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and f"timeout {seconds}\n" in done.stderr, done.stderr


def test_run_and_plan_report_defaults_of_the_config(project, run_cli):
    config = project / "config" / "replicator.yaml"
    text = config.read_text()
    for line in ("pipeline: shop\n", "dead_letters: {path: ./lake/_replicator/dead_letters}\n"):
        assert line in text
        text = text.replace(line, "")
    config.write_text(text)
    chosen = (
        "the pipeline has the name of its folder, project",
        f"rejected records are stored in {project / 'lake' / '_replicator' / 'dead_letters'} (",
    )
    for said in (run_program(project, "run", "--until-caught-up").stderr, run_cli("plan").stderr):
        assert all(sentence in said for sentence in chosen), said


@pytest.mark.parametrize(
    "options",
    [("--timeout", "5"), ("--until-caught-up", "--timeout", "0"), ("--until-caught-up", "--timeout", "nan")],
    ids=" ".join,
)
def test_invalid_timeout_is_a_usage_error(run_cli, options):
    refused = run_cli("run", *options, "-c", "nowhere.yaml")
    assert refused.exit_code == 2 and "--timeout" in refused.stderr


def test_signal_ends_the_run_before_projections_and_checkpoints(project):
    program = [sys.executable, "-c", STOPPED_AT_THE_END]
    done = subprocess.run(program, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert parse_answer(done)["ok"]
