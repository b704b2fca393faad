"""The progress bar of a replay: its text, and that only a terminal gets it."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from support.cli_program import PROGRAM

from replicator.cli.progress import show_bar
from replicator.domain.position import Position, TopicPartition

FIRST, END = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_bar_shows_the_records_of_the_slower_lane() -> None:
    """Of two partitions, one of which starts later; never more than the total."""
    at = {"orders": {"0": 60, "1": 210}}
    behind = SimpleNamespace(position={"orders": {"0": 35, "1": 999}})
    report = SimpleNamespace(sources=[SimpleNamespace(position=at)], lanes=[SimpleNamespace(position=at), behind])
    told, screen = SimpleNamespace(report=lambda: report), io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    first, end = Position({FIRST: 10, END: 200}), Position({FIRST: 60, END: 220})
    with show_bar(told, "orders", first, end, console, every=0.01):
        time.sleep(0.2)
        behind.position = {"orders": {"0": 50, "1": 205}}
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "45 of 70 records" in shown and "orders" in shown and "/s" in shown


def run_in_terminal(project: Path, *words: str) -> tuple[str, str]:
    """The standard error of a command on its terminal, and its standard output."""
    ours, theirs = pty.openpty()
    ran = subprocess.Popen([PROGRAM, *words], cwd=project, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    seen = b""
    with suppress(OSError):
        while ran.poll() is None or select.select([ours], [], [], 0.2)[0]:
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 65536)
    os.close(ours)
    assert ran.stdout is not None
    said = ran.stdout.read()
    assert ran.wait(60) == 0, seen.decode()
    return seen.decode(), said


@pytest.mark.slow
def test_bar_is_shown_on_a_terminal_only(project: Path) -> None:
    seen, said = run_in_terminal(project, "replay", "public.orders", "--into", "anew")
    assert "19 of 19 records" in seen and "anew" in seen and "records" in said
    seen, _ = run_in_terminal(project, "replay", "public.orders", "--into", "other", "--json")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
    assert lines and all(re.match(r"\S+Z \[warning +\] (record rejected|rows may be lost)", line) for line in lines), seen
    seen, _ = run_in_terminal(project, "replay", "public.orders", "--into", "third", "-q")
    assert not seen
