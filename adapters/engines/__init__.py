"""Engines: what carries frames from raw records to folded rows."""
