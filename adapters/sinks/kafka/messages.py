"""Dead letters as Kafka messages: the record as it came, headers as Kafka Connect writes them, and headers of our own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from replicator.domain.archive_bytes import decode_bytes
from replicator.ports.dead_letters import DeadLetter

CONNECT = "__connect.errors."
"""The beginning of Connect's headers (KIP-298; `DeadLetterQueueReporter`)."""
OWN = "replicator."
STAGES = {"route": "VALUE_CONVERTER", "decode": "VALUE_CONVERTER", "shape": "TRANSFORMATION", "apply": "TASK_PUT"}
"""Connect's names of the stages."""
TASK = "0"

REJECTED, MARKED, REMOVED = KINDS = ("rejected", "marked", "removed")
TEXTS = ("event_id", "lane", "stage", "code", "sentence", "table", "key_hash", "state", "source", "topic")
NUMBERS = ("attempts", "partition", "offset")
MOMENTS = ("first_seen", "last_seen", "timestamp")
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
    own = [*_record_headers(letter), *_connect_headers(letter, pipeline), *_letter_headers(letter, REJECTED, pipeline)]
    return DeadLetterMessage(letter.key, letter.record, [*own, _to_header(f"{OWN}retry", letter.retry)])


def change_to_message(letter: DeadLetter, kind: str, pipeline: str) -> DeadLetterMessage:
    """The message of a mark or a removal of a dead letter, without the record."""
    named = {f"{OWN}{name}" for name in ("event", "pipeline", "event_id", "lane", "state", "attempts")}
    return DeadLetterMessage(
        None, None, [header for header in _letter_headers(letter, kind, pipeline) if header[0] in named]
    )


def message_to_event(message: DeadLetterMessage) -> DeadLetterEvent | None:
    """The content of a message of `record_to_message` or `change_to_message`; None for a message of another program."""
    last = {name.removeprefix(OWN): value for name, value in message.headers if name.startswith(OWN)}
    try:
        said = {name: value.decode() for name, value in last.items() if value is not None}
        kind = said["event"]
        return DeadLetterEvent(kind, said["pipeline"], _to_letter(said, message)) if kind in KINDS else None
    except (KeyError, ValueError):
        return None


def _to_letter(said: dict[str, str], message: DeadLetterMessage) -> DeadLetter:
    if said["event"] != REJECTED:
        said = {**NOTHING, **said}
    texts = {name: said[name] for name in TEXTS}
    numbers = {name: int(said[name]) for name in NUMBERS}
    moments = {name: datetime.fromisoformat(said[name]) for name in MOMENTS if name in said}
    return DeadLetter(**texts, **numbers, **moments, record=message.value, key=message.key, headers=said.get("headers"))  # type: ignore[arg-type]


def _connect_headers(letter: DeadLetter, pipeline: str) -> list[Header]:
    failure = f"{OWN}{letter.code}"
    trace = f"{failure}: {letter.sentence}\n\tat {OWN}{letter.stage}({letter.event_id})\n"
    told = {
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
    return [_to_header(f"{CONNECT}{name}", value) for name, value in told.items()]


def _letter_headers(letter: DeadLetter, kind: str, pipeline: str) -> list[Header]:
    """All of our headers, also empty ones: the record itself may have headers with these names."""
    moments = {name: at and at.isoformat() for name in MOMENTS for at in [getattr(letter, name)]}
    plain = {name: getattr(letter, name) for name in (*TEXTS, *NUMBERS, "headers")}
    return [_to_header(f"{OWN}{k}", v) for k, v in {"event": kind, "pipeline": pipeline, **plain, **moments}.items()]


def _record_headers(letter: DeadLetter) -> list[Header]:
    """The record's own headers, for other readers; the exact ones are in a header of ours. A C client ends names at NUL."""
    found = json.loads(letter.headers) if letter.headers else []
    return [(name.replace("\0", "\N{SYMBOL FOR NULL}"), decode_bytes(value)) for name, value in found]


def _to_header(name: str, value: object) -> Header:
    return name, None if value is None else str(value).encode()
