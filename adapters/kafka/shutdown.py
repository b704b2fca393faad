"""The end of Kafka clients, also while the broker gives no answer."""

from __future__ import annotations

import threading
from typing import Any

PATIENCE = 2.0


def close_consumer(consumer: Any) -> None:
    """Close a consumer; returns after `PATIENCE` seconds at the latest.

    librdkafka waits for the answer to a commit that is on its way, and a broker that hangs gives none: the program would
    never end. What is left by then ends with the process."""
    closing = threading.Thread(target=consumer.close, name="end of a Kafka consumer", daemon=True)
    closing.start()
    closing.join(PATIENCE)
