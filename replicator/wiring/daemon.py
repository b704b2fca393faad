"""The running daemon: its page with views and commands, and the client that other commands use."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import msgspec

from replicator.application.control import Control
from replicator.application.operations.checkpoint_schedule import CheckpointScheduler
from replicator.application.operations.diff_runs import report_runs
from replicator.application.operations.rebuild import swap_from_text
from replicator.application.operations.refresh import ProjectionScheduler
from replicator.application.operations.status import StatusReporter
from replicator.application.problem import Stopped
from replicator.domain.errors import ACCEPT_MISSING, ConfigProblem, EnvironmentProblem, ExitCode, Fatal
from replicator.domain.position import Position
from replicator.ports.runtime import Server, Views
from replicator.settings import Loaded
from replicator.settings.plugins import load_adapter
from replicator.wiring import adapters

from .adapters import get_state_folder
from .build import digest_lane

# The daemon's page, and the file with its address for other commands.

FILE = "page.json"
ANY_PORT = "127.0.0.1:0"


class PageAddress(msgspec.Struct, frozen=True):
    """The address of a running daemon's page, and its token."""

    url: str
    token: str
    pid: int


class DaemonPage:
    """`ports.runtime.Server`: the page at `http.address`.

    If that address is in use, the page gets a free port of this machine, so that commands still reach the daemon.
    `taken` is the reason for the other port. `hidden` is the reason why commands cannot find it there.
    """

    def __init__(self, loaded: Loaded, telemetry: Any) -> None:
        self._options, self._telemetry = adapters.list_options(loaded.settings.http), telemetry
        self._path = adapters.get_state_folder(loaded) / FILE
        self._monitor: Server[Views] | None = None
        self.taken: EnvironmentProblem | None = None
        self.hidden: EnvironmentProblem | None = None

    def start(self, views: Views) -> str:
        """Call it while the lock of the instance is held."""
        options = self._options
        try:
            url = self._start_monitor(options, views)
        except EnvironmentProblem as problem:
            self.taken = problem
            options = {"address": ANY_PORT, "token": secrets.token_urlsafe(32)}
            url = self._start_monitor(options, views)
        self._write_address(PageAddress(url, _get_plain_token(options.get("token")), os.getpid()))
        return url

    def _start_monitor(self, options: Mapping[str, Any], views: Views) -> str:
        self._monitor = load_adapter("replicator.monitors", "page")(options, self._telemetry)
        return self._monitor.start(views)

    def _write_address(self, address: PageAddress) -> None:
        """Without this file, commands use `http.address`."""
        try:
            self._path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(self._path, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(address))
        except OSError as error:
            if address.url != f"http://{self._options['address']}":
                self.hidden = EnvironmentProblem(
                    f"Commands such as `status` do not find the daemon: {self._path} cannot be written ({error.strerror})",
                    next_step=f"Let user {os.geteuid()} write there, and restart the daemon.",
                )

    def close(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        if self._monitor is not None:
            self._monitor.close()


def _get_plain_token(token: Any) -> str:
    return token.get_secret_value() if hasattr(token, "get_secret_value") else token or ""


def list_pages(loaded: Loaded) -> list[PageAddress]:
    """Possible addresses of the daemon's page, the best first. Only the answer proves which daemon it is, because a
    killed daemon leaves its file."""
    http = loaded.settings.http
    configured = PageAddress(f"http://{http.address}", _get_plain_token(http.token), 0)
    written = read_page(adapters.get_state_folder(loaded) / FILE)
    return [configured] if written is None else [written, configured]


def read_page(path: Path) -> PageAddress | None:
    """The address that a running daemon has written; None without one."""
    try:
        address = msgspec.json.decode(path.read_bytes(), type=PageAddress)
        os.kill(address.pid, 0)
    except (OSError, msgspec.MsgspecError):
        return None
    return address if address.url.startswith("http://") else None


# The running daemon: the views and commands of its page, and the client that other commands use.

ASK_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""Seconds that a command waits for its lane, whose sink may be writing a batch."""
SWAP_SECONDS = 3_600.0
"""Seconds that a command waits for a lane that writes a whole table."""
ALIVE_SECONDS = 60.0
HEALTHY_STATUSES = ("running", "catching_up", "starting")


def build_views(
    loaded: Loaded,
    status: StatusReporter[Any],
    control: Control[Any],
    pulse: Callable[[], float],
    *,
    projections: ProjectionScheduler,
    checkpoints: CheckpointScheduler,
) -> Views:
    """The views and commands of the page. `pulse`: the time (monotonic) of the last activity of a pipeline."""

    read = _hash_config_files(loaded)

    def report() -> dict[str, Any]:
        report = status.report().to_dict()
        unready = [
            f"lane {lane['id']} is {lane['status']}" for lane in report["lanes"] if lane["status"] not in HEALTHY_STATUSES
        ]
        unready += [] if report["lanes"] else ["no lane has begun"]
        state = {"running": True, "ready": not unready, "unready": unready}
        now = _hash_config_files(loaded)
        config = {"files": list(now), "changed": [file for file, digest in now.items() if digest != read[file]]}
        more = {"config": config, "projections": projections.report(), "snapshots": checkpoints.report()}
        more["comparisons"] = report_runs(get_state_folder(loaded), [lane["id"] for lane in report["lanes"]])
        return {"pipeline": loaded.settings.pipeline, "state": _get_state_folder(loaded), **state, **report, **more}

    def command(action: str, lane: str, until: str | None) -> None:
        commands: Mapping[str, Callable[[], Future[None] | None]] = {
            "pause": lambda: control.pause(lane),
            "resume": lambda: control.resume(lane, parse_number(until) if until else None),
            "resync": lambda: control.resync(lane, accept_missing=is_missing_accepted(until)),
            "skip": lambda: control.skip(lane, parse_position(until) if until else None),
            "swap": lambda: control.swap(lane, _parse_swap(loaded, lane, until or "")),
        }
        if action not in commands:
            raise ConfigProblem(f"there is no action {action!r}", next_step=f"There are: {', '.join(commands)}.")
        await_answer(commands[action], lane, _get_timeout(action))

    return Views(report, lambda: time.monotonic() - pulse() < ALIVE_SECONDS, command)


def _hash_config_files(loaded: Loaded) -> dict[str, str]:
    """A digest of each config file; empty for an unreadable one."""
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "" for file in loaded.files}


def await_answer(command: Callable[[], Future[None] | None], lane: str, seconds: float = ANSWER_SECONDS) -> None:
    """Wait for the result of a command. Raises its error, or EnvironmentProblem without an answer in time."""
    try:
        outcome = command()
        if outcome is not None:
            outcome.result(seconds)
    except TimeoutError:
        raise EnvironmentProblem(
            f"Lane {lane} has not answered within {seconds:.0f} s. The command runs as soon as it does.",
            next_step="`replicator status` shows what it waits for.",
        ) from None
    except Stopped:
        raise EnvironmentProblem("The daemon is ending.", next_step="Repeat the command when it has ended.") from None


def _get_timeout(action: str) -> float:
    return SWAP_SECONDS if action == "swap" else ANSWER_SECONDS


def _parse_swap(loaded: Loaded, lane: str, words: str) -> str:
    """The target in a `rebuild.swap_to_text`. ConfigProblem if this process has another configuration."""
    swap = swap_from_text(words)
    for one in loaded.settings.resolve_lanes(swap.table):
        if f"{one.sink}.{one.into}" == lane and digest_lane(loaded, one) == swap.digest:
            return swap.into
    raise ConfigProblem(
        f"the daemon runs with another configuration than the command that rebuilt {lane}",
        next_step="Stop the daemon, repeat the command, and start the daemon again.",
    )


def parse_number(text: str) -> int:
    """The number of a schema."""
    if not text.isdecimal():
        raise ConfigProblem(
            f"{text!r} is not the number of a schema", next_step="`replicator schema history TABLE` shows the numbers."
        )
    return int(text)


def is_missing_accepted(text: str | None) -> bool:
    """True if a resync accepts that rows will be missing."""
    if text not in (None, "", ACCEPT_MISSING):
        raise ConfigProblem(f"a resync cannot accept {text!r}", next_step=f"It can accept: {ACCEPT_MISSING}.")
    return text == ACCEPT_MISSING


def parse_position(text: str) -> Position:
    """A position from `{"topic": {"partition": offset}}`, as in `status --json`, or from `topic:partition:offset,...`."""
    try:
        if text.lstrip().startswith("{"):
            return _require_partitions(Position.from_json(json.loads(text)))
        data: dict[str, dict[str, int]] = {}
        for item in text.split(","):
            topic, partition, offset = item.strip().rsplit(":", 2)
            data.setdefault(topic, {})[partition] = int(offset)
        return Position.from_json(data)
    except (ValueError, AttributeError, TypeError) as wrong:
        raise ConfigProblem(f"{text!r} is not a position", next_step="Write TOPIC:PARTITION:OFFSET[,...].") from wrong


def _require_partitions(position: Position) -> Position:
    if not position:
        raise ValueError("no partition is named")
    return position


def ask_status(loaded: Loaded) -> dict[str, Any] | None:
    """The status of the daemon of this configuration. None if none runs."""
    page = _find_page(loaded)
    return None if page is None else page[1]


def _get_state_folder(loaded: Loaded) -> str:
    return str(get_state_folder(loaded).resolve())


def _find_page(loaded: Loaded) -> tuple[PageAddress, dict[str, Any]] | None:
    """The page of the daemon of this configuration, and its status.

    Another program may use its port, or the daemon of another configuration with the same pipeline name, but
    another state folder.
    """
    for page in list_pages(loaded):
        try:
            answer = _request_json(page, "/status.json")
        except Fatal:
            if page.pid:
                continue
            raise
        if answer is None or answer.get("pipeline") != loaded.settings.pipeline:
            continue
        if page.pid or answer.get("state", _get_state_folder(loaded)) == _get_state_folder(loaded):
            return page, answer
    return None


def ask_metrics(loaded: Loaded) -> list[str]:
    """The lines of the daemon's metrics. Empty if none runs."""
    page = _find_page(loaded)
    if page is None:
        return []
    try:
        with _open_page(page[0], "/metrics") as response:
            return list(response.read().decode().splitlines())
    except (URLError, HTTPException, OSError, ValueError):
        return []


def ask_control(loaded: Loaded, action: str, lane: str, until: str | None) -> bool:
    """Send a lane command to the daemon. False if none runs. Raises the daemon's error."""
    page = _find_page(loaded)
    if page is None:
        return False
    query = urlencode({"action": action, **({"until": until} if until else {})})
    path = f"/lanes/{quote(lane)}?{query}"
    if _request_json(page[0], path, method="POST", seconds=_get_timeout(action) + ASK_SECONDS) is None:
        # Not False: without a daemon the caller would change the targets, but this daemon runs.
        raise EnvironmentProblem(
            f"The daemon did not confirm the command for lane {lane}.",
            next_step="See `replicator status`, then repeat the command.",
        )
    return True


OUTCOME_SECONDS = 10.0
"""Maximum seconds that a command watches a lane before it reports the lane's status."""
SETTLED_STATUSES = frozenset({"running", "paused", "retrying", "suspended"})
"""Statuses of a lane that has caught up or has stopped."""


def await_outcome(loaded: Loaded, lane_id: str, seconds: float = OUTCOME_SECONDS) -> str:
    """The status of a lane of the running daemon, after it has caught up or stopped, at the latest after `seconds`.

    Fatal with the reason if the lane is suspended. Empty if no daemon runs.
    """
    until = time.monotonic() + seconds
    while True:
        status = ask_status(loaded)
        lane = next((one for one in status["lanes"] if one["id"] == lane_id), None) if status else None
        if lane is None:
            return ""
        if lane["status"] == "suspended":
            error = Fatal(f"Lane {lane_id} is suspended again: {lane['error']}", next_step=lane["next_step"] or "")
            error.exit_code = ExitCode(lane["exit_code"] or ExitCode.RUNTIME)
            raise error
        if lane["status"] in SETTLED_STATUSES or time.monotonic() > until:
            return str(lane["status"])
        time.sleep(0.1)


def _open_page(page: PageAddress, path: str, method: str = "GET", seconds: float = ASK_SECONDS) -> Any:
    headers = {"X-Replicator": "cli"}
    if page.token:
        headers["Authorization"] = f"Bearer {page.token}"
    request = Request(f"{page.url}{path}", headers=headers, method=method)  # noqa: S310
    return urlopen(request, timeout=seconds)  # noqa: S310


def _request_json(page: PageAddress, path: str, method: str = "GET", seconds: float = ASK_SECONDS) -> dict[str, Any] | None:
    try:
        with _open_page(page, path, method, seconds) as response:
            answer: dict[str, Any] = json.load(response)
            return answer if isinstance(answer, dict) else None
    except HTTPError as refused:
        raise _make_refusal(refused) from refused
    except (URLError, HTTPException, OSError, ValueError):
        return None


def _make_refusal(refused: HTTPError) -> Fatal:
    try:
        refusal = json.load(refused)
        error = Fatal(str(refusal["error"]), next_step=str(refusal.get("next_step", "")))
        error.exit_code = ExitCode(refusal.get("code", ExitCode.RUNTIME))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Fatal(f"the daemon answered {refused.code} {refused.reason}")
    return error
