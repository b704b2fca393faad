"""Every benchmark command that the documentation names runs, with tiny inputs, so that none of them rots."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from paths import PROJECT

from benchmarks.__main__ import parser
from benchmarks.servers import RESULTS

PAGES = [PROJECT / "README.md", PROJECT / "benchmarks/README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"python -m benchmarks([^`#\n]*)")
TINY = {
    "throughput": "--events 1000 --only all,jdbc",
    "freshness": "--rate 20 --seconds 1 --warm-up 0.2",
    "new-tables": "--tables 5",
    "memory": "--events 1000",
    "decode": "--transactions 20 --rounds 1",
    "columns": "--events 200 --batch 100 --rounds 1",
    "projections": "--rows 2000 --groups 20 --rounds 1",
    "gold": "--rows 2000 --groups 20 --rounds 1",
    "replay": "--events 1000 --rounds 1 --policy scd1",
    "policies": "--rows 20000 --changes 100 --columns 5 --runs 1 --keys uniform --policy scd1 --sinks delta-rs postgres",
    "spark": "--events 1000 --batches 500 --workers 1",
}
"""Options that make a command small. They follow those of the documentation, and the last value of an option counts."""
COMPARES_NOTHING = {"memory"}
"""Benchmarks that need no control. All others print how much two equal runs differ."""
ON_SPARK = "policies --rows 20000 --changes 100 --runs 1 --keys uniform --policy scd1 --sinks spark"


def documented_commands() -> list[str]:
    """What stands behind `python -m benchmarks` in the documentation, each once."""
    found = (match.strip() for page in PAGES for match in COMMAND.findall(page.read_text()))
    return sorted({text for text in found if not text.startswith("COMMAND")})


def benchmark(text: str) -> str:
    """The benchmark that a documented command runs."""
    first = text.split(maxsplit=1)[0] if text else "throughput"
    return "throughput" if first.startswith("-") else first


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT)}


@pytest.mark.parametrize("text", documented_commands())
def test_documented_command_has_valid_options(text):
    assert callable(parser().parse_args(shlex.split(text)).measure)


def test_every_benchmark_is_documented_and_made_tiny():
    assert {benchmark(text) for text in documented_commands()} == set(TINY)


def run(arguments: str, out: Path) -> tuple[str, dict]:
    """What a benchmark prints, and its figures."""
    command = [sys.executable, "-m", "benchmarks", *shlex.split(arguments), "--json", str(out)]
    done = subprocess.run(command, cwd=PROJECT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout, json.loads(out.read_text())


@pytest.mark.parametrize("name", [name for name in TINY if name != "spark"])
def test_tiny_benchmark_prints_its_control(name, tmp_path):
    printed, figures = run(f"{name} {TINY[name]}", tmp_path / "figures.json")
    assert figures
    assert ("A/A" in printed) == (name not in COMPARES_NOTHING), printed


@pytest.mark.long
@pytest.mark.parametrize("arguments", [f"spark {TINY['spark']}", ON_SPARK], ids=["spark", "policies"])
def test_tiny_benchmark_prints_its_control_on_spark(arguments, tmp_path):
    printed, figures = run(arguments, tmp_path / "figures.json")
    assert figures
    assert "A/A" in printed


def test_terminated_benchmark_stops_its_servers():
    command = [sys.executable, "-m", "benchmarks", "memory", "--events", "1000000"]
    running = subprocess.Popen(command, cwd=PROJECT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not servers() and running.poll() is None:
        time.sleep(0.1)
    assert running.poll() is None, running.stderr.read()
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 128 + signal.SIGTERM
    assert not servers()


def servers() -> list[psutil.Process]:
    """Servers whose folder is below that of the benchmarks."""
    return [p for p in psutil.process_iter(["cmdline"]) if any(str(RESULTS) in part for part in p.info["cmdline"] or ())]
