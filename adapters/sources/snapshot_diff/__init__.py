"""Full snapshots of a table as a stream of changes: files in a folder, or results of a query.

**Journal.** Each snapshot is compared by key with the previous one. The differences are appended to a Delta table in the
state folder, in one commit with the snapshot's version. They are new rows (`c`), changed rows (`u`) and deleted rows (`d`,
with their last values). Lanes read this journal as rows of a Delta table (`adapters.sources.delta_table`). It defines
offsets, restarts and losses, so removed snapshots and the size of batches do not matter.

**The previous snapshot** is kept until the next one was compared with it. Rows are never compared with a target.

**Versions** of files are the digits at the end of a name, and must increase: `2024-01-05.parquet`,
`customers_20240105T101500.parquet`, `v000012/`. A snapshot below one that was processed is a DataLoss that names it.
Versions of query results are the times of the queries.
"""
