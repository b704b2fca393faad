"""Refuses tables with a Delta protocol that this program cannot write."""

from __future__ import annotations

from deltalake import DeltaTable

from replicator.domain.errors import Fatal

READER, WRITER = 3, 7
IDENTITY_COLUMNS = 6
"""The writer version that includes identity columns without naming them."""

FEATURES = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
"""Table features with which delta-rs commits.

For any other feature it reports that another writer committed first, so such tables are refused earlier. This
also applies to Spark, where delta-rs widens, clears and compacts tables.
"""

CLUSTERING = "clustering"
CLUSTERED = frozenset({CLUSTERING, "domainMetadata"})
"""The features of liquid clustering: only Spark can write such tables."""


def is_clustered(table: DeltaTable) -> bool:
    """True when delta-rs cannot commit to the table because of its clustering."""
    return CLUSTERING in (table.protocol().writer_features or ())


def refuse_newer(table: DeltaTable, name: str, features: frozenset[str] = FEATURES) -> None:
    """Raises Fatal, with the reason, when the table's protocol or features (other than `features`) cannot be
    written."""
    protocol = table.protocol()
    unknown = sorted({*(protocol.writer_features or ()), *(protocol.reader_features or ())} - features)
    if unknown and CLUSTERED.issuperset(unknown):
        raise Fatal(
            f"table {name} has liquid clustering, which delta-rs cannot write. Nothing was written",
            next_step="Let `engine: spark` write it (`cluster_by`), or give the lane another table with `into`.",
        )
    if unknown:
        raise unwritable_error(name, f"the table feature{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}")
    if protocol.min_reader_version > READER:
        raise unwritable_error(name, f"reader version {protocol.min_reader_version}")
    if protocol.min_writer_version > WRITER or protocol.min_writer_version == IDENTITY_COLUMNS:
        raise unwritable_error(name, f"writer version {protocol.min_writer_version}")


def unwritable_error(name: str, what: str) -> Fatal:
    """The error for a table that needs `what`."""
    return Fatal(
        f"table {name} has {what} of the Delta protocol, which Replicator cannot write. Nothing was written",
        next_step="Update Replicator, or drop the feature from the table. Or give the lane another table with `into`.",
    )
