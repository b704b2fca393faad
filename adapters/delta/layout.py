"""Where things lie in a lake on a local disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.ports.frames import Lane

from .names import decode, encode

HOME = "_replicator"


class Lake:
    """A folder of Delta tables and, in `_replicator`, of what replicator remembers about them."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @classmethod
    def at(cls, path: str) -> Lake:
        """The lake at a local path or `file://` URL; ConfigProblem for an object store."""
        if "://" not in path:
            return cls(Path(path).expanduser())
        url = urlsplit(path)
        if url.scheme != "file" or url.netloc not in ("", "localhost"):
            raise ConfigProblem(
                f"a Delta sink on {url.scheme}:// is not yet supported", next_step="Give `path` as a local folder."
            )
        return cls(Path(unquote(url.path)))

    def table(self, name: str) -> Path:
        """The folder of the table `name`; always directly under the root."""
        folder = self.root / encode(name)
        if folder.is_symlink() and not folder.resolve().is_relative_to(self.root.resolve()):
            raise Fatal(f"the folder of table {name!r} is a link that leaves the lake", next_step="Remove the link.")
        return folder

    def refuse_collision(self, name: str) -> None:
        """Raise Fatal when the lake has a table whose name differs from `name` in case only."""
        wanted = encode(name)
        for other in self.folders():
            if other.name != wanted and other.name.casefold() == wanted.casefold():
                raise Fatal(
                    f"table {name!r} and the existing table {other.name!r} differ in case only",
                    next_step="Give one of them another name with `into`.",
                )

    def folders(self) -> Iterator[Path]:
        """The folders that hold tables, by name."""
        if self.root.is_dir():
            yield from sorted(p for p in self.root.iterdir() if p.name != HOME and (p / "_delta_log").is_dir())

    def positions(self, pipeline: str, lane: str) -> Path:
        """The folder of a lane's position files."""
        return self._home("positions", pipeline, lane)

    def other_writers(self, lane: Lane) -> list[Path]:
        """The folders of position files of other lanes, of this pipeline or another, that wrote the table of `lane`."""
        own, homes = self.positions(lane.pipeline, lane.id), self.root.joinpath(HOME, "positions").glob("*/*")
        return sorted(home for home in homes if home != own and decode(home.name).partition(".")[2] == lane.into)

    def lock(self, pipeline: str, lane: str) -> Path:
        """The lock file of a lane."""
        folder = self._home("locks", pipeline, lane)
        return folder.with_name(folder.name + ".lock")

    def tombstones(self, table: str) -> Path:
        """The Delta table of a target's remembered deletes."""
        return self._home("tombstones", table)

    def schemas(self, table: str) -> Path:
        """The folder of the source schemas a target was made ready for."""
        return self._home("schemas", table)

    def _home(self, *names: str) -> Path:
        return self.root.joinpath(HOME, names[0], *(encode(n) for n in names[1:]))
