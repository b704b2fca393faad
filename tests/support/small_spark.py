"""Spark options for tests: few rows, many plans, little memory."""

from __future__ import annotations

JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
"""Optimizations for long jobs slow down short ones. With one tier, Java reserves only 48 MB for code, and Spark fills that
within two minutes."""
WHOLE = "-Xms1g -Xmn400m -XX:MetaspaceSize=320m"
"""A heap that grows is collected whole at every step. The garbage of plans and tasks is young."""
FEW_TABLES = "-Ddelta.log.cacheSize=32"
"""Delta caches a table's log with its plans, some megabytes, for an hour. Each test creates new tables."""

SMALL = {
    # Two parallel tasks, each of which may fail once.
    "spark.master": "local[2,2]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    # The tasks of a VACUUM.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.driver.extraJavaOptions": f"{JAVA} {WHOLE} {FEW_TABLES}",
    "spark.executor.extraJavaOptions": JAVA,
}
