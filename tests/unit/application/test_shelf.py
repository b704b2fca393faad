"""What a copy of a snapshot holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_state_snapshot_rules import TAKEN

from replicator.application.shelf import MANIFEST, Gone, Shelf

HELD = ("lake/part.parquet", "state/lock/sources/snapshot.json", "state/a.lock/lock/sources/lock.json")


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """With one, of a source called as its description, and of pipelines called as locks."""
    made = Shelf(tmp_path / "shelf")
    draft = made.draft(None)
    for name in HELD:
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        (draft / name).write_text(name)
    made.publish(draft, TAKEN)
    return made


def test_all_but_its_own_description_comes_along(shelf: Shelf, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "left").mkdir(parents=True)
    (copy / "left" / "over").write_text("from before")
    shelf.copy(TAKEN, copy)
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == set(HELD)
    assert (shelf.path(TAKEN) / MANIFEST).exists()


def test_of_one_that_is_gone_there_is_nothing(shelf: Shelf, tmp_path: Path) -> None:
    shelf.remove(TAKEN)
    with pytest.raises(Gone):
        shelf.copy(TAKEN, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
