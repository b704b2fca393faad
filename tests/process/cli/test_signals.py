"""Signals to `replicator run`."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from click.testing import CliRunner
from support.cli_program import PROGRAM, WITH_SIGNALS

from replicator.cli import main

pytestmark = pytest.mark.slow


def start_program(project, *before):
    program = [*WITH_SIGNALS, *before, PROGRAM, "run"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(program, cwd=project, **pipes)


def await_serving(program):
    return any(line.startswith(b"status page") for line in program.stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_first_signal_ends_the_run_in_order(project, number):
    program = start_program(project)
    assert await_serving(program)
    program.send_signal(number)
    _, log = program.communicate(timeout=60)
    assert program.returncode == 0 and b"stopped cleanly" in log


def test_daemon_under_nohup_survives_its_terminal(project):
    program = start_program(project, "nohup")
    assert await_serving(program)
    program.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.5)
    program.send_signal(signal.SIGTERM)
    _, log = program.communicate(timeout=60)
    assert program.returncode == 0 and log.count(b"SIGHUP does not reload the config") == 1


@pytest.mark.parametrize("after", [0.5, 0.8, 1.2])
def test_interrupt_at_the_start_ends_the_run(project, after):
    program = start_program(project)
    time.sleep(after)
    program.send_signal(signal.SIGINT)
    _, log = program.communicate(timeout=60)
    # Not yet Python's handlers; interrupted; or just so far as to stop cleanly.
    assert program.returncode in (-signal.SIGINT, 130, 0), log
    assert b"Aborted" not in log


def test_exit_code_of_an_interrupt_is_130(monkeypatch):
    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("replicator.wiring.configuration.read_config", interrupt)
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 130 and "Aborted" not in result.output
