"""The output of `scripts/start.sh` at its end, and after an interruption."""

import os
import signal
import subprocess
import sys

from paths import PROJECT

SCRIPT = PROJECT / "scripts" / "start.sh"
PYTHON = """#!/bin/sh
case "$*" in *" up") echo starting >&2; kill -INT 0; exec sleep 60 ;; *) echo stamp ;; esac
"""
"""In the place of the environment's own: the terminal's ^C comes while it starts the services."""


def test_an_interrupted_start_says_what_stops_the_services(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", SCRIPT, "--embedded"],
        env={**os.environ, "REPLICATOR_VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.returncode == 130 and "starting" in done.stderr
    assert "stop them with scripts/stop.sh" in done.stderr


def test_it_names_the_master_of_spark_where_it_listens(tmp_path):
    """The services are there already; the rest of the script runs."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\ncase "$*" in "-m adapters.stack "*|*pip*) ;; *) exec {sys.executable} "$@" ;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", SCRIPT, "--spark"],
        env={**os.environ, "REPLICATOR_VENV": str(tmp_path), "REPLICATOR_STACK_PORTS": "spark=27077"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith(
        "scripts/run-consumer.sh --spark --set spark='{spark.master: spark://127.0.0.1:27077}'"
    )
