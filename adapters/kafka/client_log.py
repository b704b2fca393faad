"""The log of librdkafka."""

from __future__ import annotations

import logging
from collections.abc import Callable

NAME = f"{__package__}.librdkafka"


def client_log(hide: Callable[[str], str]) -> logging.Logger:
    """A logger for a client's `logger` setting. `hide` removes secrets from a text.

    All records have level DEBUG. While a broker is down, librdkafka logs each connection attempt as an error, several per
    second. The program logs the outage itself.
    """

    def tell(record: logging.LogRecord) -> bool:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        record.msg, record.args = hide(record.getMessage()), ()
        return True

    log = logging.Logger(NAME)
    log.parent = logging.getLogger(NAME)
    log.addFilter(tell)
    return log
