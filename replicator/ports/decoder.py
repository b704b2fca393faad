"""The port to wire formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from replicator.domain.change import TIMESTAMP
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Connector, TransactionMark

ROUTE = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("ignored", pa.string()),
        pa.field("error", pa.string()),
    ]
)
"""One row per record. Exactly one of `fingerprint` (with `table`), `ignored` (its kind) and `error` is not null. With
`error`, `table` is set if the record names one."""

TABLE_DROPPED = "table dropped"
"""The kind of an ignored record that reports a DROP TABLE, in the table's own stream and in order. Its envelope names
the table."""

ENVELOPE = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("connector", pa.string()),
        pa.field("db", pa.string()),
        pa.field("table", pa.string()),
        pa.field("op", pa.string()),
        pa.field("before", pa.string()),
        pa.field("after", pa.string()),
        *(pa.field(f"seq_{i}", pa.int64()) for i in range(1, 5)),
        pa.field("tx", pa.string()),
        pa.field("ts", TIMESTAMP),
        pa.field("schema_id", pa.string()),
        pa.field("error", pa.string()),
    ]
)
"""The columns of the event log that describe a record, besides its bytes; null if a value is not known. `before` and
`after` are JSON text as sent. `source` is the connector's logical name."""


class Decoder(Protocol):
    """A wire format: it turns the bytes of records into changes. Pure and picklable: the same calls run in process and
    on Spark executors.

    Bad input never raises: a bad record gets an error `CODE: sentence` (`domain.errors.Reject`) without any value of
    the row, and does not affect other records (test_bad_record_is_isolated). Every input record becomes at least one
    output row (test_every_routed_record_becomes_a_row).

    A decoder that reads schemas from a server raises Retryable while the server does not answer, and EnvironmentProblem
    if the server refuses. Such a call had no effect and may be repeated. Schemas that `route` has read are available to
    later calls in the same process.
    """

    @property
    def features(self) -> DecoderFeatures:
        """Everything that the decoder can do besides these methods. The same for all its life."""

    def route(self, raw: pa.Table) -> pa.Table:
        """Schema `ROUTE`, one row per record of the raw frame, in its order. Cheap: parses schemas, not rows. A record
        without key, value and headers is ignored (test_empty_record_is_ignored)."""

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """The table of one fingerprint, from the schema in its records or from the declared columns.

        `sample` holds records of that fingerprint; rows are read only as far as needed to find the schema. Raises
        `Fatal` if the schema is unknown (input without a schema, and no declared columns) or cannot be represented.
        """

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """The changes frame (`domain.change.changes_schema(table)`) of records routed to this table and fingerprint, in
        their order. Rows with `_error` are rejects; `_topic`, `_partition`, `_offset` identify the record. `table` may
        have only its key columns: keys and operations are then the same
        (test_table_of_key_columns_decodes_the_same_keys)."""

    def envelope(self, raw: pa.Table) -> pa.Table:
        """Schema `ENVELOPE`, one row per record, in their order. Never fails, for any bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFeatures:
    """Everything that a decoder can do besides the methods of `Decoder`. A field is a method of the decoder; None is not
    supported:

        DecoderFeatures(mask_records=self.mask_records)

    A decoder that wraps another one changes the features of that one with `dataclasses.replace`.
    """

    print_records: Callable[[pa.Table], pa.Table] | None = None
    """The records of a raw frame in the format's own terms, one row per record, in their order. All null for a record
    without a value. Never fails, for any bytes. The last column is `error`: why the record cannot be read."""

    mask_records: Callable[[pa.Table], pa.Table] | None = None
    """The records of a raw frame without private values, for storage, in their order. Never fails, for any bytes. A value
    or a key that cannot be masked is removed. For a decoder whose decoded changes are already without them."""

    find_erased: Callable[[pa.Table], pa.Array | None] | None = None
    """True for each record of the raw frame that belongs to an erased key; None if there is no such record. Nothing of
    such a record may be stored. For a decoder whose routed records are already without them."""

    read_marks: Callable[[pa.Table], Sequence[TransactionMark]] | None = None
    """The marks of the source's transactions in a raw frame, in order. A record without a mark, or an unreadable one, gives
    none."""

    find_connector: Callable[[pa.Table], Connector | None] | None = None
    """The connector that wrote the newest records of a raw frame; None if none of the inspected records names it. For a
    decoder that reads marks."""
