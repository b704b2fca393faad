"""Requests to a broker, whose failures are the program's own errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from .clients import ClientOptions
from .errors import is_access_denied, unwrap_error


class Requests:
    """Requests of one user's clients. Several threads may share it."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._denied: KafkaError | None = None
        self._denied_at = 0.0
        self._failing_since: float | None = float("-inf")

    def note_error(self, error: KafkaError) -> None:
        """For a client's `error_cb`, which gets errors outside any request: keeps one that says why access is denied."""
        if is_access_denied(error):
            self._denied, self._denied_at = error, time.monotonic()

    @contextmanager
    def request(self, doing: str, poll: Callable[[], object]) -> Iterator[None]:
        """Errors of a request, which is met while `doing`, as the program's own.

        A request of a client that is denied access times out. The client reports the reason to `error_cb` alone, when `poll`
        is called, and the same reason again after 30 seconds at the earliest. So a reason counts that came since requests
        began to fail; before the first success, any. An older one is of an outage that has passed.
        """
        poll()  # What the client reports here it met before this request.
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
