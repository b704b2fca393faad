"""The age of files whose modification time is in the future."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from adapters.object_store import files
from adapters.object_store.files import seconds_until_stable

SETTLE = 10


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=1000.0)
    read = lambda: now.seconds  # noqa: E731 - both clocks
    monkeypatch.setattr(files, "time", SimpleNamespace(time=read, monotonic=read))
    monkeypatch.setattr(files, "_ahead", {})
    return now


def test_stable_file_stays_stable_when_the_clock_passes_its_time(clock: SimpleNamespace) -> None:
    """Otherwise it would delay later files."""
    left, longer = {}, {}
    for clock.seconds in (1000, 1009, 1011, 1029.9, 1030.1, 1039, 1041, 1050):
        left[clock.seconds] = seconds_until_stable(Path("a"), 1030.0, 5, SETTLE)
        longer[clock.seconds] = seconds_until_stable(Path("a"), 1030.0, 5, 30)
    assert [seconds for seconds, rest in left.items() if rest > 0] == [1000, 1009]
    assert [seconds for seconds, rest in longer.items() if rest > 0] == [1000, 1009, 1011, 1029.9], "of another source"
    clock.seconds = 1060
    assert seconds_until_stable(Path("a"), 1030.0, 5, 30) <= 0
    assert not files._ahead, "nothing is kept of a file whose own time suffices"


def test_age_of_a_rewritten_file_starts_again(clock: SimpleNamespace) -> None:
    assert seconds_until_stable(Path("a"), 1030.0, 5, SETTLE) == SETTLE
    clock.seconds = 1008
    assert seconds_until_stable(Path("a"), 1030.0, 6, SETTLE) == SETTLE, "it has another size"
    assert seconds_until_stable(Path("a"), 1030.0, 6, 60) == 60, "another source waits longer"
    clock.seconds = 1031
    assert seconds_until_stable(Path("a"), 1030.5, 6, SETTLE) == SETTLE - 0.5, "it has another time"


def test_deleted_files_are_dropped_from_the_list(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST", 3)
    for number in range(9):
        seconds_until_stable(Path(str(number)), 9e9, 5, SETTLE)
    assert [path.name for path, _ in files._ahead] == ["6", "7", "8"]
