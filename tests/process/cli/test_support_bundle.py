"""The content of `replicator support-bundle`."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = Callable[..., dict[str, Any]]


def test_bundle_has_everything_but_rows(project: Path, run_json: Answer) -> None:
    said = run_json("support-bundle", "help.zip")
    assert said["result"]["failed"] == {}, said
    with zipfile.ZipFile(project / "help.zip") as packed:
        texts = {name: packed.read(name).decode() for name in packed.namelist()}
    parts = {name.removesuffix(".json"): json.loads(text) for name, text in texts.items() if name.endswith(".json")}
    assert set(parts) == {"versions", "config", "status", "metrics", "plan", "dead_letters", "erasures", "doctor"}
    assert parts["versions"]["packages"]["pyarrow"] and parts["config"]["resolved"]["pipeline"] == "shop"
    assert {lane["id"] for lane in parts["status"]["lanes"]} >= {"lake.orders", "lake.products"}
    assert parts["plan"] and parts["doctor"]
    assert [kind["code"] for kind in parts["dead_letters"]["kinds"]] == ["MALFORMED"]
    assert "no record at all" not in "".join(texts.values()), "the dead letter's own words"
    assert stat.S_IMODE((project / "help.zip").stat().st_mode) == 0o600


def test_bundle_has_the_end_of_a_log(project: Path, run_json: Answer, run_cli: Callable[..., Any]) -> None:
    """From a file or a pipe, in whole lines, and without secrets of any writer."""
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text() + "event_store: {dsn: 'postgresql://u:p%40ss%20word@127.0.0.1:1/d'}\n")
    last = "no host ss word@127.0.0.1 as u with p@ss word, of postgresql://u:p%40ss%20word@127.0.0.1:1/d\n"
    (project / "run.log").write_text("first\n" + "a line of a log\n" * 70_000 + last)
    assert "log" in run_json("support-bundle", "file.zip", "--log", "run.log")["result"]["parts"]
    assert run_cli("support-bundle", "pipe.zip", "--log", "-", input=(project / "run.log").read_bytes()).exit_code == 0
    for name in ("file.zip", "pipe.zip"):
        with zipfile.ZipFile(project / name) as packed:
            lines = packed.read("log.txt").decode().splitlines()
        assert lines[-1] == "no host **********@127.0.0.1 as u with **********, of **********"
        assert set(lines[:-1]) == {"a line of a log"} and 2**20 - 100 < sum(len(line) + 1 for line in lines) <= 2**20
    assert run_json("support-bundle", "x.zip", "--log", "no.log", code=2)
    run_json("support-bundle", "help.zip")
    with zipfile.ZipFile(project / "help.zip") as packed:
        assert "log.txt" not in packed.namelist()
        assert "`support-bundle --log FILE`" in packed.read("README.txt").decode()


def test_existing_file_is_not_overwritten(project: Path, run_json: Answer) -> None:
    (project / "help.zip").write_text("mine")
    assert "already exists" in run_json("support-bundle", "help.zip", code=2)["error"]["sentence"]
    assert (project / "help.zip").read_text() == "mine"


def test_failing_part_is_reported(project: Path, run_json: Answer) -> None:
    (project / "state" / "shop" / "erasures.json").write_text("{}")
    said = run_json("support-bundle", "help.zip")
    assert "cannot be read" in said["result"]["failed"]["erasures"]
    with zipfile.ZipFile(project / "help.zip") as packed:
        assert "cannot be read" in json.loads(packed.read("erasures.json"))["error"]
        assert json.loads(packed.read("versions.json"))["python"]
