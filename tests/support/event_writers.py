"""Other programs that write events. Each is a process, and prints the stored versions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from paths import PROJECT

WRITER = """
import json, sys
from adapters.sinks.delta.event_store import DeltaEventStore
from adapters.sinks.postgres.event_store import PostgresEventStore
from replicator.domain.events import VersionConflict, make_event
kind, options, name, wins, expecting = json.loads(sys.argv[1])
store = {"delta": DeltaEventStore, "postgres": PostgresEventStore}[kind](options)
store.version("Customer", "C101")
print("ready", flush=True)
sys.stdin.readline()
number, conflicts = 0, 0
while number < wins:
    version = store.version("Customer", "C101") if expecting else None
    new = make_event("C101", "Customer", "Changed", {}, expected_version=version, event_id=f"{name}-{number}")
    try:
        (done,) = store.append([new])
    except VersionConflict:
        conflicts += 1
        continue
    print(done.event.event_version, flush=True)
    number += 1
print("conflicts", conflicts, flush=True)
store.close()
"""


def start_event_writer(
    kind: str, options: Mapping[str, object], name: str, wins: int, *, expecting: bool = False
) -> subprocess.Popen:
    """Starts a process that stores `wins` events of one aggregate after `start_writing`. `expecting`: each event
    expects the version that the aggregate had just before."""
    said = json.dumps([kind, dict(options), name, wins, expecting])
    command = [sys.executable, "-c", WRITER, said]
    return subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def start_writing(writers: list[subprocess.Popen]) -> None:
    """Waits until all writers are ready, then starts them together."""
    for each in writers:
        assert each.stdout.readline() == "ready\n"
    for each in writers:
        each.stdin.write("go\n")
        each.stdin.flush()


def read_written_versions(writer: subprocess.Popen) -> list[int]:
    """Waits for the end of a writer, and returns the versions that it printed."""
    lines = writer.communicate()[0].splitlines()
    return [int(line) for line in lines if line.isdigit()]
