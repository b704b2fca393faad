"""Requests to a broker that fail with the program's own errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from .clients import ClientOptions
from .errors import is_access_denied, unwrap_error


class Requests:
    """Requests of clients with the same options. Threads may share it."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._denied: KafkaError | None = None
        self._denied_at = 0.0
        self._failing_since: float | None = float("-inf")

    def note_error(self, error: KafkaError) -> None:
        """Store an error that explains a denied access. For a client's `error_cb`, which gets errors outside requests."""
        if is_access_denied(error):
            self._denied, self._denied_at = error, time.monotonic()

    @contextmanager
    def request(self, doing: str, poll: Callable[[], object]) -> Iterator[None]:
        """Raise the errors of a request as the program's own. `doing`: the action, for messages.

        If access is denied, the request times out. The client reports the reason only to `error_cb`, during `poll`, and
        repeats the same reason after 30 seconds at the earliest. So a reason counts if it came after requests began to
        fail, or before the first success. Older reasons belong to an earlier outage.
        """
        poll()  # The client reports errors from before this request here.
        began = time.monotonic()
        try:
            yield
        except (KafkaException, TimeoutError) as error:
            found = unwrap_error(error) if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
            since = self._failing_since = self._failing_since or began
            poll()
            denied, self._denied = self._denied, None
            if denied is not None and self._denied_at >= since and not is_access_denied(found):
                found = denied
            raise self._options.translate_error(found, doing) from None
        self._denied = self._failing_since = None
