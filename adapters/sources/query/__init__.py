"""Rows of a database that are asked for again and again, by a column that says what is new: a time, or a number that counts.

**Journal.** A query has no offsets: asked twice, it gives other rows. So what it gave is written down before anybody reads
it, in a Delta table in the state folder, some rows per commit; and the commit says how far the column was read. Lanes read
this journal as rows of a Delta table (`..rows`). A kill between two commits loses nothing and gives nothing twice, as rows
and the place to go on from are one commit.

**What is asked** is all from the border on, the highest value that was read, less an overlap: transactions that committed
late have rows with older values, and rows that share the border are several. What was read before is known by its key and
all of its values (`adapters.sources.query.recent_rows`), and left out.

**Order.** Of a key what was read later is later, whatever its time says: clocks go back. Versions are times of reading.
"""

from .source import QuerySource

__all__ = ["QuerySource"]
