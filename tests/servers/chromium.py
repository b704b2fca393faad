"""A real browser, where this machine has one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 120


def browser() -> str:
    """The program; who asks for it is skipped where there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium here: install it, or say where it is in CHROMIUM")
    return found


def run_chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The browser without a window, run to its end with a profile of its own."""
    done = subprocess.run(
        [
            browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={folder / 'profile'}",
            "--enable-logging=stderr", *arguments,
        ],
        cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done
