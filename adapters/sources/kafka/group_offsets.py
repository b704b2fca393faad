"""Offsets of the consumer group, for people and lag tools. The program never reads them."""

from __future__ import annotations

import logging
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from replicator.domain.position import Position

from ...kafka.client_log import client_log
from ...kafka.shutdown import close_consumer
from .options import KafkaOptions

log = logging.getLogger(__name__)
PATIENCE = 2.0


class GroupOffsets:
    """Commits without joining the group, so that no rebalance happens. A failed commit is only logged."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._consumer: Consumer | None = None
        self._sent: dict[tuple[str, int], int] = {}
        self._waiting = 0
        self._failing = False

    def commit(self, position: Position) -> None:
        """Send offsets that changed since the last call. Later calls read the answer."""
        self._serve(0)
        changed = [KafkaPartition(*p, offset) for p, offset in position.items() if self._sent.get(p) != offset]
        if not changed:
            return
        try:
            self._connect().commit(offsets=changed, asynchronous=True)
        except KafkaException as error:
            self._log_failure(error)
            return
        self._waiting += 1
        self._sent.update({(p.topic, p.partition): p.offset for p in changed})

    def _connect(self) -> Consumer:
        if self._consumer is None:
            settings: dict[str, Any] = {**self._options.consumer(), "on_commit": self._note_answer, "error_cb": self._ignore}
            self._consumer = Consumer(settings, logger=client_log(self._options.hide_secrets))
        return self._consumer

    def _note_answer(self, error: KafkaError | None, partitions: list[KafkaPartition]) -> None:
        self._waiting -= 1
        failed = error or next((p.error for p in partitions if p.error), None)
        if failed:
            self._sent.clear()
            self._log_failure(failed)
        else:
            self._failing = False

    def _log_failure(self, error: KafkaError | KafkaException) -> None:
        """Log the first of consecutive failures."""
        tell = log.debug if self._failing else log.warning
        tell("Group offsets of %s were not published: %s", self._options.group_id, self._options.hide_secrets(str(error)))
        self._failing = True

    def _serve(self, seconds: float) -> None:
        """Read available answers; wait up to `seconds` for missing ones."""
        until = time.monotonic() + seconds
        while self._consumer is not None and self._waiting > 0:
            self._consumer.poll(min(0.1, seconds))
            if time.monotonic() >= until:
                return

    def close(self) -> None:
        """Wait up to `PATIENCE` seconds for answers, and close the connection."""
        self._serve(PATIENCE)
        if self._consumer is not None:
            close_consumer(self._consumer)
            self._consumer = None

    def _ignore(self, error: KafkaError) -> None:
        """Connection errors are handled and reported where records are read."""
        log.debug("Group connection: %s", self._options.hide_secrets(str(error)))
