"""What a copy of a snapshot holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.full_disk import full_disk
from test_checkpoint_rules import TAKEN

from replicator.application.operations.checkpoint import FILE_LIST, MANIFEST, CheckpointRemoved, CheckpointStore
from replicator.domain.errors import EnvironmentProblem

HELD = ("lake/part.parquet", "state/lock/sources/snapshot.json", "state/a.lock/lock/sources/lock.json")


@pytest.fixture
def make_store(tmp_path: Path) -> CheckpointStore:
    """With one, of a source called as its description, and of pipelines called as locks."""
    made = CheckpointStore(tmp_path / "shelf")
    draft = made.make_draft(None)
    for name in HELD:
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        (draft / name).write_text(name)
    made.publish_draft(draft, TAKEN)
    return made


def test_all_but_its_own_description_comes_along(make_store: CheckpointStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "left").mkdir(parents=True)
    (copy / "left" / "over").write_text("from before")
    make_store.copy_checkpoint(TAKEN, copy)
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == set(HELD)
    assert (make_store.get_folder(TAKEN) / MANIFEST).exists()


def test_a_full_store_is_named_and_keeps_its_checkpoints(make_store: CheckpointStore) -> None:
    draft = make_store.make_draft(TAKEN)
    with full_disk(), pytest.raises(EnvironmentProblem, match=rf"{make_store.folder} cannot be written \(File too large\)"):
        make_store.publish_draft(draft, replace(TAKEN, number=TAKEN.number + 1))
    assert make_store.list_usable() == [TAKEN]


def test_of_one_that_is_gone_there_is_nothing(make_store: CheckpointStore, tmp_path: Path) -> None:
    make_store.remove_checkpoint(TAKEN)
    with pytest.raises(CheckpointRemoved):
        make_store.copy_checkpoint(TAKEN, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_damaged_checkpoint_is_reported_and_not_used(make_store: CheckpointStore) -> None:
    """Whatever file it is, and where only its size is another."""
    assert make_store.list_usable() == [TAKEN] and not make_store.describe_damaged()
    part = make_store.get_folder(TAKEN) / HELD[0]
    for harm in (lambda: part.write_text("cut"), part.unlink, (make_store.get_folder(TAKEN) / FILE_LIST).unlink):
        harm()
        assert not make_store.list_usable() and make_store.list_all() == [TAKEN]
        (said,) = make_store.describe_damaged()
        assert str(make_store.get_folder(TAKEN)) in said and "Remove the folder" in said


def test_one_that_was_being_changed_is_whole_once_that_was_done_again(make_store: CheckpointStore) -> None:
    """And never if it was damaged before."""
    part, other = (make_store.get_folder(TAKEN) / name for name in HELD[:2])
    with pytest.raises(OSError, match="killed"), make_store.mark_changing(TAKEN):
        part.write_text("less")
        raise OSError("killed")
    assert not make_store.list_usable() and "forget" in make_store.describe_damaged()[0]
    with make_store.mark_changing(TAKEN):
        assert not make_store.list_usable()
    assert make_store.list_usable() == [TAKEN] and not make_store.describe_damaged()
    other.unlink()
    with make_store.mark_changing(TAKEN):
        part.write_text("nothing")
    assert not make_store.list_usable()
