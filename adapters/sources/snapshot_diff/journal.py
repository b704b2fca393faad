"""The journal of snapshots: their changes, and the last snapshot."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.errors import DataLoss, EnvironmentProblem, Fenced

from ...delta.errors import translate_errors
from ...delta.folders import LaneLock, sync, sync_commit, write_json
from ...delta.lake import local_folder
from ...delta.tables import has_table
from ..journal.masking import Noted
from .options import SnapshotsOptions
from .snapshots import ReadSnapshot, SnapshotProvider, Taken, align_rows, diff_snapshots, refuse_unsupported, refuse_unusable

KEPT_FOR_GOOD = {"delta.enableExpiredLogCleanup": "false"}
OF_COMMIT = "replicator.snapshot"
KEYS = "keys.json"
MASKS = "masks"


def restart_step(state: Path) -> str:
    """The next step if the state folder is unusable."""
    return f"Remove the folder {state} and load the table again with `replicator lanes resync LANE`."


def unwritable_error(state: Path, error: OSError) -> EnvironmentProblem:
    """The error if the state folder is not writable."""
    return EnvironmentProblem(
        f"{state} cannot be written: {error.strerror or error}.",
        next_step="Make the folder named by `state` writable, with room on its disk. Nothing is lost meanwhile.",
    )


class SnapshotJournal:
    """Processes snapshots, each once and in order, safe against kills at any time.

    A snapshot is first stored for the comparison with the next one (`<version>.parquet`), then its changes are committed,
    then its version is stored (`taken.json`). The newest commit decides: committed changes are never compared again.
    Before the first snapshot the keys and the masks of private columns are stored (`keys.json`), because rows are stored
    masked only.
    """

    def __init__(self, options: SnapshotsOptions, supply: SnapshotProvider) -> None:
        self._options, self._supply = options, supply
        self._state = Path(options.state)
        self._path = options.journal
        self._known: Taken = {}
        self._privacy = options.row_masker()
        self._anew = restart_step(self._state)

    @property
    def has_snapshots(self) -> bool:
        """True if a snapshot was ever processed."""
        return has_table(local_folder(str(self._path)))

    def known_versions(self) -> Taken:
        """The processed versions that this object knows."""
        return self._known

    def check_rules(self) -> None:
        """Raise DataLoss if stored changes have other keys or masks than configured: comparisons would give other
        changes. State without stored keys (from an old program) counts as having the configured keys and no masks."""
        if not self.has_snapshots:
            return
        noted, masks = self._read_rules()
        if noted != set(self._options.keys):
            was, now = ", ".join(sorted(noted)), ", ".join(self._options.keys)
            raise DataLoss(
                f"The snapshots of {self._options.name} were compared by the keys ({was}), but `keys` is now ({now}).",
                next_step=f"{self._anew} Or restore the earlier keys.",
            )
        if masks != self._privacy.mask_notes:
            with translate_errors(self._options.name):
                there = pa.schema(DeltaTable(str(self._path)).schema().to_arrow()).names
            self._privacy.refuse_others(masks, there, self._anew)

    def take_next(self) -> bool:
        """Process the next complete snapshot. Returns False if there is none, or another process does it."""
        if not self._supply.has_news(self._known) and self.has_snapshots:
            return False
        try:
            lock = LaneLock(self._state / "lock", self._options.name)
        except Fenced:
            return False
        except OSError as error:
            raise unwritable_error(self._state, error) from error
        try:
            return self._take_next()
        except OSError as error:
            raise unwritable_error(self._state, error) from error
        finally:
            lock.release()

    def _take_next(self) -> bool:
        self.check_rules()
        taken = self._read_versions()
        snapshot = self._supply.read_next(taken)
        if snapshot is not None:
            self._store_snapshot(snapshot, taken)
        return snapshot is not None

    def _store_snapshot(self, snapshot: ReadSnapshot, taken: dict[int, int | None]) -> None:
        refuse_unsupported(snapshot, self._options.name)
        refuse_unusable(snapshot, self._options.keys)
        rows = self._privacy.mask_rows(snapshot.rows)
        snapshot = replace(snapshot, rows=rows)
        # Most empty snapshots are failed exports, and this one would delete every row in every target.
        if not rows.num_rows and not self._options.allow_empty:
            raise DataLoss(
                f"{snapshot.name} has no rows, so it would delete every row of the table.",
                next_step=f"{snapshot.remedy}. Or set `allow_empty: true` in the source.",
            )
        before = self._read_previous(taken)
        if before is None:
            before = rows.slice(0, 0)
        found = diff_snapshots(align_rows(before, snapshot, str(self._state)), rows, self._options.keys, snapshot.version)
        is_equal = self.has_snapshots and not found.num_rows and before.schema.equals(rows.schema)
        if is_equal and self._supply.is_numbered_here:
            self._remove_others(max(taken))
            return
        if not self.has_snapshots or self._read_rules()[1] != self._privacy.mask_notes:
            self._write_rules(self._privacy.mask_notes)  # Masks of columns that are new may have been added.
        self._store_rows(snapshot.version, rows)
        if found.num_rows or not self.has_snapshots:
            self._commit_changes(found, snapshot.version)
        self._write_notes(self._add_version(taken, snapshot.version, snapshot.size))

    def _commit_changes(self, found: pa.Table, version: int) -> None:
        said = CommitProperties(custom_metadata={OF_COMMIT: str(version)})
        more: dict[str, Any] = {"schema_mode": "merge"} if self.has_snapshots else {"configuration": KEPT_FOR_GOOD}
        with translate_errors(self._options.name):
            write_deltalake(str(self._path), found, mode="append", name=self._options.name, commit_properties=said, **more)
        sync_commit(self._path, DeltaTable(str(self._path)).version())

    def _read_versions(self) -> dict[int, int | None]:
        """The processed versions, with known sizes. Stores a version that was committed but not stored."""
        file = self._state / "taken.json"
        noted = self._read_notes(file) if file.exists() else {}
        if not self.has_snapshots:
            if noted:
                raise DataLoss(
                    f"{self._path} does not exist any more, so the stored snapshots are lost.",
                    next_step=restart_step(self._state),
                )
            return {}
        with translate_errors(self._options.name):
            newest = self._read_newest()
        if newest > max(noted, default=-1):
            noted = self._add_version(noted, newest, None)
            self._write_notes(noted)
        self._known = noted
        return noted

    def _read_newest(self) -> int:
        """The version in the newest commit with one. Compaction of the journal also makes commits."""
        for commit in DeltaTable(str(self._path)).history():
            if OF_COMMIT in commit:
                return int(commit[OF_COMMIT])
        raise DataLoss(f"No commit of {self._path} names its snapshot.", next_step=self._anew)

    def _add_version(self, taken: dict[int, int | None], version: int, size: int | None) -> dict[int, int | None]:
        """The versions to store after this one. If versions are assigned here, only the newest is needed."""
        return {**({} if self._supply.is_numbered_here else taken), version: size}

    def _read_notes(self, file: Path) -> dict[int, int | None]:
        try:
            found: Mapping[str, int | None] = json.loads(file.read_text())["taken"]
            return {int(version): size for version, size in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as damage:
            raise DataLoss(f"{file} is damaged.", next_step=self._anew) from damage

    def _read_rules(self) -> tuple[set[str], Noted]:
        file = self._state / KEYS
        if not file.exists():
            self._write_rules({})
        try:
            found = json.loads(file.read_bytes())
            return {str(key) for key in found["keys"]}, dict(found.get(MASKS, {}))
        except (ValueError, KeyError, TypeError) as damage:
            raise DataLoss(f"{file} is damaged.", next_step=self._anew) from damage

    def _write_rules(self, masks: Noted) -> None:
        try:
            write_json(self._state / KEYS, {"keys": list(self._options.keys), MASKS: masks})
        except OSError as error:
            raise unwritable_error(self._state, error) from error

    def _write_notes(self, taken: dict[int, int | None]) -> None:
        write_json(self._state / "taken.json", {"taken": taken})
        self._known = taken
        self._remove_others(max(taken))

    def _remove_others(self, version: int) -> None:
        for file in self._state.glob("*.parquet"):
            if file.stem != str(version):
                file.unlink()

    def _read_previous(self, taken: dict[int, int | None]) -> pa.Table | None:
        """The rows of the newest processed snapshot."""
        if not taken:
            return None
        file = self._state / f"{max(taken)}.parquet"
        try:
            return pq.read_table(file)
        except (FileNotFoundError, pa.ArrowInvalid) as gone:
            raise DataLoss(
                f"{file}, the snapshot to compare with, cannot be read.", next_step=restart_step(self._state)
            ) from gone

    def _store_rows(self, version: int, rows: pa.Table) -> None:
        file = self._state / f"{version}.parquet"
        draft = self._state / f".{file.name}.{os.getpid()}"
        pq.write_table(rows, draft)
        sync(draft)
        draft.replace(file)
        sync(self._state)
