"""Shared by the Spark engine, its sources and sinks: the session, and the conversion of Arrow types."""
