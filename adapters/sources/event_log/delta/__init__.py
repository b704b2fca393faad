"""An event log in a Delta table as a source."""
