"""The checkpoints of a store and their copies."""

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


def test_copy_has_all_files_but_the_description(make_store: CheckpointStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "left").mkdir(parents=True)
    (copy / "left" / "over").write_text("from before")
    make_store.copy_checkpoint(TAKEN, copy)
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == set(HELD)
    assert (make_store.get_folder(TAKEN) / MANIFEST).exists()


def test_full_disk_is_reported_and_keeps_earlier_checkpoints(make_store: CheckpointStore) -> None:
    draft = make_store.make_draft(TAKEN)
    with full_disk(), pytest.raises(EnvironmentProblem, match=rf"{make_store.folder} cannot be written \(File too large\)"):
        make_store.publish_draft(draft, replace(TAKEN, number=TAKEN.number + 1))
    assert make_store.list_usable() == [TAKEN]


def test_removed_checkpoint_cannot_be_copied(make_store: CheckpointStore, tmp_path: Path) -> None:
    make_store.remove_checkpoint(TAKEN)
    with pytest.raises(CheckpointRemoved):
        make_store.copy_checkpoint(TAKEN, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_damaged_checkpoint_is_reported_and_not_used(make_store: CheckpointStore) -> None:
    """Any of its files, also if only the size differs."""
    assert make_store.list_usable() == [TAKEN] and not make_store.describe_damaged()
    part = make_store.get_folder(TAKEN) / HELD[0]
    for harm in (lambda: part.write_text("cut"), part.unlink, (make_store.get_folder(TAKEN) / FILE_LIST).unlink):
        harm()
        assert not make_store.list_usable() and make_store.list_all() == [TAKEN]
        (said,) = make_store.describe_damaged()
        assert str(make_store.get_folder(TAKEN)) in said and "Remove the folder" in said


def test_interrupted_change_of_a_checkpoint_is_repaired_by_a_repeat(make_store: CheckpointStore) -> None:
    """A checkpoint that was damaged before stays damaged."""
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
