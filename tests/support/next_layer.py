"""Pipelines of one project, each reading the output of another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli_program import parse_answer, run_program

ON_SPARK = pytest.param("spark", marks=pytest.mark.timeout(600))
LONG_ON_SPARK = pytest.param("spark", marks=[pytest.mark.long, pytest.mark.timeout(900)])
"""For cases where smaller tests show that Spark does the same."""


def add_pipeline(project: Path, config: str, name: str = "next") -> tuple[str, ...]:
    """Adds a pipeline, and returns the arguments that select it."""
    (project / "config" / f"{name}.yaml").write_text(config)
    return ("-c", f"config/{name}.yaml")


def run_until_caught_up(project: Path, engine: str, *arguments: str, code: int = 0) -> dict:
    """Runs until caught up, expects the exit code, and returns the answer."""
    done = run_program(
        project, "run", "--until-caught-up", "--json", "-q", "--set", f"engine={engine}", *arguments, seconds=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return parse_answer(done)
