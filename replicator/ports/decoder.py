"""The port to wire formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from replicator.domain.connectors import Connector
from replicator.domain.table import TableSpec
from replicator.domain.transactions import TransactionMark

ROUTE = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("ignored", pa.string()),
        pa.field("error", pa.string()),
    ]
)
"""Per record: exactly one of `fingerprint` (then `table` too), `ignored` (its kind) and `error` is not null. With `error`
stands the `table` that the record names, if it does."""

TABLE_DROPPED = "table dropped"
"""The kind of an ignored record that says, in its table's own stream and in order, that the table was dropped. Its envelope
names the table."""

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
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("schema_id", pa.string()),
        pa.field("error", pa.string()),
    ]
)
"""What the event log keeps of a record beside its bytes; null where it cannot be known. `before`, `after` are JSON text
as sent. `source` is the logical name the connector gives itself."""


class Decoder(Protocol):
    """A wire format: what the bytes mean. Pure and picklable: the same calls run in process and on Spark executors.

    No call raises for bad input: a bad record gets an error `CODE: sentence` (`domain.errors.Reject`) without any value of
    the row in it, and never disturbs its neighbours (test_bad_record_is_isolated). Every record that goes in comes
    out as at least one row (test_nothing_vanishes).

    A decoder that asks a server for schemas raises Retryable from any call while that does not answer, EnvironmentProblem
    when it is refused. The call has done nothing then, and may be repeated. What `route` has seen is known to the calls that
    follow it in the same process.
    """

    def route(self, raw: pa.Table) -> pa.Table:
        """Schema `ROUTE`, one row per record of the raw frame, in its order. Cheap: parses schemas, not rows. A record
        without a key, a value and headers is ignored (test_a_record_of_nothing_is_ignored)."""

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """The table as the records of one fingerprint describe it, from the schema they carry or from what is declared.

        `sample` holds records of that run; rows are read only as far as needed to see the schema. Raises `Fatal` when the
        schema cannot be known (schemaless input and nothing declared) or cannot be represented.
        """

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """The changes frame (`domain.change.changes_schema(table)`) of records routed to this table and fingerprint, in
        their order. Rows with `_error` are rejects: their `_topic`, `_partition`, `_offset` say which record. `table` may
        have its key columns alone: keys and operations are the same then (test_keys_are_decoded_alone)."""

    def envelope(self, raw: pa.Table) -> pa.Table:
        """Schema `ENVELOPE`, one row per record, in their order; never fails, whatever the bytes."""


@runtime_checkable
class PrintsRecords(Protocol):
    """A wire format whose records people know in words of its own."""

    def printed(self, raw: pa.Table) -> pa.Table:
        """One row per record, in their order, all null for one without a value; never fails, whatever the bytes. The last
        column is `error`: why the record cannot be read."""


@runtime_checkable
class MasksRecords(Protocol):
    """A wire format whose records can be written anew without the values that nobody is to get. What it decodes is without
    them already."""

    def mask_records(self, raw: pa.Table) -> pa.Table:
        """The records of a raw frame as they may be stored, in their order; never fails, whatever the bytes. A value or a
        key of which that cannot be told is withheld."""


@runtime_checkable
class FiltersErased(Protocol):
    """A decoder that knows records of which nothing is to be kept, wherever. What it routes is without them already."""

    def find_erased(self, raw: pa.Table) -> pa.Array | None:
        """True for each record of a raw frame that nobody is to get; None when there is none."""


@runtime_checkable
class ReadsTransactionMarks(Protocol):
    """A wire format in which a source tells where its transactions begin and end."""

    def marks(self, raw: pa.Table) -> Sequence[TransactionMark]:
        """What the records of a raw frame tell, in their order; none for a record that tells nothing of the kind, or that
        cannot be read."""

    def connector(self, raw: pa.Table) -> Connector | None:
        """What wrote the newest records of a raw frame; None where none of those that are looked at says so."""
