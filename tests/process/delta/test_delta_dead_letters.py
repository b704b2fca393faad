"""Dead letters as a Delta table."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from paths import TESTS

from adapters.sinks.delta.dead_letters import DeltaDeadLetters
from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.ports.stores import DeadLetter

FIRST = datetime(2024, 2, 29, 12, tzinfo=UTC)


def make_dead_letter(number: int, lane: str = "lake.items", minutes: int = 0) -> DeadLetter:
    seen = FIRST + timedelta(minutes=minutes)
    return DeadLetter(
        f"cdc.items-0-{number}", lane, "decode", "MALFORMED", "not JSON", "public.items", "ab12", b"\xff\x00", seen, seen
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "_replicator" / "dead_letters"


def test_dead_letters_are_stored_whole_and_newest_first(path: Path) -> None:
    store = DeltaDeadLetters({"path": str(path)})
    assert store.read() == []
    letters = [
        make_dead_letter(1),
        make_dead_letter(2, minutes=2),
        make_dead_letter(3, "", minutes=1),
        replace(make_dead_letter(4, minutes=-1), record=None),
    ]
    store.write(letters)
    store.write([])
    store.close()
    store.close()
    again = DeltaDeadLetters({"path": str(path)})
    assert again.read() == [letters[1], letters[2], letters[0], letters[3]]
    assert again.read(limit=1) == [letters[1]]


def test_repeated_dead_letter_counts_its_attempts(path: Path) -> None:
    store = DeltaDeadLetters({"path": str(path)})
    store.write([make_dead_letter(1), make_dead_letter(1, "other.items"), make_dead_letter(2)])
    store.write([make_dead_letter(1, minutes=5), make_dead_letter(1, minutes=6)])
    store.write([make_dead_letter(1, minutes=3)])
    found = {(each.event_id, each.lane): each for each in store.read()}
    assert len(found) == 3
    seen = found["cdc.items-0-1", "lake.items"]
    assert (seen.first_seen, seen.last_seen, seen.attempts) == (FIRST, FIRST + timedelta(minutes=6), 4)
    assert found["cdc.items-0-2", "lake.items"].attempts == 1


def test_several_processes_write_at_once(path: Path) -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[2].split(); from test_delta_dead_letters import *\n"
        "store = DeltaDeadLetters({'path': sys.argv[1]})\n"
        "for i in range(10): store.write([make_dead_letter(i), make_dead_letter(100 * int(sys.argv[3]) + i)])"
    )
    command = [sys.executable, "-c", program, str(path), f"{Path(__file__).parent} {TESTS}"]
    writers = [subprocess.Popen([*command, str(number)]) for number in (1, 2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = {each.event_id: each.attempts for each in DeltaDeadLetters({"path": str(path)}).read()}
    assert found == {f"cdc.items-0-{i}": 2 if i < 10 else 1 for i in (*range(10), *range(100, 110), *range(200, 210))}


def test_store_that_cannot_write_raises(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("a file")
    with pytest.raises(ReplicatorError):
        DeltaDeadLetters({"path": str(path)}).write([make_dead_letter(1)])


def test_missing_path_is_refused() -> None:
    with pytest.raises(ConfigProblem, match="path"):
        DeltaDeadLetters({})


def test_store_is_found_by_entry_point() -> None:
    (found,) = entry_points(group="replicator.dead_letters", name="delta")
    assert found.load() is DeltaDeadLetters


def test_folder_of_another_table_is_refused(path: Path) -> None:
    write_deltalake(str(path), pa.table({"id": [1]}))
    with pytest.raises(ConfigProblem, match="holds another table"):
        DeltaDeadLetters({"path": str(path)}).write([make_dead_letter(1)])
    assert DeltaTable(str(path)).version() == 0


def test_table_of_an_older_version_gets_the_new_columns(path: Path) -> None:
    old = ("event_id", "lane", "stage", "code", "sentence", "table", "key_hash", "record")
    rows = pa.table({
        **{name: pa.array([b"{}" if name == "record" else f"{name} 1"]) for name in old},
        "first_seen": pa.array([FIRST], pa.timestamp("us", "UTC")),
        "last_seen": pa.array([FIRST], pa.timestamp("us", "UTC")),
        "attempts": [3],
        "state": ["open"],
    })  # fmt: skip
    write_deltalake(str(path), rows)
    store = DeltaDeadLetters({"path": str(path)})
    (known,) = store.read()
    assert (known.event_id, known.attempts, known.source, known.offset, known.key) == ("event_id 1", 3, "", -1, None)
    assert not known.has_position
    store.mark([known], "replayed")
    store.write([make_dead_letter(1)])
    assert [(each.event_id, each.state) for each in store.read()] == [("cdc.items-0-1", "open"), ("event_id 1", "replayed")]


def test_store_in_a_lake_needs_a_path():
    with pytest.raises(ConfigProblem, match="path is missing"):
        DeltaDeadLetters({"topic": "letters", "bootstrap_servers": "127.0.0.1:1"})
