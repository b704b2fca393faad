"""What a copy of a snapshot holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.full_disk import full_disk
from test_state_snapshot_rules import TAKEN

from replicator.application.operations.checkpoint_store import FILE_LIST, MANIFEST, CheckpointRemoved, CheckpointStore
from replicator.domain.errors import EnvironmentProblem

HELD = ("lake/part.parquet", "state/lock/sources/snapshot.json", "state/a.lock/lock/sources/lock.json")


@pytest.fixture
def shelf(tmp_path: Path) -> CheckpointStore:
    """With one, of a source called as its description, and of pipelines called as locks."""
    made = CheckpointStore(tmp_path / "shelf")
    draft = made.make_draft(None)
    for name in HELD:
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        (draft / name).write_text(name)
    made.publish_draft(draft, TAKEN)
    return made


def test_all_but_its_own_description_comes_along(shelf: CheckpointStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "left").mkdir(parents=True)
    (copy / "left" / "over").write_text("from before")
    shelf.copy_checkpoint(TAKEN, copy)
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == set(HELD)
    assert (shelf.get_folder(TAKEN) / MANIFEST).exists()


def test_a_shelf_without_room_is_named_and_keeps_what_it_has(shelf: CheckpointStore) -> None:
    draft = shelf.make_draft(TAKEN)
    with full_disk(), pytest.raises(EnvironmentProblem, match=rf"{shelf.folder} cannot be written \(File too large\)"):
        shelf.publish_draft(draft, replace(TAKEN, number=TAKEN.number + 1))
    assert shelf.list_usable() == [TAKEN]


def test_of_one_that_is_gone_there_is_nothing(shelf: CheckpointStore, tmp_path: Path) -> None:
    shelf.remove_checkpoint(TAKEN)
    with pytest.raises(CheckpointRemoved):
        shelf.copy_checkpoint(TAKEN, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_one_that_lacks_something_is_not_used_and_told(shelf: CheckpointStore) -> None:
    """Whatever file it is, and where only its size is another."""
    assert shelf.list_usable() == [TAKEN] and not shelf.describe_damaged()
    part = shelf.get_folder(TAKEN) / HELD[0]
    for harm in (lambda: part.write_text("cut"), part.unlink, (shelf.get_folder(TAKEN) / FILE_LIST).unlink):
        harm()
        assert not shelf.list_usable() and shelf.list_all() == [TAKEN]
        (said,) = shelf.describe_damaged()
        assert str(shelf.get_folder(TAKEN)) in said and "remove the folder" in said


def test_one_that_was_being_changed_is_whole_once_that_was_done_again(shelf: CheckpointStore) -> None:
    """And never if it was damaged before."""
    part, other = (shelf.get_folder(TAKEN) / name for name in HELD[:2])
    with pytest.raises(OSError, match="killed"), shelf.mark_changing(TAKEN):
        part.write_text("less")
        raise OSError("killed")
    assert not shelf.list_usable() and "forget" in shelf.describe_damaged()[0]
    with shelf.mark_changing(TAKEN):
        assert not shelf.list_usable()
    assert shelf.list_usable() == [TAKEN] and not shelf.describe_damaged()
    other.unlink()
    with shelf.mark_changing(TAKEN):
        part.write_text("nothing")
    assert not shelf.list_usable()
