"""Engines: they turn frames of raw records into folded rows."""
