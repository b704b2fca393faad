"""Creates the topic of dead letters, writes it, reads it from its beginning, and deletes its oldest messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, admin
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition as KafkaPartition

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Retryable

from ...kafka.client_log import client_log
from ...kafka.errors import OFFSETS, is_transient, unwrap_error
from ...kafka.requests import Requests
from ...kafka.shutdown import close_consumer
from .messages import DeadLetterMessage, Header
from .options import LARGEST, TopicOptions

TIMEOUT = 10.0
"""The time limit of one request, and for the next message of a topic, in seconds."""
PARTITION = 0
"""All messages are in this partition, also if the topic gets more: the order of a dead letter's messages counts."""
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": str(LARGEST)}
"""Settings of a topic that is created here. Only a purge deletes dead letters."""
CHUNK = 500
ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


class TopicTruncated(Retryable):
    """Records of the topic were deleted while it was read or truncated, or the topic was created again."""


class DeadLetterTopic:
    """Not for use by several threads. Raises the program's own errors."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self.name = options.topic
        self._log = client_log(options.hide_secrets)
        self._requests = Requests(options)
        self._producer: Any = None
        self._admin: Any = None

    def close(self) -> None:
        """Close the connections; may be called twice."""
        self._producer = self._admin = None

    def exists(self) -> bool:
        """True if the topic exists."""
        return self._describe() is not None

    def copies(self) -> int:
        """The number of replicas; 0 if the topic does not exist."""
        found = self._describe()
        return len(found.partitions[PARTITION].replicas) if found else 0

    def _describe(self) -> Any:
        """The description of the topic; None if it does not exist. Other metadata requests may make the broker create it."""
        asked = TopicCollection([self.name])
        with self._translate_errors("could not be found"):
            (found,) = self._open_admin().describe_topics(asked, request_timeout=TIMEOUT).values()
            try:
                return found.result(2 * TIMEOUT)
            except KafkaException as error:
                if unwrap_error(error).code() in ABSENT:
                    return None
                raise

    def settings(self) -> dict[str, str]:
        """The broker's settings of the existing topic."""
        asked = cast(Any, admin).ConfigResource(cast(Any, admin).ConfigResource.Type.TOPIC, self.name)
        with self._translate_errors("could not be described"):
            (found,) = self._open_admin().describe_configs([asked], request_timeout=TIMEOUT).values()
            return {key: entry.value for key, entry in found.result(2 * TIMEOUT).items()}

    def create(self) -> None:
        """Create the topic if it is missing. ConfigProblem for a compacted topic, which would lose dead letters."""
        if not self.exists() and self._try_create():
            return  # Its settings are known, and the broker may not return them yet.
        if "compact" in self.settings().get("cleanup.policy", ""):
            raise ConfigProblem(
                f"the topic of the dead letters, {self.name}, is compacted, so it would lose some of them",
                next_step="Set its cleanup.policy to delete, or name another topic under `dead_letters`.",
            )

    def _try_create(self) -> bool:
        """Create the topic; False if another process has just created it."""
        wanted = admin.NewTopic(self.name, 1, self._options.copies, config=KEPT)
        with self._translate_errors("could not be created"):
            (made,) = self._open_admin().create_topics([wanted], request_timeout=TIMEOUT).values()
            try:
                made.result(2 * TIMEOUT)
            except KafkaException as error:
                if unwrap_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False
        return True

    def write_messages(self, messages: Sequence[DeadLetterMessage]) -> None:
        """Write the messages in their order. They are on every replica in sync when it returns. After a failure some may be
        written."""
        failed: list[KafkaError] = []
        try:
            with self._translate_errors("could not be written"):
                producer = self._open_producer()
                for message in messages:
                    self._send(producer, message, failed)
                left = producer.flush(2 * TIMEOUT + TIMEOUT)
                if left or failed:
                    raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
        except BaseException:
            # What is still on its way must not arrive behind what is written next.
            self._producer = None
            raise

    def _send(self, producer: Any, message: DeadLetterMessage, failed: list[KafkaError]) -> None:
        def record_error(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error)

        # The time is that of writing, the record's is a header: brokers delete by time, and refuse times in the future.
        sent = {"key": message.key, "value": message.value, "headers": list(message.headers)}
        while not failed:
            try:
                producer.produce(self.name, partition=PARTITION, on_delivery=record_error, **sent)
            except BufferError:
                producer.poll(0.1)
            else:
                producer.poll(0)
                return

    def read_messages(self, take: Callable[[int, DeadLetterMessage], None]) -> tuple[int, int]:
        """Call `take` with every message that exists now, and its offset. Returns the offsets between which they are.
        TopicTruncated if some of them were deleted before they were read."""
        place = KafkaPartition(self.name, PARTITION)
        with self._translate_errors("could not be read"), ExitStack() as opened:
            consumer = self._open_consumer()
            opened.callback(close_consumer, consumer)
            begin, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT)
            consumer.assign([KafkaPartition(self.name, PARTITION, begin)])
            at, until = begin, time.monotonic() + TIMEOUT
            while at < end:
                found = consumer.consume(CHUNK, 0.5)
                for message in found:
                    at = self._next_offset(message, at, take)
                until = time.monotonic() + TIMEOUT if found else until
                if time.monotonic() > until:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return begin, end

    def _next_offset(self, message: KafkaMessage, at: int, take: Callable[[int, DeadLetterMessage], None]) -> int:
        """The next offset after a message, or after an error that librdkafka returns instead of a message."""
        error = message.error()
        if error is None:
            offset = cast(int, message.offset())
            headers = cast("list[Header] | None", message.headers()) or ()
            take(offset, DeadLetterMessage(message.key(), message.value(), headers))
            return offset + 1
        if error.code() in OFFSETS:
            raise self._truncated_error("read")
        if error.code() == KafkaError._PARTITION_EOF:
            # Nothing but marks of transactions lies before it.
            return cast(int, message.offset())
        if not is_transient(error):
            raise KafkaException(error)
        return at

    def truncate_before(self, offset: int) -> None:
        """Delete every message below `offset`, of any writer."""
        with self._translate_errors("could not be truncated"):
            (done,) = self._open_admin().delete_records([KafkaPartition(self.name, PARTITION, offset)]).values()
            try:
                done.result(2 * TIMEOUT)
            except KafkaException as error:
                if unwrap_error(error).code() in OFFSETS:
                    raise self._truncated_error("cut") from None
                raise

    def _truncated_error(self, done: str) -> TopicTruncated:
        return TopicTruncated(f"Records of the topic {self.name} were deleted while it was {done}.", next_step="Try again.")

    def _open_admin(self) -> Any:
        if self._admin is None:
            self._admin = admin.AdminClient(self._add_error_callback(self._options.client_settings()), logger=self._log)
        return self._admin

    def _open_producer(self) -> Any:
        if self._producer is None:
            self._producer = Producer(self._add_error_callback(self._options.producer()), logger=self._log)
        return self._producer

    def _open_consumer(self) -> Any:
        return Consumer(self._add_error_callback(self._options.consumer()), logger=self._log)

    def _add_error_callback(self, settings: dict[str, str]) -> dict[str, Any]:
        return {**settings, "error_cb": self._requests.note_error}

    @contextmanager
    def _translate_errors(self, failing: str) -> Iterator[None]:
        doing = f"The topic {self.name} of the dead letters {failing} at {self._options.bootstrap_servers}"
        with self._requests.request(doing, self._poll):
            try:
                yield
            except KafkaException as error:
                if unwrap_error(error).code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise EnvironmentProblem(
                        f"{doing}: a record is larger than max.message.bytes of the topic.",
                        next_step="Raise it with kafka-configs.",
                    ) from None
                raise

    def _poll(self) -> None:
        for client in (self._admin, self._producer):
            if client is not None:
                client.poll(0)
