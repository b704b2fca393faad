"""An event log in a Delta table, read as a stream."""
