"""What a message says, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa

from replicator.domain.change import Op

NULL = msgspec.Raw(b"null")


class Change(NamedTuple):
    """One row of a message: JSON text of the row, and of what it was before as far as the message says. None where there is
    no such image; a truncate has none."""

    op: Op
    row: bytes | None = None
    old: bytes | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message of one table, or of a kind that is `ignored`.

    `types`: columns and their types where the message carries them. `keys`: the key's columns where it does. `at`: event
    time in microseconds since 1970. `order`: elements of the sequence by which its source orders it; empty where that is the
    order of the stream. `before` and `after`: JSON text as sent.
    """

    table: str = ""
    ignored: str = ""
    changes: Sequence[Change] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    at: int | None = None
    tx: str | None = None
    order: tuple[int, ...] = ()
    before: bytes | None = None
    after: bytes | None = None


class Form(Protocol):
    """A format of messages. Pure."""

    name: str
    connector: str
    ordered: int
    """How many elements `Message.order` has."""

    def read(self, text: bytes) -> Message:
        """The message. Raises one of `json.faults.UNREADABLE`, `Unfit` among them, for anything else."""
        ...

    def type_of(self, said: str) -> pa.DataType:
        """The Arrow type of a type that messages name. Raises Unfit for one that is not known."""
        ...

    def to_bytes(self, texts: Sequence[str | None]) -> pa.Array:
        """The values of a binary column. Raises one of `json.faults.FAILURES`."""
        ...


def base64(texts: Sequence[str | None]) -> pa.Array:
    """Bytes that are written in Base64."""
    return pa.array([None if t is None else msgspec.json.decode(f'"{t}"'.encode(), type=bytes) for t in texts], pa.binary())


def image(raw: msgspec.Raw) -> bytes | None:
    """JSON text; None for null."""
    text = bytes(raw)
    return None if text == b"null" else text
