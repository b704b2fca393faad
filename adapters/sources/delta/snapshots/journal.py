"""What is kept of snapshots between runs: the changes they brought, and the last of them."""

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

from ....delta.durable import sync, sync_commit, write_json
from ....delta.errors import translating
from ....delta.layout import local_folder
from ....delta.locks import LaneLock
from ....delta.tables import exists
from ..private import Noted
from .compared import changes, fitted, refuse_unusable
from .options import SnapshotsOptions
from .supply import Snapshot, Supply, Taken
from .unkept import refuse_unkept

KEPT_FOR_GOOD = {"delta.enableExpiredLogCleanup": "false"}
OF_COMMIT = "replicator.snapshot"
KEYS = "keys.json"
MASKS = "masks"


def begin_anew(state: Path) -> str:
    """What to do where the kept folder is of no use any more."""
    return f"Remove the folder {state} and load the table anew with `replicator lanes resync LANE`."


def unwritable(state: Path, error: OSError) -> EnvironmentProblem:
    """What to raise where the kept folder takes no files."""
    return EnvironmentProblem(
        f"{state} cannot be written: {error.strerror or error}.",
        next_step="Make the folder named by `state` writable, with room on its disk. Nothing is lost meanwhile.",
    )


class Journal:
    """Takes snapshots in, each once and in order, whatever is killed when.

    A snapshot is first kept as the one before of the next (`<version>.parquet`), then its changes are committed, then it is
    noted (`taken.json`). What the newest commit says counts: changes that were committed are never compared again. Before
    the first, the keys are noted by which all are compared, and the masks of private columns (`keys.json`): of a snapshot
    nothing is kept before they are masked.
    """

    def __init__(self, options: SnapshotsOptions, supply: Supply) -> None:
        self._options, self._supply = options, supply
        self._state = Path(options.state)
        self._path = options.journal
        self._known: Taken = {}
        self._privacy = options.privacy()
        self._anew = begin_anew(self._state)

    @property
    def is_there(self) -> bool:
        """Whether a snapshot was ever taken in."""
        return exists(local_folder(str(self._path)))

    def known(self) -> Taken:
        """The versions that were taken in, as far as this object knows."""
        return self._known

    def hold(self) -> None:
        """Raise DataLoss where the changes that are written down were found by other keys than these, by which they would be
        others, or are written under other masks. What was kept by a program that did not remember its keys is taken to be
        found by these, and not to be masked."""
        if not self.is_there:
            return
        noted, masks = self._noted_rules()
        if noted != set(self._options.keys):
            was, now = ", ".join(sorted(noted)), ", ".join(self._options.keys)
            raise DataLoss(
                f"The snapshots of {self._options.name} were compared by the keys ({was}), and `keys` says ({now}).",
                next_step=f"{self._anew} Or say the keys of before.",
            )
        if masks != self._privacy.noted:
            with translating(self._options.name):
                there = pa.schema(DeltaTable(str(self._path)).schema().to_arrow()).names
            self._privacy.refuse_others(masks, there, self._anew)

    def take(self) -> bool:
        """Take the next snapshot in, if there is one that is whole; whether there was. Nothing while another one does."""
        if not self._supply.is_news(self._known) and self.is_there:
            return False
        try:
            lock = LaneLock(self._state / "lock", self._options.name)
        except Fenced:
            return False
        except OSError as error:
            raise unwritable(self._state, error) from error
        try:
            return self._take()
        except OSError as error:
            raise unwritable(self._state, error) from error
        finally:
            lock.release()

    def _take(self) -> bool:
        self.hold()
        taken = self._taken()
        snapshot = self._supply.next(taken)
        if snapshot is not None:
            self._take_in(snapshot, taken)
        return snapshot is not None

    def _take_in(self, snapshot: Snapshot, taken: dict[int, int | None]) -> None:
        refuse_unkept(snapshot, self._options.name)
        refuse_unusable(snapshot, self._options.keys)
        rows = self._privacy.masked(snapshot.rows)
        snapshot = replace(snapshot, rows=rows)
        if not rows.num_rows and not self._options.allow_empty:
            raise DataLoss(
                f"{snapshot.name} has no rows: taken in, it would delete every row of the table.",
                next_step=f"{snapshot.remedy}; or say `allow_empty: true` in the source.",
            )
        before = self._before(taken)
        if before is None:
            before = rows.slice(0, 0)
        found = changes(fitted(before, snapshot, str(self._state)), rows, self._options.keys, snapshot.version)
        is_equal = self.is_there and not found.num_rows and before.schema.equals(rows.schema)
        if is_equal and self._supply.is_numbered_here:
            self._forget_others(max(taken))
            return
        if not self.is_there or self._noted_rules()[1] != self._privacy.noted:
            self._note_rules(self._privacy.noted)  # Of columns that were not there yet masks may have come.
        self._keep(snapshot.version, rows)
        if found.num_rows or not self.is_there:
            self._commit(found, snapshot.version)
        self._note(self._with(taken, snapshot.version, snapshot.size))

    def _commit(self, found: pa.Table, version: int) -> None:
        said = CommitProperties(custom_metadata={OF_COMMIT: str(version)})
        more: dict[str, Any] = {"schema_mode": "merge"} if self.is_there else {"configuration": KEPT_FOR_GOOD}
        with translating(self._options.name):
            write_deltalake(str(self._path), found, mode="append", name=self._options.name, commit_properties=said, **more)
        sync_commit(self._path, DeltaTable(str(self._path)).version())

    def _taken(self) -> dict[int, int | None]:
        """The versions that were taken in, with sizes where these are known. Notes what was committed and not noted."""
        file = self._state / "taken.json"
        noted = self._noted(file) if file.exists() else {}
        if not self.is_there:
            if noted:
                raise DataLoss(
                    f"{self._path} is gone, and with it what is kept of snapshots.", next_step=begin_anew(self._state)
                )
            return {}
        with translating(self._options.name):
            newest = self._newest()
        if newest > max(noted, default=-1):
            noted = self._with(noted, newest, None)
            self._note(noted)
        self._known = noted
        return noted

    def _newest(self) -> int:
        """The version whose changes were committed last. Who compacts the journal commits too."""
        for commit in DeltaTable(str(self._path)).history():
            if OF_COMMIT in commit:
                return int(commit[OF_COMMIT])
        raise DataLoss(f"No commit of {self._path} says which snapshot it is of.", next_step=self._anew)

    def _with(self, taken: dict[int, int | None], version: int, size: int | None) -> dict[int, int | None]:
        """What is to be remembered once that was taken in, too: of versions that nobody meets again the newest alone."""
        return {**({} if self._supply.is_numbered_here else taken), version: size}

    def _noted(self, file: Path) -> dict[int, int | None]:
        try:
            found: Mapping[str, int | None] = json.loads(file.read_text())["taken"]
            return {int(version): size for version, size in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as damage:
            raise DataLoss(f"{file} is damaged.", next_step=self._anew) from damage

    def _noted_rules(self) -> tuple[set[str], Noted]:
        """The keys, and the masks."""
        file = self._state / KEYS
        if not file.exists():
            self._note_rules({})
        try:
            found = json.loads(file.read_bytes())
            return {str(key) for key in found["keys"]}, dict(found.get(MASKS, {}))
        except (ValueError, KeyError, TypeError) as damage:
            raise DataLoss(f"{file} is damaged.", next_step=self._anew) from damage

    def _note_rules(self, masks: Noted) -> None:
        try:
            write_json(self._state / KEYS, {"keys": list(self._options.keys), MASKS: masks})
        except OSError as error:
            raise unwritable(self._state, error) from error

    def _note(self, taken: dict[int, int | None]) -> None:
        write_json(self._state / "taken.json", {"taken": taken})
        self._known = taken
        self._forget_others(max(taken))

    def _forget_others(self, version: int) -> None:
        for file in self._state.glob("*.parquet"):
            if file.stem != str(version):
                file.unlink()

    def _before(self, taken: dict[int, int | None]) -> pa.Table | None:
        """The rows of the newest snapshot that was taken in."""
        if not taken:
            return None
        file = self._state / f"{max(taken)}.parquet"
        try:
            return pq.read_table(file)
        except (FileNotFoundError, pa.ArrowInvalid) as gone:
            raise DataLoss(
                f"{file}, the snapshot to compare with, cannot be read.", next_step=begin_anew(self._state)
            ) from gone

    def _keep(self, version: int, rows: pa.Table) -> None:
        file = self._state / f"{version}.parquet"
        draft = self._state / f".{file.name}.{os.getpid()}"
        pq.write_table(rows, draft)
        sync(draft)
        draft.replace(file)
        sync(self._state)
