"""The tutorial, block by block, as a reader types it: the installed package, a database, its copies, a history."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import PROJECT

from .daemon import Daemon, await_condition
from .installed import Installed, clean_environment
from .stack import World, fetch_rows

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]
PAGE = PROJECT / "docs" / "tutorial" / "first-copy.md"
BLOCK = re.compile(r"^( *)```bash\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
DAEMON = "replicator run\n"
ELSEWHERE = ("pip install", "replicator stack")
"""Blocks whose work fixtures do: a package in an environment, and servers. Other tests run these commands."""


class Terminal:
    """A shell that runs blocks one after the other. Each block gets the folder and the variables of the block before."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self._state = folder / "terminal"

    def run(self, block: str) -> str:
        """The output of a block, which must end with code 0."""
        began = time.monotonic()
        script = f"set -e\n{block}\n{{ pwd; env -0; }} > {self._state}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        print(f"{time.monotonic() - began:5.1f} s  {block.splitlines()[0]}")
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        folder, _, variables = self._state.read_text().partition("\n")
        self.folder = Path(folder)
        self.environment = dict(each.partition("=")[::2] for each in variables.split("\0") if each)
        return done.stdout


@pytest.fixture
def terminal(installed: Installed, world: World, tmp_path: Path) -> Iterator[Terminal]:
    """Its connectors and their slots are removed at the end."""
    world.create_shop()
    path = f"{installed.program.parent}{os.pathsep}{os.environ['PATH']}"
    yield Terminal(tmp_path, {**clean_environment(), "PATH": path})
    world.stack.rest.delete(world.databases["source"])


def list_blocks(world: World) -> list[str]:
    """The blocks of the page, with the servers and databases of the test."""
    ports, databases = world.stack.home.ports, world.databases
    here = {
        "5433": ports.source, "5435": ports.target, "29092": ports.kafka, "8083": ports.connect,
        "source_db": databases["source"], "target_db": databases["target"],
    }  # fmt: skip
    found = ("\n".join(line[len(i) :] for line in text.splitlines()) + "\n" for i, text in BLOCK.findall(PAGE.read_text()))
    blocks = (text for text in found if not any(command in text for command in ELSEWHERE))
    return [re.sub(r"\b(?:5433|5435|29092|8083|source_db|target_db)\b", lambda m: str(here[m[0]]), text) for text in blocks]


def test_tutorial(installed: Installed, world: World, terminal: Terminal) -> None:
    """Prints the seconds of each block."""
    printed: dict[str, str] = {}
    daemon: Daemon | None = None
    for block in list_blocks(world):
        if block == DAEMON:
            log = world.folder / "daemon.log"
            program = str(installed.program)
            daemon = Daemon([program, "run"], terminal.folder, terminal.environment, log, "127.0.0.1:8090")
            continue
        if daemon and block.startswith("cat >>"):
            assert daemon.stop() == 0
            daemon = None
        if daemon and "city" in block and "query" in block:  # A reader sees it at once; a busy machine may be slower.
            await_condition(lambda block=block: "Vienna" in terminal.run(block), "the change is in the lake", 60)
        printed[block] = terminal.run(block)
    assert fetch_rows(world.target, "SELECT id, city FROM customers") == fetch_rows(
        world.source, "SELECT id, city FROM customers"
    )
    [history] = [text for block, text in printed.items() if "customers_history --" in block]
    assert sorted(re.findall("Vienna|London|Rome", history)) == ["London", "Rome", "Vienna"]
    [past] = [text for block, text in printed.items() if "--version" in block]
    assert "London" in past
    assert len(printed) > 12
