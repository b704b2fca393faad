"""What librdkafka says of itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

NAME = f"{__package__}.librdkafka"


def client_log(hide: Callable[[str], str]) -> logging.Logger:
    """For a client's `logger`; `hide` takes secrets out of a text.

    While a broker is away librdkafka tells of each attempt to connect, several a second and as errors; what it means for the
    program, the program says itself. So its own words are for those who look for a cause.
    """

    def tell(record: logging.LogRecord) -> bool:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        record.msg, record.args = hide(record.getMessage()), ()
        return True

    log = logging.Logger(NAME)
    log.parent = logging.getLogger(NAME)
    log.addFilter(tell)
    return log
