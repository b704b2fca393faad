"""Translation of librdkafka's errors to the program's own."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal, ReplicatorError, Retryable

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

CHECK = "Check 'options' and 'security' of {whose}."
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
    "security.protocol under 'security' of {whose} is the protocol of the listener."
)
"""A TLS listener only closes the connection of a client without TLS, so this step also names security.protocol."""
NOT_ALLOWED = "Check 'security' of {whose} (security.protocol, sasl.*, ssl.*) and the user's rights at the broker."

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


def translate_error(error: KafkaError, doing: str, whose: str = "the source") -> ReplicatorError:
    """The program's error for `error`. `doing`: the failed action, start of the sentence. `whose`: the owner of the options.
    Never contains a secret."""
    sentence = f"{doing}: {error.str()} ({error.name()})."
    if is_access_denied(error):
        return EnvironmentProblem(sentence, next_step=NOT_ALLOWED.format(whose=whose))
    if is_transient(error):
        return Retryable(sentence, next_step=AWAY.format(whose=whose))
    step = LASTING[error.code()]
    kind = ConfigProblem if step is CHECK else Fatal
    return kind(sentence, next_step=step.format(whose=whose))


def unwrap_error(exception: KafkaException) -> KafkaError:
    """The error inside an exception of librdkafka."""
    found = exception.args[0]
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(found))
