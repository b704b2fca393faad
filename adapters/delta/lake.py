"""The layout of a lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.ports.frames import Lane

from ..object_store.options import Storage
from .folder_names import decode_name, encode_name
from .folders import Folder, LaneHold, LocalFolder

HOME = "_replicator"


class Lake:
    """A folder of Delta tables. Its folder `_replicator` has the state of replicator."""

    def __init__(self, root: Folder) -> None:
        self.root = root

    @classmethod
    def at(cls, path: str, storage: Storage | None = None) -> Lake:
        """The lake at a local path, a `file://` URL or an `s3://` URL. `storage`: the access to an object
        store.

        Raises ConfigProblem for another kind of store.
        """
        if is_local(path):
            return cls(local_folder(path))
        from .stored_folder import StoredFolder  # noqa: PLC0415 - a local lake does not need this client

        return cls(StoredFolder.at(path, storage or Storage()))

    def table(self, name: str) -> Folder:
        """The folder of the table `name`; always directly under the root."""
        folder = self.root / encode_name(name)
        if folder.is_link_outside(self.root):
            raise Fatal(f"the folder of table {name!r} is a link that leaves the lake", next_step="Remove the link.")
        return folder

    def refuse_collision(self, name: str) -> None:
        """Raises Fatal when the lake has a table whose name differs from `name` only in case."""
        wanted = encode_name(name)
        alike = {f.name for f in self.root.folders() if f.name.casefold() == wanted.casefold()} - {wanted}
        # Whether a folder has a table is asked only now: a lake may have thousands.
        for other in self.folders() if alike else ():
            if other.name in alike:
                raise Fatal(
                    f"table {name!r} and the existing table {other.name!r} differ in case only",
                    next_step="Give one of them another name with `into`.",
                )

    def folders(self) -> Iterator[Folder]:
        """The folders of tables, by name."""
        yield from (folder for folder in self.root.tables() if folder.name != HOME)

    def positions(self, pipeline: str, lane: str) -> Folder:
        """The folder of a lane's position files."""
        return self._state_folder("positions", pipeline, lane)

    def other_writers(self, lane: Lane) -> list[Folder]:
        """The position folders of other lanes, of any pipeline, that wrote the table of `lane`."""
        own, pipelines = self.positions(lane.pipeline, lane.id), self._state_folder("positions").folders()
        homes = (home for pipeline in pipelines for home in pipeline.folders())
        return [home for home in homes if home != own and decode_name(home.name).partition(".")[2] == lane.into]

    def refuse_other_writer(self, lane: Lane) -> None:
        """Raises ConfigProblem when another lane wrote the table, because both would write every row."""
        for home in self.other_writers(lane):
            pipeline, other = decode_name(home.parent.name), decode_name(home.name)
            raise ConfigProblem(
                f"table {lane.into} is written by lane {other} of pipeline {pipeline}",
                next_step="Name another table with `into`, or another lake. If that lane does not exist any more, load the "
                f"table again: stop the daemon, remove {home} and the table's folder, and run "
                f"`replicator lanes resync {lane.id}`.",
            )

    def hold(self, lane: Lane) -> LaneHold:
        """Locks a lane for this instance. Raises `Fenced` when another instance is known to hold it."""
        return self._state_folder("locks", lane.pipeline, lane.id).hold(lane.id)

    def tombstones(self, table: str) -> Folder:
        """The side table of a target: a Delta table of its tombstones."""
        return self._state_folder("tombstones", table)

    @property
    def transactions(self) -> Folder:
        """The Delta table of completeness watermarks."""
        return self.root / HOME / "transactions"

    def schemas(self, table: str) -> Folder:
        """The folder of a target's schema versions."""
        return self._state_folder("schemas", table)

    def _state_folder(self, kind: str, *names: str) -> Folder:
        folder = self.root / HOME / kind
        for name in names:
            folder = folder / encode_name(name)
        return folder


def is_local(path: str) -> bool:
    """True for a path and for a `file://` URL."""
    return "://" not in path or path.startswith("file://")


def local_folder(path: str) -> LocalFolder:
    """The folder at a local path or `file://` URL. Raises ConfigProblem for anything else."""
    if "://" not in path:
        return LocalFolder(Path(path).expanduser().absolute())
    url = urlsplit(path)
    if url.scheme != "file" or url.netloc not in ("", "localhost"):
        raise ConfigProblem(f"a folder on {url.scheme}:// is not yet supported here", next_step="Give a local `path`.")
    return LocalFolder(unquote(url.path))
