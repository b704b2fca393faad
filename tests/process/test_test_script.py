"""The number of kills and histories that `scripts/test.sh` passes to the tests."""

import os
import subprocess

import pytest
from paths import PROJECT

SCRIPT = PROJECT / "scripts" / "test.sh"
NAMES = ("REPLICATOR_EXAMPLES", "REPLICATOR_SECONDS", "REPLICATOR_KILLS", "REPLICATOR_LONG")
COUNTS = "${REPLICATOR_EXAMPLES-all} ${REPLICATOR_SECONDS-none} ${REPLICATOR_KILLS-all}"
PYTHON = f"""#!/bin/sh
case "$*" in "-m pytest"*) echo "tests {COUNTS}" ;; *) echo stamp ;; esac
"""
"""In the place of the environment's own: it says with what it was to run the tests."""


@pytest.mark.parametrize(
    ("arguments", "said", "counts"),
    [
        ([], {}, "2 0.1 2"),
        ([], {"REPLICATOR_KILLS": "7"}, "2 0.1 7"),
        ([], {"REPLICATOR_LONG": "1"}, "all none all"),
        (["--long"], {}, "6 5 all"),
        (["--long"], {"REPLICATOR_KILLS": "7"}, "6 5 7"),
        (["--long"], {"REPLICATOR_SECONDS": "60"}, "6 60 all"),
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
