"""The layout of a lake, and names of tables and lanes as folder names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.ports.frames import Lane
from replicator.ports.options import StorageSettings

from ..object_store.options import Storage
from .folders import Folder, LaneLock, LocalFolder

HOME = "_replicator"


class Lake:
    """A folder of Delta tables. Its folder `_replicator` has the state of replicator."""

    def __init__(self, root: Folder) -> None:
        self.root = root

    @classmethod
    def from_path(cls, path: str, storage: StorageSettings | None = None) -> Lake:
        """The lake at a local path, a `file://` URL or an `s3://` URL. `storage`: the access to an object
        store.

        Raises ConfigProblem for another kind of store.
        """
        if is_local(path):
            return cls(local_folder(path))
        from .stored_folder import StoredFolder  # noqa: PLC0415 - a local lake does not need this client

        return cls(StoredFolder.from_path(path, Storage.from_settings(storage)))

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

    def lock(self, lane: Lane) -> LaneLock:
        """Locks a lane for this instance. Raises `Fenced` when another instance is known to hold it."""
        return self._state_folder("locks", lane.pipeline, lane.id).lock(lane.id)

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


# Folder names: an allow-list, so that no name leaves the lake or is hidden in it.

LONGEST = 200
_HASHED = "_h"
_PLAIN = re.compile(r"[A-Za-z0-9.-]")
_ESCAPE = re.compile(r"_x([0-9A-F]{4,6})_")
_ESCAPE_LIKE = re.compile(r"x[0-9A-Fa-f]{4}|h[0-9a-f]{32}$")


def encode_name(name: str) -> str:
    """`name` as the name of one folder: `[A-Za-z0-9_.-]` stay, every other character becomes `_xHHHH_`.

    A leading dot or underscore is escaped, too (such folders are hidden, or ours), so `.` and `..` cannot
    occur. Distinct names stay distinct, and `decode_name` returns the name. A result of more than 200 bytes is
    replaced by its start and a hash of the whole name. Raises ConfigProblem for the empty name.
    """
    if not name:
        raise ConfigProblem("a target has an empty name", next_step="Give it a name with `into`.")
    whole = ""
    for i, char in enumerate(name):
        if char == "_":
            is_plain = i > 0 and not _ESCAPE_LIKE.match(name, i + 1)
        else:
            is_plain = _PLAIN.fullmatch(char) is not None and not (i == 0 and char == ".")
        whole += char if is_plain else f"_x{ord(char):04X}_"
    if len(whole) <= LONGEST:
        return whole
    return whole[: LONGEST - 40] + _HASHED + sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def decode_name(folder: str) -> str:
    """The name that `encode_name` encoded as `folder`; for a hashed one the folder's own name."""
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)), folder)


def is_hashed(folder: str) -> bool:
    """True when `decode_name` cannot return the original name."""
    return len(folder) > LONGEST - 40 and re.search(r"_h[0-9a-f]{32}$", folder) is not None
