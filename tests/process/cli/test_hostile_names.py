"""Table names that contain terminal escape sequences."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from click.testing import Result
from paths import GOLDEN
from support.cli_program import run_program

SAMPLES = GOLDEN / "decoders" / "debezium" / "postgres"
NAME = "a\x1b]0;title\x07\u202e\nb"


def test_no_command_prints_escape_sequences(caught_up: Path, project: Path, run_cli: Callable[..., Result]) -> None:
    shutil.rmtree(project / "lake")
    record = (SAMPLES / "cdc.public.products.jsonl").read_text().replace("cdc.public.products", "cdc.public.hostile")
    hostile = json.dumps(json.dumps(NAME))[1:-1]
    (project / "archive" / "hostile.jsonl").write_text(
        record.replace('\\"table\\":\\"products\\"', f'\\"table\\":{hostile}')
    )
    ran = run_program(project, "run", "--until-caught-up")
    assert ran.returncode == 0, ran.stderr
    for command in (
        ["status"],
        ["status", "-v"],
        ["top"],
        ["lanes", "list"],
        ["lanes", "skip", f"lake.{NAME}", "--until", "t:0:1"],
        ["plan"],
        ["schema", "history", f"public.{NAME}"],
        ["query", f"lake.{NAME}", "--limit", "1"],
        ["drop", f"lake.{NAME}"],
    ):
        said = run_cli(*command).output
        steering = [c for c in said if not c.isprintable() and c != "\n"]
        assert not steering, (command, steering)
        assert "\\x1b" in said, (command, said)
