"""Messages, independent of their format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op
from replicator.domain.errors import Reject
from replicator.domain.out_of_range import FIRST_US, LAST_US
from replicator.domain.table import Column

from ...arrow.record_errors import UNREADABLE, unreadable_reject
from ...arrow.record_limits import RecordLimits
from ..json.format_detection import hint_by_names
from .typed_rows import ColumnTypes, TypedRows


class MessageContents(NamedTuple):
    """Contents of consecutive messages.

    - `rows`, `olds`: values of the types `TypedRows.row` and `old`; None for a missing old image.
    - `message_numbers`: the message of each row; None if each message has one row.
    - `at`: microseconds since 1970.
    - `orders`: order elements; empty if the stream orders the messages.
    """

    ops: Sequence[Op]
    rows: Sequence[Any]
    olds: Sequence[Any]
    message_numbers: Sequence[int] | None
    at: pa.Array
    tx: pa.Array
    orders: Sequence[pa.Array] = ()


class MessageChange(NamedTuple):
    """One row of a message and its old image, as the format decodes them. None for a missing one; a truncate has none."""

    op: Op
    row: Any = None
    old: Any = None


class ColumnTypeNames(dict[str, str]):
    """Columns and their types, in order, with a cached hash. Readers of many messages of one table share one object."""

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
    """A message of one table, or an `ignored` one, which may name a table too.

    - `types`: columns and their types, if the message has them.
    - `keys`: the key columns, if the message has them.
    - `at`: event time in microseconds since 1970.
    - `order`: sequence elements from the source; empty if the stream orders the messages.
    - `before`, `after`: images for `MessageFormat.to_json`.
    - `db`: the database, if no table is named.
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
    """The columns that it can read."""
    blank: Any
    """The decoded form of a row without values."""
    decode: Any
    """Decodes a `MessageChange`'s row for the other methods. Raises one of `arrow.record_errors.UNREADABLE`."""

    def can_hold(self, row: Any, names: Sequence[str]) -> bool:
        """True if a row of a `MessageChange` may have one of these columns. Checked without decoding; True if unknown."""
        ...

    def values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A column of every row: UNSET if it is missing, None if it is null."""
        ...

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column as an Arrow array; None is null. Raises one of `arrow.record_errors.FAILURES`."""
        ...

    def text(self, value: Any) -> str | None:
        """The text of a value, for comparing values of one column. Raises one of `arrow.record_errors.UNREADABLE`."""
        ...


class BatchReader(Protocol):
    """Reads many messages of one layout at once, with their rows."""

    rows: TypedRows
    decode: Any
    """Decodes a message for the other methods. Raises one of `arrow.record_errors.UNREADABLE` for an invalid message, and
    for one of another table."""

    def ops(self, messages: Sequence[Any]) -> list[Op | None]:
        """The operations of messages. None for a message with another layout, without rows, or with rows that
        `read_contents` does not support."""
        ...

    def read_contents(self, messages: Sequence[Any], ops: Sequence[Op]) -> MessageContents:
        """The contents of messages with these operations."""
        ...


class MessageFormat(Protocol):
    """A format of messages. Pure."""

    name: str
    """The name of the format in the config."""
    connector: str
    """The value of the metadata field `connector`: the kind of database that the changes are from."""
    order_elements: int
    """The number of sequence elements that a message has in `Message.order`; 0 if only the offset orders messages."""
    by_tx: bool = False
    """True if only the transaction id shows which changes belong together, and the database may check keys late (see
    `TableSpec.by_tx`). An old image then has every column that was sent. If false, it has only the columns that changed."""

    def read(self, value: bytes, limits: RecordLimits) -> Message:
        """The parsed message. Raises one of `arrow.record_errors.UNREADABLE`, such as `ValueMisfit`."""
        ...

    def column(self, name: str, said: str) -> Column | None:
        """The column for a type name in messages; None for an unknown type."""
        ...

    def find_table(self, value: bytes, limits: RecordLimits) -> str | None:
        """The table that a message names, even if the message is otherwise unreadable. Never fails."""
        ...

    def make_row_reader(self, columns: ColumnTypes) -> MessageRows:
        """The reader of these columns."""
        ...

    def make_batch_reader(self, like: bytes, columns: ColumnTypes, keys: Sequence[str]) -> BatchReader | None:
        """A reader for batches of messages that have the same layout as `like` and rows with these columns, as in
        `make_row_reader`. None if messages must be read one by one."""
        ...

    def to_json(self, image: Any) -> bytes | None:
        """`Message.before` or `after` as JSON text. Never fails."""
        ...


def read_message(form: MessageFormat, value: bytes, limits: RecordLimits) -> Message | Reject:
    """The parsed message, or the error."""
    try:
        return form.read(value, limits)
    except UNREADABLE as error:
        return hint_by_names(unreadable_reject(error), value, form.name)


def to_micros(count: int | None, each: int) -> int | None:
    """`count` times `each` microseconds since 1970; None outside the years 1 to 9999."""
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
