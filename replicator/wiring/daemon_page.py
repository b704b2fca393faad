"""The daemon's page, and the file with its address for other commands."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from replicator.domain.errors import EnvironmentProblem
from replicator.ports.runtime import Server, Views
from replicator.settings import Loaded
from replicator.settings.plugins import load_adapter

from . import adapters

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
        except EnvironmentProblem as taken:
            self.taken = taken
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
        found = msgspec.json.decode(path.read_bytes(), type=PageAddress)
        os.kill(found.pid, 0)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.url.startswith("http://") else None
