"""The state folder of a pipeline: its lock, and the register of its sources."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from replicator.domain.errors import EnvironmentProblem, Fenced
from replicator.domain.position import Position
from replicator.domain.transactions import Connector
from replicator.local_files import FileLock, FileLocked, make_folder, replace_file
from replicator.ports.stores import RegisterEntry

REGISTER_FOLDER = "sources"
"""The folder of a pipeline's register: the topics, keys and start positions of its sources."""
REBUILDS_FOLDER = "replays"
"""The folder with a state folder for each rebuild, by the id of its lane."""

# The instance lock: one running instance per pipeline and state folder.


class InstanceLock(FileLock):
    """A lock on the file `name` in `folder`. Not locked before `acquire`.

    A second instance fails at once, before it has written anything. Instances with different state folders are
    detected by the targets, at their next commit.
    """

    def __init__(self, folder: Path, pipeline: str, name: str = "lock") -> None:
        super().__init__(folder / name)
        self._folder, self._pipeline = folder, pipeline

    def acquire(self) -> None:
        """Lock the folder. `Fenced`, with the other process id, if another instance has locked it."""
        try:
            make_folder(self._folder)
            super().acquire()
        except FileLocked as locked:
            raise Fenced(
                f"Another instance of pipeline {self._pipeline} runs (process {locked.holder}).",
                next_step="Stop it first, or give this one another `pipeline` name and other targets.",
            ) from locked
        except OSError as error:
            raise EnvironmentProblem(
                f"{self._path} cannot be written ({error.strerror}).",
                next_step="Make the folder named by `state` writable.",
            ) from error


# The register of sources, in one small file per source.


class FileRegister:
    """`ports.stores.Register` in a local folder: `<folder>/<source>.json`, replaced by rename."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, source: str) -> RegisterEntry:
        """EnvironmentProblem if the file exists and cannot be read."""
        path = self._source_file(source)
        try:
            data = json.loads(path.read_bytes())
            topics = {table: frozenset(names) for table, names in data["topics"].items()}
            beginnings = {lane: Position.from_json(p) for lane, p in data["beginnings"].items()}
            keys = {table: tuple(names) for table, names in data["keys"].items()}
            connectors = tuple(Connector(**each) for each in data.get("connectors", ()))
            return RegisterEntry(topics, beginnings, keys, Position.from_json(data["began"]), connectors)
        except FileNotFoundError:
            return RegisterEntry()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EnvironmentProblem(
                f"{path} cannot be read ({type(error).__name__})",
                next_step="Remove the file. The stream is then read from `start_from` again, and nothing is applied twice.",
            ) from error

    def save(self, source: str, seen: RegisterEntry) -> None:
        """EnvironmentProblem if the folder cannot be written."""
        topics = {table: sorted(names) for table, names in sorted(seen.topics.items())}
        beginnings = {lane: position.to_json() for lane, position in sorted(seen.beginnings.items())}
        try:
            make_folder(self.folder)
            began = (seen.began or Position()).to_json()
            document = {
                "topics": topics, "beginnings": beginnings, "keys": dict(seen.keys), "began": began,
                "connectors": [asdict(connector) for connector in seen.connectors],
            }  # fmt: skip
            replace_file(self._source_file(source), json.dumps(document).encode())
        except OSError as error:
            raise EnvironmentProblem(
                f"{self.folder} cannot be written ({error.strerror})",
                next_step="Make the folder named by `state` writable.",
            ) from error

    def get_crash_notes(self, source: str) -> Path:
        """The file with notes about records that ended the process, next to that of the source."""
        return self._source_file(source).with_suffix(".crashes")

    def _source_file(self, source: str) -> Path:
        return self.folder / f"{quote(source, safe='')}.json"
