"""What a copy of a snapshot holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.full_disk import full_disk
from test_state_snapshot_rules import TAKEN

from replicator.application.shelf import FILES, MANIFEST, Gone, Shelf
from replicator.domain.errors import EnvironmentProblem

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


def test_a_shelf_without_room_is_named_and_keeps_what_it_has(shelf: Shelf) -> None:
    draft = shelf.draft(TAKEN)
    with full_disk(), pytest.raises(EnvironmentProblem, match=rf"{shelf.folder} cannot be written \(File too large\)"):
        shelf.publish(draft, replace(TAKEN, number=TAKEN.number + 1))
    assert shelf.known() == [TAKEN]


def test_of_one_that_is_gone_there_is_nothing(shelf: Shelf, tmp_path: Path) -> None:
    shelf.remove(TAKEN)
    with pytest.raises(Gone):
        shelf.copy(TAKEN, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_one_that_lacks_something_is_not_used_and_told(shelf: Shelf) -> None:
    """Whatever file it is, and where only its size is another."""
    assert shelf.known() == [TAKEN] and not shelf.damaged()
    part = shelf.path(TAKEN) / HELD[0]
    for harm in (lambda: part.write_text("cut"), part.unlink, (shelf.path(TAKEN) / FILES).unlink):
        harm()
        assert not shelf.known() and shelf.every() == [TAKEN]
        (said,) = shelf.damaged()
        assert str(shelf.path(TAKEN)) in said and "remove the folder" in said


def test_one_that_was_being_changed_is_whole_once_that_was_done_again(shelf: Shelf) -> None:
    """And never if it was damaged before."""
    part, other = (shelf.path(TAKEN) / name for name in HELD[:2])
    with pytest.raises(OSError, match="killed"), shelf.changing(TAKEN):
        part.write_text("less")
        raise OSError("killed")
    assert not shelf.known() and "forget" in shelf.damaged()[0]
    with shelf.changing(TAKEN):
        assert not shelf.known()
    assert shelf.known() == [TAKEN] and not shelf.damaged()
    other.unlink()
    with shelf.changing(TAKEN):
        part.write_text("nothing")
    assert not shelf.known()
