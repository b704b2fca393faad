"""Renders plans as SQL text for engines and sinks, in the dialect of each."""
