"""An application over HTTP, in a thread of its own."""

from __future__ import annotations

import base64
import binascii
import hmac
import socket
import threading
import time
from functools import partial

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request

from replicator.domain.errors import EnvironmentProblem

from . import connections
from .connections import BoundedProtocol

START_SECONDS = 10.0


def list_local_hosts(address: str) -> list[str]:
    """The names under which a browser on this machine reaches HOST:PORT. A page on another site must not read what has no
    token under its own host name (DNS rebinding)."""
    return ["127.0.0.1", "localhost", "::1", "[::1]", address.rpartition(":")[0], "testserver"]


class ApplicationServer:
    """Serves one application at a time at HOST:PORT; `section` of the config says the address. `drain`: seconds that
    requests which have begun get at the end."""

    def __init__(self, address: str, section: str, drain: int = 5) -> None:
        self._address = address
        self._section = section
        self._drain = drain
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, app: Starlette) -> str:
        """Begin to serve; the address with the port that it has. EnvironmentProblem when it cannot be listened on."""
        host, _, port = self._address.rpartition(":")
        listeners = self._open_listeners(host.strip("[]"), int(port))
        config = uvicorn.Config(
            app,
            # No handlers of its own: what it logs goes where the program's log goes.
            log_config=None,
            log_level="warning",
            access_log=False,
            http=BoundedProtocol,
            # As many are accepted at once, before the first of them is looked at.
            backlog=connections.MOST,
            ws="none",
            timeout_graceful_shutdown=self._drain,
        )
        self._server = uvicorn.Server(config)
        serve = partial(self._serve, listeners)
        self._thread = threading.Thread(target=serve, name=self._section, daemon=True)
        self._thread.start()
        self._await_start()
        bound = self._server.servers[0].sockets[0].getsockname()
        return f"http://{host}:{bound[1]}"

    def close(self) -> None:
        """Listen no more, and wait for requests that have begun; may be called twice."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(self._drain)
            self._server = None

    def _open_listeners(self, host: str, port: int) -> list[socket.socket]:
        """Sockets that listen; bound here, since uvicorn logs an error of its own where it cannot bind."""
        found: list[socket.socket] = []
        try:
            for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
                found.append(socket.create_server(address[:2], family=family))
        except OSError as error:
            for listener in found:
                listener.close()
            raise self._cannot_listen_error() from error
        return found

    def _serve(self, listeners: list[socket.socket]) -> None:
        if self._server is not None:
            self._server.run(listeners)

    def _cannot_listen_error(self) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"cannot listen on {self._address}",
            next_step=f"Another instance may run; set `{self._section}: {{address: ...}}` to a free one.",
        )

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self._server is not None and not self._server.started:
            if time.monotonic() > deadline or not (self._thread and self._thread.is_alive()):
                raise self._cannot_listen_error()
            time.sleep(0.01)


def has_token(request: Request, token: str) -> bool:
    """True when the request carries the token: `Authorization: Bearer TOKEN`."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    # Starlette reads the bytes of headers so, whatever they are.
    return hmac.compare_digest(given.encode("latin-1"), token.encode())


def has_password(request: Request, token: str) -> bool:
    """True when a browser's user gave the token as password, under any name. For what only reads: a browser sends it again
    whoever asks it to."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    try:
        _, _, password = base64.b64decode(given, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return False
    return kind.lower() == "basic" and hmac.compare_digest(password, token.encode())
