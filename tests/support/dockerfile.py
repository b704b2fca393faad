"""The instructions of a Dockerfile."""

from __future__ import annotations

import re
from pathlib import Path

Stage = list[tuple[str, str]]
"""Instruction (upper case) and the rest of its line, in order. `FROM` has the base image of the stage."""


def read_stages(path: Path) -> dict[str, Stage]:
    """Name of each stage -> its instructions, after those of the stage that it builds on."""
    lines = (line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\\\n", "", "\n".join(lines)).splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            stages[name] = [*stages[image]] if image in stages else [("FROM", image)]
            stage = stages[name]
        elif word:
            stage.append((word.upper(), rest.strip()))
    return stages
