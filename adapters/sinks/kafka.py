"""Dead letters in a Kafka topic: a message for each of their changes, in order."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, admin
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition as KafkaPartition

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ReplicatorError, Retryable
from replicator.domain.event_log import decode_bytes
from replicator.ports.runtime import Diagnosis
from replicator.ports.stores import ALL_DEAD_LETTERS, OPEN, DeadLetter, DeadLetterFeatures, DeadLetterFilter, DeadLetterGroup

from ..kafka.clients import OFFSETS, Requests, client_log, close_consumer, is_transient, unwrap_error
from ..stores import DeadLetterSettings

READINGS = 5


class KafkaDeadLetters:
    """`ports.stores.DeadLetters`; options: see `DeadLetterSettings`, with `topic`.

    The first write creates the topic if it is missing.

    A dead letter that is written twice has two messages, and is returned once.
    """

    def __init__(self, options: DeadLetterSettings | Mapping[str, Any]) -> None:
        self._options = DeadLetterSettings.read(options)
        self._topic = DeadLetterTopic(self._options)
        self._turn = threading.RLock()
        self._is_ready = False

    @property
    def features(self) -> DeadLetterFeatures:
        return DeadLetterFeatures()

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """The messages are on every replica in sync when it returns."""
        self._write_messages([record_to_message(letter, self._options.pipeline) for letter in letters])

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """Reads the topic from its beginning."""
        # Clients of its own: a reject that has to be written does not wait until the whole topic is read.
        with closing(DeadLetterTopic(self._options)) as topic:
            if not topic.exists():
                return []
            letter_log, _ = self._read_log(topic)
        return list(islice(filter(which.is_match, letter_log.list_dead_letters()), limit))

    def count_open(self) -> Mapping[DeadLetterGroup, int]:
        """Reads the topic from its beginning, as `read` does."""
        return Counter(
            DeadLetterGroup(each.source, each.table, each.lane) for each in self.read(DeadLetterFilter(state=OPEN))
        )

    def mark(self, letters: Sequence[DeadLetter], state: str) -> None:
        self._write_messages(
            [change_to_message(replace(letter, state=state), MARKED, self._options.pipeline) for letter in letters]
        )

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Deletes messages at the beginning of the topic that are not needed any more. Messages behind a needed one stay
        until that one is not needed either."""
        with self._turn:
            self._write_messages([change_to_message(letter, REMOVED, self._options.pipeline) for letter in letters])
            if letters:
                letter_log, (begin, end) = self._read_log(self._topic)
                needed = letter_log.find_oldest_needed(end)
                if needed > begin:
                    self._topic.truncate_before(needed)

    def close(self) -> None:
        with self._turn:
            self._topic.close()

    def _write_messages(self, messages: Sequence[DeadLetterMessage]) -> None:
        if not messages:
            return
        with self._turn:
            if not self._is_ready:
                self._topic.create()
                self._is_ready = True
            self._topic.write_messages(messages)

    def _read_log(self, topic: DeadLetterTopic) -> tuple[DeadLetterLog, tuple[int, int]]:
        """The content of the topic, and the offsets between which it was read."""
        for _ in range(READINGS - 1):
            try:
                return self._read_log_once(topic)
            except TopicTruncated:
                continue
        return self._read_log_once(topic)

    def _read_log_once(self, topic: DeadLetterTopic) -> tuple[DeadLetterLog, tuple[int, int]]:
        letter_log = DeadLetterLog(self._options.pipeline)
        return letter_log, topic.read_messages(letter_log.apply_message)


# The dead letters in the messages of a topic, in their order.

Name = tuple[str, str, str]
"""Pipeline, event and lane."""


@dataclass(slots=True)
class OpenDeadLetter:
    """An existing dead letter, and the offset of its first message."""

    letter: DeadLetter
    since: int


class DeadLetterLog:
    """Reads every message of the topic, from its beginning, and then has the current dead letters. The messages may come
    from several writers. A mark or a removal only counts if the dead letter was not written again since it was read."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._lives: dict[Name, OpenDeadLetter] = {}
        self._foreign: int | None = None

    def apply_message(self, offset: int, message: DeadLetterMessage) -> None:
        """Apply the next message."""
        event = message_to_event(message)
        if event is None:
            self._foreign = offset if self._foreign is None else self._foreign
            return
        name = (event.pipeline, event.letter.event_id, event.letter.lane)
        entry = self._lives.get(name)
        if event.kind == REJECTED:
            letter = event.letter
            if event.pipeline != self._pipeline:
                # Only when it began is of use here.
                letter = replace(letter, record=None, key=None)
            if entry is not None:
                before = entry.letter
                last, attempts = max(before.last_seen, letter.last_seen), before.attempts + letter.attempts
                letter = replace(letter, first_seen=before.first_seen, last_seen=last, attempts=attempts)
            self._lives[name] = OpenDeadLetter(letter, offset if entry is None else entry.since)
        elif entry is not None and entry.letter.attempts == event.letter.attempts:
            if event.kind == MARKED:
                entry.letter = replace(entry.letter, state=event.letter.state)
            else:
                del self._lives[name]

    def list_dead_letters(self) -> Sequence[DeadLetter]:
        """The dead letters of the pipeline, newest first."""
        mine = [life.letter for (pipeline, _, _), life in self._lives.items() if pipeline == self._pipeline]
        mine.sort(key=lambda letter: (letter.event_id, letter.lane))
        return sorted(mine, key=lambda letter: letter.last_seen, reverse=True)

    def find_oldest_needed(self, end: int) -> int:
        """The lowest offset of a message about an existing dead letter of any pipeline, or of a message of another
        program. `end` if there is no such message."""
        foreign = end if self._foreign is None else self._foreign
        return min([end, foreign, *(life.since for life in self._lives.values())])


# Creates the topic of dead letters, writes it, reads it from its beginning, and deletes its oldest messages.

TIMEOUT = 10.0
"""The time limit of one request, and for the next message of a topic, in seconds."""
PARTITION = 0
"""All messages are in this partition, also if the topic gets more: the order of a dead letter's messages counts."""
LARGEST = 96 * 1024 * 1024
"""The maximum bytes of a record in a topic that is created here: slightly less than the default limit of a request."""
TOPIC_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": str(LARGEST)}
"""Settings of a topic that is created here. Only a purge deletes dead letters."""
CHUNK = 500
ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


class TopicTruncated(Retryable):
    """Records of the topic were deleted while it was read or truncated, or the topic was created again."""


class DeadLetterTopic:
    """Not for use by several threads. Raises the program's own errors."""

    def __init__(self, options: DeadLetterSettings) -> None:
        if options.topic is None:
            raise options.refuse("topic is missing")
        self._options = options
        self.name = options.topic
        self._log = client_log(options.hide_secrets)
        self._requests = Requests(options)
        self._producer: Any = None

    def close(self) -> None:
        """Close the connections; may be called twice."""
        self._producer = None
        self._requests.close()

    def exists(self) -> bool:
        """True if the topic exists."""
        return self._describe() is not None

    def copies(self) -> int:
        """The number of replicas; 0 if the topic does not exist."""
        description = self._describe()
        return len(description.partitions[PARTITION].replicas) if description else 0

    def _describe(self) -> Any:
        """The description of the topic; None if it does not exist. Other metadata requests may make the broker create it."""
        topics = TopicCollection([self.name])
        with self._translate_errors("could not be found") as client:
            (future,) = client.describe_topics(topics, request_timeout=TIMEOUT).values()
            try:
                return future.result(2 * TIMEOUT)
            except KafkaException as error:
                if unwrap_error(error).code() in ABSENT:
                    return None
                raise

    def settings(self) -> dict[str, str]:
        """The broker's settings of the existing topic."""
        resource = cast(Any, admin).ConfigResource(cast(Any, admin).ConfigResource.Type.TOPIC, self.name)
        with self._translate_errors("could not be described") as client:
            (future,) = client.describe_configs([resource], request_timeout=TIMEOUT).values()
            return {key: entry.value for key, entry in future.result(2 * TIMEOUT).items()}

    def create(self) -> None:
        """Create the topic if it is missing. ConfigProblem for a compacted topic, which would lose dead letters."""
        if not self.exists():
            topic = cast(Any, admin).NewTopic(self.name, 1, self._options.copies, config=TOPIC_CONFIG)
            with self._translate_errors("could not be created") as client:
                (future,) = client.create_topics([topic], request_timeout=TIMEOUT).values()
                try:
                    future.result(2 * TIMEOUT)
                    return  # Its settings are known, and the broker may not return them yet.
                except KafkaException as error:
                    # Another process may have just created it.
                    if unwrap_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
        if "compact" in self.settings().get("cleanup.policy", ""):
            raise ConfigProblem(
                f"the topic of the dead letters, {self.name}, is compacted, so it would lose some of them",
                next_step="Set its cleanup.policy to delete, or name another topic under `dead_letters`.",
            )

    def write_messages(self, messages: Sequence[DeadLetterMessage]) -> None:
        """Write the messages in their order. They are on every replica in sync when it returns. After a failure some may be
        written."""
        failed: list[KafkaError] = []
        try:
            with self._translate_errors("could not be written"):
                if self._producer is None:
                    own = {"message.max.bytes": str(LARGEST)}
                    self._producer = Producer(self._list_settings(own, DURABLE), logger=self._log)
                for message in messages:
                    self._send(self._producer, message, failed)
                queued_count = self._producer.flush(2 * TIMEOUT + TIMEOUT)
                if queued_count or failed:
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
        arguments = {"key": message.key, "value": message.value, "headers": list(message.headers)}
        while not failed:
            try:
                producer.produce(self.name, partition=PARTITION, on_delivery=record_error, **arguments)
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
            own = {"receive.message.max.bytes": str(4 * LARGEST)}
            consumer = Consumer(self._list_settings(own, WHOLE), logger=self._log)
            opened.callback(close_consumer, consumer)
            begin, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT)
            consumer.assign([KafkaPartition(self.name, PARTITION, begin)])
            at, until = begin, time.monotonic() + TIMEOUT
            while at < end:
                messages = consumer.consume(CHUNK, 0.5)
                for message in messages:
                    at = self._next_offset(message, at, take)
                until = time.monotonic() + TIMEOUT if messages else until
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
        with self._translate_errors("could not be truncated") as client:
            (future,) = client.delete_records([KafkaPartition(self.name, PARTITION, offset)]).values()
            try:
                future.result(2 * TIMEOUT)
            except KafkaException as error:
                if unwrap_error(error).code() in OFFSETS:
                    raise self._truncated_error("cut") from None
                raise

    def _truncated_error(self, verb: str) -> TopicTruncated:
        return TopicTruncated(f"Records of the topic {self.name} were deleted while it was {verb}.", next_step="Try again.")

    def _list_settings(self, defaults: Mapping[str, str], fixed: Mapping[str, str]) -> dict[str, Any]:
        """librdkafka's configuration of a client. Contains secrets: never log it."""
        chosen = {**(self._options.options or {}), **self._options.client_settings()}
        return {**defaults, **chosen, **fixed, "error_cb": self._requests.note_error}

    @contextmanager
    def _translate_errors(self, failing: str) -> Iterator[Any]:
        doing = f"The topic {self.name} of the dead letters {failing} at {self._options.bootstrap_servers}"
        with self._requests.request(doing, self._poll) as client:
            try:
                yield client
            except KafkaException as error:
                if unwrap_error(error).code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise EnvironmentProblem(
                        f"{doing}: a record is larger than max.message.bytes of the topic.",
                        next_step="Raise it with kafka-configs.",
                    ) from None
                raise

    def _poll(self) -> None:
        if self._producer is not None:
            self._producer.poll(0)


# Settings of librdkafka.

DURABLE: Mapping[str, str] = {"acks": "all", "enable.idempotence": "true", "message.timeout.ms": "20000"}
"""Settings that cannot be overridden. Writes are on every replica in sync and in order, or fail while the caller waits."""

WHOLE: Mapping[str, str] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_uncommitted",
    "group.id": "replicator-dead-letters",
}
"""The same for reading. No group is joined, and no offsets are committed."""


# Messages: the record as it came, headers as Kafka Connect writes them, and headers of our own.

CONNECT = "__connect.errors."
"""The beginning of Connect's headers (KIP-298; `DeadLetterQueueReporter`)."""
OWN = "replicator."
STAGES = {"route": "VALUE_CONVERTER", "decode": "VALUE_CONVERTER", "shape": "TRANSFORMATION", "apply": "TASK_PUT"}
"""Connect's names of the stages."""
TASK = "0"

REJECTED, MARKED, REMOVED = KINDS = ("rejected", "marked", "removed")
TEXTS = ("event_id", "lane", "stage", "code", "sentence", "table", "key_hash", "state", "source", "topic")
NUMBERS = ("attempts", "partition", "offset")
TIMES = ("first_seen", "last_seen", "timestamp")
NOTHING = {
    **dict.fromkeys(TEXTS, ""),
    **dict.fromkeys(("partition", "offset"), "-1"),
    **dict.fromkeys(("first_seen", "last_seen"), "1970-01-01T00:00:00+00:00"),
}
"""Placeholders for values that the message of a mark or a removal leaves out."""

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class DeadLetterMessage:
    """`headers` are in their order; the last one with a name counts."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


@dataclass(frozen=True, slots=True)
class DeadLetterEvent:
    """The content of a message: a dead letter was written (`kind` is REJECTED), marked, or removed. A mark or a removal
    only counts while the dead letter has `attempts`; its `letter` only has the names and the state."""

    kind: str
    pipeline: str
    letter: DeadLetter


def record_to_message(letter: DeadLetter, pipeline: str) -> DeadLetterMessage:
    """The message of a dead letter: key and value of the record, its own headers, and ours after them."""
    # The record's own headers are for other readers; the exact ones are in a header of ours. A C client ends names at NUL.
    headers = json.loads(letter.headers) if letter.headers else []
    own = [(name.replace("\0", "\N{SYMBOL FOR NULL}"), decode_bytes(value)) for name, value in headers]
    own += [*_connect_headers(letter, pipeline), *_letter_headers(letter, REJECTED, pipeline)]
    return DeadLetterMessage(letter.key, letter.record, [*own, _to_header(f"{OWN}retry", letter.retry)])


def change_to_message(letter: DeadLetter, kind: str, pipeline: str) -> DeadLetterMessage:
    """The message of a mark or a removal of a dead letter, without the record."""
    header_names = {f"{OWN}{name}" for name in ("event", "pipeline", "event_id", "lane", "state", "attempts")}
    return DeadLetterMessage(
        None, None, [header for header in _letter_headers(letter, kind, pipeline) if header[0] in header_names]
    )


def message_to_event(message: DeadLetterMessage) -> DeadLetterEvent | None:
    """The content of a message of `record_to_message` or `change_to_message`; None for a message of another program."""
    last = {name.removeprefix(OWN): value for name, value in message.headers if name.startswith(OWN)}
    try:
        fields = {name: value.decode() for name, value in last.items() if value is not None}
        kind, pipeline = fields["event"], fields["pipeline"]
        if kind not in KINDS:
            return None
        headers = fields.get("headers")
        if kind != REJECTED:
            fields = {**NOTHING, **fields}
        texts = {name: fields[name] for name in TEXTS}
        numbers = {name: int(fields[name]) for name in NUMBERS}
        moments = {name: datetime.fromisoformat(fields[name]) for name in TIMES if name in fields}
        letter = DeadLetter(**texts, **numbers, **moments, record=message.value, key=message.key, headers=headers)  # type: ignore[arg-type]
        return DeadLetterEvent(kind, pipeline, letter)
    except (KeyError, ValueError):
        return None


def _connect_headers(letter: DeadLetter, pipeline: str) -> list[Header]:
    failure = f"{OWN}{letter.code}"
    trace = f"{failure}: {letter.sentence}\n\tat {OWN}{letter.stage}({letter.event_id})\n"
    headers = {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "connector.name": pipeline,
        "task.id": TASK,
        "stage": STAGES.get(letter.stage, letter.stage),
        "class.name": f"{OWN}{letter.stage}",
        "exception.class.name": failure,
        "exception.message": letter.sentence,
        "exception.stacktrace": trace,
    }
    return [_to_header(f"{CONNECT}{name}", value) for name, value in headers.items()]


def _letter_headers(letter: DeadLetter, kind: str, pipeline: str) -> list[Header]:
    """All of our headers, also empty ones: the record itself may have headers with these names."""
    moments = {name: at and at.isoformat() for name in TIMES for at in [getattr(letter, name)]}
    plain = {name: getattr(letter, name) for name in (*TEXTS, *NUMBERS, "headers")}
    return [_to_header(f"{OWN}{k}", v) for k, v in {"event": kind, "pipeline": pipeline, **plain, **moments}.items()]


def _to_header(name: str, value: object) -> Header:
    return name, None if value is None else str(value).encode()


# The checks of `doctor` for the topic of dead letters: it is reachable, never deletes records, and has enough replicas.

COPIES = 3


class DeadLetterTopicCheck:
    """`ports.runtime.Check`; options of `KafkaDeadLetters`, and `production`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        own = dict(options)
        self._name = name
        self._production = bool(own.pop("production", False))
        self._options = DeadLetterSettings.read(own)

    def diagnose(self) -> Sequence[Diagnosis]:
        diagnoses: list[Diagnosis] = []
        try:
            with closing(DeadLetterTopic(self._options)) as topic:
                diagnoses.extend(self._check_topic(topic))
        except ReplicatorError as problem:
            diagnoses.append(Diagnosis("error", self._name, problem.sentence, problem.next_step))
        return diagnoses

    def _check_topic(self, topic: DeadLetterTopic) -> Iterator[Diagnosis]:
        has_topic = topic.exists()
        yield Diagnosis("ok", self._name, f"The broker at {self._options.bootstrap_servers} answers.")
        if not has_topic:
            step = "Nothing to do. If the user may not create topics, create it with retention.ms=-1."
            yield Diagnosis("ok", self._name, f"There is no topic {topic.name} yet. The first reject creates it.", step)
            return
        settings = topic.settings()
        if "compact" in settings.get("cleanup.policy", ""):
            text = f"The topic {topic.name} is compacted, so it would lose rejected records."
            yield Diagnosis("error", self._name, text, "Set its cleanup.policy to delete.")
        limits = [key for key in ("retention.ms", "retention.bytes") if settings.get(key, "-1") != "-1"]
        if limits:
            text = f"The topic {topic.name} deletes rejected records by itself, by {' and '.join(limits)}."
            step = f"Set {', '.join(f'{key}=-1' for key in limits)} with kafka-configs."
            yield Diagnosis("warning", self._name, text, step)
        copies = topic.copies()
        if self._production and copies < COPIES:
            text = f"The topic {topic.name} has a replication factor of {copies}."
            step = f"Raise it to {COPIES} with kafka-reassign-partitions, and set min.insync.replicas=2."
            yield Diagnosis("warning", self._name, text, step)
