"""The installed program, run to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("replicator"))


def run_program(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=100, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
