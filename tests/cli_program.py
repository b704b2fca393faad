"""The installed program, run to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("replicator"))


def run_program(
    folder: Path, *arguments: str, seconds: float = 100, before: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, PROGRAM, *arguments], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=seconds, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


AS_GIVEN = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
WITH_SIGNALS = (sys.executable, "-c", AS_GIVEN)
"""Put before a program: it gets the signals as a terminal gives them. Whoever runs the tests may ignore some."""
