"""librdkafka's errors as the errors the whole program agrees on."""

from __future__ import annotations

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
    }
)
"""Errors of who we are or what we may: the same credentials give the same answer."""

PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError._BAD_MSG,
    }
)
"""Errors of a broker that is away, starting, or handing over. `_BAD_MSG` is a checksum error: read again."""

AWAY = (
    "Check that the broker runs, that its advertised listeners can be reached from here, and that security.protocol under "
    "'security' of {whose} is what the listener speaks."
)
"""A client without TLS is told no more by a listener with it than that the connection ended."""
NOT_ALLOWED = "Check 'security' of {whose} (security.protocol, sasl.*, ssl.*) and the user's rights at the broker."


ALERT = "SSL alert"
"""In the words of a connection that broke: the broker refused the client's certificate, or the lack of one (RFC 8446,
section 6.2)."""


def refuses(error: KafkaError) -> bool:
    """Whether it is about who we are or what we may."""
    return error.code() in REFUSED or ALERT in error.str()


def passes(error: KafkaError) -> bool:
    """Whether librdkafka itself keeps trying, so that the stream may go on by itself."""
    return bool(error.code() in PASSING or error.retriable())


def translated(error: KafkaError, doing: str, whose: str = "the source") -> ReplicatorError:
    """The error of the program for `error`, met while `doing` (a sentence's beginning) with the options of `whose`. Never
    holds a secret."""
    sentence = f"{doing}: {error.str()} ({error.name()})."
    if refuses(error):
        return EnvironmentProblem(sentence, next_step=NOT_ALLOWED.format(whose=whose))
    if error.code() in (KafkaError._INVALID_ARG, KafkaError._CONFLICT):
        return ConfigProblem(sentence, next_step=f"Check 'options' and 'security' of {whose}.")
    return Retryable(sentence, next_step=AWAY.format(whose=whose)) if passes(error) else Fatal(sentence)


def error_of(exception: KafkaException) -> KafkaError:
    """What librdkafka wrapped."""
    found = exception.args[0]
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(found))
