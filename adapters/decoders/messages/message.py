"""What a message says, whatever its format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op
from replicator.domain.table import Column
from replicator.domain.time_bounds import FIRST_US, LAST_US

from ...arrow.record_limits import RecordLimits
from .typed_rows import ColumnTypes, TypedRows


class MessageContents(NamedTuple):
    """What messages say, one after the other. `rows` and `olds` are what `TypedRows.row` and `old` made of their rows; an
    old is None where the row was none before, or nothing is said of it. `message_numbers`: which message a row is of, None
    where each has one. `at`: microseconds since 1970. `orders`: the elements by which they are ordered, none where the
    stream does that."""

    ops: Sequence[Op]
    rows: Sequence[Any]
    olds: Sequence[Any]
    message_numbers: Sequence[int] | None
    at: pa.Array
    tx: pa.Array
    orders: Sequence[pa.Array] = ()


class MessageChange(NamedTuple):
    """One row of a message, and what it was before as far as the message says, both as the form has read them. None where
    there is no such image; a truncate has none."""

    op: Op
    row: Any = None
    old: Any = None


class ColumnTypeNames(dict[str, str]):
    """Columns and their types, in order; hashed once. Whoever reads many messages of one table makes one of these."""

    __slots__ = ("_hash", "_pairs")

    def __init__(self, types: Mapping[str, str]) -> None:
        super().__init__(types)
        self._pairs = tuple(self.items())
        self._hash = hash(self._pairs)

    def __hash__(self) -> int:  # type: ignore[override]
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ColumnTypeNames) and self._pairs == other._pairs)


NO_TYPES = ColumnTypeNames({})


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of one table, or of a kind that is `ignored`, which may name one too.

    `types`: columns and their types where the message carries them. `keys`: the key's columns where it does. `at`: event
    time in microseconds since 1970. `order`: elements of the sequence by which its source orders it; empty where that is the
    order of the stream. `before` and `after`: what `MessageFormat.to_json` shows. `db`: the database, where no table is
    named.
    """

    table: str = ""
    ignored: str = ""
    changes: Sequence[MessageChange] = ()
    types: ColumnTypeNames = NO_TYPES
    keys: tuple[str, ...] = ()
    at: int | None = None
    tx: str | None = None
    order: tuple[int, ...] = ()
    before: Any = None
    after: Any = None
    db: str = ""


class MessageRows(Protocol):
    """Reads columns of rows of one layout, row by row."""

    columns: Collection[str]
    """The columns it can read."""
    blank: Any
    """What `decode` makes of a row without values."""
    decode: Any
    """Makes of a `MessageChange`'s row what the others take. Raises one of `arrow.record_errors.UNREADABLE`."""

    def can_hold(self, row: Any, names: Sequence[str]) -> bool:
        """Whether a `MessageChange`'s row could have one of these columns, without decoding it; True where that is not
        known."""
        ...

    def values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A column of every row: UNSET where the row lacks it, None where it is null."""
        ...

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column, None for null, as Arrow values. Raises one of `arrow.record_errors.FAILURES`."""
        ...

    def text(self, value: Any) -> str | None:
        """The text that a value is written in, by which values of one column are compared. Raises one of
        `arrow.record_errors.UNREADABLE`."""
        ...


class BatchReader(Protocol):
    """Reads many messages of one layout together, with their rows."""

    rows: TypedRows
    decode: Any
    """Makes of a message what the others take. Raises one of `arrow.record_errors.UNREADABLE` for one of another table,
    and for any that is not what it should be."""

    def ops(self, messages: Sequence[Any]) -> list[Op | None]:
        """The operations of messages; None for one of another layout, without rows, or whose rows `read_contents` does not
        take."""
        ...

    def read_contents(self, messages: Sequence[Any], ops: Sequence[Op]) -> MessageContents:
        """What messages with these operations say."""
        ...


class MessageFormat(Protocol):
    """A format of messages. Pure."""

    name: str
    connector: str
    ordered: int
    """How many elements `Message.order` has."""
    by_tx: bool = False
    """See `TableSpec`; the image before has every column that was sent, and not only those that changed."""

    def read(self, value: bytes, limits: RecordLimits) -> Message:
        """The message. Raises one of `arrow.record_errors.UNREADABLE`, `Unfit` among them, for anything else."""
        ...

    def column(self, name: str, said: str) -> Column | None:
        """The column of a type that messages name; None where the type is not known."""
        ...

    def find_table(self, value: bytes, limits: RecordLimits) -> str | None:
        """The table that a message names, also one that cannot be read otherwise. Never fails."""
        ...

    def make_row_reader(self, columns: ColumnTypes) -> MessageRows:
        """What reads these columns."""
        ...

    def make_batch_reader(self, like: bytes, columns: ColumnTypes, keys: Sequence[str]) -> BatchReader | None:
        """What reads messages together that are of the same layout as this one, and whose rows have these columns, as in
        `make_row_reader`; None where they have to be read one by one."""
        ...

    def to_json(self, image: Any) -> bytes | None:
        """`Message.before` or `after` as JSON text. Never fails."""
        ...


def to_micros(count: int | None, each: int) -> int | None:
    """Microseconds since 1970, of `count` times `each`; None outside the years 1 to 9999."""
    if count is None or not FIRST_US <= count * each <= LAST_US:
        return None
    return count * each


def to_micros_array(counts: Sequence[int | None], each: int) -> pa.Array:
    """`to_micros` of every count."""
    try:
        found = pa.array(counts, pa.int64())
    except OverflowError:
        return pa.array([to_micros(count, each) for count in counts], pa.int64())
    inside = pc.and_(pc.greater_equal(found, -(-FIRST_US // each)), pc.less_equal(found, LAST_US // each))
    return pc.multiply(pc.if_else(inside, found, pa.scalar(None, pa.int64())), each)
