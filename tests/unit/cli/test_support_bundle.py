"""`replicator support-bundle`: what is in it, and what is not."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = Callable[..., dict[str, Any]]


def test_a_bundle_tells_everything_but_rows(project: Path, answer: Answer) -> None:
    said = answer("support-bundle", "help.zip")
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


def test_no_file_is_written_over(project: Path, answer: Answer) -> None:
    (project / "help.zip").write_text("mine")
    assert "is there already" in answer("support-bundle", "help.zip", code=2)["error"]["sentence"]
    assert (project / "help.zip").read_text() == "mine"


def test_a_part_that_fails_says_so(project: Path, answer: Answer) -> None:
    (project / "state" / "shop" / "erasures.json").write_text("{}")
    said = answer("support-bundle", "help.zip")
    assert "cannot be read" in said["result"]["failed"]["erasures"]
    with zipfile.ZipFile(project / "help.zip") as packed:
        assert "cannot be read" in json.loads(packed.read("erasures.json"))["error"]
        assert json.loads(packed.read("versions.json"))["python"]
