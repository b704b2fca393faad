"""The rows of a plain Delta table as a stream: appended rows, or its change data feed."""
