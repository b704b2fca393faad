"""Start, search and end of server processes, and the base of their services. Servers outlive the caller, and have a mark
in their command line.

There are no pid files: a pid on disk may be stale or reused. The process list is always right.
"""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from replicator.domain.errors import EnvironmentProblem
from replicator.ports.runtime import ServiceState, ServiceStatus

from .layout import StackHome, StackPorts, is_free

LOG_LIMIT = 20_000_000
POLL_SECONDS = 0.05
ALIVE_SECONDS = 0.5
TAIL_LINES = 15
START_SECONDS = 120.0
STOP_SECONDS = 20


def find_processes(mark: str) -> list[psutil.Process]:
    """The live processes with `mark` as an argument in their command line."""
    return [p for p in psutil.process_iter(["cmdline", "status"]) if mark in (p.info["cmdline"] or ()) and not is_dead(p)]


def is_dead(process: psutil.Process) -> bool:
    """True if the process has ended. Zombies count as ended."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return when no process is in the process list, or after `seconds`. Return those that still are.

    A killed process stays there until its parent has read its exit code, and PostgreSQL does not start before that. This
    polls: `psutil.wait_procs` raises FileNotFoundError in some containers if a process ends while it opens its descriptor.
    """
    deadline = time.monotonic() + seconds
    while (alive := [p for p in processes if not _is_gone(p)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return alive


def _is_gone(process: psutil.Process) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return not process.is_running()


def listened_ports(pid: int) -> set[int]:
    """The TCP ports that the process listens on; empty if the system does not return them."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return set()
    return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}


def spawn_server(argv: Sequence[str], log: Path, *, cwd: Path, env: Mapping[str, str]) -> None:
    """Start a server in its own session, so that the caller's Ctrl-C and end do not stop it. Output goes to `log`."""
    rotate_log(log)
    with log.open("ab") as out:
        subprocess.Popen(  # noqa: S603 - arguments are ours, no shell
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=dict(env), start_new_session=True
        )


def rotate_log(log: Path) -> None:
    """Rotate a large log, and keep one old log. Only before a start, when no process has the file open."""
    log.touch()
    if log.stat().st_size > LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))
        log.touch()


def end_processes(processes: Sequence[psutil.Process], grace: float) -> None:
    """Send SIGTERM, then SIGKILL after `grace` seconds, and return when all have ended."""
    for process in processes:
        _signal(process.terminate)
    kill_processes(wait_until_gone(processes, grace))


def kill_processes(processes: Sequence[psutil.Process]) -> None:
    """Send SIGKILL, and return when all have ended."""
    for process in processes:
        _signal(process.kill)
    if pids := [p.pid for p in wait_until_gone(processes, 10) if not is_dead(p)]:
        raise EnvironmentProblem(f"Processes {pids} do not end.", next_step="Look for a hung disk or a debugger.")


def _signal(send: Callable[[], None]) -> None:
    try:
        send()
    except psutil.NoSuchProcess:
        return


def await_condition(ready: Callable[[], bool], seconds: float, *, alive: Callable[[], bool]) -> bool:
    """Poll until `ready`. False after `seconds`, or earlier if the process is not `alive`."""
    start = time.monotonic()
    looked = start
    while (now := time.monotonic()) - start < seconds:
        if ready():
            return True
        if now - looked > ALIVE_SECONDS:  # a search through all processes of the machine is expensive
            looked = now
            if not alive():
                return ready()
        time.sleep(POLL_SECONDS)
    return False


def require_free(service: str, ports: Mapping[str, int], all_ports: StackPorts) -> None:
    """Raise EnvironmentProblem if another program listens on a port of the service. `all_ports`: the ports by their names in
    REPLICATOR_STACK_PORTS."""
    conflicts = {port: name for name, port in ports.items() if not is_free(port)}
    if conflicts:
        names = {port: name for name, port in all_ports.mapping().items()}
        raise EnvironmentProblem(
            f"{service} cannot start: port {' and '.join(map(str, conflicts))} on 127.0.0.1 is taken by another program.",
            next_step="Stop that program (a Docker stack on the same ports?), or move "
            f"{' and '.join(names.get(port, name) for port, name in conflicts.items())} with REPLICATOR_STACK_PORTS, for "
            "example source=25433,kafka=39092,controller=39093.",
        )


def not_ready_error(service: str, log: Path, seconds: float) -> EnvironmentProblem:
    """The error for a dead or silent server, with the end of its log."""
    return EnvironmentProblem(
        f"{service} is not ready (waited up to {seconds:.0f} s). The end of {log}:\n{read_tail(log)}\n",
        next_step="Fix the problem that the log shows, and start again. Running services are left as they are.",
    )


def read_tail(log: Path) -> str:
    """The last lines of a log; empty if there is none."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return "\n".join(lines[-TAIL_LINES:])


class ProcessService(ABC):
    """One server as a local process that outlives the caller. `name` is unique in a stack; `ports`: by purpose.

    Every method may be called at any time, also by another process than the one that started the service. An earlier
    call may have been killed half-way. Only running processes and files on disk count, never the state of this object: its
    processes are those with its mark in their command line. A service changes nothing outside its own folder and its own
    ports.
    """

    log_file = "server.log"

    def __init__(self, home: StackHome, name: str, ports: Mapping[str, int]) -> None:
        self._home, self.name, self.ports = home, name, ports
        self._mark = home.process_mark(name)

    @property
    def log(self) -> Path:
        """The console output of the server. The file exists once `start` has returned, and may be empty."""
        return self._home.make_subfolder(self.name) / self.log_file

    @abstractmethod
    def start(self) -> None:
        """Start the server; returns before it is healthy. A no-op if it runs.

        Raises `EnvironmentProblem` with one sentence and the next step if a dependency is missing, or if another
        program uses a port.
        """

    @abstractmethod
    def _answers(self) -> bool:
        """True if the server answers."""

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Return once the server answers and its data is initialised. Data is initialised exactly once.

        Raises `EnvironmentProblem` with the end of the log if the server died or did not answer in time.
        """
        if not await_condition(self._answers, seconds, alive=lambda: bool(self._find_processes())):
            raise not_ready_error(self.name, self.log, seconds)

    def status(self) -> ServiceStatus:
        """The current state, read from the server itself: `healthy` if it answers. Returns within about two seconds."""
        running = self._find_processes()
        state = ServiceState.STARTING if running else ServiceState.STOPPED
        if running and self._answers():
            state = ServiceState.HEALTHY
        return ServiceStatus(self.name, state, running[0].pid if running else None, self.ports, self.log)

    def stop(self) -> None:
        """Stop the server cleanly, or by force after a grace period; returns when no process of it is left. Data stays.

        A no-op when stopped.
        """
        end_processes(self._find_processes(), STOP_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL to all its processes; returns when none is left. For fault tests: `start` recovers from it."""
        kill_processes(self._find_processes())

    def _find_processes(self) -> list[psutil.Process]:
        return find_processes(self._mark)


# The logs of several servers.

LOG_POLL_SECONDS = 0.2


def read_logs(files: Mapping[str, Path], *, last: int, follow: bool) -> Iterator[str]:
    """The last lines of every log as `name | line`; with `follow`, then all new lines for ever.

    New and rotated logs are read when they appear.
    """
    tails = [_LogTail(name, path, last) for name, path in files.items()]
    while True:
        for tail in tails:
            yield from tail.new_lines()
        if not follow:
            return
        time.sleep(LOG_POLL_SECONDS)


class _LogTail:
    """A log and its read position."""

    def __init__(self, name: str, path: Path, last: int) -> None:
        self._name, self._path, self._last = name, path, last
        self._file: BinaryIO | None = None
        self._rest = b""

    def new_lines(self) -> Iterator[str]:
        """The complete lines since the last call; at the first call, the last ones."""
        first = self._file is None
        with suppress(FileNotFoundError):
            size = self._path.stat().st_size
            if self._file is None or size < self._file.tell():
                self._file, self._rest = self._path.open("rb"), b""
        if self._file is None:
            return
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines[-self._last :] if first else lines:
            yield f"{self._name} | {line.decode(errors='replace')}"
