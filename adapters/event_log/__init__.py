"""Reading and writing of event logs, independent of their storage."""
