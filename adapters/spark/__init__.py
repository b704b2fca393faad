"""What the Spark engine, its sources and its sinks share: the session, and how Arrow types travel through Spark."""
