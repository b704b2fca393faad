"""PostgreSQL as a local process: one cluster per database of the stack."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import psutil
import psycopg

from replicator.domain.errors import EnvironmentProblem
from replicator.ports.service import ServiceState, ServiceStatus
from replicator.shipped import find_shipped

from .layout import DATABASES, HOST, SUPERUSER, SUPERUSER_PASSWORD, StackDatabase, StackHome
from .postgres_init import initialise
from .postgres_install import Installation, choose_installation, make_reachable, own_folder, server_user, shared_path
from .processes import await_condition, kill_processes, not_ready_error, read_tail, require_free, rotate_log, wait_until_gone

START_SECONDS = 60
STOP_SECONDS = 20
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


class PostgresService:
    """`Service` of one PostgreSQL cluster. It is `healthy` if it answers. `wait` also applies its init script."""

    def __init__(self, home: StackHome, database: StackDatabase, *, installation: Installation | None = None) -> None:
        self._home = home
        self._database = database
        self._installation = installation

    @property
    def name(self) -> str:
        """`postgres-source`, `postgres-datalake` or `postgres-target`."""
        return f"postgres-{self._database.name}"

    @property
    def ports(self) -> Mapping[str, int]:
        """One: `sql`."""
        return {"sql": self._port}

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._folder() / "server.log"

    @property
    def data(self) -> Path:
        """The cluster's data folder."""
        return self._folder() / "data"

    def start(self) -> None:
        """Start the server; create the cluster if there is none."""
        self._make_folder()
        if self._postmaster() is not None:
            return
        try:
            self._launch()
        except EnvironmentProblem:
            # Another start was first. Its `pg_ctl` may still run, even if its caller was killed. `wait` reports the result.
            if self._postmaster() is None:
                raise

    def wait(self, seconds: float = START_SECONDS) -> None:
        if not await_condition(self._answers, seconds, alive=lambda: self._postmaster() is not None):
            raise not_ready_error(self.name, self.log, seconds)
        initialise(self._database, self._port, find_shipped(f"init-scripts/{self._database.init_script}"))

    def status(self) -> ServiceStatus:
        server = self._postmaster()
        state = ServiceState.STOPPED if server is None else ServiceState.STARTING
        if server is not None and self._answers():
            state = ServiceState.HEALTHY
        return ServiceStatus(self.name, state, server.pid if server else None, self.ports, self.log)

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
    def _port(self) -> int:
        return int(self._home.ports.mapping()[self._database.name])

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

    def _make_folder(self) -> None:
        """Create the folder. If it is outside the home and a user has deleted the home, delete the old cluster first."""
        folder, link = self._folder(), self._home_folder / "elsewhere"
        if not self._is_in_home and not link.is_symlink():
            self.kill()
            own_folder(self._shared_name)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o755)
            link.symlink_to(folder)

    def _binaries(self) -> Installation:
        version = self.data / "PG_VERSION"
        major = int(version.read_text()) if version.is_file() else None
        chosen = self._installation
        if chosen is None or major not in (None, chosen.major):
            chosen = choose_installation(major)
        return make_reachable(chosen, server_user())

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

    def _launch(self) -> None:
        require_free(self.name, self.ports, self._home.ports)
        if not self.data.is_dir():
            self._create()
        rotate_log(self.log)
        server_user().take_ownership(self.log)
        self._remove_reused_pid()
        self._pg_ctl("start", "-w", "-t", str(START_SECONDS), "-l", str(self.log), "-o", f"-p {self._port}")

    def _pg_ctl(self, verb: str, *options: str) -> None:
        self._run("pg_ctl", verb, "-D", str(self.data), *options)

    def _run(self, program: str, *options: str) -> None:
        # A file, not a pipe: the server inherits the descriptor and would keep a pipe open.
        with tempfile.TemporaryFile("w+") as out:
            done = subprocess.run(  # noqa: S603
                [self._binaries().program(program), *options],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", check=False, env=_environment(),
                **server_user().popen_options(),
            )  # fmt: skip
            if done.returncode != 0:
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
            return server if _is_serving(server.cmdline(), self.data) else None
        except (OSError, ValueError, psutil.Error):
            return None

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


def _is_serving(cmdline: Sequence[str], data: Path) -> bool:
    return any(Path(argument) == data for argument in cmdline)


def _environment() -> Mapping[str, str]:
    """The caller's variables, without those that change how PostgreSQL starts."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG") and name != "LC_ALL"}
