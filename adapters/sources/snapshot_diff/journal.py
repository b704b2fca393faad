"""The journal of snapshots: their changes, and the last snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.errors import DataLoss
from replicator.local_files import remove_drafts, write_whole

from ..journal.access import Noted
from ..journal.journal import MASKS, RowJournal
from .options import SnapshotsSettings
from .snapshots import ReadSnapshot, SnapshotProvider, Taken, align_rows, diff_snapshots, refuse_unsupported, refuse_unusable

RULES = "keys.json"
VERSIONS = "taken.json"


class SnapshotJournal(RowJournal):
    """Processes snapshots, each once and in order, safe against kills at any time.

    A snapshot is first stored for the comparison with the next one (`<version>.parquet`), then its changes are committed,
    then its version is stored (`taken.json`). The newest commit decides: committed changes are never compared again.
    Before the first snapshot the keys and the masks of private columns are stored (`keys.json`), because rows are stored
    masked only.
    """

    def __init__(self, options: SnapshotsSettings, supply: SnapshotProvider) -> None:
        super().__init__(options, "replicator.snapshot", "names its snapshot")
        self._options, self._supply = options, supply
        self._known: Taken = {}

    def known_versions(self) -> Taken:
        """The processed versions that this object knows."""
        return self._known

    def check_rules(self) -> None:
        """Raise DataLoss if stored changes have other keys or masks than configured: comparisons would give other
        changes. State without stored keys (from an old program) counts as having the configured keys and no masks."""
        if not self.has_rows:
            return
        noted, masks = self._read_rules()
        if noted != set(self._options.keys):
            was, now = ", ".join(sorted(noted)), ", ".join(self._options.keys)
            raise DataLoss(
                f"The snapshots of {self._options.name} were compared by the keys ({was}), but `keys` is now ({now}).",
                next_step=f"{self.state.restart_step} Or restore the earlier keys.",
            )
        self.refuse_other_masks(masks)

    def take_next(self) -> bool:
        """Process the next complete snapshot. Returns False if there is none, or another process does it."""
        if not self._supply.has_news(self._known) and self.has_rows:
            return False
        with self.state.lock() as is_mine, self.state.translate_errors():
            if not is_mine:
                return False
            self.check_rules()
            taken = self._read_versions()
            snapshot = self._supply.read_next(taken)
            if snapshot is not None:
                self._store_snapshot(snapshot, taken)
            return snapshot is not None

    def _store_snapshot(self, snapshot: ReadSnapshot, taken: dict[int, int | None]) -> None:
        refuse_unsupported(snapshot, self._options.name)
        refuse_unusable(snapshot, self._options.keys)
        rows = self.privacy.mask_rows(snapshot.rows)
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
        found = diff_snapshots(
            align_rows(before, snapshot, str(self.state.path)), rows, self._options.keys, snapshot.version
        )
        is_equal = self.has_rows and not found.num_rows and before.schema.equals(rows.schema)
        if is_equal and self._supply.is_numbered_here:
            self._remove_others(max(taken))
            return
        if not self.has_rows or self._read_rules()[1] != self.privacy.mask_notes:
            self._write_rules(self.privacy.mask_notes)  # Masks of columns that are new may have been added.
        self._store_rows(snapshot.version, rows)
        if found.num_rows or not self.has_rows:
            self.commit(found, str(snapshot.version))
        self._write_versions(self._add_version(taken, snapshot.version, snapshot.size))

    def _read_versions(self) -> dict[int, int | None]:
        """The processed versions, with known sizes. Stores a version that was committed but not stored."""
        noted = self.state.read(VERSIONS, _parse_versions) or {}
        if not self.has_rows:
            if noted:
                raise self.gone_error("the stored snapshots")
            return {}
        newest = int(self.read_newest_progress())
        if newest > max(noted, default=-1):
            noted = self._add_version(noted, newest, None)
            self._write_versions(noted)
        self._known = noted
        return noted

    def _add_version(self, taken: dict[int, int | None], version: int, size: int | None) -> dict[int, int | None]:
        """The versions to store after this one. If versions are assigned here, only the newest is needed."""
        return {**({} if self._supply.is_numbered_here else taken), version: size}

    def _write_versions(self, taken: dict[int, int | None]) -> None:
        self.state.write(VERSIONS, {"taken": taken})
        self._known = taken
        self._remove_others(max(taken))

    def _read_rules(self) -> tuple[set[str], Noted]:
        found = self.state.read(RULES, _parse_rules)
        if found is None:
            self._write_rules({})
            return set(self._options.keys), {}
        return found

    def _write_rules(self, masks: Noted) -> None:
        self.state.write(RULES, {"keys": list(self._options.keys), MASKS: masks})

    def _remove_others(self, version: int) -> None:
        for file in self.state.path.glob("*.parquet"):
            if file.stem != str(version):
                file.unlink()
        remove_drafts(self.state.path)

    def _read_previous(self, taken: dict[int, int | None]) -> pa.Table | None:
        """The rows of the newest processed snapshot."""
        if not taken:
            return None
        file = self.state.path / f"{max(taken)}.parquet"
        try:
            return pq.read_table(file)
        except (FileNotFoundError, pa.ArrowInvalid) as gone:
            raise DataLoss(
                f"{file}, the snapshot to compare with, cannot be read.", next_step=self.state.restart_step
            ) from gone

    def _store_rows(self, version: int, rows: pa.Table) -> None:
        with write_whole(self.state.path / f"{version}.parquet") as draft:
            pq.write_table(rows, draft)


def _parse_versions(record: Mapping[str, Any]) -> dict[int, int | None]:
    return {int(version): size for version, size in record["taken"].items()}


def _parse_rules(record: Mapping[str, Any]) -> tuple[set[str], Noted]:
    return {str(key) for key in record["keys"]}, dict(record.get(MASKS, {}))
