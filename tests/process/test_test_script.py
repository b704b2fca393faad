"""How many kills and histories `scripts/test.sh` lets the tests take."""

import os
import subprocess

import pytest
from paths import PROJECT

SCRIPT = PROJECT / "scripts" / "test.sh"
NAMES = ("REPLICATOR_EXAMPLES", "REPLICATOR_KILLS", "REPLICATOR_LONG")
PYTHON = """#!/bin/sh
case "$*" in "-m pytest"*) echo "tests ${REPLICATOR_EXAMPLES-default} ${REPLICATOR_KILLS-default}" ;; *) echo stamp ;; esac
"""
"""In the place of the environment's own: it says with what it was to run the tests."""


@pytest.mark.parametrize(
    ("arguments", "said", "counts"),
    [
        ([], {}, "3 2"),
        ([], {"REPLICATOR_KILLS": "7"}, "3 7"),
        ([], {"REPLICATOR_LONG": "1"}, "default default"),
        (["--long"], {}, "default default"),
        (["--long"], {"REPLICATOR_KILLS": "7"}, "default 7"),
    ],
)
def test_a_long_run_takes_the_counts_of_the_tests(tmp_path, arguments, said, counts):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        ["bash", SCRIPT, *arguments],
        env={**clean, **said, "REPLICATOR_VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("tests ")] == [f"tests {counts}"] * 2
