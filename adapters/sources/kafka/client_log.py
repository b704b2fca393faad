"""What librdkafka says of itself."""

from __future__ import annotations

import logging


def _demoted(record: logging.LogRecord) -> bool:
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return True


CLIENT_LOG = logging.getLogger(f"{__package__}.librdkafka")
"""For every client's `logger`. While a broker is away librdkafka tells of each attempt to connect, several a second and as
errors; what it means for the program, the program says itself. So its own words are for those who look for a cause."""
CLIENT_LOG.addFilter(_demoted)
