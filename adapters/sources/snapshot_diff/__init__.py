"""Full snapshots of a table, as a stream of changes: files in a folder, or what a database gives when it is asked.

**Journal.** Each snapshot is compared by its key with the one before, and what differs is appended to a Delta table in the
state folder, in one commit: the rows that are new (`c`), that hold other values (`u`) or that are gone (`d`, with their
last values), with the snapshot's version. This journal is what lanes read, as rows of a Delta table (`..rows`): offsets,
restarts and losses are its own, so it does not matter which snapshots are still there, or how a batch was cut.

**The one before** is kept beside it, until the next was compared with it. No row is compared with a target.

**Versions** of files are the digits at the end of a name, and must rise: `2024-01-05.parquet`,
`customers_20240105T101500.parquet`, `v000012/`. A snapshot that turns up below one that was taken in is a DataLoss that
names it. Versions of a database's answers are the times at which it was asked.
"""

from .source import SnapshotsSource

__all__ = ["SnapshotsSource"]
