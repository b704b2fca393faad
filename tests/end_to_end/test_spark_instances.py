"""Two Spark drivers on one lake, fed from an archive, without broker or database."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_spark import SMALL

from adapters.stack.layout import find_free_port

from .daemon import PROGRAM, Daemon, await_condition

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

ARCHIVE = Path(__file__).parents[1] / "golden" / "decoders" / "debezium" / "postgres"
PATIENCE = 200.0
"""A JVM starts."""
LANE = "lake.products"


class Project:
    """A folder with a config of one lane on Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.archive = folder, folder / "archive" / "products.jsonl"
        self.daemons: list[Daemon] = []
        self.archive.parent.mkdir()
        shutil.copyfile(ARCHIVE / "cdc.public.products.jsonl", self.archive)
        document = {
            "pipeline": "shop",
            "engine": "spark",
            "spark": SMALL,
            "sources": {"shop": {"format": "debezium_json", "transport": "archive", "path": "./archive"}},
            "sinks": {"lake": {"kind": "delta", "path": "./lake"}},
            "dead_letters": {"path": "./dead_letters"},
            "tables": [{"match": "public.products", "source": "shop", "to": [{"sink": "lake"}]}],
        }
        (folder / "config").mkdir()
        (folder / "config" / "replicator.yaml").write_text(json.dumps(document))

    def daemon(self, *arguments: str) -> Daemon:
        address = f"127.0.0.1:{find_free_port()}"
        command = [PROGRAM, "run", "-v", "--set", f"http.address={address}", *arguments]
        log = self.folder / f"daemon-{len(self.daemons)}.log"
        self.daemons.append(Daemon(command, self.folder, os.environ, log, address))
        return self.daemons[-1]

    def grow(self) -> int:
        """The last record once more, at the next offset; the offset after it."""
        last = json.loads(self.archive.read_text().splitlines()[-1])
        last["offset"] += 1
        with self.archive.open("a") as more:
            more.write(json.dumps(last) + "\n")
        return int(last["offset"]) + 1


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    for daemon in made.daemons:
        if daemon.alive:
            daemon.kill()


def get_offset(daemon: Daemon) -> int:
    """The position of the lane."""
    return sum(offset for partitions in daemon.lane(LANE)["position"].values() for offset in partitions.values())


def test_second_driver_is_refused_and_names_the_holder(project: Project) -> None:
    """At once if both share the state folder; otherwise at its first write. The first driver continues."""
    first = project.daemon()
    end = len(project.archive.read_text().splitlines())
    first.await_condition(lambda: get_offset(first) >= end, "the archive is applied", PATIENCE)
    second = project.daemon()
    assert second.wait() == 5
    assert f"Another instance of pipeline shop runs (process {first.process.pid})" in second.tail()
    third = project.daemon("--set", "state=./elsewhere")
    await_condition(lambda: third.lane(LANE)["status"] == "running" or not third.alive, "the third is at work", PATIENCE)
    end = project.grow()
    assert third.wait(PATIENCE) == 5
    assert f"lane {LANE} is already written by another instance (process {first.process.pid})" in third.log.read_text()
    first.await_condition(lambda: get_offset(first) == end, "the first goes on", PATIENCE)
    first.await_running(LANE)
    assert first.stop() == 0
