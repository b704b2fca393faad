"""The last comparisons of each lane, as files in the state folder. No value of a row is stored.

A running comparison also has a temporary folder there, with rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from replicator.application.durable import make_folder, replace_file
from replicator.domain.differences import LaneDiff

from .temporary_folders import open_temporary_folder, remove_abandoned_folders

KEPT_RUNS = 30
"""The number of runs that are kept for each lane."""


@dataclass(frozen=True, slots=True)
class StoredDiff:
    """A comparison of one lane, or an attempt that failed with `error`. Other fields as of `LaneDiff`."""

    lane: str
    table: str
    begun: str
    seconds: float
    against: str = ""
    position: Sequence[str] = ()
    commit: str = ""
    rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    error: str | None = None
    next_step: str | None = None

    @property
    def equal(self) -> bool:
        """True if no row differs. An attempt that failed has found nothing."""
        return not (self.error or self.missing or self.extra or self.different)

    @property
    def begun_at(self) -> datetime:
        """The start."""
        return datetime.fromisoformat(self.begun)

    def count_rows(self) -> dict[str, int]:
        """The rows that differ, by their kind."""
        return {"missing": self.missing, "extra": self.extra, "different": self.different}

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {**asdict(self), "equal": self.equal}


def keep_run(folder: Path, run: StoredDiff | LaneDiff) -> None:
    """Store a run in the state folder of the pipeline, and delete the oldest ones of its lane. OSError if that fails.

    If attempts fail one after the other, only the last is kept.
    """
    kept = to_run(run) if isinstance(run, LaneDiff) else run
    last = read_last_run(folder, kept.lane)
    place = _get_folder(folder, kept.lane)
    make_folder(place)
    path = place / f"{kept.begun_at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}.json"
    replace_file(path, json.dumps(asdict(kept)).encode(), 0o600)
    old = _list_files(folder, kept.lane)[KEPT_RUNS:]
    if last is not None and last.error and kept.error:
        old = [*old, *_list_files(folder, kept.lane)[1:2]]
    for one in old:
        one.unlink(missing_ok=True)


def to_run(diff: LaneDiff) -> StoredDiff:
    """The part of a comparison that is stored."""
    names = ("lane", "table", "begun", "seconds", "against", "position", "commit", "rows", "missing", "extra", "different")
    return StoredDiff(**{name: getattr(diff, name) for name in names})


def list_runs(folder: Path, lane: str) -> Iterator[StoredDiff]:
    """The runs of a lane, the newest first. Files that cannot be read are left out."""
    for path in _list_files(folder, lane):
        try:
            run = StoredDiff(**json.loads(path.read_bytes()))
            run.begun_at.astimezone(UTC)
        except (OSError, ValueError, TypeError):
            continue
        yield run


def read_last_run(folder: Path, lane: str) -> StoredDiff | None:
    """The newest run of a lane; None without one."""
    return next(list_runs(folder, lane), None)


def report_runs(folder: Path, lanes: Iterable[str]) -> list[dict[str, Any]]:
    """The newest run of each of these lanes that has one, as plain values."""
    return [run.to_dict() for lane in lanes if (run := read_last_run(folder, lane)) is not None]


def remove_runs(folder: Path, lane: str) -> None:
    """Remove everything that comparisons of a lane have stored, and the temporary folders of all that were killed."""
    shutil.rmtree(_get_folder(folder, lane), ignore_errors=True)
    get_progress_path(folder, lane).with_suffix(".lock").unlink(missing_ok=True)
    remove_unfinished(folder, lane)


def remove_unfinished(folder: Path, lane: str) -> None:
    """Remove what interrupted comparisons of a lane have left: keys of rows that differ, and temporary folders."""
    get_progress_path(folder, lane).unlink(missing_ok=True)
    remove_abandoned_folders(_get_temporary(folder))


@contextmanager
def open_work_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder for a comparison, as of `open_temporary_folder`. In /tmp if the state folder cannot be written."""
    with ExitStack() as opened:
        try:
            place = opened.enter_context(open_temporary_folder(_get_temporary(folder).absolute()))
        except OSError:
            place = Path(opened.enter_context(TemporaryDirectory(prefix="replicator-diff-")))
        yield place


def get_progress_path(folder: Path, lane: str) -> Path:
    """The file with the progress of an interrupted comparison."""
    return folder / "diffs" / f"{quote(lane, safe='')}.unfinished"


def _get_temporary(folder: Path) -> Path:
    # No lane has this name: its id has a dot.
    return folder / "diffs" / "temporary"


def _get_folder(folder: Path, lane: str) -> Path:
    return folder / "diffs" / quote(lane, safe="")


def _list_files(folder: Path, lane: str) -> list[Path]:
    """The files of a lane. Their names begin with their times, so the newest is first."""
    return sorted(_get_folder(folder, lane).glob("*.json"), reverse=True)
