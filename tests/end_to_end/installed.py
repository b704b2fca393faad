"""The project's wheel, installed into a new environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from paths import PROJECT

SECONDS = 300


class Installed:
    """An environment below `folder`. It uses the dependencies of the tests, because an installation takes a minute. A
    long run installs them from the index, like a user."""

    def __init__(self, folder: Path) -> None:
        self._environment = folder / "environment"
        python = self._environment / "bin" / "python"
        run_checked([sys.executable, "-m", "venv", "--without-pip", str(self._environment)])
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        run_checked([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(PROJECT)])
        [wheel] = folder.glob("*.whl")
        if os.environ.get("REPLICATOR_LONG"):
            run_checked([*pip, "--python", str(python), "install", f"{wheel}[stack]"])
        else:
            run_checked([*pip, "--python", str(python), "install", "--no-deps", str(wheel)])
            [packages] = self._environment.glob("lib/*/site-packages")
            # Python does not process .pth files of that folder, so an editable install of the checkout is not visible.
            (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
        self.program = self._environment / "bin" / "replicator"

    def answer(self, folder: Path, *arguments: str) -> Any:
        """The `result` of a successful command in that folder."""
        done = subprocess.run(
            [self.program, *arguments, "--json"], cwd=folder, env=clean_environment(), capture_output=True, text=True,
            timeout=SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)["result"]


def clean_environment() -> dict[str, str]:
    """The environment of this process, without variables that lead to the checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run_checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
