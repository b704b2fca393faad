"""Requests of Kafka clients, their log, their shutdown and their errors."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal, ReplicatorError, Retryable

from .options import ClientOptions


def translate_client_error(options: ClientOptions, error: KafkaError, doing: str) -> ReplicatorError:
    """The program's own error, without the secrets of the options."""
    problem = translate_error(error, doing, options.owner)
    return type(problem)(options.hide_secrets(problem.sentence), next_step=problem.next_step)


# Requests to a broker that fail with the program's own errors.

REOPEN = 10.0
"""Seconds after which a client that reaches no broker is opened again, and twice as many after each further time. A client
that once gets an empty list of brokers forgets those it knows and never connects again (librdkafka 5301). A new one starts
at the configured addresses."""
REOPEN_MAX = 120.0


class Requests:
    """Requests of clients with the same options, and the client for administration. Threads may share it."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._opening = threading.Lock()
        self._admin: Any = None
        self._opened = 0.0
        self._wait = REOPEN
        self._denied: KafkaError | None = None
        self._denied_at = 0.0
        self._failing_since: float | None = float("-inf")

    def note_error(self, error: KafkaError) -> None:
        """Store an error that explains a denied access. For a client's `error_cb`, which gets errors outside requests."""
        if is_access_denied(error):
            self._denied, self._denied_at = error, time.monotonic()

    def open_admin(self) -> Any:
        """The client for administration. Later calls return the same one, as long as it reaches a broker."""
        with self._opening:
            if self._admin is None:
                # `note_error` for the client that the requests hold. A reference back would leave it to the garbage
                # collector, which may run in a thread of the client itself.
                owner = weakref.ref(self)

                def note_error(error: KafkaError) -> None:
                    if (client := owner()) is not None:
                        client.note_error(error)

                settings: dict[str, Any] = {**self._options.client_settings(), "error_cb": note_error}
                try:
                    self._admin = AdminClient(settings, logger=client_log(self._options.hide_secrets))
                except KafkaException as error:
                    doing = "The Kafka client cannot be set up"
                    raise translate_client_error(self._options, unwrap_error(error), doing) from None
                self._opened = time.monotonic()
            return self._admin

    def close(self) -> None:
        """Close the client for administration; may be called twice. Requests of other threads are completed."""
        self._admin = None

    @contextmanager
    def request(self, doing: str, poll: Callable[[], object] = lambda: None) -> Iterator[Any]:
        """The client for administration. Raises the errors of a request as the program's own. `doing`: the action, for
        messages. `poll`: polls other clients that the request uses.

        If access is denied, the request times out. The client reports the reason only to `error_cb`, during `poll`, and
        repeats the same reason after 30 seconds at the earliest. So a reason counts if it came after requests began to
        fail, or before the first success. Older reasons belong to an earlier outage.
        """
        client = self.open_admin()  # Held here until the answer came: the client ends with its last reference.

        def poll_all() -> None:
            client.poll(0)
            poll()

        poll_all()  # The client reports errors from before this request here.
        began = time.monotonic()
        try:
            yield client
        except (KafkaException, TimeoutError) as error:
            failure = unwrap_error(error) if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
            since = self._failing_since = self._failing_since or began
            poll_all()
            if failure.code() in UNREACHABLE and self._admin is client and time.monotonic() - self._opened >= self._wait:
                self._wait = min(2 * self._wait, REOPEN_MAX)
                self.close()
            denied, self._denied = self._denied, None
            if denied is not None and self._denied_at >= since and not is_access_denied(failure):
                failure = denied
            raise translate_client_error(self._options, failure, doing) from None
        self._denied = self._failing_since = None
        self._wait = REOPEN


# The log of librdkafka.

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


# The shutdown, even if the broker does not answer.

PATIENCE = 2.0


def close_consumer(consumer: Any) -> None:
    """Close a consumer; returns after `PATIENCE` seconds at the latest.

    librdkafka waits for the answer to a pending commit. With a broker that hangs, the program would never end. The rest
    of the shutdown ends with the process."""
    closing = threading.Thread(target=consumer.close, name="end of a Kafka consumer", daemon=True)
    closing.start()
    closing.join(PATIENCE)


# Translation of librdkafka's errors to the program's own.


REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SECURITY_DISABLED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTH_DISABLED,
        KafkaError.DELEGATION_TOKEN_NOT_FOUND,
        KafkaError.DELEGATION_TOKEN_OWNER_MISMATCH,
        KafkaError.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_EXPIRED,
        KafkaError.INVALID_PRINCIPAL_TYPE,
        KafkaError.UNACCEPTABLE_CREDENTIAL,
    }
)
"""Authentication and authorization errors: a retry with the same credentials fails again."""

UNREACHABLE = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._ALL_BROKERS_DOWN})
"""Errors of a client that gets no answer."""

CHECK = "Check 'options' and 'security' of {owner}."
VERSIONS = "The client or the broker lacks this feature: see the sentence; update the older one."
SKIP = (
    "`replicator lanes skip LANE --until TOPIC:PARTITION:N` for each lane that reads the topic; N is the first offset after"
)
DAMAGED = (
    f"Look for damaged files in the broker's log. Without a whole replica, stop the daemon and run {SKIP} the damaged batch."
)
SIZE = "Raise max.message.bytes of the topic and message.max.bytes of the broker with kafka-configs."
RECORDS = "Check cleanup.policy and message.timestamp.* of the topic."
ANEW = "Start the program again: the Kafka client has ended for good."
DISALLOWED = "Check the name of the topic, its settings and the broker's policies for new topics."

LASTING: Mapping[int, str] = {
    **dict.fromkeys(
        (
            KafkaError._INVALID_ARG,
            KafkaError._CONFLICT,
            KafkaError._NOT_CONFIGURED,
            KafkaError._UNKNOWN_PROTOCOL,
            KafkaError.INVALID_GROUP_ID,
            KafkaError.INVALID_REQUIRED_ACKS,
            KafkaError.INVALID_SESSION_TIMEOUT,
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
        ),
        CHECK,
    ),
    **dict.fromkeys(
        (
            KafkaError.TOPIC_EXCEPTION,
            KafkaError.INVALID_PARTITIONS,
            KafkaError.INVALID_REPLICATION_FACTOR,
            KafkaError.INVALID_REPLICA_ASSIGNMENT,
            KafkaError.INVALID_CONFIG,
            KafkaError.POLICY_VIOLATION,
        ),
        DISALLOWED,
    ),
    **dict.fromkeys(
        (
            KafkaError._NOT_IMPLEMENTED,
            KafkaError._UNSUPPORTED_FEATURE,
            KafkaError.UNSUPPORTED_VERSION,
            KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        ),
        VERSIONS,
    ),
    **dict.fromkeys((KafkaError.INVALID_MSG_SIZE, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE), SIZE),
    **dict.fromkeys((KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP), RECORDS),
    **dict.fromkeys(
        (KafkaError._FATAL, KafkaError._FENCED, KafkaError._DESTROY, KafkaError._STATE, KafkaError._READ_ONLY), ANEW
    ),
    KafkaError._BAD_COMPRESSION: DAMAGED,
}
"""Errors that the same request causes again, and the next step for each.

All others are transient: the broker is down, starting or electing leaders, or a client waits for one. Each reader handles
missing offsets (`OFFSETS`) itself. `_BAD_MSG`, a checksum error, is transient: a second read may succeed."""

AWAY = (
    "Check that the broker is running, and that its advertised listeners can be reached from here. Check that "
    "security.protocol under 'security' of {owner} is the protocol of the listener."
)
"""A TLS listener only closes the connection of a client without TLS, so this step also names security.protocol."""
NOT_ALLOWED = "Check 'security' of {owner} (security.protocol, sasl.*, ssl.*) and the user's rights at the broker."

OFFSETS = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE})
"""The broker does not have the offset, or has different records there."""
ALERT = "SSL alert"
"""Text in the error of a broken connection: the broker refused a missing or wrong client certificate (RFC 8446,
section 6.2)."""


def is_access_denied(error: KafkaError) -> bool:
    """True for authentication and authorization errors."""
    return error.code() in REFUSED or ALERT in error.str()


def is_transient(error: KafkaError) -> bool:
    """True if the same request may succeed later, so that the stream can resume by itself."""
    return error.retriable() or not (is_access_denied(error) or error.code() in LASTING)


def translate_error(error: KafkaError, doing: str, owner: str = "the source") -> ReplicatorError:
    """The program's error for `error`. `doing`: the failed action, start of the sentence. `owner`: the owner of the options.
    Never contains a secret."""
    sentence = f"{doing}: {error.str()} ({error.name()})."
    if is_access_denied(error):
        return EnvironmentProblem(sentence, next_step=NOT_ALLOWED.format(owner=owner))
    if is_transient(error):
        return Retryable(sentence, next_step=AWAY.format(owner=owner))
    step = LASTING[error.code()]
    kind = ConfigProblem if step is CHECK else Fatal
    return kind(sentence, next_step=step.format(owner=owner))


def unwrap_error(exception: KafkaException) -> KafkaError:
    """The error inside an exception of librdkafka."""
    cause = exception.args[0]
    return cause if isinstance(cause, KafkaError) else KafkaError(KafkaError._FAIL, str(cause))
