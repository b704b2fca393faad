"""The frames that travel between source, decoder, engine and sink.

The *raw frame* is what a transport delivers. The *changes frame* is the only contract between decoding and everything
after it; its bookkeeping columns start with an underscore and come first, then the table's columns in order. The
*folded frame* is a changes frame after the fold, with the columns of `FOLDED` added.
"""

from __future__ import annotations

import re
from enum import StrEnum

import pyarrow as pa

from .errors import Fatal
from .table import TableSpec


class Op(StrEnum):
    """Operation of a change event, in Debezium's letters."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"
    TRUNCATE = "t"


OP = "_op"
TS = "_ts"
TOPIC = "_topic"
PARTITION = "_partition"
OFFSET = "_offset"
TX = "_tx"
ERROR = "_error"
TABLE = "_table"
"""In frames of records that were rejected before they were decoded: the table that one names, if it does."""
UNCHANGED = "_unsent"
OLD_KEY = "_moved_from"
KEY_CHANGE_DELETE = "_moved_to"
RESET = "_reset"

KEEP_EXISTING = ""
"""First in an `_unsent` list: what it names is NULL, and stays as it was where there is a row (`TableSpec.ignore_null`);
none is needed. In that of a delete that leaves its row (`TableSpec.soft_deletes`): everything stays as it was, and the
others are of its image as it came."""

RAW = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""One row per record, in arrival order: per partition by offset. A null value is a tombstone. `timestamp` is null where the
record has none, and where it has one outside the years 1 to 9999: brokers take any number, targets do not."""

ERROR_HEADER = "replicator.error"
"""Header of a raw record that the source itself could not read; its value is a `domain.errors.Reject` as text. Routing
makes it that reject, whatever the record holds."""


def sequence_columns(count: int) -> tuple[str, ...]:
    """`_seq_1` to `_seq_<count>`."""
    return tuple(f"_seq_{i}" for i in range(1, count + 1))


def key_struct(table: TableSpec) -> pa.StructType:
    """The type of `_find_old_key`: the key columns as one struct."""
    return pa.struct([(k, table.column(k).type) for k in table.keys])


def changes_schema(table: TableSpec) -> pa.Schema:
    """The schema of the changes frame of `table`.

    `_op` one of c u d r t. `_seq_*` the sequence (`TableSpec.sequence_types`), not null unless `_error` is set. `_ts`
    event time at the source, of the years 1 to 9999, or null. `_topic`, `_partition`, `_offset` identify the record.
    `_tx` transaction id or null. `_error` null, or `CODE: sentence` of `errors.Reject`: such a row is a reject and its
    other values do not count. `_unsent` names the columns whose value was not sent (unchanged TOAST, partial image),
    null when all were; on the delete half of a key change also those of which that is not known: such a doubtful image has
    values in them. `_find_old_key` is the old key on the create half of a key change, `_moved_to` is true on its delete
    half; both null otherwise. For `d` the columns hold the before image as sent; for `t` all are null.
    """
    moved = [pa.field(OLD_KEY, key_struct(table))] if table.keys else []
    return pa.schema(
        [
            pa.field(OP, pa.string()),
            *map(pa.field, sequence_columns(table.sequence), table.sequence_types),
            pa.field(TS, pa.timestamp("us", "UTC")),
            pa.field(TOPIC, pa.string()),
            pa.field(PARTITION, pa.int32()),
            pa.field(OFFSET, pa.int64()),
            pa.field(TX, pa.string()),
            pa.field(ERROR, pa.string()),
            pa.field(UNCHANGED, pa.list_(pa.string())),
            *moved,
            pa.field(KEY_CHANGE_DELETE, pa.bool_()),
            *(pa.field(c.name, c.type) for c in table.columns),
        ]
    )


FOLDED = (pa.field(RESET, pa.bool_(), nullable=False),)
"""`_reset`: the key was deleted or the table truncated earlier in the batch, so what the target holds of this key is
void: values that were not sent must not be taken from it."""


FOLD_COLUMNS = frozenset(
    {"_a", "_i", "_row", "_last", "_void", "_outcome", "_moved", "_live", "_copy", "_falls", "_reading", "_doubtful"}
)
WORKING_COLUMNS = FOLD_COLUMNS | {"_place", "_verdict", "_late", "_mark", "_k", "_f", "_m", "_w"}
NUMBERED_COLUMNS = re.compile(r"_(?:from_|seq_|v|p)\d+")
"""Names that engines and sinks give to columns of their own while they relate rows to each other. Engines fold the case of
names, so a source column may not have them in any case."""


def is_frame_column(name: str) -> bool:
    """A bookkeeping column of the frames or of the stages has such a name, in any case."""
    taken = {f.name for f in changes_schema(TableSpec("", (), (), 4))} | {OLD_KEY, RESET} | WORKING_COLUMNS
    return name.casefold() in taken or NUMBERED_COLUMNS.fullmatch(name.casefold()) is not None


def refuse_frame_names(table: TableSpec) -> None:
    """Raise Fatal when a source column has the name of a bookkeeping column of the frames or of the stages, in any case."""
    for name in table.column_names:
        if is_frame_column(name):
            raise Fatal(
                f"column {name!r} of table {table.name} has a name that replicator keeps for itself",
                next_step="Leave the column out at the source, or rename it there.",
            )
