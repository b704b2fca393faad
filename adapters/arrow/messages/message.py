"""What a message says, whatever its format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.moments import FIRST_US, LAST_US

from ..json.limits import Limits


class Change(NamedTuple):
    """One row of a message, and what it was before as far as the message says, both as the form has read them. None where
    there is no such image; a truncate has none."""

    op: Op
    row: Any = None
    old: Any = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message of one table, or of a kind that is `ignored`.

    `types`: columns and their types where the message carries them. `keys`: the key's columns where it does. `at`: event
    time in microseconds since 1970. `order`: elements of the sequence by which its source orders it; empty where that is the
    order of the stream. `before` and `after`: what `Form.written` shows. `db`: the database, where no table is named.
    """

    table: str = ""
    ignored: str = ""
    changes: Sequence[Change] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    at: int | None = None
    tx: str | None = None
    order: tuple[int, ...] = ()
    before: Any = None
    after: Any = None
    db: str = ""


class Rows(Protocol):
    """Reads columns of rows of one layout."""

    columns: Collection[str]
    """The columns it can read."""
    blank: Any
    """What `decode` makes of a row without values."""
    decode: Any
    """Makes of a `Change`'s row what the others take. Raises one of `json.faults.UNREADABLE`."""

    def values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A column of every row: UNSET where the row lacks it, None where it is null."""
        ...

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column, None for null, as Arrow values. Raises one of `json.faults.FAILURES`."""
        ...

    def text(self, value: Any) -> str | None:
        """The text that a value is written in, by which values of one column are compared. Raises one of
        `json.faults.UNREADABLE`."""
        ...


class Form(Protocol):
    """A format of messages. Pure."""

    name: str
    connector: str
    ordered: int
    """How many elements `Message.order` has."""

    def read(self, value: bytes, limits: Limits) -> Message:
        """The message. Raises one of `json.faults.UNREADABLE`, `Unfit` among them, for anything else."""
        ...

    def type_of(self, said: str) -> pa.DataType:
        """The Arrow type of a type that messages name. Raises Unfit for one that is not known."""
        ...

    def rows(self, columns: Mapping[str, tuple[pa.DataType, pa.DataType]]) -> Rows:
        """What reads these columns: of each the type of its layout, and the one its values are wanted in."""
        ...

    def written(self, image: Any) -> bytes | None:
        """`Message.before` or `after` as JSON text. Never fails."""
        ...


def micros(count: int | None, each: int) -> int | None:
    """Microseconds since 1970, of `count` times `each`; None outside the years 1 to 9999."""
    if count is None or not FIRST_US <= count * each <= LAST_US:
        return None
    return count * each
