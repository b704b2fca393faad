"""Shutdown of Kafka clients, even if the broker does not answer."""

from __future__ import annotations

import threading
from typing import Any

PATIENCE = 2.0


def close_consumer(consumer: Any) -> None:
    """Close a consumer; returns after `PATIENCE` seconds at the latest.

    librdkafka waits for the answer to a pending commit. With a broker that hangs, the program would never end. The rest
    of the shutdown ends with the process."""
    closing = threading.Thread(target=consumer.close, name="end of a Kafka consumer", daemon=True)
    closing.start()
    closing.join(PATIENCE)
