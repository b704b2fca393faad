"""Keeps copies of a live database correct: one change stream, several sinks, a policy per table."""

from ._compat import install

__version__ = "0.1.0"

install()
