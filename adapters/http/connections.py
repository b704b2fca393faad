"""Limits for connections of an HTTP server: their number, and the time for a request."""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

MOST = 100
"""Connections at a time. Each needs a file descriptor, and lanes need some too."""
ARRIVES = 30.0
"""Seconds for a whole request to arrive."""


class BoundedProtocol(H11Protocol):
    """HTTP protocol with two limits that uvicorn lacks: the number of connections, and the time for a request to arrive.
    Without them, idle connections could use up the file descriptors of the program. The size of a request's head and the
    time between requests are limited by uvicorn itself."""

    _arrival: asyncio.TimerHandle | None = None
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

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._arrived()
        super().connection_lost(exc)

    def _arrived(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
