"""The frames that source, decoder, engine and sink exchange.

The *raw frame* is the output of a transport. The *changes frame* is the only contract between decoding and everything
after it. Its bookkeeping columns start with an underscore and are first, then the table's columns in order. The *folded
frame* is a changes frame after the fold, with `_reset` added.
"""

from __future__ import annotations

import re
from enum import StrEnum

import pyarrow as pa

from .errors import Fatal
from .table import TableSpec

TIMESTAMP = pa.timestamp("us", "UTC")
"""The type of event times, and of the times in targets and in Replicator's own tables."""


class Op(StrEnum):
    """Operation of a change event, as Debezium's one-letter code."""

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
RECORD_POSITION = (TOPIC, PARTITION, OFFSET)
"""The columns with the position of the record."""
RAW_RECORD_POSITION = ("topic", "partition", "offset")
"""The same columns of a raw frame."""
ERROR = "_error"
TABLE = "_table"
"""In frames of records that were rejected before they were decoded: the table that the record names, if any."""
# SQL, Spark and the docs show the columns' names, which are older than the words of these constants: UNCHANGED is
# `_unsent`, OLD_KEY is `_moved_from`, and KEY_CHANGE_DELETE is `_moved_to`, a boolean. See `changes_schema`.
# The lists hold names, not numbers: frames of several schema versions are united, and names stay valid.
UNCHANGED = "_unsent"
OLD_KEY = "_moved_from"
KEY_CHANGE_DELETE = "_moved_to"
RESET = "_reset"
"""The key was deleted or the table truncated earlier in the batch: a boolean, never null. The target's row of this key is
void, and unchanged values must not be read from it."""

KEEP_EXISTING = ""
"""First item of an `_unsent` list. In an upsert, the columns in the list are NULL and leave the values of an existing
row (`TableSpec.ignore_null`); no row is needed. In a delete that leaves its row (`TableSpec.soft_deletes`), all values
stay, and the other names are the unchanged columns of the image as sent."""

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
"""One row per record, in arrival order: per partition by offset. A record with a null value is a null record.
`timestamp` is null if the record has none, or one outside the years 1 to 9999: brokers accept any number, targets do
not."""

ERROR_HEADER = "replicator.error"
"""Header of a raw record that the source itself could not read; its value is a `domain.errors.Reject` as text. Routing
always rejects the record with it."""


def sequence_columns(count: int) -> tuple[str, ...]:
    """`_seq_1` to `_seq_<count>`."""
    return tuple(f"_seq_{i}" for i in range(1, count + 1))


def key_struct(table: TableSpec) -> pa.StructType:
    """The type of `_moved_from`: the key columns as one struct."""
    return pa.struct([(k, table.column(k).type) for k in table.keys])


def changes_schema(table: TableSpec) -> pa.Schema:
    """The schema of the changes frame of `table`.

    - `_op`: one of c u d r t.
    - `_seq_*`: the sequence (`TableSpec.sequence_types`), not null unless `_error` is set.
    - `_ts`: event time at the source, of the years 1 to 9999, or null.
    - `_topic`, `_partition`, `_offset`: identify the record.
    - `_tx`: transaction id or null.
    - `_error`: null, or `CODE: sentence` of `errors.Reject`. Such a row is a reject, and its other values do not count.
    - `_unsent`: the columns with unchanged values (TOAST, partial image); null if all values were sent. On the delete
      half of a key change also columns of which this is not known: such a doubtful image has values in them.
    - `_moved_from`: the old key on the create half of a key change; otherwise null.
    - `_moved_to`: true on the delete half of a key change; otherwise null.

    For `d` the columns hold the before image as sent; for `t` all are null.
    """
    old_key = [pa.field(OLD_KEY, key_struct(table))] if table.keys else []
    return pa.schema(
        [
            pa.field(OP, pa.string()),
            *map(pa.field, sequence_columns(table.sequence), table.sequence_types),
            pa.field(TS, TIMESTAMP),
            pa.field(TOPIC, pa.string()),
            pa.field(PARTITION, pa.int32()),
            pa.field(OFFSET, pa.int64()),
            pa.field(TX, pa.string()),
            pa.field(ERROR, pa.string()),
            pa.field(UNCHANGED, pa.list_(pa.string())),
            *old_key,
            pa.field(KEY_CHANGE_DELETE, pa.bool_()),
            *(pa.field(c.name, c.type) for c in table.columns),
        ]
    )


# Engines and sinks add these columns while they join rows. Engines fold the case of names, so a source column must not
# have such a name in any case.
WORKING_COLUMNS = frozenset(
    # `sql.fold`; `engines.local` adds `_moved`.
    {"_a", "_copy", "_f", "_falls", "_i", "_k", "_last", "_late", "_live", "_m", "_mark", "_moved", "_outcome", "_reading"}
    | {"_void", "_w"}
    | {"_row"}  # `engines.spark.fold`, `sql.per_column`, `apply.reconcile_in_process`
    | {"_doubtful"}  # `arrow.key_change`
    | {"_place"}  # `sql.scd2_events`, `apply.conform`, `engines.spark.engine`
    | {"_verdict"}  # `sql.reconcile`
)
NUMBERED_COLUMNS = re.compile(r"_(?:from_|seq_|v|p)\d+")
"""`_from_1` is of `sql.reconcile`, `_seq_1` of changes frames, `_p1` and `_v1` of `sql.fold`."""


def is_frame_column(name: str) -> bool:
    """True for the name, in any case, of a bookkeeping column of the frames or of the stages."""
    reserved = {f.name for f in changes_schema(TableSpec("", (), (), 4))} | {OLD_KEY, RESET} | WORKING_COLUMNS
    return name.casefold() in reserved or NUMBERED_COLUMNS.fullmatch(name.casefold()) is not None


def refuse_frame_names(table: TableSpec) -> None:
    """Raise Fatal if a source column has the name of a bookkeeping column of the frames or of the stages, in any case."""
    for name in table.column_names:
        if is_frame_column(name):
            raise Fatal(
                f"column {name!r} of table {table.name} is reserved for Replicator",
                next_step="Leave the column out at the source, or rename it there.",
            )
