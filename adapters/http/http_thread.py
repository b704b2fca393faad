"""An HTTP application in its own thread."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import socket
import threading
import time
from typing import ClassVar

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from replicator.domain.errors import EnvironmentProblem

START_SECONDS = 10.0


def list_local_hosts(address: str) -> list[str]:
    """The host names by which a browser on this machine reaches HOST:PORT. Servers without a token refuse other names, so
    that other sites cannot read them (DNS rebinding)."""
    return ["127.0.0.1", "localhost", "::1", "[::1]", address.rpartition(":")[0], "testserver"]


class ApplicationServer:
    """Serves one application at a time at HOST:PORT. `section`: the config section with the address. `drain`: seconds for
    open requests to finish at the end."""

    def __init__(self, address: str, section: str, drain: int = 5) -> None:
        self._address = address
        self._section = section
        self._drain = drain
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, app: Starlette) -> str:
        """Start serving and return the URL with the actual port. EnvironmentProblem if it cannot listen there."""
        host, _, port = self._address.rpartition(":")
        # Bound here, since uvicorn logs its own error if it cannot bind.
        listeners: list[socket.socket] = []
        try:
            addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, *_, address in addresses:
                listeners.append(socket.create_server(address[:2], family=family))
        except OSError as error:
            for listener in listeners:
                listener.close()
            raise self._cannot_listen_error() from error
        config = uvicorn.Config(
            app,
            # No handlers: uvicorn's records go to the program's log.
            log_config=None,
            log_level="warning",
            access_log=False,
            http=BoundedProtocol,
            # The system accepts as many at once before the protocol sees the first.
            backlog=MOST,
            ws="none",
            timeout_graceful_shutdown=self._drain,
        )
        server = self._server = uvicorn.Server(config)
        thread = self._thread = threading.Thread(target=server.run, args=(listeners,), name=self._section, daemon=True)
        thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            if time.monotonic() > deadline or not thread.is_alive():
                raise self._cannot_listen_error()
            time.sleep(0.01)
        bound = server.servers[0].sockets[0].getsockname()
        return f"http://{host}:{bound[1]}"

    def close(self) -> None:
        """Stop listening, and wait for open requests. A second call does nothing."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(self._drain)
            self._server = None

    def _cannot_listen_error(self) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"cannot listen on {self._address}",
            next_step=f"Another instance may run; set `{self._section}: {{address: ...}}` to a free one.",
        )


def has_token(request: Request, token: str) -> bool:
    """True if the request has the token: `Authorization: Bearer TOKEN`."""
    sent_token = request.headers.get("authorization", "").removeprefix("Bearer ")
    # Starlette decodes headers as latin-1, whatever their bytes.
    return hmac.compare_digest(sent_token.encode("latin-1"), token.encode())


def has_password(request: Request, token: str) -> bool:
    """True if the token is the basic-auth password, with any user name. Only for reads: a browser also sends it with
    requests that other sites start."""
    kind, _, credentials = request.headers.get("authorization", "").partition(" ")
    try:
        _, _, password = base64.b64decode(credentials, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return False
    return kind.lower() == "basic" and hmac.compare_digest(password, token.encode())


# Limits for connections: their number, and the time for a request.

log = logging.getLogger(__name__)

MOST = 100
"""Connections at a time. Each needs a file descriptor, and lanes need some too."""
ARRIVES = 30.0
"""Seconds for a whole request to arrive."""
STALLS = 60.0
"""Seconds without progress after which a client that does not read its answer is cut off."""


class BoundedProtocol(H11Protocol):
    """HTTP protocol with limits that uvicorn lacks: of connections, and of the time to send a request and to read an
    answer. Without them, idle connections could use up the file descriptors of the program. The size of a request's head
    and the time between requests are limited by uvicorn itself."""

    _arrival: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _was_full: ClassVar[bool] = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close a connection above the limit at once."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            tell = log.debug if BoundedProtocol._was_full else log.warning
            tell("%d connections are open, which is the maximum: a new connection was closed.", MOST)
            BoundedProtocol._was_full = True
            transport.abort()
            return
        if len(self.connections) <= MOST // 2:
            # Not as soon as one closes: a client that keeps opening connections would fill the log.
            BoundedProtocol._was_full = False
        self._arrival = self.loop.call_later(ARRIVES, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Start the timer with a request, and stop it when the request is complete."""
        super().data_received(data)
        arriving = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not arriving:
            self._arrived()
        elif self._arrival is None:
            self._arrival = self.loop.call_later(ARRIVES, self.transport.abort)

    def pause_writing(self) -> None:
        """Start the timer for the client to read its answer."""
        super().pause_writing()
        self._watch_answer(None)

    def resume_writing(self) -> None:
        """Stop the timer."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def _watch_answer(self, before: int | None) -> None:
        """Close the connection if as much of the answer is unread as `before`; otherwise look again later."""
        unread = self.transport.get_write_buffer_size()
        if unread == before:
            self.transport.abort()
        else:
            self._stall = self.loop.call_later(STALLS, self._watch_answer, unread)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._arrived()
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)

    def _arrived(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
