"""One measured run of the daemon on Spark in a process of its own: `python -m benchmarks.spark_child CONFIG LAKE OUT`."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from replicator.wiring.configuration import read_config

from .journal import Journal


def run(config: Path, table: Path) -> dict[str, Any]:
    """Until caught up; seconds from the start of the pipeline to the last commit, those between commits, and of each how
    long its MERGE took by the log of the Delta table."""
    journal, began = Journal(), time.monotonic()
    journal.run(read_config(config, None, ()))
    moments = [began, *(at for at, _, counts in journal.commits if counts.total)]
    took = [later - before for before, later in pairwise(moments)]
    history = reversed(DeltaTable(str(table)).history())
    merges = [commit["operationMetrics"] for commit in history if commit["operation"] == "MERGE"]
    return {
        "seconds": moments[-1] - began,
        "batches": took,
        "merges": [int(metrics["executionTimeMs"]) / 1000 for metrics in merges],
    }


if __name__ == "__main__":
    _, config_, table_, out_ = sys.argv
    Path(out_).write_text(json.dumps(run(Path(config_), Path(table_))))
