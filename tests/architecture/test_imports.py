"""Allowed imports between packages."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

from importlinter.api import read_configuration

import adapters
import replicator

ROOT = Path(__file__).parents[2]


def test_import_contracts_hold():
    assert len(read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]) >= 6
    # In a separate process, because it disables all loggers.
    linter = Path(sys.executable).with_name("lint-imports")
    command = [linter, "--config", ROOT / "pyproject.toml", "--no-cache"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_module_can_be_imported():
    """Alone and in any order: no import needs a server, a file or a setting."""
    for package in (replicator, adapters):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
