"""The port to wire formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from replicator.domain.table import TableSpec
from replicator.domain.transactions import Mark

ROUTE = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("ignored", pa.string()),
        pa.field("error", pa.string()),
    ]
)
"""Per record: exactly one of `table` (then `fingerprint` too), `ignored` (its kind) and `error` is not null."""

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
    """

    def route(self, raw: pa.Table) -> pa.Table:
        """Schema `ROUTE`, one row per record of the raw frame, in its order. Cheap: parses schemas, not rows."""

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """The table as the records of one fingerprint describe it, from the schema they carry or from what is declared.

        `sample` holds records of that run; rows are read only as far as needed to see the schema. Raises `Fatal` when the
        schema cannot be known (schemaless input and nothing declared) or cannot be represented.
        """

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """The changes frame (`domain.change.changes_schema(table)`) of records routed to this table and fingerprint, in
        their order. Rows with `_error` are rejects: their `_topic`, `_partition`, `_offset` say which record."""

    def envelope(self, raw: pa.Table) -> pa.Table:
        """Schema `ENVELOPE`, one row per record, in their order; never fails, whatever the bytes."""


@runtime_checkable
class TellsTransactions(Protocol):
    """A wire format in which a source tells where its transactions begin and end."""

    def marks(self, raw: pa.Table) -> Sequence[Mark]:
        """What the records of a raw frame tell, in their order; none for a record that tells nothing of the kind, or that
        cannot be read."""
