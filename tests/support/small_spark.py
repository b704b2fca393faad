"""Spark for tests: some rows, many plans, little memory."""

from __future__ import annotations

JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
"""What makes long jobs fast costs short ones more than it gives. With one tier Java would keep room for 48 MB of code only,
which Spark fills within two minutes."""
WHOLE = "-Xms1g -Xmn400m -XX:MetaspaceSize=320m"
"""Memory that grows by need is collected as a whole at every step; and what plans and tasks leave is young."""
FEW_TABLES = "-Ddelta.log.cacheSize=32"
"""Delta keeps a table's log with its plans, some megabytes, for an hour: each test makes new tables."""

SMALL = {
    # Two tasks side by side, each of which may fail once.
    "spark.master": "local[2,2]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    # Tasks of a VACUUM.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.driver.extraJavaOptions": f"{JAVA} {WHOLE} {FEW_TABLES}",
    "spark.executor.extraJavaOptions": JAVA,
}
