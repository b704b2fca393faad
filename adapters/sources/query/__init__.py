"""Rows from repeated queries of a database, by a column that identifies new rows: a time or an increasing number.

**Journal.** A query has no offsets: the same query returns other rows later. So rows are stored before lanes read them,
in a Delta table in the state folder, some rows per commit. Each commit also has the position in the column. Lanes read
this journal as rows of a Delta table (`adapters.sources.delta_table`). A kill between two commits loses and duplicates
nothing, because rows and position are one commit.

**Query.** Each query reads all rows from the highest value that was read, less an overlap. Transactions that committed
late have rows with older values, and several rows may share the highest value. Rows that were read before are recognised
by their key and all of their values (`adapters.sources.query.source`), and left out.

**Order.** For each key the row that was read later is newer, even if its time is older: clocks go back. Versions are times
of reading.
"""
