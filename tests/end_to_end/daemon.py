"""`replicator run` as a separate process, observed through its status page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.request import urlopen

T = TypeVar("T")
PROGRAM = str(Path(sys.executable).with_name("replicator"))
PATIENCE = 90.0
LOG_LINES = 15


class Daemon:
    """A running daemon. Every failed wait shows the end of its log file."""

    def __init__(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path, address: str) -> None:
        self.log = log
        self.address = address
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def page(self, path: str) -> str:
        with urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def status(self) -> dict[str, Any] | None:
        """The status page, or None while the daemon does not answer."""
        try:
            return dict(json.loads(self.page("/status.json")))
        except (URLError, OSError):
            return None

    def lanes(self) -> dict[str, dict[str, Any]]:
        return {lane["id"]: lane for lane in (self.status() or {"lanes": ()})["lanes"]}

    def lane(self, name: str) -> dict[str, Any]:
        """The status of one lane. Empty while the daemon does not list it."""
        return self.lanes().get(name, {"status": "", "position": {}, "error": "", "next_step": ""})

    def metrics(self) -> dict[str, float]:
        """Every sample of the metrics page, by its name with labels."""
        lines = [line for line in self.page("/metrics").splitlines() if line and not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def await_condition(self, condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
        """Waits for a true value of `condition`, and returns it. Fails when the daemon ends meanwhile."""
        return await_condition(condition, what, seconds, failing=self._describe_exit)

    def await_status(self, lane: str, *wanted: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Waits for one of these states, and returns the lane's report."""
        self.await_condition(lambda: self.lane(lane)["status"] in wanted, f"{lane} is {' or '.join(wanted)}", seconds)
        return self.lane(lane)

    def await_running(self, *names: str) -> None:
        """Waits until these lanes, or all, run without an error. A lane that has applied its last row may still catch
        up. A lane that was suspended reports it until its batch ends."""

        def run() -> bool:
            lanes = self.lanes()
            well = {name for name, lane in lanes.items() if (lane["status"], lane["error"]) == ("running", None)}
            return bool(well) and well.issuperset(names or lanes)

        self.await_condition(run, "the lanes run")

    def _describe_exit(self) -> str:
        return "" if self.alive else f"the daemon ended with exit code {self.process.returncode}:\n{self.tail()}"

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def abort(self) -> str:
        """Ends the process. Returns the end of its log, and what each of its threads did."""
        log = self.tail()
        self.process.send_signal(signal.SIGABRT)
        self.wait()
        traces = self.log.read_text(errors="replace").rpartition("Fatal Python error: Aborted")[2].splitlines()
        own = [line for line in traces if "Thread" in line or ("File" in line and "/lib/python" not in line)]
        return "\n".join([log, *own])

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


def await_condition(
    condition: Callable[[], T], what: str, seconds: float = PATIENCE, *, failing: Callable[[], str] = lambda: ""
) -> T:
    """Waits for a true value of `condition`, and returns it. Fails at once when `failing` returns a reason."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        why = failing()
        assert not why, f"{what}: {why}"
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)
    return value
