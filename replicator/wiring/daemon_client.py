"""Finds the running daemon of a configuration, reads its status, and sends it commands."""

from __future__ import annotations

import json
import os
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import msgspec

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ExitCode, Fatal
from replicator.domain.position import Position
from replicator.settings import Loaded

from .adapters import get_state_folder

FILE = "page.json"


class PageAddress(msgspec.Struct, frozen=True):
    """The address of a running daemon's page, and its token."""

    url: str
    token: str
    pid: int


def get_plain_token(token: Any) -> str:
    """The text of a token. Empty without one."""
    return token.get_secret_value() if hasattr(token, "get_secret_value") else token or ""


def list_pages(loaded: Loaded) -> list[PageAddress]:
    """Possible addresses of the daemon's page, the best first. Only the answer proves which daemon it is, because a
    killed daemon leaves its file."""
    http = loaded.settings.http
    configured = PageAddress(f"http://{http.address}", get_plain_token(http.token), 0)
    written = read_page(get_state_folder(loaded) / FILE)
    return [configured] if written is None else [written, configured]


def read_page(path: Path) -> PageAddress | None:
    """The address that a running daemon has written; None without one."""
    try:
        address = msgspec.json.decode(path.read_bytes(), type=PageAddress)
        os.kill(address.pid, 0)
    except (OSError, msgspec.MsgspecError):
        return None
    return address if address.url.startswith("http://") else None


ASK_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""Seconds that a command waits for its lane, whose sink may be writing a batch."""
SWAP_SECONDS = 3_600.0
"""Seconds that a command waits for a lane that writes a whole table."""


def get_timeout(action: str) -> float:
    """The seconds that the daemon has to answer a lane command."""
    return SWAP_SECONDS if action == "swap" else ANSWER_SECONDS


def ask_status(loaded: Loaded) -> dict[str, Any] | None:
    """The status of the daemon of this configuration. None if none runs."""
    page = _find_page(loaded)
    return None if page is None else page[1]


def resolve_state_folder(loaded: Loaded) -> str:
    """The absolute path of the state folder, which differs between daemons."""
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
        if page.pid or answer.get("state", resolve_state_folder(loaded)) == resolve_state_folder(loaded):
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
    if _request_json(page[0], path, method="POST", seconds=get_timeout(action) + ASK_SECONDS) is None:
        # Not False: without a daemon the caller would change the targets, but this daemon runs.
        raise EnvironmentProblem(
            f"The daemon did not confirm the command for lane {lane}.",
            next_step="See `replicator status`, then repeat the command.",
        )
    return True


def parse_position(text: str) -> Position:
    """A position from `{"topic": {"partition": offset}}`, as in `status --json`, or from `topic:partition:offset,...`."""
    try:
        is_json = text.lstrip().startswith("{")
        position = Position.from_json(json.loads(text)) if is_json else Position.from_option(text)
        if not position:
            raise ValueError("no partition is named")
    except (ValueError, AttributeError, TypeError) as wrong:
        raise ConfigProblem(f"{text!r} is not a position", next_step="Write TOPIC:PARTITION:OFFSET[,...].") from wrong
    return position


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
        try:
            refusal = json.load(refused)
            error = Fatal(str(refusal["error"]), next_step=str(refusal.get("next_step", "")))
            error.exit_code = ExitCode(refusal.get("code", ExitCode.RUNTIME))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # It is another program.
        raise error from refused
    except (URLError, HTTPException, OSError, ValueError):
        return None
