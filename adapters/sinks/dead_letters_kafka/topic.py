"""The topic of dead letters: made, written, read whole, and cut at its beginning."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, admin
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition as KafkaPartition

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ReplicatorError, Retryable

from ...kafka.client_log import client_log
from ...kafka.errors import error_of, passes, refuses, translated
from ...kafka.shutdown import close_consumer
from .messages import Header, Message
from .options import LARGEST, TopicOptions

TIMEOUT = 10.0
"""Seconds one request may take, and how long nothing may come of a topic that is read."""
PARTITION = 0
"""All letters are in it: what becomes of one is said in the order of its messages, however many partitions there will be."""
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": str(LARGEST)}
"""Of a topic that is made here: what was rejected goes when it is purged."""
CHUNK = 500
GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


class CutMeanwhile(Retryable):
    """The beginning of the topic was cut while it was read."""


class LettersTopic:
    """Not for use by several threads. Raises the program's own errors."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self.name = options.topic
        self._log = client_log(options.hide)
        self._refused: KafkaError | None = None
        self._producer: Any = None
        self._admin: Any = None

    def close(self) -> None:
        """Let go of the connections; may be called twice."""
        self._producer = self._admin = None

    def exists(self) -> bool:
        """Whether it is there."""
        return self._described() is not None

    def copies(self) -> int:
        """How many replicas the letters have; 0 when it is not there."""
        found = self._described()
        return len(found.partitions[PARTITION].replicas) if found else 0

    def _described(self) -> Any:
        """None when it is not there. Who asks for its metadata in another way may have the broker make it, as it likes."""
        asked = TopicCollection([self.name])
        with self._asked("could not be looked for"):
            (found,) = self._clients().describe_topics(asked, request_timeout=TIMEOUT).values()
            try:
                return found.result(2 * TIMEOUT)
            except KafkaException as error:
                if error_of(error).code() in ABSENT:
                    return None
                raise

    def settings(self) -> dict[str, str]:
        """The broker's settings of the topic, which exists."""
        asked = cast(Any, admin).ConfigResource(cast(Any, admin).ConfigResource.Type.TOPIC, self.name)
        with self._asked("could not be described"):
            (found,) = self._clients().describe_configs([asked], request_timeout=TIMEOUT).values()
            return {key: entry.value for key, entry in found.result(2 * TIMEOUT).items()}

    def make(self) -> None:
        """Unless it is there. ConfigProblem for one that forgets records whose key comes again: those of dead letters do."""
        if not self.exists() and self._made():
            return  # Its settings are known, and the broker may not tell them yet.
        if "compact" in self.settings().get("cleanup.policy", ""):
            raise ConfigProblem(
                f"the topic of the dead letters, {self.name}, is compacted: it would forget some of them",
                next_step="Set its cleanup.policy to delete, or name another topic under `dead_letters`.",
            )

    def _made(self) -> bool:
        """Make it; False where somebody else has meanwhile."""
        wanted = admin.NewTopic(self.name, 1, self._options.copies, config=KEPT)  # type: ignore[attr-defined]
        with self._asked("could not be made"):
            (made,) = self._clients().create_topics([wanted], request_timeout=TIMEOUT).values()
            try:
                made.result(2 * TIMEOUT)
            except KafkaException as error:
                if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False
        return True

    def write(self, messages: Sequence[Message]) -> None:
        """In their order, on every replica in sync when it returns. After a failure some of them may be there."""
        failed: list[KafkaError] = []
        try:
            with self._asked("could not be written"):
                producer = self._writing()
                for message in messages:
                    self._send(producer, message, failed)
                left = producer.flush(2 * TIMEOUT + TIMEOUT)
                if left or failed:
                    raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
        except BaseException:
            # What is still on its way must not arrive behind what is written next.
            self._producer = None
            raise

    def _send(self, producer: Any, message: Message, failed: list[KafkaError]) -> None:
        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error)

        sent = {"key": message.key, "value": message.value, "headers": list(message.headers)}
        while not failed:
            try:
                producer.produce(self.name, partition=PARTITION, on_delivery=told, **sent)
            except BufferError:
                producer.poll(0.1)
            else:
                producer.poll(0)
                return

    def read(self, take: Callable[[int, Message], None]) -> tuple[int, int]:
        """Give `take` every message that is there now, with its offset; the offsets between which they are. CutMeanwhile
        when some that were still to come are not there any more."""
        place = KafkaPartition(self.name, PARTITION)
        with self._asked("could not be read"), ExitStack() as opened:
            consumer = self._reading()
            opened.callback(close_consumer, consumer)
            begin, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT)
            consumer.assign([KafkaPartition(self.name, PARTITION, begin)])
            at, until = begin, time.monotonic() + TIMEOUT
            while at < end:
                found = consumer.consume(CHUNK, 0.5)
                for message in found:
                    at = self._after(message, at, take)
                until = time.monotonic() + TIMEOUT if found else until
                if time.monotonic() > until:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return begin, end

    def _after(self, message: KafkaMessage, at: int, take: Callable[[int, Message], None]) -> int:
        """Where to go on after a message, or after what librdkafka says instead of one."""
        error = message.error()
        if error is None:
            offset = cast(int, message.offset())
            headers = cast("list[Header] | None", message.headers()) or ()
            take(offset, Message(message.key(), message.value(), headers))
            return offset + 1
        if error.code() in GONE:
            raise CutMeanwhile(f"the beginning of the topic {self.name} was cut while it was read")
        if error.code() == KafkaError._PARTITION_EOF:
            # Nothing but marks of transactions lies before it.
            return cast(int, message.offset())
        if not passes(error):
            raise KafkaException(error)
        return at

    def cut(self, offset: int) -> None:
        """Delete every message below `offset`, of whomever."""
        with self._asked("could not be cut"):
            (done,) = self._clients().delete_records([KafkaPartition(self.name, PARTITION, offset)]).values()
            done.result(2 * TIMEOUT)

    def _clients(self) -> Any:
        if self._admin is None:
            self._admin = admin.AdminClient(self._with_errors(self._options.client()), logger=self._log)
        return self._admin

    def _writing(self) -> Any:
        if self._producer is None:
            self._producer = Producer(self._with_errors(self._options.producer()), logger=self._log)
        return self._producer

    def _reading(self) -> Any:
        return Consumer(self._with_errors(self._options.consumer()), logger=self._log)

    def _with_errors(self, settings: dict[str, str]) -> dict[str, Any]:
        return {**settings, "error_cb": self._remember}

    def _remember(self, error: KafkaError) -> None:
        """Told of errors outside any call: keeps the one that says why nobody may come in."""
        if refuses(error):
            self._refused = error

    @contextmanager
    def _asked(self, failing: str) -> Iterator[None]:
        """Errors as the program's own; a refusal that was only told to `_remember` says more than a time-out."""
        doing = f"The topic {self.name} of the dead letters {failing} at {self._options.bootstrap_servers}"
        try:
            yield
        except (KafkaException, TimeoutError) as error:
            found = error_of(error) if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
            if self._admin is not None:
                self._admin.poll(0)
            if self._refused is not None and not refuses(found):
                found, self._refused = self._refused, None
            raise self._said(found, doing) from None

    def _said(self, error: KafkaError, doing: str) -> ReplicatorError:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return EnvironmentProblem(
                f"{doing}: a record is larger than max.message.bytes of the topic.", next_step="Raise it with kafka-configs."
            )
        said = translated(error, doing, self._options.whose)
        return type(said)(self._options.hide(said.sentence), next_step=said.next_step)
