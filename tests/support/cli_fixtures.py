"""A project that replays a recorded topic into a lake and has caught up, and commands that run in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from paths import GOLDEN

from replicator.cli import main
from support.cli_program import run_program

SAMPLES = GOLDEN / "decoders" / "debezium" / "postgres"
CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
dead_letters: {path: ./lake/_replicator/dead_letters}
tables:
  - match: public.*
    source: recorded
    to: [{sink: raw}, {sink: lake}]
http: {address: "127.0.0.1:0"}
"""


@pytest.fixture(autouse=True)
def _no_outer_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the terminal width of the shell that runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def caught_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(CONFIG)
    (folder / "archive").mkdir()
    for name in ("cdc.public.products.jsonl", "cdc.public.orders.jsonl"):
        shutil.copyfile(SAMPLES / name, folder / "archive" / name)
    with (folder / "archive" / "cdc.public.orders.jsonl").open("a") as more:
        more.write("no record at all\n")
    done = run_program(folder, "run", "--until-caught-up", "--json", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "run.json").write_text(done.stdout)
    return folder


@pytest.fixture
def project(caught_up: Path, tmp_path: Path) -> Path:
    """A private copy of the project."""
    folder = tmp_path / "project"
    shutil.copytree(caught_up, folder)
    return folder


RunCli = Callable[..., Result]


@pytest.fixture
def run_cli(project: Path, monkeypatch: pytest.MonkeyPatch) -> RunCli:
    """Runs a command in the project, in this process."""
    monkeypatch.chdir(project)
    monkeypatch.delenv("REPLICATOR_ENV", raising=False)

    def run(*arguments: str, **options: Any) -> Result:
        result = CliRunner().invoke(main, list(arguments), **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def run_json(run_cli: RunCli) -> Callable[..., dict[str, Any]]:
    """The object that a command prints with `--json`."""

    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        result = run_cli(*arguments, "--json")
        assert result.exit_code == code, result.output
        assert result.stdout.count("\n") == 1, "one object on one line"
        return dict(json.loads(result.stdout))

    return run
