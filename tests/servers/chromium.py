"""A real browser, if this machine has one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 120


def find_browser() -> str:
    """The program. Skips the test on a machine without a browser."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("Chromium was not found: install it, or set CHROMIUM to its path")
    return found


def run_chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the browser without a window, with a new profile, to its end."""
    done = subprocess.run(
        [
            find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={folder / 'profile'}",
            "--enable-logging=stderr", *arguments,
        ],
        cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done
