"""What `scripts/start.sh` says when it is interrupted."""

import os
import signal
import subprocess

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
    assert "scripts/stop.sh stops them" in done.stderr
