"""The last comparisons of each lane, as files in the state folder. No value of a row is stored.

A running comparison or query of the past also has a temporary folder there, with rows."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa
import structlog

from replicator.application.options import BackgroundThread
from replicator.application.problem import Stopped, to_problem
from replicator.domain.differences import LaneDiff
from replicator.domain.errors import EnvironmentProblem
from replicator.domain.position import Position
from replicator.local_files import FileLock, FileLocked, make_folder, remove_file, replace_file
from replicator.ports.frames import Lane
from replicator.ports.reads import TargetSnapshot
from replicator.ports.runtime import ShowLine, TargetCompared, Telemetry

# Temporary folders that do not outlive their processes for long: the next process removes those of killed ones.

LOCK = ".lock"
"""The suffix of the file of each folder, which is locked as long as the folder is used."""


@contextmanager
def open_temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, which is removed at the end. First the folders of processes that were killed are removed.
    OSError if it cannot be created."""
    remove_abandoned_folders(parent)
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / f"{secrets.token_hex(8)}{LOCK}"
    with FileLock(path, 0o600, waits=True):  # Another process may just remove the new lock file as an abandoned one.
        try:
            folder = path.with_suffix("")
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            _remove_folder(path)


def remove_abandoned_folders(parent: Path) -> None:
    """Remove the folders in `parent` that no process uses any more. A folder that cannot be removed stays."""
    for path in parent.glob(f"*{LOCK}"):
        with suppress(OSError, FileLocked), FileLock(path, 0o600):
            _remove_folder(path)


def _remove_folder(path: Path) -> None:
    """Remove the folder of a lock file, and then the file. If the folder cannot be removed, the file stays, too."""
    folder = path.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        path.unlink(missing_ok=True)


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

    def to_measurement(self) -> TargetCompared:
        """The comparison, for metrics."""
        return TargetCompared(self.lane, self.begun_at.timestamp(), self.count_rows())

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {**asdict(self), "equal": self.equal}


def keep_run(folder: Path, run: StoredDiff | LaneDiff) -> None:
    """Store a run in the state folder of the pipeline, and delete the oldest ones of its lane. OSError if that fails.

    If attempts fail one after the other, only the last is kept.
    """
    stored = to_run(run) if isinstance(run, LaneDiff) else run
    last = read_last_run(folder, stored.lane)
    lane_folder = _get_folder(folder, stored.lane)
    make_folder(lane_folder)
    path = lane_folder / f"{stored.begun_at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}.json"
    replace_file(path, json.dumps(asdict(stored)).encode(), 0o600)
    old = _list_files(folder, stored.lane)[KEPT_RUNS:]
    if last is not None and last.error and stored.error:
        old = [*old, *_list_files(folder, stored.lane)[1:2]]
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
    remove_unfinished(folder, lane)
    lock = get_progress_path(folder, lane).with_suffix(".lock")
    with suppress(OSError, FileLocked), FileLock(lock, 0o600):  # It stays while a comparison runs.
        lock.unlink()


def remove_unfinished(folder: Path, lane: str) -> None:
    """Remove what interrupted comparisons of a lane have left: keys of rows that differ, and temporary folders."""
    remove_file(get_progress_path(folder, lane))
    remove_abandoned_folders(_get_temporary(folder))


@contextmanager
def open_work_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder for a comparison or a query of the past, as of `open_temporary_folder`. In /tmp if the state folder
    cannot be written."""
    with ExitStack() as stack:
        try:
            work_folder = stack.enter_context(open_temporary_folder(_get_temporary(folder).absolute()))
        except OSError:
            work_folder = Path(stack.enter_context(TemporaryDirectory(prefix="replicator-diff-")))
        yield work_folder


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


# The progress of a comparison that was interrupted.

NOTES = b"replicator"
LONGEST = timedelta(days=1)
"""A comparison is not resumed after this time. The log would have to hold all changes since its start."""


@dataclass(frozen=True)
class UnfinishedDiff:
    """Rows up to a key were compared.

    - `before`: the end of the stream before the first snapshot. Keys with later changes have to be compared again.
    - `upto`: the last compared value of the first key column; None if there is none. `rows`: the number of compared rows.
    - `keys`: the keys of the rows that differed, with the source's names.
    - `point`: that of the first snapshot, for people. `begun`: the time of it.
    - `compared`: a hash of what is compared: the target, its columns, and the rules of the lane.
    """

    before: Position
    upto: int | None
    rows: int
    keys: pa.Table
    point: str
    begun: datetime
    compared: str


def hash_compared(lane: Lane, target: TargetSnapshot) -> str:
    """See `UnfinishedDiff.compared`."""
    return hashlib.sha256(repr((target.identity, target.columns, lane)).encode()).hexdigest()


class DiffProgressFile:
    """Keeps the progress of one lane. Only keys are stored, no other values.

    A context manager. If two comparisons of a lane run at once, only the first keeps its progress.
    """

    def __init__(self, folder: Path, lane: Lane) -> None:
        self._path = get_progress_path(folder, lane.id)
        self._lock = FileLock(self._path.with_suffix(".lock"), 0o600)
        self._is_kept = False

    def __enter__(self) -> Self:
        with suppress(OSError, FileLocked):  # If the folder cannot be written, who stores the result says so.
            make_folder(self._path.parent)
            self._lock.acquire()
            self._is_kept = True
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._is_kept = False

    def read(self) -> UnfinishedDiff | None:
        """The progress; None if the last comparison has ended, or was begun too long ago."""
        if not self._is_kept:
            return None
        try:
            keys = pa.ipc.open_file(self._path).read_all()
            notes = json.loads(keys.schema.metadata[NOTES])
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
            raise EnvironmentProblem(
                f"{self._path} cannot be read ({type(error).__name__}).", next_step="Remove it, and repeat the command."
            ) from error
        begun = datetime.fromisoformat(notes["begun"])
        if datetime.now(UTC) - begun > LONGEST:
            return None
        before = Position.from_json(notes["before"])
        return UnfinishedDiff(before, notes["upto"], notes["rows"], keys, notes["point"], begun, notes["compared"])

    def write(self, progress: UnfinishedDiff) -> None:
        """Replace the progress."""
        if not self._is_kept:
            return
        notes = {
            "before": progress.before.to_json(),
            "upto": progress.upto,
            "rows": progress.rows,
            "point": progress.point,
            "begun": progress.begun.isoformat(),
            "compared": progress.compared,
        }
        keys = progress.keys.replace_schema_metadata({NOTES: json.dumps(notes)})
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_file(buffer, keys.schema) as writer:
            writer.write_table(keys)
        replace_file(self._path, buffer.getvalue().to_pybytes(), 0o600)

    def remove(self) -> None:
        """The comparison has ended."""
        if self._is_kept:
            remove_file(self._path)


# Compares targets with their sources while the pipeline runs, on a separate thread, so that no lane waits.

log = structlog.get_logger(__name__)

LOOK_SECONDS = 2.0
"""Seconds between two searches for due lanes."""
RETRY_AFTER = timedelta(hours=1)
"""The time after a failed comparison, if it is shorter than the interval of the lane."""


@dataclass(frozen=True)
class ScheduledDiff:
    """A lane that is compared `every` so often. `compare` reports its progress in sentences."""

    lane: str
    table: str
    every: timedelta
    compare: Callable[[ShowLine], LaneDiff]


class DiffScheduler(BackgroundThread):
    """Compares the lanes that are due, one after the other. A failure is kept as the result, and stops nothing else.
    A comparison that runs at the end is broken off, and is not kept.

    - `find`: the lanes that can be compared now. `folder`: the state folder with the runs.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[ScheduledDiff]],
        folder: Path,
        telemetry: Telemetry,
        *,
        wanted: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__("comparisons", self._run, wanted=wanted)
        self._find, self._folder, self._telemetry, self._now = find, folder, telemetry, now
        self._attempts: dict[str, datetime] = {}

    def compare_due(self) -> None:
        """Compare each lane that is due. Runs of other programs count, too."""
        for one in self._find():
            if self._ended.is_set():
                return
            # Two failed ones do not follow each other (`keep_run`).
            runs = list(islice(list_runs(self._folder, one.lane), 2))
            finished_run = next((run for run in runs if run.error is None), None)
            if finished_run is not None:
                self._telemetry.record(finished_run.to_measurement())
            wait = min(one.every, RETRY_AFTER) if runs and runs[0].error else one.every
            times = [run.begun_at for run in runs[:1]]
            times += [self._attempts[one.lane]] if one.lane in self._attempts else []
            # Due one interval after the last run. A time in the future was written under another clock.
            if not times or not timedelta(0) <= self._now() - max(times) < wait:
                self._compare(one)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.compare_due()
            except Exception as error:
                log.error("targets are not compared", sentence=to_problem(error).sentence)
                self._ended.wait(RETRY_AFTER.total_seconds())

    def _compare(self, one: ScheduledDiff) -> None:
        def show_line(sentence: str) -> None:
            if self._ended.is_set():
                raise Stopped  # Ends the running comparison at shutdown.
            log.debug("comparison", sentence=sentence)

        begun, started = self._now(), time.monotonic()
        # Also kept in memory: without it, a full disk would repeat the comparison at once.
        self._attempts[one.lane] = begun
        try:
            run = to_run(one.compare(show_line))
        except Stopped:
            return
        except Exception as error:
            problem, seconds = to_problem(error), round(time.monotonic() - started, 3)
            run = StoredDiff(
                one.lane, one.table, begun.isoformat(), seconds, error=problem.sentence, next_step=problem.next_step or None
            )
            log.warning("lane was not compared", lane=one.lane, sentence=run.error, next_step=run.next_step)
        else:
            self._telemetry.record(run.to_measurement())
            (log.info if run.equal else log.warning)("lane compared", lane=one.lane, rows=run.rows, **run.count_rows())
        try:
            keep_run(self._folder, run)
        except OSError as error:
            log.warning("comparison was not kept", lane=one.lane, sentence=f"{error.filename}: {error.strerror}.")
