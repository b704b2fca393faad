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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from paths import PROJECT

from adapters.stack import EmbeddedStack
from adapters.stack.connect import JAVA_OPTIONS
from benchmarks import diff, freshness, memory, new_tables, policies, throughput
from benchmarks.__main__ import parser
from benchmarks.servers import RESULTS, servers

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
    "diff": "--rows 2000 --rounds 1",
    "spark": "--events 1000 --batches 500 --workers 1",
}
"""Options that make a command small. They follow those of the documentation, and the last value of an option counts."""
ON_SERVERS = (throughput, freshness, new_tables, memory, policies, diff)
COMPARES_NOTHING = {"memory"}
"""Benchmarks that need no control. All others print how much two equal runs differ."""
ON_SPARK = "policies --rows 20000 --changes 100 --runs 1 --keys uniform --policy scd1 --sinks spark"


def list_documented_commands() -> list[str]:
    """The arguments of `python -m benchmarks` in the documentation, each once."""
    found = (match.strip() for page in PAGES for match in COMMAND.findall(page.read_text()))
    return sorted({text for text in found if not text.startswith("COMMAND")})


def get_benchmark(text: str) -> str:
    """The benchmark that a documented command runs."""
    first = text.split(maxsplit=1)[0] if text else "throughput"
    return "throughput" if first.startswith("-") else first


def make_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT)}


@pytest.mark.parametrize("text", list_documented_commands())
def test_documented_command_has_valid_options(text):
    assert callable(parser().parse_args(shlex.split(text)).measure)


def test_every_benchmark_is_documented_and_made_tiny():
    assert {get_benchmark(text) for text in list_documented_commands()} == set(TINY)


def test_terminated_benchmark_stops_its_servers():
    """First: a checkout has room for one benchmark at a time."""
    command = [sys.executable, "-m", "benchmarks", "memory", "--events", "1000000"]
    running = subprocess.Popen(
        command, cwd=PROJECT, env=make_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while not list_servers() and running.poll() is None:
        time.sleep(0.1)
    assert running.poll() is None, running.stderr.read()
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 128 + signal.SIGTERM
    assert not list_servers()


def list_servers() -> list[psutil.Process]:
    """Servers whose folder is below the folder of the benchmarks."""
    return [p for p in psutil.process_iter(["cmdline"]) if any(str(RESULTS) in part for part in p.info["cmdline"] or ())]


def run_benchmark(arguments: str, out: Path) -> tuple[str, dict]:
    """The output of a benchmark, and its figures."""
    command = [sys.executable, "-m", "benchmarks", *shlex.split(arguments), "--json", str(out)]
    done = subprocess.run(command, cwd=PROJECT, env=make_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout, json.loads(out.read_text())


def test_tiny_benchmark_is_a_program_that_writes_its_figures(tmp_path):
    printed, figures = run_benchmark(f"columns {TINY['columns']}", tmp_path / "figures.json")
    assert figures
    assert "A/A" in printed


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    """All servers of the benchmarks, started once. Nothing is measured, so Java compiles for a fast start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.servers.CONNECT_JAVA", JAVA_OPTIONS)
        with servers(source=True) as started:
            yield started


@pytest.fixture
def on_one_stack(request, monkeypatch):
    """Benchmarks of this process use the started servers, without existing topics."""

    @contextmanager
    def shared(**_: bool) -> Iterator[EmbeddedStack]:
        stack = request.getfixturevalue("stack")
        yield stack
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        if topics := [name for name in admin.list_topics(timeout=10).topics if ".public." in name]:
            for deleted in admin.delete_topics(topics).values():
                deleted.result(30)

    for module in ON_SERVERS:
        monkeypatch.setattr(module, "servers", shared)
    monkeypatch.setattr(new_tables, "CONTROL_SECONDS", 0.3)
    monkeypatch.setattr(memory, "EVERY", 0.2)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    cores = pa.cpu_count()
    yield
    pa.set_cpu_count(cores)


@pytest.mark.parametrize("name", [name for name in TINY if name not in ("spark", "columns")])
def test_tiny_benchmark_prints_its_control(name, on_one_stack, capsys):
    options = parser().parse_args([name, *shlex.split(TINY[name])])
    figures = options.measure(options)
    assert json.loads(json.dumps(figures))
    printed = capsys.readouterr().out
    assert ("A/A" in printed) == (name not in COMPARES_NOTHING), printed


@pytest.mark.long
@pytest.mark.parametrize("arguments", [f"spark {TINY['spark']}", ON_SPARK], ids=["spark", "policies"])
def test_tiny_benchmark_prints_its_control_on_spark(arguments, tmp_path):
    printed, figures = run_benchmark(arguments, tmp_path / "figures.json")
    assert figures
    assert "A/A" in printed
