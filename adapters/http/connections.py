"""Connections of an HTTP server, bounded in number and in time."""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

MOST = 100
"""Connections at a time. Each takes a file descriptor, and lanes need theirs."""
ARRIVES = 30.0
"""Seconds within which a request has to arrive whole."""


class BoundedProtocol(H11Protocol):
    """uvicorn bounds the size of a request's head and the time between two requests, but neither the number of connections
    nor the time that a request takes to arrive. Whoever opens connections and sends nothing could keep the program from
    opening files."""

    _arrival: asyncio.TimerHandle | None = None
    _was_full: ClassVar[bool] = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close one connection too many at once."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            tell = log.debug if BoundedProtocol._was_full else log.warning
            tell("%d connections are open, which is the most: a new one was closed.", MOST)
            BoundedProtocol._was_full = True
            transport.abort()
            return
        if len(self.connections) <= MOST // 2:
            # Not at the first free place: who opens connections all the time would fill the log.
            BoundedProtocol._was_full = False
        self._arrival = self.loop.call_later(ARRIVES, transport.abort)

    def data_received(self, data: bytes) -> None:
        """A request begins, goes on, or is there."""
        super().data_received(data)
        arriving = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not arriving:
            self._arrived()
        elif self._arrival is None:
            self._arrival = self.loop.call_later(ARRIVES, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._arrived()
        super().connection_lost(exc)

    def _arrived(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
